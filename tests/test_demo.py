"""The demo is what a newcomer sees first: it must run from end to end, by the installed command."""

import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent


@pytest.mark.deep
def test_the_demo_runs_from_a_file_to_a_proof_and_finds_the_cheaper_buy():
    if not (Path(sys.executable).parent / "sim").exists():
        pytest.skip("the package is not installed beside this Python: `make setup` does it")
    done = subprocess.run([sys.executable, "examples/demo.py"], cwd=REPO, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("VERIFIED\n") == 2
    assert done.stdout.count("FALSIFIED\n(exit code 1)\n") == 1
    forged = done.stdout.split("$ sim verify demo/forged")[1].split("FALSIFIED")[0]
    assert "fills.parquet was changed" in forged
    assert "price_ticks" in forged
    assert "row " in forged
