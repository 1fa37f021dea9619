"""The configuration of a training run: a replay's, and the sections of the policy's parts. `plan_train` makes one from what a user states.

What is stated later wins: defaults, the profile, the file, `--set`, options of their own.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError, model_validator

from lob.errors import BadInput, NotFound, first_line
from lob.instruments import Instrument, resolve
from policy.architecture import ModelConfig
from policy.explore import SelectConfig
from policy.health import ControlConfig
from policy.learner import LearnConfig
from policy.rewards import RewardConfig
from sim.config import BadField, RunConfig, run_config
from sim.loop_config import LoopConfig
from sim.plan import choose_schema
from sim.split import SplitConfig

POLICY = "training"
"""What a training run's `policy` says: the network is the run's own."""

SECTIONS: dict[str, type[BaseModel]] = {
    "model": ModelConfig,
    "select": SelectConfig,
    "learner": LearnConfig,
    "reward": RewardConfig,
    "control": ControlConfig,
    "split": SplitConfig,
    "loop": LoopConfig,
}
"""section -> its class; each room declares its own."""


class TrainConfig(RunConfig):
    """One training run. All of it but `execution` is hashed."""

    model: ModelConfig
    select: SelectConfig
    learner: LearnConfig
    reward: RewardConfig
    control: ControlConfig
    split: SplitConfig
    loop: LoopConfig

    @model_validator(mode="after")
    def _shards_are_equal(self) -> TrainConfig:
        for name, count in (("lanes", self.lanes), ("learner.batch", self.learner.batch)):
            if count % self.loop.shards:
                raise ValueError(f"{name} {count} cannot be divided into {self.loop.shards} equal shards; use a multiple of loop.shards")
        return self


ASKED = ("start_ns", "end_ns", "windows", "fit_start_ns", "fit_end_ns")
"""Settings of the tape that the split overrules: a run's identity holds what trained, and beside it what was asked for."""


def from_document(document: Mapping[str, Any], asked: Mapping[str, Any], execution: Mapping[str, Any] | None = None) -> TrainConfig:
    """The config that a run's manifest states (`identity.config`, `identity.asked`). Raises BadInput when this build cannot read it."""
    stated = {name: value for name, value in document.items() if name != "policy"}
    stated |= {"policy": POLICY, "execution": dict(execution or {}), "tape": {**document["tape"], **asked}}
    try:
        return TrainConfig.model_validate_json(json.dumps(stated))
    except ValidationError as error:
        first = error.errors()[0]
        where = f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
        raise BadInput(f"the run's configuration is not this build's ({where}): resume it with the build that began it") from None


def read_settings(file: Path | None, settings: Sequence[str]) -> dict[str, Any]:
    """Nested settings of a TOML file with those of `section.key=value` laid over them. Raises NotFound and BadInput."""
    stated: dict[str, Any] = {}
    if file is not None:
        try:
            stated = tomllib.loads(file.read_text(encoding="utf-8-sig"))
        except FileNotFoundError:
            raise NotFound(f"{file}: there is no such configuration file") from None
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{file}: cannot be read ({error})") from None
        except (ValueError, RecursionError) as error:  # tomllib's own, and what Python says of numbers and nesting without end
            raise BadInput(f"{file}: is not TOML ({first_line(error)})") from None
    for setting in settings:
        name, equals, text = setting.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (section and dot and key and equals):
            raise BadInput(f"--set {setting}: write it as section.key=value, like learner.lr=3e-4")
        held = stated.setdefault(section, {})
        if not isinstance(held, dict):
            raise BadInput(f"--set {setting}: {section} is no section")
        held[key] = _value(text.strip())
    return stated


def _value(text: str) -> Any:
    """A TOML value; what is none is a string, so that quotes can be left out."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def plan_train(
    store: Path,
    symbol: str,
    registry: Mapping[str, Instrument],
    tape: Mapping[str, Any],
    stated: Mapping[str, Any],
    **rest: Any,
) -> TrainConfig:
    """The config of a training run. `tape` holds the window and the clock, `stated` the sections (`read_settings`), `rest` seed, lanes and
    `execution`. Raises BadInput or NotFound.
    """
    unknown = sorted(set(stated) - set(SECTIONS) - {"tape", "env", "log", "lanes", "seed"})
    if unknown:
        raise BadField(unknown[0], f"there is no such section; there are {', '.join(sorted([*SECTIONS, 'tape', 'env', 'log']))}")
    for name, values in stated.items():
        if name not in ("lanes", "seed") and not isinstance(values, Mapping):
            raise BadField(name, f"is a section of settings (write it as [{name}] or {name}.key=value), and was given", values, False)
    for name in ("lanes", "seed"):
        rest.setdefault(name, stated.get(name, {"lanes": 128, "seed": 0}[name]))
    laid = {**stated.get("tape", {}), **{name: value for name, value in tape.items() if value is not None}}
    laid.setdefault("clock", "1s")
    laid["market_schema"] = laid.get("market_schema") or choose_schema(store, symbol, laid["clock"])
    log = {"level": "trades", "segment_steps": 500, **stated.get("log", {})}
    placed, written = _at_home(stated)
    sections = {name: _section(name, values, written) for name, values in placed.items()}
    account = dict(stated.get("env", {}))
    config = run_config(
        symbol, resolve(symbol, registry), laid, account, log, kind=TrainConfig, phase="train", policy=POLICY, **sections, **rest
    )
    assert isinstance(config, TrainConfig)
    return config


def _at_home(stated: Mapping[str, Any]) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """({section: settings} with the learner's rate, discount and the like, which people look for under `learner`, where they are declared:
    with the controllers that move them; {their field: as it was written}). Raises BadField when one is stated in both places."""
    written: dict[str, str] = {}
    sections = {name: dict(stated.get(name, {})) for name in SECTIONS}
    learner, control = sections["learner"], sections["control"]
    for name in [name for name in learner if name not in LearnConfig.model_fields and name in ControlConfig.model_fields]:
        if name in control:
            raise BadField(f"learner.{name}", f"is the same setting as control.{name}: state one of them")
        control[name] = learner.pop(name)
        written[f"control.{name}"] = f"learner.{name}"
    return sections, written


def _section(name: str, values: dict[str, Any], written: Mapping[str, str]) -> Any:
    for key, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise BadField(written.get(f"{name}.{key}", f"{name}.{key}"), "must be a finite number", value, False)
    try:
        return SECTIONS[name].model_validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join([name, *(str(part) for part in first["loc"])])
        field = written.get(field, field)
        if first["type"] == "extra_forbidden":
            lent = ControlConfig.model_fields if name == "learner" else ()  # `_at_home` moves them
            raise BadField(field, f"there is no such setting; {name} has {', '.join([*SECTIONS[name].model_fields, *lent])}") from None
        said = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
        if first["type"] == "value_error" and not first["loc"]:
            raise BadField(field, said) from None
        raise BadField(field, said, first["input"], is_told=first["type"] == "value_error") from None
