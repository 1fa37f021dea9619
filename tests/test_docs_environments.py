"""The page about environments runs, block by block, as a reader would type it, on the days that it names."""

import re
from pathlib import Path

import pytest

from sim.episode_options import MarketOptions
from tests.window_days import store_of_days

PAGE = Path(__file__).resolve().parent.parent / "docs" / "environments.md"


def test_every_block_of_the_page_runs(tmp_path, monkeypatch, capsys):
    for module in ("stable_baselines3", "torchrl"):
        pytest.importorskip(module)
    store = store_of_days(tmp_path, 3_000)
    (tmp_path / "tour").mkdir()
    store.rename(tmp_path / "tour" / "days")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for block in blocks:
        exec(block, names)
    assert len(blocks) == 3
    said = capsys.readouterr().out
    assert len(re.findall(r"micro-dollars", said)) == 2
    assert names["unseen"].num_envs == 2


def test_the_page_names_every_option():
    page = PAGE.read_text()
    assert not [name for name in MarketOptions.__annotations__ if f"`{name}`" not in page]
