"""`sim replay`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options import (
    InstrumentsFile,
    Level,
    NetworkDevice,
    RebuildFeatures,
    Runs,
    Store,
    Threads,
    duration_ns,
    named_as_typed,
    option,
    time_ns,
    usd_micros,
)  # fmt: skip
from cli.output import COMPILING, Json, emit, progress, say


def register(app: typer.Typer) -> None:
    app.command("replay")(replay)


def replay(
    context: typer.Context,
    store: Store,
    runs: Runs,
    instrument: Annotated[str, option("Instrument as the store names it, like ESH4.")],
    start: Annotated[str, option("Start of the window, like 2023-12-25T23:00Z. Without a zone: UTC.")],
    end: Annotated[str, option("End of the window; it is not part of it.")],
    clock: Annotated[str, typer.Option(help="When to decide: 1s, 250ms, 1m; 100e (events), 500v (volume); bar.")] = "1s",
    policy: Annotated[str | None, option("flat, long, short, random, momentum, imbalance or script:FILE.")] = None,
    checkpoint: Annotated[Path | None, option("Checkpoint directory of a network, instead of --policy.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything that is drawn.")] = 0,
    lanes: Annotated[int, typer.Option(help="Accounts that are played side by side.")] = 1,
    schema: Annotated[str | None, option("Market schema; default: the store's deepest book, its bars for the clock `bar`.")] = None,
    instruments: InstrumentsFile = None,
    capital: Annotated[str | None, option("Capital of each account in dollars. [default: 100000]")] = None,
    max_lots: Annotated[int | None, option("Size of a full position. [default: 4]")] = None,
    fees: Annotated[str | None, option("Fee per lot and side in dollars. [default: the instrument's]")] = None,
    margin: Annotated[str | None, option("Margin per lot in dollars. [default: the instrument's]")] = None,
    floor: Annotated[str | None, option("Equity in dollars at which an account is closed for good. [default: half the capital]")] = None,
    trail_ticks: Annotated[int | None, option("Distance of the trailing stop; 0: none. [default: 40]")] = None,
    plan_lock_steps: Annotated[int | None, option("Decisions for which a new position keeps its direction. [default: 0]")] = None,
    reward_scale: Annotated[str | None, option("Dollars that become a reward of 1. [default: 1000]")] = None,
    latency: Annotated[str, typer.Option(help="From a decision to the exchange, like 1ms.")] = "0ms",
    slippage_ticks: Annotated[int | None, option("Bars only: how far from a bar's price an order fills. [default: 1]")] = None,
    settings: Annotated[list[str] | None, option("Another setting of the account, like env.queue_model=power.", "--set")] = None,
    step_limit: Annotated[int | None, option("End after this many decisions.")] = None,
    fit_start: Annotated[str | None, option("Fit the features' normalisation on a range that ends before the window.")] = None,
    fit_end: Annotated[str | None, option("End of the range of --fit-start.")] = None,
    level: Level = "full",
    segment_steps: Annotated[int, typer.Option(help="Steps that are sealed together.")] = 1024,
    device: NetworkDevice = "cpu",
    threads: Threads = 1,
    rebuild_features: RebuildFeatures = False,
    as_json: Json = False,
) -> None:
    """Replay a market range against a policy.

    Every step, order, fill and trade goes to the run's log, from which `sim verify` proves the result. Equal arguments,
    data and build give equal bytes. Ctrl-C keeps what was played; `sim seal` closes such a run. What each built-in policy does
    and the CSV of a script: docs/policies.md.
    With --set env.queue_model=risk_averse (or proportional, power) orders can stand in the book's queues: docs/exchange.md.
    The tape does not react to the orders: no result says what they would have moved.

    \b
    Examples:
      sim replay --store S --instrument ESH4 --start 2023-12-25T23:00Z --end 2023-12-26T00:00Z \\
                 --clock 1s --policy random --seed 7 --lanes 64 --runs R
      sim replay --store S --instrument ESH4 --start 2023-12-25T23:00Z --end 2023-12-26T00:00Z \\
                 --checkpoint checkpoints/untrained --capital 250000 --max-lots 8 --fees 2.25 --latency 1ms --runs R
      sim replay --store S --instrument ES --start 2023-09-25 --end 2023-09-30 --clock bar --policy momentum --runs R
    """
    from lob.errors import BadInput
    from sim.config import BadField
    from sim.plan import account_settings, plan_replay
    from sim.registry import registry_of
    from sim.replay import kernels_are_compiled
    from sim.replay import replay as run

    if (policy is None) == (checkpoint is None):
        raise BadInput("say what decides: --policy NAME or --checkpoint DIR, one of them")
    span = (time_ns("--start", start), time_ns("--end", end))
    tape = {
        "market_schema": schema,
        "clock": clock,
        "start_ns": span[0],
        "end_ns": span[1],
        "latency_ns": duration_ns("--latency", latency),
        "slippage_ticks": slippage_ticks,
        "step_limit": step_limit,
        "fit_start_ns": time_ns("--fit-start", fit_start) if fit_start else None,
        "fit_end_ns": time_ns("--fit-end", fit_end) if fit_end else None,
    }
    env = {
        "capital_usd_micros": usd_micros("--capital", capital),
        "max_lots": max_lots,
        "fee_usd_micros": usd_micros("--fees", fees),
        "margin_usd_micros": usd_micros("--margin", margin),
        "floor_usd_micros": usd_micros("--floor", floor),
        "trail_ticks": trail_ticks,
        "plan_lock_steps": plan_lock_steps,
        "reward_scale_usd_micros": usd_micros("--reward-scale", reward_scale),
    }
    further = account_settings(settings or [])
    for name, value in further.items():
        if env.get(name) is not None:
            raise BadInput(f"--set env.{name}: an option states that already; leave one of them out")
        env[name] = value
    log, decider = {"level": level, "segment_steps": segment_steps}, policy or f"checkpoint:{checkpoint}"
    rest = {"policy": decider, "seed": seed, "lanes": lanes, "execution": {"threads": threads}}
    try:
        registry = registry_of(instruments, store, instrument, span, say)
        config = plan_replay(store, instrument, registry, tape, env, log, **rest)
    except BadField as error:
        if error.field.partition(".")[2] in further:
            raise  # it came from --set, in whose words it speaks
        raise named_as_typed(error, context.params) from None
    if not kernels_are_compiled(config.env.queue_model):
        say(COMPILING)
    with progress("replay") as update:
        result = run(config, store, runs, update, rebuild_features, device=device)
    for note in result.notes:
        say(f"note: {note}")
    emit(document(result), text(result, store), as_json)


def document(result: Any) -> dict[str, Any]:
    return {
        "run": str(result.run_dir),
        "head": result.head,
        "decisions": result.steps,
        "lanes": result.lanes,
        "decisions_played": result.played,
        "lanes_closed_at_floor": result.closed,
        "elapsed_s": round(result.elapsed_s, 3),
        "waited_s": round(result.waited_s, 3),
        "notes": list(result.notes),
        "summary": result.summary,
    }


def text(result: Any, store: Path) -> str:
    from lob.units import counted, format_usd

    total = result.summary["total_pnl_usd_micros"]
    phase = result.summary["phases"][0]
    figures = [counted(phase["trades"], "trade") if phase["trades"] is not None else "trades not logged"]
    if phase["win_rate"] is not None:
        figures.append(f"win rate {phase['win_rate']:.1%}")
    if phase["fees_usd_micros"] is not None:
        figures.append(f"fees {format_usd(phase['fees_usd_micros'])}")
    rate = result.played / max(result.elapsed_s, 1e-9)
    played = f"{counted(result.steps, 'decision')} and the drain x {counted(result.lanes, 'lane')} in {result.elapsed_s:.1f} s"
    asked = result.steps * result.lanes
    ruin = f"{result.closed:,} of {counted(result.lanes, 'account')} {'was' if result.closed == 1 else 'were'} closed at the floor"
    return "\n".join(
        [
            f"{result.run_dir}: {played} ({rate:,.0f} a second, logged)",
            *([f"{ruin}; {result.played:,} of {counted(asked, 'decision')} played"] if result.closed else []),
            f"total {format_usd(total) if total is not None else 'unknown'} over all lanes; {', '.join(figures)}",
            f"head {result.head}",
            f"prove it: {shlex.join(['sim', 'verify', str(result.run_dir), '--store', str(store), '--head', result.head])}",
            "limit: the tape does not react to us",
        ]
    )
