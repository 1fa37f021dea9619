"""The house's own facts: that its six rooms stand together, its version, and the hash of its sources."""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

ROOMS = ("lob", "store", "cuda_env", "policy", "sim", "cli")


def house_folder() -> Path:
    """The folder that holds the six packages."""
    return Path(__file__).resolve().parent.parent


def split_rooms() -> str | None:
    """One line that says which of the six packages is imported from elsewhere, or None when all share one folder.

    Their names are short: another `store` or `policy` on the import path would otherwise run as ours.
    """
    ours = house_folder()
    for room in ROOMS:
        spec = importlib.util.find_spec(room)
        found = Path(spec.origin).resolve().parent.parent if spec and spec.origin else None
        if found != ours:
            where = f"from {found}" if found else "nowhere"
            return f"package {room} is found {where} and the others in {ours}; take the other folder off PYTHONPATH or install again"
    return None


def version() -> str:
    """The installed distribution's version; `0+source` when the packages run from a folder that was never installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("tapeproof")
    except PackageNotFoundError:
        return "0+source"


def code_hash() -> str:
    """64 hex digits over name and bytes of every Python source of the six packages: which build wrote a log."""
    digest = hashlib.sha256()
    for room in ROOMS:
        for path in sorted((house_folder() / room).glob("*.py")):
            content = path.read_bytes()
            digest.update(f"{room}/{path.name}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()
