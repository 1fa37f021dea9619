"""Laws of a training's configuration: what is stated later wins, a fault is one line that names the field, a manifest gives it back."""

import json
from pathlib import Path

import pytest

from lob.errors import BadInput, NotFound
from lob.instruments import REGISTRY
from sim.config import config_hash, hashed_document
from sim.loop_config import LoopConfig
from sim.train_config import ASKED, SECTIONS, from_document, plan_train, read_settings
from tests.train_days import WINDOW

NO_STORE = Path("no store is read where the schema is stated")


def plan(*settings: str, file: Path | None = None, tape: dict | None = None, **rest):
    stated = read_settings(file, settings)
    return plan_train(
        NO_STORE, "ESH4", REGISTRY, {"market_schema": "mbp-10", "clock": "5m", **WINDOW, **(tape or {})}, stated, **rest
    )  # fmt: skip


def one_line(error) -> str:
    text = str(error.value)
    assert "\n" not in text and "pydantic" not in text
    return text


def test_set_wins_over_the_file_and_the_file_over_the_defaults(tmp_path):
    file = tmp_path / "train.toml"
    file.write_text("lanes = 16\nseed = 7\n[learner]\nbatch = 32\nn_step = 3\n[loop]\nsteps = 40\n[model]\nhidden = [64, 32]\n")
    config = plan("learner.batch=8", "loop.dtype=bfloat16", file=file)
    assert (config.learner.batch, config.learner.n_step, config.loop.steps, config.loop.dtype) == (8, 3, 40, "bfloat16")
    assert (config.lanes, config.seed, config.model.hidden) == (16, 7, (64, 32))
    assert config.learner.capacity == SECTIONS["learner"]().capacity and config.phase == "train"


