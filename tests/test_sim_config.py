"""Laws of a run's configuration: everything that a run depends on is in its hash, nothing else is, and a fault is one line."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from pydantic import BaseModel, ValidationError

from lob.errors import BadInput
from lob.instruments import resolve
from sim.config import RunConfig, config_hash, hashed_document, run_config

REPO = Path(__file__).resolve().parent.parent
HOUR = 3600 * 10**9
TAPE = {"market_schema": "mbp-10", "clock": "1s", "start_ns": 10 * HOUR, "end_ns": 11 * HOUR}


def config(tape=None, env=None, instrument=None, **rest) -> RunConfig:
    return run_config("ESH4", instrument or resolve("ESH4"), TAPE | (tape or {}), env or {}, **{"policy": "random"} | rest)


def hash_of(made: RunConfig, identity: dict | None = None) -> str:
    return config_hash(hashed_document(made, identity or {"name": made.policy}))


def test_nothing_is_left_open():
    env = config().env
    assert env.fee_usd_micros == 2_250_000
    assert env.margin_usd_micros == 17_900_000_000
    assert env.floor_usd_micros == env.capital_usd_micros // 2
    assert config(env={"fee_usd_micros": 0}).env.fee_usd_micros == 0


OTHERS = [
    {"tape": {"clock": "2s"}},
    {"tape": {"market_schema": "mbp-1"}},
    {"tape": {"start_ns": 10 * HOUR + 1}},
    {"tape": {"end_ns": 11 * HOUR + 1}},
    {"tape": {"latency_ns": 1}},
    {"tape": {"slippage_ticks": 2}},
    {"tape": {"step_limit": 10}},
    {"tape": {"fit_start_ns": 1, "fit_end_ns": HOUR}},
    {"tape": {"windows": ((10 * HOUR, 11 * HOUR),)}},
    {"tape": {"windows": ((10 * HOUR, 10 * HOUR + 9),)}},
    {"env": {"capital_usd_micros": 1_000_000}},
    {"env": {"max_lots": 5}},
    {"env": {"fee_usd_micros": 1}},
    {"env": {"margin_usd_micros": 1}},
    {"env": {"floor_usd_micros": 1}},
    {"env": {"trail_ticks": 1}},
    {"env": {"plan_lock_steps": 1}},
    {"env": {"reward_scale_usd_micros": 1}},
    {"env": {"queue_model": "risk_averse"}},
    {"env": {"queue_model": "power"}},
    {"env": {"queue_model": "power", "queue_power": 2}},
    {"env": {"queue_model": "power", "maker_fee_usd_micros": -1}},
    {"env": {"queue_model": "power", "entry_latency_ns": 5}},
    {"env": {"queue_model": "power", "cancel_latency_ns": 5}},
    {"env": {"queue_model": "power", "ack_latency_ns": 5}},
    {"env": {"queue_model": "power", "latency_seed": 5}},
    {"env": {"queue_model": "power", "cross_after_ppm": 5}},
    {"instrument": replace(resolve("ES"), multiplier=Fraction(1))},
    {"instrument": replace(resolve("ES"), tick=Fraction(1, 2))},
    {"instrument": replace(resolve("ES"), calendar="always")},
    {"log": {"level": "fills"}},
    {"log": {"segment_steps": 5}},
    {"seed": 1},
    {"lanes": 2},
    {"phase": "eval"},
    {"policy": "long"},
]


def test_every_value_that_a_run_depends_on_changes_its_hash():
    hashes = [hash_of(config()), *(hash_of(config(**change)) for change in OTHERS)]
    assert len(set(hashes)) == len(hashes)


def leaves(model: type[BaseModel], prefix: str = "") -> set[str]:
    found = set()
    for name, field in model.model_fields.items():
        inner = field.annotation
        nested = isinstance(inner, type) and issubclass(inner, BaseModel)
        found |= leaves(inner, f"{prefix}{name}.") if nested else {prefix + name}
    return found


def test_no_field_of_the_configuration_is_left_out_of_that_list():
    """A field added to any section must be added to OTHERS or be named here, with the reason why no hash holds it."""
    from sim.config import InstrumentConfig

    listed = {f"{section}.{name}" for change in OTHERS for section, value in change.items() if isinstance(value, dict) for name in value}
    listed |= {key for change in OTHERS for key, value in change.items() if not isinstance(value, dict) and key != "instrument"}
    listed |= {f"instrument.{name}" for name in InstrumentConfig.model_fields}  # one object; its fields are dumped together
    execution = {"execution.threads", "execution.flush_rows", "execution.flush_ms"}  # change no byte of a log
    in_the_identity = {"selector"}  # a network's identity states it, and a rule has none
    assert leaves(RunConfig) == listed | execution | in_the_identity


def test_threads_and_flushing_and_paths_do_not_change_the_hash():
    here = config(policy="script:a.csv")
    elsewhere = config(policy="script:b/c.csv", execution={"threads": 2, "flush_rows": 1, "flush_ms": 5})
    identity = {"name": "script", "sha256": "0" * 64, "rows": 1}
    assert hash_of(here, identity) == hash_of(elsewhere, identity)


def test_the_hash_is_equal_in_another_process_with_another_hash_seed():
    code = "from tests.test_sim_config import config, hash_of; print(hash_of(config()))"
    for seed in ("0", "1"):
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=REPO, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == hash_of(config())


def test_the_hashed_document_holds_whole_numbers_and_strings_only():
    def walk(value):
        if isinstance(value, dict):
            for inner in value.values():
                walk(inner)
        else:
            assert value is None or type(value) in (int, str), value

    document = hashed_document(config(), {"name": "random"})
    walk(document)
    assert json.loads(json.dumps(document)) == document


def test_a_configuration_cannot_be_changed_after_it_was_made():
    with pytest.raises(ValidationError):
        config().seed = 3


def test_the_instrument_comes_back_as_it_went_in():
    assert config().instrument.instrument() == resolve("ES")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"tape": {"clock": "1 fortnight"}}, "tape.clock: clock '1 fortnight' is none of"),
        ({"tape": {"market_schema": "trades"}}, "tape.market_schema: 'trades' cannot be replayed"),
        ({"tape": {"end_ns": 10 * HOUR}}, "tape: the start 1970-01-01T10:00:00.000000000Z is not before the end"),
        ({"tape": {"latency_ns": -1}}, "tape.latency_ns: must be at least 0, not -1"),
        ({"tape": {"latency_ns": 1.0}}, "tape.latency_ns: "),
        ({"tape": {"slippage_ticks": 0}}, "tape.slippage_ticks: "),
        ({"tape": {"fit_start_ns": 1}}, "tape: a fit range needs both"),
        ({"tape": {"fit_start_ns": 1, "fit_end_ns": 10 * HOUR + 1}}, "look ahead"),
        ({"tape": {"windows": ((10 * HOUR, 10 * HOUR + 9), (10 * HOUR + 8, 11 * HOUR))}}, "tape: window 1970-01-01T10:00:00.000000008"),
        ({"tape": {"windows": ((9 * HOUR, 11 * HOUR),)}}, "tape: window 1970-01-01T09:00"),
        ({"tape": {"windows": ((10 * HOUR, 10 * HOUR),)}}, "is empty"),
        ({"tape": {"windows": ()}}, "tape.windows: "),
        ({"tape": {"colour": 1}}, "tape.colour: "),
        ({"env": {"max_lots": 0}}, "env.max_lots: "),
        ({"env": {"floor_usd_micros": 10**18}}, "env: "),
        ({"seed": 2**64}, "seed: "),
        ({"seed": True}, "seed: "),
        ({"lanes": 0}, "lanes: "),
        ({"phase": "play"}, "phase: "),
        ({"surprise": 1}, "surprise: "),
        ({"execution": {"threads": 0}}, "execution.threads: "),
        ({"log": {"segment_steps": 0}}, "log.segment_steps: "),
    ],
)
def test_a_fault_is_one_line_that_names_the_field(change, says):
    with pytest.raises(BadInput) as caught:
        config(**change)
    message = str(caught.value)
    assert says in message
    assert "\n" not in message


def test_windows_come_back_from_json_as_they_went_in():
    made = config(tape={"windows": ((10 * HOUR, 10 * HOUR + 9), (10 * HOUR + 9, 11 * HOUR))}, lanes=2)
    read = json.loads(json.dumps(made.model_dump()))["tape"]["windows"]
    assert config(tape={"windows": read}, lanes=2) == made
    assert "windows" not in hashed_document(config(), {})["tape"], "a run of one window has the hash that it always had"


def test_training_alone_may_fit_on_what_it_plays():
    fit = {"fit_start_ns": 10 * HOUR, "fit_end_ns": 11 * HOUR}
    assert config(tape=fit, phase="train", log={"level": "trades"}).tape.fit_end_ns == 11 * HOUR
    for phase in ("eval", "replay"):
        with pytest.raises(BadInput, match="look ahead"):
            config(tape=fit, phase=phase)


def test_windows_need_a_lane_each_unless_lanes_draw_them():
    windows = {"windows": ((10 * HOUR, 10 * HOUR + 9), (10 * HOUR + 9, 11 * HOUR))}
    with pytest.raises(BadInput, match="2 windows need as many lanes at least"):
        config(tape=windows, lanes=1)
    assert config(tape=windows, lanes=1, phase="train", log={"level": "trades"}).lanes == 1


def test_a_training_logs_what_can_be_proved_of_it():
    for level in ("full", "fills", "sampled:1"):
        with pytest.raises(BadInput, match=f"a training logs trades or diag, not {level}"):
            config(phase="train", log={"level": level})


def test_a_log_level_that_does_not_exist_or_samples_too_many_lanes_is_refused():
    for level in ("all", "sampled", "sampled:0", "sampled:-1", "full:2"):
        with pytest.raises(BadInput, match=r"log\.level: level .* is none of full"):
            config(log={"level": level})
    assert config(log={"level": "sampled:2"}, lanes=2).log.level == "sampled:2"
    with pytest.raises(BadInput, match=r"^level sampled:3 asks for more lanes than the run's 2"):
        config(log={"level": "sampled:3"}, lanes=2)
