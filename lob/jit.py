"""The one module that imports numba, sets its compile cache, and declares how our functions are compiled.

A `@scalar` function has no signature: it is called as plain Python through `.py_func` (unbounded integers: the oracle), from njit loops,
and from CUDA kernels. numba's cache goes stale when a callee in *another* file changes, so the cache folder is keyed on the bytes of
every source that can hold a compiled function.
"""

import functools
import hashlib
import os
from pathlib import Path
from types import ModuleType

_HOUSE = Path(__file__).resolve().parent.parent
_COMPILED_ROOMS = ("lob", "cuda_env", "policy")


@functools.cache
def kernel_source_hash() -> str:
    """16 hex digits over path and bytes of every Python source in the rooms that hold compiled functions."""
    digest = hashlib.sha256()
    for room in _COMPILED_ROOMS:
        for path in sorted((_HOUSE / room).glob("*.py")):
            digest.update(f"{room}/{path.name}\0{path.stat().st_size}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def compile_cache_dir() -> Path:
    """Where compiled kernels lie: `$TAPEPROOF_CACHE` or `~/.cache/tapeproof`, one folder per kernel source hash."""
    root = os.environ.get("TAPEPROOF_CACHE") or os.path.join(os.path.expanduser("~"), ".cache", "tapeproof")
    return Path(root) / f"numba-{kernel_source_hash()}"


def is_compiled(functions: str) -> bool:
    """Whether this build's compile cache holds any of some functions, named like `cuda_env/kernels_cpu.step_*`."""
    room, _, name = functions.partition("/")
    return any(Path(os.environ["NUMBA_CACHE_DIR"]).glob(f"{room}_*/{name}.nbi"))


os.environ.setdefault("NUMBA_CACHE_DIR", str(compile_cache_dir()))
os.environ.setdefault("NUMBA_CUDA_LOW_OCCUPANCY_WARNINGS", "0")

import numba  # noqa: E402  (the cache folder must be set before the import)

scalar = numba.njit(error_model="numpy", cache=True, _nrt=False, forceinline=True)
"""Decorator for scalar functions: plain Python, njit and CUDA from one text. Division follows IEEE/numpy, as on CUDA."""

kernel_cpu = numba.njit(error_model="numpy", cache=True)
"""Decorator for single-threaded loops over arrays."""

kernel_cpu_parallel = numba.njit(error_model="numpy", cache=True, parallel=True)
"""Decorator for loops over lanes with `prange`. A lane's result never depends on the thread that computed it."""

prange = numba.prange

set_threads = numba.set_num_threads
"""Number of threads that the parallel kernels called next from this thread use."""

int64 = numba.int64
"""Element type of a kernel's shared array."""

MAX_THREADS = numba.config.NUMBA_NUM_THREADS
"""The most that `set_threads` accepts."""


@functools.cache
def cuda() -> ModuleType:
    """`numba.cuda`, imported on first use (it is slow, and not every command needs it)."""
    from numba import cuda as module

    return module
