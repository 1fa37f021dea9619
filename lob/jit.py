"""The one module that imports numba, sets its compile cache, and declares how our functions are compiled.

A `@scalar` function has no signature: it is called as plain Python through `.py_func` (unbounded integers: the oracle), from njit loops,
and from CUDA kernels. numba's cache goes stale when a callee in *another* file changes, so the cache folder is keyed on the bytes of
every source that can hold a compiled function.
"""

import functools
import hashlib
import os
import re
from pathlib import Path
from types import ModuleType

_HOUSE = Path(__file__).resolve().parent.parent
_WHOLE_ROOMS = ("lob", "cuda_env")


def kernel_sources() -> list[Path]:
    """Every source that can shape a compiled function: all of `lob` and `cuda_env`, and of `policy` the modules that use this one, with
    what they import from `policy` in turn. (Its torch modules change often, and no kernel reads them.)
    """
    policy = {path.stem: path.read_text() for path in (_HOUSE / "policy").glob("*.py")}
    waiting = [name for name, text in policy.items() if "lob.jit" in text]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in policy and name not in reached:
            reached.add(name)
            waiting += re.findall(r"^\s*(?:from policy import|from policy\.|import policy\.)\s*(\w+)", policy[name], re.MULTILINE)
    wholly = [path for room in _WHOLE_ROOMS for path in sorted((_HOUSE / room).glob("*.py"))]
    return wholly + [_HOUSE / "policy" / f"{name}.py" for name in sorted(reached)]


@functools.cache
def kernel_source_hash() -> str:
    """16 hex digits over path and bytes of `kernel_sources`."""
    digest = hashlib.sha256()
    for path in kernel_sources():
        content = path.read_bytes()
        digest.update(f"{path.parent.name}/{path.name}\0{len(content)}\0".encode())
        digest.update(content)
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

called = numba.njit(error_model="numpy", cache=True, _nrt=False)
"""Decorator for a scalar function that is too large to stand in every place that calls it: one body, called."""

kernel_cpu = numba.njit(error_model="numpy", cache=True)
"""Decorator for single-threaded loops over arrays."""

kernel_cpu_parallel = numba.njit(error_model="numpy", cache=True, parallel=True)
"""Decorator for loops over lanes with `prange`. A lane's result never depends on the thread that computed it."""

prange = numba.prange

set_threads = numba.set_num_threads
"""Number of threads that the parallel kernels called next from this thread use."""

int64, int32, float32, boolean = numba.int64, numba.int32, numba.float32, numba.boolean
"""Element types of a kernel's shared arrays."""

MAX_THREADS = numba.config.NUMBA_NUM_THREADS
"""The most that `set_threads` accepts."""


@functools.cache
def cuda() -> ModuleType:
    """`numba.cuda`, imported on first use (it is slow, and not every command needs it)."""
    from numba import cuda as module

    return module
