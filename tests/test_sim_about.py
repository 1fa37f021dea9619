"""A checkpoint's `about`: what training wrote is what evaluation reads, through JSON, and nothing else passes for it."""

import json

import pytest

from lob.errors import BadInput
from lob.instruments import resolve
from sim.about import about, read_about
from sim.config import run_config
from sim.split import Split

HOUR = 3600 * 10**9
SPLIT = Split("days", ((0, HOUR), (2 * HOUR, 3 * HOUR)), ((4 * HOUR, 5 * HOUR),), ((6 * HOUR, 7 * HOUR),))


def document() -> dict:
    tape = {"market_schema": "mbp-10", "clock": "10s", "start_ns": 0, "end_ns": 7 * HOUR, "latency_ns": 1_000_000}
    config = run_config("ESH4", resolve("ESH4"), tape, {"max_lots": 2}, policy="flat", seed=42, lanes=8)
    return json.loads(json.dumps(about(config, SPLIT, "train-ESH4-0123456789", 500), allow_nan=False))


def test_what_training_wrote_is_what_evaluation_reads():
    found = read_about(document())
    assert found is not None
    assert (found.run, found.step, found.seed) == ("train-ESH4-0123456789", 500, 42)
    assert (found.train, found.validation, found.test) == (SPLIT.train, SPLIT.validation, SPLIT.test)
    assert found.instrument.symbol == "ESH4" and found.instrument.instrument() == resolve("ESH4")
    assert (found.env.max_lots, found.env.fee_usd_micros) == (2, resolve("ESH4").fee_usd_micros)
    assert found.tape["clock"] == "10s" and found.tape["latency_ns"] == 1_000_000


def test_an_untrained_checkpoint_tells_of_no_market():
    assert read_about({}) is None and read_about({"seed": 7, "profile": "small"}) is None


@pytest.mark.parametrize(
    "damage", [{"tape": {"clock": "10s"}}, {"instrument": {}}, {"env": {"capital_usd_micros": -1}}, {"days": {"train": 3}}]
)
def test_what_is_of_another_version_is_refused_in_one_line(damage):
    with pytest.raises(BadInput, match="another version") as refused:
        read_about(document() | damage)
    assert "\n" not in str(refused.value)
