"""The categorical projection of C51 (Bellemare, Dabney, Munos 2017, algorithm 1), for a whole batch, on the CPU and on CUDA.

Atom i of the target moves to z = clip(return + discount * z_i) and its mass goes to the two atoms around z, in proportion to nearness:
m_j = sum of p_i * max(0, 1 - |z - z_j| / dz), the triangular kernel. Both shares come from one fraction, so an atom that lands exactly on
another loses nothing. Torch's dense form of it moves 51 x 51 numbers a row; here each row is one loop in a fixed order.
"""

import math

from lob.jit import kernel_cpu, scalar


@scalar
def project_row(row, branches, probabilities, returns, discount, low, high, out):
    """Fill out[row, :] from probabilities[row, :]; row = sample * branches + branch."""
    atoms = out.shape[1]
    shift, slope = float(returns[row // branches]), float(discount[row // branches])
    width = (high - low) / (atoms - 1)
    for j in range(atoms):
        out[row, j] = 0.0
    for i in range(atoms):
        # By comparisons, which NaN fails: min and max would turn it into an end of the support, unseen.
        moved = shift + slope * (low + i * width)
        if moved > high:
            moved = high
        if moved < low:
            moved = low
        place = (moved - low) / width
        lower = min(atoms - 2, max(0, math.floor(place))) if place == place else 0
        upper_share = place - lower
        out[row, lower] += probabilities[row, i] * (1.0 - upper_share)
        out[row, lower + 1] += probabilities[row, i] * upper_share


@kernel_cpu
def project_rows(branches, probabilities, returns, discount, span, out):
    for row in range(out.shape[0]):
        project_row(row, branches[0], probabilities, returns, discount, span[0], span[1], out)
