"""What a user states of an environment for other houses' agents, in the words of `sim replay` and `sim train`, and the config it means."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from lob.errors import BadInput
from lob.instruments import resolve
from lob.units import format_time_ns, parse_duration_ns, parse_time_ns, usd_to_micros
from sim.config import BadField, RunConfig, run_config
from sim.plan import choose_schema, refuse_slippage_for_books
from sim.registry import registry_of

Dollars = str | int | float | Decimal


class MarketOptions(TypedDict, total=False):
    """Everything beside store, instrument, start and end. Names, meanings and defaults are those of the options of `sim replay`."""

    clock: str
    """When to decide: 1s, 250ms, 1m; 100e (events), 500v (volume); bar. Default 1s."""
    schema: str
    instruments: str | Path
    capital: Dollars
    max_lots: int
    fees: Dollars
    margin: Dollars
    floor: Dollars
    trail_ticks: int
    plan_lock_steps: int
    reward_scale: Dollars
    """Dollars that become a reward of 1. Default 1000."""
    latency: str
    """From a decision to the exchange, like 1ms. Default 0ms."""
    slippage_ticks: int
    env: Mapping[str, Any]
    """Further settings of the account by their names, as `--set env.NAME=VALUE` of `sim replay`: {"queue_model": "power"}."""
    step_limit: int
    """An episode's decisions at most, counted from its window's first."""
    fit_start: str
    fit_end: str
    """[fit_start, fit_end): what the features' normalisation is fitted on; it may overlap the windows only with random starts."""
    random_starts: bool
    """True, the default: an episode begins at a decision drawn uniformly over all windows, as in `sim train`. False: lane i plays window i
    modulo their number from its first decision, in every episode, as in `sim eval`; there are as many lanes as windows at least."""
    seed: int
    """Of the drawn starts, until a reset states another. Default 0."""
    threads: int
    rebuild_features: bool


def _whole(value: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInput(f"{value!r} is no whole number")
    return value


class _Option(NamedTuple):
    """Where an option goes, and how its text becomes a value."""

    section: str
    key: str
    convert: Callable[[Any], Any]


def _time_ns(text: str) -> int:
    return parse_time_ns(text)[0]


def _dollars(amount: Dollars) -> int:
    return usd_to_micros(str(amount))


_OPTIONS = {
    "start": _Option("tape", "start_ns", _time_ns),
    "end": _Option("tape", "end_ns", _time_ns),
    "clock": _Option("tape", "clock", str),
    "schema": _Option("tape", "market_schema", str),
    "latency": _Option("tape", "latency_ns", parse_duration_ns),
    "slippage_ticks": _Option("tape", "slippage_ticks", _whole),
    "step_limit": _Option("tape", "step_limit", _whole),
    "fit_start": _Option("tape", "fit_start_ns", _time_ns),
    "fit_end": _Option("tape", "fit_end_ns", _time_ns),
    "capital": _Option("env", "capital_usd_micros", _dollars),
    "max_lots": _Option("env", "max_lots", _whole),
    "fees": _Option("env", "fee_usd_micros", _dollars),
    "margin": _Option("env", "margin_usd_micros", _dollars),
    "floor": _Option("env", "floor_usd_micros", _dollars),
    "trail_ticks": _Option("env", "trail_ticks", _whole),
    "plan_lock_steps": _Option("env", "plan_lock_steps", _whole),
    "reward_scale": _Option("env", "reward_scale_usd_micros", _dollars),
    "seed": _Option("", "seed", _whole),
    "lanes": _Option("", "lanes", _whole),
    "threads": _Option("execution", "threads", _whole),
}

PLAYED_BY = "an agent of another house"
"""What the config says of the policy; no log is written, and nothing reads it."""


def plan_episodes(
    store: Path,
    instrument: str,
    start: str,
    end: str,
    lanes: int,
    random_starts: bool = True,
    instruments: str | Path | None = None,
    env: Mapping[str, Any] | None = None,
    **stated: Any,
) -> RunConfig:
    """The config of `lanes` accounts on the sessions of [start, end), a window each. `stated` are the rest of `MarketOptions`.

    Raises BadInput, in the user's words, and NotFound.
    """
    given = {"clock": "1s", "seed": 0} | stated | {"start": start, "end": end, "lanes": lanes}
    if unknown := sorted(set(given) - set(_OPTIONS)):
        known = ", ".join(sorted({*_OPTIONS, "env", "instruments", "random_starts", "rebuild_features"} - {"lanes"}))
        raise BadInput(f"{unknown[0]}: there is no such option; there are {known}")
    sections: dict[str, dict[str, Any]] = {"tape": {}, "env": {}, "execution": {}, "": {}}
    for name, value in given.items():
        if value is not None:
            section, key, convert = _OPTIONS[name]
            try:
                sections[section][key] = convert(value)
            except (BadInput, AttributeError, TypeError) as error:
                raise BadInput(f"{name}: {error}") from None
    for name, value in (env or {}).items():
        if name in sections["env"]:
            raise BadInput(f"env.{name}: another option states that already; leave one of them out")
        sections["env"][name] = value
    tape = sections["tape"]
    registry = registry_of(Path(instruments) if instruments else None, store, instrument, (tape.get("start_ns"), tape.get("end_ns")))
    terms = resolve(instrument, registry)
    tape["market_schema"] = tape.get("market_schema") or choose_schema(store, instrument, tape["clock"])
    phase, level = ("train", "diag") if random_starts else ("eval", "full")
    try:
        if "slippage_ticks" in tape:
            refuse_slippage_for_books(tape["market_schema"], tape["slippage_ticks"])
        tape["windows"] = _windows(store, instrument, tape, terms)
        return run_config(
            instrument, terms, tape, sections["env"], {"level": level}, sections["execution"], phase=phase, policy=PLAYED_BY, **sections[""]
        )
    except BadField as error:
        raise _named_as_stated(error, given) from None


def _windows(store: Path, instrument: str, tape: dict[str, Any], terms: Any) -> tuple[tuple[int, int], ...]:
    """[start_ns, end_ns) of every session with data, cut to the range."""
    from sim.tape import sessions_of

    start_ns, end_ns = tape["start_ns"], tape["end_ns"]
    if start_ns >= end_ns:
        raise BadInput(f"the start {format_time_ns(start_ns)} is not before the end {format_time_ns(end_ns)}")
    days = sessions_of(store, instrument, tape["market_schema"], terms, start_ns, end_ns)
    if not days:
        said = f"{format_time_ns(start_ns)} to {format_time_ns(end_ns)}"
        raise BadInput(f"{said} holds no session with data of {instrument}: there is nothing to play; `sim store ls` shows what is there")
    return tuple((first, last) for _, first, last in days)


def _named_as_stated(error: BadField, given: dict[str, Any]) -> BadInput:
    """The fault of a configuration with the name that the user gave it."""
    for name, option in _OPTIONS.items():
        if error.field in (option.key, f"{option.section}.{option.key}"):
            value = "" if error.is_told or name not in given else f" {given[name]}"
            return BadInput(f"{name}{value}: {error.rule}")
    return BadInput(str(error))
