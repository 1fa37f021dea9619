"""What this machine has, and whether the house can work on it."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

from sim.house import house_folder, version

PACKAGES = ("numpy", "numba", "numba-cuda", "pyarrow", "duckdb", "torch", "pydantic", "typer", "rich", "zstandard", "tzdata")
OPTIONAL = {"numba-cuda": "only the CUDA kernels need it"}
LEAST_FREE_BYTES = 1 << 30


def examine() -> dict[str, Any]:
    """Versions, processors, GPU, compile cache and disk, as JSON values; `checks` names each thing that must hold and its remedy."""
    packages = {name: _version(name) for name in PACKAGES}
    cache = _cache()
    gpu = _gpu()
    checks = [_check_python(), *(_check_package(name, found) for name, found in packages.items()), _check_cache(cache), _check_disk(cache)]
    return {
        "tapeproof": version(),
        "house": str(house_folder()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "processors": {
            "machine": os.cpu_count(),
            "usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "model": _processor(),
            "memory_bytes": _memory_bytes(),
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
            "NUMBA_NUM_THREADS": os.environ.get("NUMBA_NUM_THREADS"),
        },
        "gpu": gpu,
        "cache": cache,
        "checks": checks,
        "ok": all(check["ok"] for check in checks),
    }


def _version(name: str) -> str | None:
    try:
        return installed(name)
    except PackageNotFoundError:
        return None


def _check(name: str, ok: bool, found: str, remedy: str) -> dict[str, Any]:
    return {"name": name, "ok": ok, "found": found, "remedy": None if ok else remedy}


def _check_python() -> dict[str, Any]:
    return _check(
        "python", sys.version_info >= (3, 11), platform.python_version(), "install Python 3.11 or 3.12 and run `make setup` again"
    )


def _check_package(name: str, found: str | None) -> dict[str, Any]:
    """Present, and not older than the distribution asks for."""
    if found is None:
        remedy = "run `make setup`, or pip install it"
        return _check(name, name in OPTIONAL, f"absent ({OPTIONAL[name]})" if name in OPTIONAL else "absent", remedy)
    least = _least(name)
    return _check(name, _numbers(found) >= _numbers(least), found, f"install {name}>={least}: run `make setup`")


def _least(name: str) -> str:
    """The least version that our distribution requires; 0 when it states none, or runs uninstalled."""
    try:
        stated = requires("tapeproof") or []
    except PackageNotFoundError:
        return "0"
    matches = (re.match(rf"{re.escape(name)}\b(?!-)[^;]*>=([\d.]+)", line) for line in stated)
    return next((match[1] for match in matches if match), "0")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.split("+")[0])[:3])


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (OSError, ValueError, AttributeError):
        return None


def _gpu() -> dict[str, Any]:
    """CUDA devices as torch sees them, and whether numba can compile for them."""
    if _version("torch") is None:
        return {"devices": [], "torch_cuda": None, "numba_cuda": False}
    import torch

    from lob.jit import cuda

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = [
        {"name": torch.cuda.get_device_name(i), "memory_bytes": torch.cuda.get_device_properties(i).total_memory} for i in range(count)
    ]
    return {"devices": devices, "torch_cuda": torch.version.cuda, "numba_cuda": bool(cuda().is_available())}


def _cache() -> dict[str, Any]:
    from lob.jit import compile_cache_dir

    folder = compile_cache_dir()
    standing = next(path for path in (folder, *folder.parents) if path.exists())
    return {
        "folder": str(folder),
        "bytes": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else 0,
        "writable": os.access(standing, os.W_OK | os.X_OK),
        "free_bytes": shutil.disk_usage(standing).free,
        "free_bytes_here": shutil.disk_usage(Path.cwd()).free,
    }


def _check_cache(cache: dict[str, Any]) -> dict[str, Any]:
    return _check("cache", cache["writable"], cache["folder"], "set TAPEPROOF_CACHE to a folder that you can write")


def _check_disk(cache: dict[str, Any]) -> dict[str, Any]:
    free = min(cache["free_bytes"], cache["free_bytes_here"])
    return _check("disk", free >= LEAST_FREE_BYTES, f"{free / 1e9:.1f} GB free", "free at least 1 GB for the compile cache, store and runs")
