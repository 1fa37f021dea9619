"""What a checkpoint says of how it came to be, as JSON values: market, clock, account, days. Written by training, read by evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from lob.errors import BadInput

if TYPE_CHECKING:
    from cuda_env.config import EnvConfig
    from sim.config import InstrumentConfig, RunConfig
    from sim.split import Split, Window

PLAYED = ("market_schema", "clock", "latency_ns", "slippage_ticks", "step_limit")
"""Settings of the tape under which a policy plays elsewhere as it did in training; its windows are other ones."""


@dataclass(frozen=True)
class About:
    """`run` is the name that the training run's identity gives it (`sim.replay.run_name`), `step` its step. `tape` holds PLAYED."""

    run: str
    step: int
    seed: int
    instrument: InstrumentConfig
    tape: dict[str, Any]
    env: EnvConfig
    train: tuple[Window, ...]
    validation: tuple[Window, ...]
    test: tuple[Window, ...]


def about(config: RunConfig, split: Split, run: str, step: int) -> dict[str, Any]:
    """The `about` of a checkpoint that a training run with `config` made after `step` steps."""
    tape = config.tape.model_dump()
    return {
        "run": run,
        "step": step,
        "seed": config.seed,
        "instrument": config.instrument.model_dump(),
        "tape": {name: tape[name] for name in PLAYED},
        "env": config.env.model_dump(),
        "days": {part: [list(window) for window in getattr(split, part)] for part in ("train", "validation", "test")},
    }


def read_about(document: Mapping[str, Any]) -> About | None:
    """What `about` wrote; None for a checkpoint that was not trained (`sim policy init`). Raises BadInput for one of another version."""
    from cuda_env.config import EnvConfig
    from sim.config import InstrumentConfig

    if "days" not in document:
        return None
    try:
        days = {part: tuple((int(start), int(end)) for start, end in windows) for part, windows in document["days"].items()}
        return About(
            run=str(document["run"]),
            step=int(document["step"]),
            seed=int(document["seed"]),
            instrument=InstrumentConfig(**document["instrument"]),
            tape={name: document["tape"][name] for name in PLAYED},
            env=EnvConfig(**document["env"]),
            **days,
        )
    except (KeyError, TypeError, ValueError, ValidationError) as error:
        fault = str(error).splitlines()[0]
        raise BadInput(f"the checkpoint's `about` is of another version ({fault}): train it anew, or state the market yourself") from None