def test_a_later_set_wins_over_an_earlier_one_and_an_option_of_its_own_over_the_file(tmp_path):
    file = tmp_path / "train.toml"
    file.write_text('lanes = 16\n[tape]\nclock = "1m"\nlatency_ns = 5\n')
    assert plan("learner.batch=8", "learner.batch=9").learner.batch == 9
    config = plan(file=file, lanes=4, tape={"clock": "10s"})
    assert (config.lanes, config.tape.clock, config.tape.latency_ns) == (4, "10s", 5)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("learner.bach=3", r"learner\.bach: there is no such setting; learner has capacity, batch"),
        ("learnr.batch=3", r"learnr: there is no such section; there are control, env, learner"),
        ("learner.batch=many", r"learner\.batch: must be a valid integer, not 'many'"),
        ("learner.batch=true", r"learner\.batch: must be a valid integer, not True"),
        ("loop.steps=1.5", r"loop\.steps: must be a valid integer, not 1\.5"),
        ("loop.steps=0", r"loop\.steps: must be greater than or equal to 1, not 0"),
        ("learner.clip_norm=inf", r"learner\.clip_norm: must be a finite number, not inf"),
        ("learner.clip_norm=nan", r"learner\.clip_norm: must be a finite number, not nan"),
        ("loop.device=tpu", r"loop\.device: must be 'cpu' or 'cuda', not 'tpu'"),
        ("loop.steps=2024-01-01", r"loop\.steps: must be a valid integer"),
        ("split.test_share=0.95", r"split: test_share and validation_share leave nothing to train on"),
        ("loop.env_steps_per_update=7", r"loop: checkpoint_every has to be a multiple of env_steps_per_update"),
        ("log.level=full", r"a training logs trades or diag, not full"),
        ("tape.foo=1", r"tape\.foo: there is no such setting"),
        ("env.max_lots=0", r"env\.max_lots: must be above 0, not 0"),
        ("learner.lr=-1", r"learner\.lr: must be greater than 0, not -1"),
        ("learner.gamma=nan", r"learner\.gamma: must be a finite number"),
        ("learner.polyak=many", r"learner\.polyak: must be a valid number"),
        ("control.lr=-1", r"control\.lr: must be greater than 0, not -1"),
        ("loop=3", r"--set loop=3: write it as section\.key=value"),
        ("loop.steps", r"--set loop\.steps: write it as section\.key=value"),
        (".steps=3", r"--set \.steps=3: write it as section\.key=value"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_one_line_that_names_the_field(setting, said):
    with pytest.raises(BadInput, match=said) as error:
        plan(setting)
    one_line(error)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("loop = 3\n", r"loop: is a section of settings"),
        ("[loop\n", r"train\.toml: is not TOML"),
        ("steps = 3\n", r"steps: there is no such section"),
        ("[loop]\nsteps = '20'\n", r"loop\.steps: must be a valid integer, not '20'"),
        ('lanes = "many"\n', r"lanes: "),
        ("seed = -1\n", r"seed: "),
    ],
)
def test_a_file_that_cannot_be_is_refused_in_one_line_that_names_the_field(tmp_path, content, said):
    (tmp_path / "train.toml").write_text(content)
    with pytest.raises(BadInput, match=said) as error:
        plan(file=tmp_path / "train.toml")
    one_line(error)


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path):
    with pytest.raises(NotFound, match="there is no such configuration file"):
        read_settings(tmp_path / "none.toml", [])
    (tmp_path / "bad.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadInput, match="cannot be read"):
        read_settings(tmp_path / "bad.toml", [])


@pytest.mark.parametrize(
    ("text", "value"), [("3", 3), ("3e-4", 3e-4), ("[1, 2]", [1, 2]), ("cpu", "cpu"), ('"cpu"', "cpu"), ("a=b", "a=b")]
)
def test_a_setting_is_a_toml_value_and_what_is_none_is_text(text, value):
    assert read_settings(None, [f"section.key={text}"]) == {"section": {"key": value}}


def test_what_controllers_move_can_be_stated_where_people_look_for_it_and_in_one_place_only():
    assert plan("learner.lr=1e-3", "learner.gamma=0.97").control == plan("control.lr=1e-3", "control.gamma=0.97").control
    with pytest.raises(BadInput, match=r"learner\.lr: is the same setting as control\.lr"):
        plan("learner.lr=1e-3", "control.lr=1e-3")


def test_a_runs_manifest_gives_its_config_back_with_the_same_hash():
    settings = (
        "learner.batch=64",
        "loop.eval_steps=5",
        "model.hidden=[32, 16]",
        "split.test_days=2",
        "control.gamma=0.97",
    )
    config = plan(*settings, seed=2**63, lanes=3, execution={"threads": 2})
    document = json.loads(json.dumps(hashed_document(config, {"name": "training"})))
    asked = json.loads(json.dumps({name: getattr(config.tape, name) for name in ASKED}))
    back = from_document(document, asked, {"threads": 2})
    assert back == config
    assert config_hash(hashed_document(back, {"name": "training"})) == config_hash(document)


def test_how_a_run_executes_changes_no_hash():
    one, other = (hashed_document(plan(execution=e), {}) for e in ({"threads": 1}, {"threads": 2, "flush_ms": 5}))
    assert config_hash(one) == config_hash(other)


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_every_setting_of_every_section_is_part_of_the_hash(name):
    """A setting that a hash does not cover could differ between two runs that claim to be equal."""
    document = hashed_document(plan(), {})
    assert set(document[name]) == set(SECTIONS[name].model_fields)


def test_a_manifest_of_another_build_is_refused_with_the_field():
    config = plan()
    document = json.loads(json.dumps(hashed_document(config, {})))
    asked = {name: getattr(config.tape, name) for name in ASKED}
    for section, key, value in (("loop", "moons", 1), ("learner", "batch", "x")):
        with pytest.raises(BadInput, match=rf"{section}\.{key}: .*resume it with the build that began it") as error:
            from_document({**document, section: {**document[section], key: value}}, asked)
        one_line(error)


@pytest.mark.parametrize("name", ["checkpoint_every", "validate_every"])
def test_checkpoints_and_validations_lie_between_whole_updates(name):
    assert LoopConfig(env_steps_per_update=4, checkpoint_every=8, validate_every=12)
    with pytest.raises(ValueError, match=name):
        LoopConfig(**{"env_steps_per_update": 4, "checkpoint_every": 8, "validate_every": 12, name: 10})
