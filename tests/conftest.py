"""Fixtures that every test file may use. Real market files are never part of the project: a test that needs them finds them or skips."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("tapeproof", deadline=None)  # a first example compiles: its time says nothing
settings.load_profile("tapeproof")

_REPO = Path(__file__).resolve().parent.parent


def find_shared_data() -> Path | None:
    """The folder of real market files: `$TAPEPROOF_DATA`, or `shared/data` beside the repository or one folder further up."""
    stated = os.environ.get("TAPEPROOF_DATA")
    candidates = [Path(stated)] if stated else [_REPO.parent / "shared" / "data", _REPO.parent.parent / "shared" / "data"]
    return next((path for path in candidates if path.is_dir()), None)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real market files; the test is skipped where there is none."""
    found = find_shared_data()
    if found is None:
        pytest.skip("no real market files here: set TAPEPROOF_DATA to their folder")
    return found
