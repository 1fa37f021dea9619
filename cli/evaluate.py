"""`sim eval`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cli.options import (
    InstrumentsFile,
    Level,
    NetworkDevice,
    RebuildFeatures,
    Store,
    Threads,
    duration_ns,
    named_as_typed,
    option,
    time_ns,
    usd_micros,
)  # fmt: skip
from cli.output import COMPILING, Json, columns, emit, progress, say

if TYPE_CHECKING:
    from sim.evaluate import Evaluated


def register(app: typer.Typer) -> None:
    app.command("eval")(evaluate)


def evaluate(
    context: typer.Context,
    checkpoint: Annotated[Path, option("Checkpoint directory, like R/RUN/checkpoints/best.")],
    store: Store,
    runs: Annotated[Path | None, option("Folder that holds the runs. [default: the one of the checkpoint's run]")] = None,
    instrument: Annotated[str | None, option("Instrument. [default: the one that it was trained on]")] = None,
    start: Annotated[str | None, option("Start of the range whose sessions are played. [default: its test days]")] = None,
    end: Annotated[str | None, option("End of that range; it is not part of it.")] = None,
    clock: Annotated[str | None, option("When to decide. [default: as in training, else 1s]")] = None,
    selector: Annotated[str, typer.Option(help="How it picks, the headline first; each is a run of its own.")] = "greedy,boltzmann",
    lanes: Annotated[int, typer.Option(min=1, help="Accounts on each session; copies add no evidence.")] = 1,
    seed: Annotated[int | None, option("Seed of Boltzmann's draws and of the baseline `random`. [default: the training's, else 0]")] = None,
    steps: Annotated[int | None, option("Decisions of each session. [default: as in training, else all]")] = None,
    latency: Annotated[str | None, option("From a decision to the exchange, like 1ms. [default: as in training]")] = None,
    fees: Annotated[str | None, option("Fee per lot and side in dollars. [default: as in training]")] = None,
    capital: Annotated[str | None, option("Capital of each account in dollars. [default: as in training]")] = None,
    max_lots: Annotated[int | None, option("Size of a full position. [default: as in training]")] = None,
    schema: Annotated[str | None, option("Market schema. [default: as in training, else the store's deepest book]")] = None,
    instruments: InstrumentsFile = None,
    level: Level = "full",
    device: NetworkDevice = "cpu",
    threads: Threads = 1,
    rebuild_features: RebuildFeatures = False,
    as_json: Json = False,
) -> None:
    """Evaluate a checkpoint, with proof and odds.

    One account plays each test day of the checkpoint, exploration off: greedy is the headline, Boltzmann a run of its own
    beside it. The summary holds the interval of the daily result, its odds with every trial in the runs folder counted, the
    trivial rules on the same days, and whether a changed future changed the past. `sim verify` proves the dollars.
    The tape does not react to the orders: no result says what they would have moved.

    \b
    Examples:
      sim eval --checkpoint R/train-ESH4-5d41402abc/checkpoints/best --store S
      sim eval --checkpoint checkpoints/untrained --store S --instrument ESH4 --start 2024-03-04 --end 2024-03-09 --runs R
      sim eval --checkpoint R/train-ESH4-5d41402abc/checkpoints/best --store S --fees 4.50 --latency 20ms --selector greedy --json
    """
    from lob.errors import BadInput
    from sim.config import BadField
    from sim.evaluate import evaluate as run
    from sim.evaluate import plan_evaluation, runs_beside
    from sim.registry import registry_of
    from sim.replay import kernels_are_compiled

    span = (time_ns("--start", start) if start else None, time_ns("--end", end) if end else None)
    tape = {
        "market_schema": schema,
        "clock": clock,
        "start_ns": span[0],
        "end_ns": span[1],
        "latency_ns": duration_ns("--latency", latency) if latency else None,
        "step_limit": steps,
    }
    env = {
        "fee_usd_micros": usd_micros("--fees", fees),
        "capital_usd_micros": usd_micros("--capital", capital),
        "max_lots": max_lots,
    }
    rest: dict[str, Any] = {"log": {"level": level}, "execution": {"threads": threads}} | ({} if seed is None else {"seed": seed})
    try:
        registry = registry_of(instruments, store, instrument, span, say)
        config = plan_evaluation(checkpoint, store, registry, instrument, tape, env, lanes, **rest)
    except BadField as error:
        raise named_as_typed(error, context.params) from None
    runs = runs or runs_beside(checkpoint)
    if runs is None:
        raise BadInput(f"{checkpoint} lies in no run's folder: say with --runs where the evaluation's runs go")
    if not kernels_are_compiled(config.env.queue_model):
        say(COMPILING)
    with progress("eval") as update:
        found = run(config, store, runs, [name.strip() for name in selector.split(",")], update, rebuild_features, device=device)
    for note in dict.fromkeys(note for one in found for note in one.result.notes):
        say(f"note: {note}")
    emit(document(found), text(found, store), as_json)


def document(found: list[Evaluated]) -> dict[str, Any]:
    return {
        one.selector: {
            "run": str(one.result.run_dir),
            "head": one.result.head,
            "decisions_played": one.result.played,
            "elapsed_s": round(one.result.elapsed_s, 3),
            "summary": one.result.summary,
        }
        for one in found
    }


def text(found: list[Evaluated], store: Path) -> str:
    from lob.units import counted

    head = found[0].document
    sessions, trials = head["sessions"], head["trials"]["count"]
    lines = [
        f"{counted(sessions['accounts'], 'account')} on {counted(sessions['distinct'], 'distinct session')} "
        f"({counted(sessions['distinct_paths'], 'distinct path')}), {counted(trials, 'trial')} on this market so far",
        columns([("", *(one.selector for one in found)), *_table(found)]),
        "",
        "beside it, on the same sessions:",
        columns([("", "a day", "fees", "trades", f"{found[0].selector} is ahead by", "p"), *_baselines(head)], "  "),
        "",
        _leak(head),
    ]
    for one in found:
        run, chain_head = one.result.run_dir, one.result.head
        lines += [f"{one.selector}: {run}", f"  head {chain_head}"]
        lines.append(f"  prove it: {shlex.join(['sim', 'verify', str(run), '--store', str(store), '--head', chain_head])}")
    lines.append("limit: the tape does not react to us")
    return "\n".join(lines)


def _table(found: list[Evaluated]) -> list[tuple[str, ...]]:
    """A row of cells for each figure, a column for each selector."""
    phases = [one.result.summary["phases"][0] for one in found]
    figures = [one.document["statistics"] for one in found]
    level = next((f["interval"]["level"] for f in figures if f["interval"]), 0.95)
    return [
        ("total after fees", *(_usd(phase["total_pnl_usd_micros"]) for phase in phases)),
        ("fees", *(_usd(phase["fees_usd_micros"]) for phase in phases)),
        ("a day", *(_usd(f["mean_day_usd_micros"]) for f in figures)),
        (f"{level:.0%} interval of it", *(_interval(f) for f in figures)),
        ("winning days", *(f"{f['winning_days']} of {f['days']}" for f in figures)),
        ("p of no profit", *(_figure(f["p"]) for f in figures)),
        ("p with all trials", *(_figure(f["p_best_of_trials"]) for f in figures)),
        ("deflated Sharpe", *(_figure(f["deflated_sharpe"]) for f in figures)),
        ("trades", *(f"{phase['trades']:,}" for phase in phases)),
        ("win rate", *("-" if phase["win_rate"] is None else f"{phase['win_rate']:.1%}" for phase in phases)),
    ]


def _baselines(head: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            _usd(row["mean_day_usd_micros"]),
            _usd(row["fees_usd_micros"]),
            f"{row['trades']:,}",
            _usd(row["ahead_of_it_usd_micros"]),
            _figure(row["p_ahead_of_it"]),
        )
        for name, row in head["baselines"].items()
    ]


def _leak(head: dict[str, Any]) -> str:
    from lob.units import counted

    found = head["leak"]
    differing = found["observations_differing"] + found["picks_differing"]
    said = "kept every byte" if not differing else f"CHANGED in {counted(differing, 'value')} seen or picked: it sees the future"
    worth = found["one_row_ahead_usd_micros"] - sum(day["mean_pnl_usd_micros"] for day in head["days"])
    trained = f"; {found['days_trained_on']} of the days WERE TRAINED ON" if found["days_trained_on"] else ""
    return (
        f"with another future the past {said} ({counted(found['decisions_compared'], 'decision')}); "
        f"one row of look-ahead would be worth {_usd(worth)}{trained}"
    )


def _interval(figures: dict[str, Any]) -> str:
    if figures["interval"] is None:
        return "- (one day)"
    return f"{_usd(figures['interval_low_usd_micros'])} to {_usd(figures['interval_high_usd_micros'])}"


def _usd(micros: int | None) -> str:
    """To the cent: a mean of whole micro-dollars has more decimals than anybody reads."""
    from lob.units import format_usd

    return "-" if micros is None else format_usd(round(micros, -4))


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
