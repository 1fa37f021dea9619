"""The peers' environment, and one call into it: arrays and JSON in, arrays out, in a process of its own."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

_HERE = Path(__file__).resolve().parent
_REPO = _HERE.parent.parent


def find_peer_python() -> Path | None:
    """The interpreter of `make differential`, or `$TAPEPROOF_DIFFERENTIAL`; None where there is neither."""
    stated = os.environ.get("TAPEPROOF_DIFFERENTIAL")
    python = Path(stated) if stated else _REPO / ".venv-differential" / "bin" / "python"
    return python if python.is_file() else None


def call_peer(script: str, given: dict[str, np.ndarray | str], folder: Path) -> dict[str, np.ndarray]:
    """What `tests/differential/<script>` makes of `given`, through .npz files in `folder`. Skips the test where the peers are absent;
    raises RuntimeError with the peer's own words when it fails."""
    python = find_peer_python()
    if python is None:
        pytest.skip("the peers are not installed: make differential")
    source, target = folder / "given.npz", folder / "made.npz"
    np.savez(source, **given)
    done = subprocess.run([python, _HERE / script, source, target], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{script} failed:\n{done.stdout}\n{done.stderr}")
    with np.load(target) as file:
        return {name: file[name] for name in file.files}
