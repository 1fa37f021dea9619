"""Everything that a run depends on, in one object. Each room owns its section; what only says *how* a run executes stands apart.

The run's config hash is SHA-256 over the canonical JSON of `hashed_document`: integers and strings only, keys sorted, no paths. A policy
enters by its identity (name, content hash), not by where it lies; `Execution` (threads, flushing) changes no byte of the log and enters
no hash.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from cuda_env.config import EnvConfig
from lob.errors import BadInput
from lob.instruments import Instrument
from lob.records import REPLAYABLE
from lob.schedule import parse_clock
from lob.units import counted, exact_fraction, format_time_ns, format_usd

TimeNs = Annotated[int, Field(ge=0, lt=2**62)]
_LEVEL = re.compile(r"full|fills|trades|diag|sampled:[1-9][0-9]{0,8}")


class BadField(BadInput):
    """A value of a configuration that cannot be used: `field` is its path, like `env.max_lots` (a section's own name where several
    values do not go together), `rule` what it has to be. `is_told`: the rule quotes the value.
    """

    def __init__(self, field: str, rule: str, value: Any = None, is_told: bool = True) -> None:
        super().__init__((f"{field}: " if field else "") + rule + ("" if is_told else f", not {value!r}"))
        self.field, self.rule, self.is_told = field, rule, is_told


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class InstrumentConfig(Section):
    """The terms that money is computed from, spelled out: a changed registry makes another run."""

    symbol: str
    """The instrument as the store names it, like ESH4."""

    root: str
    tick: str
    """A fraction, like 1/4."""

    multiplier: str
    currency: str
    calendar: str
    fee_usd_micros: int
    margin_usd_micros: int

    def instrument(self) -> Instrument:
        """Raises BadInput when the terms are no instrument's."""
        terms = self.model_dump(exclude={"symbol"})
        return Instrument(**terms | {"tick": exact_fraction(self.tick), "multiplier": exact_fraction(self.multiplier)})


class TapeConfig(Section):
    """Which market data, and how decisions lie over it (docs/step.md, "Time")."""

    market_schema: str
    clock: str
    start_ns: TimeNs
    end_ns: TimeNs
    latency_ns: TimeNs = 0
    """From a decision to the exchange."""

    slippage_ticks: int = Field(default=1, ge=1, le=10_000)
    """Bars only: how far from a bar's price an order fills; at least one tick, for a bar has no spread of its own."""

    step_limit: int | None = Field(default=None, ge=1, lt=2**31)
    fit_start_ns: TimeNs | None = None
    fit_end_ns: TimeNs | None = None
    """[fit_start, fit_end): the range that the features' normalisation is fitted on; none: the instrument's fixed one."""

    windows: tuple[tuple[TimeNs, TimeNs], ...] | None = Field(default=None, min_length=1)
    """[start, end) of each window, ascending and disjoint, within [start_ns, end_ns): each has a drain of its own (`lob.windows`), and
    a step limit holds for each. None: one window from start to end, drained for all lanes at once."""

    @field_validator("windows", mode="before")
    @classmethod
    def _as_tuples(cls, windows: Any) -> Any:
        """From lists too, as JSON has them."""
        return tuple(tuple(w) if isinstance(w, list) else w for w in windows) if isinstance(windows, list | tuple) else windows

    @field_validator("market_schema")
    @classmethod
    def _known_schema(cls, name: str) -> str:
        if name not in REPLAYABLE:
            raise ValueError(f"{name!r} cannot be replayed; use one of {', '.join(REPLAYABLE)}")
        return name

    @field_validator("clock")
    @classmethod
    def _known_clock(cls, clock: str) -> str:
        try:
            parse_clock(clock)
        except BadInput as error:
            raise ValueError(str(error)) from None
        return clock

    @model_validator(mode="after")
    def _in_order(self) -> TapeConfig:
        if self.start_ns >= self.end_ns:
            raise ValueError(f"the start {format_time_ns(self.start_ns)} is not before the end {format_time_ns(self.end_ns)}")
        if (self.fit_start_ns is None) != (self.fit_end_ns is None):
            raise ValueError("a fit range needs both its start and its end")
        if self.fit_start_ns is not None and self.fit_end_ns is not None and self.fit_start_ns >= self.fit_end_ns:
            raise ValueError("the fit range's start is not before its end")
        last = self.start_ns
        for start, end in self.windows or ():
            if start < last or start >= end or end > self.end_ns:
                said = f"window {format_time_ns(start)} to {format_time_ns(end)}"
                raise ValueError(f"{said} is empty, leaves the range, or begins before the one before it ends")
            last = end
        return self


class LogConfig(Section):
    """What is logged (docs of `store.runlog`)."""

    level: str = "full"
    """full, sampled:n, fills, trades or diag."""

    segment_steps: int = Field(default=1024, ge=1, lt=2**31)
    """Steps that are sealed together."""

    @field_validator("level")
    @classmethod
    def _known_level(cls, level: str) -> str:
        if not _LEVEL.fullmatch(level):
            raise ValueError(f"level {level!r} is none of full, sampled:n (n lanes), fills, trades, diag")
        return level


