"""The demo is what a newcomer sees first: it must run from end to end, by the installed command."""

import subprocess
import sys
from pathlib import Path

import pytest

from examples import demo
from sim.verify import verify
from tests.replays import replayed, synthetic_store

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


def test_what_the_demo_forges_is_found_by_table_part_row_and_column(tmp_path, monkeypatch):
    store = synthetic_store(tmp_path, events=5_000)
    run = replayed(store, tmp_path / "runs", lanes=1, minutes=5).run_dir
    monkeypatch.setattr(demo, "HOUSE", tmp_path)
    monkeypatch.setattr(demo, "FORGED", "forged")
    demo.forge(str(run.relative_to(tmp_path)))
    verdict = verify(tmp_path / "forged", store)
    found = {check.name: check for check in verdict.failed}
    assert verdict.exit_code == 1
    assert (found["chain"].table, found["chain"].column) == ("fills", "price_ticks")
    price = found["fills_price"]
    assert (price.table, price.column, price.row >= 0, price.part.endswith("fills.parquet")) == ("fills", "price_ticks", True, True)
