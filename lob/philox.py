"""Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC11).

No state: a draw is a function of (seed, lane, step, purpose), so order, threads, lanes' sharding and resumption cannot change it.
Integers only, hence equal in plain Python, njit and CUDA.
"""

from lob.jit import scalar

_M0 = 0xD2511F53
_M1 = 0xCD9E8D57
_W0 = 0x9E3779B9
_W1 = 0xBB67AE85
_MASK = 0xFFFFFFFF


@scalar
def philox4x32(c0, c1, c2, c3, k0, k1):
    """Ten rounds over a 4x32-bit counter and a 2x32-bit key; returns four 32-bit words, each in a 64-bit integer."""
    for _ in range(10):
        # 32x32 -> 64-bit products by 16-bit halves: a signed 64-bit product of two 32-bit words could overflow.
        low0 = (_M0 * (c0 & 0xFFFF)) & 0xFFFFFFFFFFFF
        high0 = _M0 * (c0 >> 16) + (low0 >> 16)
        p0_hi = (high0 >> 16) & _MASK
        p0_lo = ((high0 & 0xFFFF) << 16) | (low0 & 0xFFFF)
        low1 = (_M1 * (c2 & 0xFFFF)) & 0xFFFFFFFFFFFF
        high1 = _M1 * (c2 >> 16) + (low1 >> 16)
        p1_hi = (high1 >> 16) & _MASK
        p1_lo = ((high1 & 0xFFFF) << 16) | (low1 & 0xFFFF)
        c0, c1, c2, c3 = p1_hi ^ c1 ^ k0, p1_lo, p0_hi ^ c3 ^ k1, p0_lo
        k0 = (k0 + _W0) & _MASK
        k1 = (k1 + _W1) & _MASK
    return c0, c1, c2, c3


@scalar
def draw(seed, lane, step, purpose):
    """Four 32-bit words of the stream named by a 64-bit seed, a lane, a step and a purpose (each < 2^32)."""
    return philox4x32(lane & _MASK, step & _MASK, purpose & _MASK, 0, seed & _MASK, (seed >> 32) & _MASK)


@scalar
def below(word, n):
    """A 32-bit word mapped onto 0..n-1 (n < 2^31) by multiplication; the bias is at most n / 2^32."""
    return (word * n) >> 32