class Execution(Section):
    """How the run executes. None of it may change a byte of the log: it is written to `attempts` and enters no hash."""

    threads: int = Field(default=1, ge=1, le=1024)
    flush_rows: int = Field(default=262_144, ge=1)
    """Rows after which the journal is committed, at the latest."""

    flush_ms: int = Field(default=1_000, ge=1)
    """Milliseconds after which the journal is committed, at the latest: the most that a crash can cost."""


class RunConfig(Section):
    """One run. Build it with `run_config`, which turns a fault into one line."""

    phase: str = Field(default="replay", pattern="^(train|eval|replay)$")
    instrument: InstrumentConfig
    tape: TapeConfig
    env: EnvConfig
    log: LogConfig = LogConfig()
    policy: str
    """A built-in's name, script:FILE or checkpoint:DIR (`sim.policy.make_policy`)."""

    selector: str = Field(default="greedy", pattern="^(greedy|boltzmann|thompson)$")
    """How a network picks; a rule has its own way. Part of the policy's identity."""

    seed: int = Field(default=0, ge=0, lt=2**64)
    lanes: int = Field(default=1, ge=1, le=2**20)
    execution: Execution = Execution()

    @model_validator(mode="after")
    def _complete(self) -> RunConfig:
        if None in (self.env.fee_usd_micros, self.env.margin_usd_micros, self.env.floor_usd_micros):
            raise ValueError("env leaves a fee, margin or floor open; build the config with run_config")
        if self.phase != "train" and self.tape.fit_end_ns is not None and self.tape.fit_end_ns > self.tape.start_ns:
            raise ValueError("the fit range ends after the window's start, so the policy would look ahead: end it at or before the start")
        if self.phase != "train" and self.tape.windows is not None and self.lanes < len(self.tape.windows):
            raise ValueError(
                f"{counted(len(self.tape.windows), 'window')} need as many lanes at least, for each lane plays one; lanes is {self.lanes}"
            )
        if self.phase == "train" and self.log.level not in ("trades", "diag"):
            raise ValueError(
                f"a training logs trades or diag, not {self.log.level}: its lanes begin anew at drawn rows, "
                "which no proof follows step by step; its evaluations are proved in full"
            )
        sampled = self.log.level.partition(":")[2]
        if sampled and int(sampled) > self.lanes:
            raise ValueError(f"level {self.log.level} asks for more lanes than the run's {self.lanes}")
        return self


def run_config(
    symbol: str,
    instrument: Instrument,
    tape: dict[str, Any],
    env: dict[str, Any],
    log: dict[str, Any] | None = None,
    execution: dict[str, Any] | None = None,
    kind: type[RunConfig] = RunConfig,
    **rest: Any,
) -> RunConfig:
    """A config of the sections' values, with fee, margin and floor filled in. Raises BadField: one line that names the field."""
    terms = InstrumentConfig(
        symbol=symbol,
        root=instrument.root,
        tick=str(instrument.tick),
        multiplier=str(instrument.multiplier),
        currency=instrument.currency,
        calendar=instrument.calendar,
        fee_usd_micros=instrument.fee_usd_micros,
        margin_usd_micros=instrument.margin_usd_micros,
    )
    try:
        return kind(
            instrument=terms,
            tape=TapeConfig(**tape),
            env=EnvConfig(**env).resolved(instrument),
            log=LogConfig(**log or {}),
            execution=Execution(**execution or {}),
            **rest,
        )
    except ValidationError as error:
        raise _bad_field(error) from None


_LIMITS = {"greater_than": ("above", "gt"), "greater_than_equal": ("at least", "ge"), "less_than": ("below", "lt")} | {
    "less_than_equal": ("at most", "le")
}


def _bad_field(error: ValidationError) -> BadField:
    """The first fault of a section, in words."""
    first = error.errors()[0]
    section = error.title.removesuffix("Config").lower()
    field = ".".join(str(part) for part in ((section,) if section not in ("run", "train") else ()) + first["loc"])
    kind = first["type"]
    if kind in _LIMITS:
        word, key = _LIMITS[kind]
        limit = first["ctx"][key]
        return BadField(field, f"must be {word} {format_usd(limit) if field.endswith('_usd_micros') else limit}", first["input"], False)
    if kind == "extra_forbidden":
        return BadField(field, "there is no such setting")
    said = first["msg"].removeprefix("Value error, ").replace("Input should be", "must be")
    return BadField(field, said, first["input"], is_told=kind == "value_error")


def hashed_document(config: RunConfig, policy_identity: dict[str, Any]) -> dict[str, Any]:
    """What the config hash is taken over, as JSON values. A tape without windows says nothing of them."""
    document = config.model_dump(exclude={"execution", "policy", "selector"}) | {"policy": policy_identity}
    if config.tape.windows is None:
        del document["tape"]["windows"]
    return document


def config_hash(document: dict[str, Any]) -> str:
    """64 hex digits over the canonical JSON of a document."""
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()).hexdigest()
