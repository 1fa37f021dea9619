"""`sim train` and `sim determinism`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options import CONFIG_OPTIONS, InstrumentsFile, RebuildFeatures, Threads, duration_ns, named_as_typed, option, time_ns
from cli.output import COMPILING, Json, emit, progress, say


def register(app: typer.Typer) -> None:
    app.command("train")(train)
    app.command("determinism")(determinism)


StoreOption = Annotated[Path | None, option("Folder of the market store.")]
RunsOption = Annotated[Path | None, option("Folder that holds the runs.")]
Symbol = Annotated[str | None, option("Instrument as the store names it, like ESH4.")]
Start = Annotated[str | None, option("Start of the window, like 2023-12-25T23:00Z. Without a zone: UTC.")]
End = Annotated[str | None, option("End of the window; it is not part of it.")]
Clock = Annotated[str | None, option("When to decide: 1s, 10s, 1m; 100e (events); bar. [default: 1s]")]
Lanes = Annotated[int | None, option("Accounts that are played side by side. [default: 128]")]
Steps = Annotated[int | None, option("Training steps, one decision of every lane each. [default: 2000]")]
EvalSteps = Annotated[int | None, option("Decisions of each test day that are evaluated at the end. [default: all of them]")]
Seed = Annotated[int | None, option("Seed of everything that is drawn. [default: 0]")]
ConfigFile = Annotated[Path | None, option("TOML file of settings, one table per section.", "--config")]
Settings = Annotated[list[str] | None, option("A setting like learner.lr=3e-4; may be given often.", "--set")]
Profile = Annotated[str | None, option("Network: small (minutes on two cores), trunk or default. [default: small]")]
Device = Annotated[str | None, option("cpu or cuda. [default: cpu]")]
Latency = Annotated[str | None, option("From a decision to the exchange, like 1ms. [default: 0ms]")]
Schema = Annotated[str | None, option("Market schema; default: the store's deepest book, its bars for the clock `bar`.")]


SETTING_OPTIONS = ("loop.steps", "loop.eval_steps", "loop.device", "model.profile")
"""Settings that have an option of their own, called as they are."""

OPTION_SECTIONS = ("", "tape", "execution")
"""Whose settings have options, where they have one."""


def train(
    context: typer.Context,
    store: StoreOption = None,
    runs: RunsOption = None,
    instrument: Symbol = None,
    start: Start = None,
    end: End = None,
    clock: Clock = None,
    lanes: Lanes = None,
    steps: Steps = None,
    eval_steps: EvalSteps = None,
    seed: Seed = None,
    config: ConfigFile = None,
    settings: Settings = None,
    profile: Profile = None,
    device: Device = None,
    latency: Latency = None,
    schema: Schema = None,
    instruments: InstrumentsFile = None,
    threads: Threads = 1,
    rebuild_features: RebuildFeatures = False,
    resume: Annotated[Path | None, option("A run to go on with from its last checkpoint; it knows its own settings.")] = None,
    watch: Annotated[Path | None, option("Show a run in progress, from another process.")] = None,
    once: Annotated[bool, typer.Option("--once", help="With --watch: show how the run stands now, and end.")] = False,
    as_json: Json = False,
) -> None:
    """Train a policy, then evaluate it on new days.

    The days are split in time order: by default the last 20 % test, the 10 % before them choose the checkpoint, the rest
    train. The log holds every trade; `kill -9` at any moment, then `--resume`, gives the bytes that the undisturbed run
    would have given. At the end the best checkpoint plays the test days, greedy and Boltzmann, each a run of its own that
    `sim verify` proves.

    \b
    Examples:
      sim train --store S --instrument ESH4 --start 2024-01-02 --end 2024-03-01 --clock 10s --seed 42 --runs R
      sim train --store S --instrument ESH4 --start 2024-01-02 --end 2024-03-01 --lanes 128 --steps 2000 \\
                --eval-steps 500 --seed 42 --runs R --config train.toml --set learner.lr=3e-4
      sim train --resume R/train-ESH4-0123456789
      sim train --watch R/train-ESH4-0123456789
      torchrun --nproc-per-node 2 -m -- cli.main train --store S --instrument ESH4 --start 2024-01-02 --end 2024-03-01 \\
                --runs R --set loop.shards=2
    """
    from sim.replay import kernels_are_compiled

    if watch is not None:
        from cli.watch import show

        _alone(context, {"watch", "once", "as_json"})
        show(watch, once, as_json)
        return
    if not kernels_are_compiled(training=True):
        say(COMPILING)
    if resume is not None:
        from sim.train import resume as go_on

        _alone(context, {"resume", "store", "threads", "rebuild_features", "as_json"})
        with progress("train") as update:
            result = go_on(resume, store, threads, update, rebuild_features)
    else:
        from sim.train import train as run

        planned = _plan(context)
        assert store is not None and runs is not None
        with progress("train") as update:
            result = run(planned, store, runs, update, rebuild_features)
    if result is None:
        return  # the first of several processes says what came of it
    for note in result.notes:
        say(f"note: {note}")
    emit(document(result), text(result), as_json)


def determinism(
    context: typer.Context,
    store: StoreOption = None,
    runs: RunsOption = None,
    instrument: Symbol = None,
    start: Start = None,
    end: End = None,
    clock: Clock = None,
    lanes: Lanes = None,
    steps: Steps = None,
    eval_steps: EvalSteps = None,
    seed: Seed = None,
    config: ConfigFile = None,
    settings: Settings = None,
    profile: Profile = None,
    device: Device = None,
    latency: Latency = None,
    schema: Schema = None,
    instruments: InstrumentsFile = None,
    threads: Threads = 1,
    rebuild_features: RebuildFeatures = False,
    as_json: Json = False,
) -> None:
    """Train twice, and compare every byte.

    Equal settings, each time in a process of its own; compared is every byte that a hash covers. Exits 1 at the first
    difference, and names the table, the row and the column, or the tensor.

    \b
    Examples:
      sim determinism --store S --instrument ESH4 --start 2024-01-02 --end 2024-03-01 --steps 200 --eval-steps 50 --runs R
      sim determinism --config train.toml --store S --instrument ESH4 --start 2024-01-02 --end 2024-03-01 --runs R
    """
    from sim.determinism import train_twice

    planned = _plan(context)
    assert store is not None and runs is not None
    with progress("determinism"):
        outcome = train_twice(planned, store, runs, rebuild_features)
    emit(outcome.document(), outcome.text(), as_json)
    if outcome.difference is not None:
        raise typer.Exit(1)


def _alone(context: typer.Context, allowed: set[str]) -> None:
    """Refuse options that a run which is there already would have to contradict."""
    from lob.errors import BadInput

    for name, value in context.params.items():
        source = context.get_parameter_source(name)
        if name not in allowed and value is not None and source is not None and source.name == "COMMANDLINE":
            raise BadInput(f"--{name.replace('_', '-')}: a run that is there already keeps the settings it began with; leave it out")


def _plan(context: typer.Context) -> Any:
    from lob.errors import BadInput
    from sim.config import BadField
    from sim.registry import registry_of
    from sim.train_config import plan_train, read_settings

    given = context.params
    asked = dict.fromkeys(("store", "instrument", "start", "end"), "which market to train on") | {"runs": "where the run goes"}
    for name, what in asked.items():
        if given[name] is None:
            raise BadInput(f"--{name} is missing: say {what} (or --resume RUN)")
    stated = read_settings(given["config"], given["settings"] or [])
    tape = {
        "market_schema": given["schema"],
        "clock": given["clock"],
        "start_ns": time_ns("--start", given["start"]),
        "end_ns": time_ns("--end", given["end"]),
        "latency_ns": duration_ns("--latency", given["latency"]) if given["latency"] else None,
    }
    for field in SETTING_OPTIONS:
        section, _, key = field.partition(".")
        if given[key] is not None:
            stated.setdefault(section, {})[key] = given[key]
    rest = {name: given[name] for name in ("lanes", "seed") if given[name] is not None}
    try:
        registry = registry_of(given["instruments"], given["store"], given["instrument"], (tape["start_ns"], tape["end_ns"]), say)
        return plan_train(
            given["store"], given["instrument"], registry, tape, stated,
            execution={"threads": given["threads"]}, **rest,
        )  # fmt: skip
    except BadField as error:
        section, _, key = error.field.rpartition(".")
        is_option = section in OPTION_SECTIONS or error.field in SETTING_OPTIONS
        if not is_option or given.get(CONFIG_OPTIONS.get(error.field, key)) is None:
            raise  # it came from the file or --set, in whose words it speaks
        raise named_as_typed(error, context.params) from None


def document(result: Any) -> dict[str, Any]:
    return {
        "run": str(result.run_dir),
        "head": result.head,
        "steps": result.steps,
        "lanes": result.lanes,
        "elapsed_s": round(result.elapsed_s, 3),
        "best": str(result.best),
        "notes": list(result.notes),
        "summary": result.summary,
        "evaluations": result.evaluations,
    }


def text(result: Any) -> str:
    from lob.units import counted, format_usd

    training, total = result.summary["training"], result.summary["total_pnl_usd_micros"]
    rate = f" ({result.played / result.elapsed_s:,.0f} decisions a second, learnt from, validated and logged)" if result.played else ""
    lines = [f"{result.run_dir}: {counted(result.steps, 'step')} x {counted(result.lanes, 'lane')}{rate}"]
    if training["stopped"]:
        lines.append(f"stopped early: {training['stopped']}")
    lines += [
        f"exploring, it made {format_usd(total) if total is not None else 'unknown'}; head {result.head}",
        f"best checkpoint: {result.best}",
        f"  of step {training['best_step']:,}, {format_usd(training['best_score_usd_micros'])} a validation window",
    ]
    lines += result.evaluation_lines
    lines.append(f"judge it: {shlex.join(['sim', 'verdict', str(result.run_dir)])}")
    lines.append("limit: the tape does not react to us")
    return "\n".join(lines)
