"""The loops of `cuda_env.quotes` on the CPU: decision by decision, so that the rows between two of them stay in the cache for every
lane."""

from cuda_env.arrays import CHUNK_LANES, LANES
from cuda_env.quotes import quote
from lob.jit import kernel_cpu, kernel_cpu_parallel, prange


@kernel_cpu
def quote_chunk(first, last, quotes, market, params, state, out):
    """All decisions of the lanes [first, last)."""
    for step in range(quotes.ts_ns.shape[0]):
        for lane in range(first, last):
            quote(lane, step, quotes, market, params, state, out)


@kernel_cpu
def run_quotes(quotes, market, params, state, out):
    """All decisions of all lanes on this thread."""
    quote_chunk(0, params[LANES], quotes, market, params, state, out)


@kernel_cpu_parallel
def run_quotes_many(quotes, market, params, state, out):
    """`run_quotes` on several threads, a chunk of lanes at a time."""
    chunks = (params[LANES] + params[CHUNK_LANES] - 1) // params[CHUNK_LANES]
    for chunk in prange(chunks):
        first, last = chunk * params[CHUNK_LANES], min(params[LANES], (chunk + 1) * params[CHUNK_LANES])
        quote_chunk(first, last, quotes, market, params, state, out)
