"""`sim eval`: a checkpoint on days, greedy as the headline and Boltzmann as a run of its own beside it, with what a sceptic asks of both.

Each run is a replay with phase `eval`: the same kernels, exploration off, observations normalised as in training. Nothing here writes to
the checkpoint or to the run that it came from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lob.errors import BadInput, NotFound
from lob.units import counted
from sim.replay import Parent, Progress, ReplayResult, replay

if TYPE_CHECKING:
    from lob.instruments import Instrument
    from policy.protocol import Policy
    from sim.about import About
    from sim.config import RunConfig
    from sim.run_data import RunData
    from sim.tape import Loaded

SELECTORS = ("greedy", "boltzmann")
"""The first is the headline."""


@dataclass(frozen=True)
class Evaluated:
    """One run of an evaluation; `document` is the `evaluation` of its summary."""

    selector: str
    result: ReplayResult
    document: dict[str, Any]


def evaluate(
    config: RunConfig,
    store: Path,
    runs: Path,
    selectors: Sequence[str] = SELECTORS,
    progress: Progress | None = None,
    rebuild_features: bool = False,
    done: Collection[str] = (),
    device: str = "cpu",
) -> list[Evaluated]:
    """Play the checkpoint of `config` (phase `eval`) once with each selector, each into a run folder of its own under `runs`; those of
    `done` lie there already. The network computes on `device`; the environment steps on the CPU.

    Lane i plays window i mod W; the lanes are a whole multiple of the windows. Raises BadInput, NotFound, StaleCache, ForeignCheckpoint.
    """
    from sim.baselines import baselines
    from sim.evaluation import BASELINES, EVALUATION, Evidence, evaluation
    from sim.leak import mislead, shared_days
    from sim.policy import CHECKPOINT, normaliser_of
    from sim.tape import load
    from sim.trials import windows_of

    checkpoint = Path(config.policy.removeprefix(CHECKPOINT))
    windows = len(windows_of(config.model_dump(mode="json")))
    if config.lanes % windows:
        raise BadInput(
            f"{counted(config.lanes, 'lane')} on {counted(windows, 'window')}: give each window as many, a multiple of {windows}"
        )
    if config.log.level.partition(":")[0] not in ("full", "sampled", "fills"):
        raise BadInput(f"log level {config.log.level}: an evaluation is there to be proved; use full, sampled:n or fills")
    about, parent = about_of(checkpoint), parent_of(checkpoint)
    loaded = load(store, config, rebuild=rebuild_features, normaliser=normaliser_of(config.policy))
    configs = {name: config.model_copy(update={"selector": name}) for name in selectors}
    trials = _trials(runs, configs, loaded, device)
    rules = {name: earned.document() for name, earned in baselines(loaded, config, BASELINES).items()}
    out = []
    for name, one in configs.items():
        if name in done:
            continue
        maker = partial(policy_for, one, loaded, device)
        found: dict[str, Any] = mislead(store, one, loaded, maker) | shared_days(one, about)
        found["one_row_ahead_usd_micros"] = _ahead(loaded, one, maker(windows)) if name == selectors[0] else None
        evidence = Evidence(trials, rules, found)

        def conclude(run: RunData, summary: Mapping[str, Any], evidence: Evidence = evidence) -> dict[str, Any]:
            return {EVALUATION: evaluation(run, summary, evidence)}

        result = replay(one, store, runs, progress, loaded=loaded, parent=parent, conclude=conclude, device=device)
        out.append(Evaluated(name, result, result.summary[EVALUATION]))
    return out


def policy_for(config: RunConfig, loaded: Loaded, device: str, lanes: int) -> Policy:
    """The config's policy for so many lanes, computing on `device`."""
    from sim.policy import make_policy

    normaliser = loaded.normaliser
    return make_policy(config.policy, config.seed, lanes, device, mean=normaliser.mean, std=normaliser.std, selector=config.selector)


def _trials(runs: Path, configs: Mapping[str, RunConfig], loaded: Loaded, device: str) -> tuple[str, ...]:
    from sim.config import hashed_document
    from sim.trials import count_trials

    documents = [hashed_document(config, policy_for(config, loaded, device, 1).identity()) for config in configs.values()]
    return count_trials(runs, documents).configs


def _ahead(loaded: Loaded, config: RunConfig, policy: Policy) -> int:
    """What the policy would have earned in all, one account a window, had every decision seen the market features of the next one."""
    from sim.baselines import play_side_by_side
    from sim.leak import one_row_ahead

    return int(play_side_by_side(one_row_ahead(loaded), config, {"ahead": policy})["ahead"].pnl_usd_micros.sum())


# --- where a checkpoint comes from ---


def about_of(checkpoint: Path) -> About | None:
    """What the checkpoint tells of its training; None for an untrained one. Raises NotFound, ForeignCheckpoint, BadInput."""
    from policy.checkpoint import load
    from sim.about import read_about

    return read_about(load(checkpoint)[0].about)


def parent_of(checkpoint: Path) -> Parent | None:
    """The training run in whose `checkpoints` folder the checkpoint lies, None when it lies elsewhere. Raises DamagedLog."""
    from store.run_read import read_run

    folder = checkpoint.resolve().parent
    if folder.name != "checkpoints":
        return None
    try:
        return Parent(folder.parent.name, read_run(folder.parent).head)
    except NotFound:
        return None


def runs_beside(checkpoint: Path) -> Path | None:
    """The folder that holds the run that a checkpoint lies in."""
    folder = checkpoint.resolve().parent
    return folder.parent.parent if folder.name == "checkpoints" else None


# --- from what a user states to a config ---


def plan_evaluation(
    checkpoint: Path,
    store: Path,
    registry: Mapping[str, Instrument],
    symbol: str | None,
    tape: Mapping[str, Any],
    env: Mapping[str, Any],
    accounts: int = 1,
    **rest: Any,
) -> RunConfig:
    """The config of an evaluation: what is stated, else what the checkpoint was trained on, its test days above all.

    `tape` and `env` hold what the user stated, None where nothing. With `start_ns` and `end_ns` the windows are the sessions with data
    between them. `accounts` play each window. `rest`: seed, log, execution. Raises BadInput, NotFound.
    """
    from sim.config import run_config
    from sim.plan import choose_schema
    from sim.policy import CHECKPOINT

    about = about_of(checkpoint)
    stated = {name: value for name, value in tape.items() if value is not None}
    start, end = stated.pop("start_ns", None), stated.pop("end_ns", None)
    if (start is None) != (end is None):
        raise BadInput("a range needs both --start and --end")
    if about is None and (symbol is None or start is None):
        raise BadInput(f"{checkpoint} was not trained, so it has no days of its own: say --instrument, --start and --end")
    if symbol is None:
        assert about is not None
        symbol, instrument = about.instrument.symbol, about.instrument.instrument()
    else:
        instrument = _terms(symbol, registry, about)
    played = dict(about.tape) if about else {"clock": "1s"}
    played |= stated
    played["market_schema"] = played.get("market_schema") or choose_schema(store, symbol, played["clock"])
    windows = about.test if about and start is None else sessions_between(store, symbol, instrument, played["market_schema"], start, end)
    account = (about.env.model_dump() if about else {}) | {name: value for name, value in env.items() if value is not None}
    played |= {"start_ns": windows[0][0], "end_ns": windows[-1][1]} | ({"windows": windows} if len(windows) > 1 else {})
    rest.setdefault("seed", about.seed if about else 0)
    return run_config(
        symbol, instrument, played, account, phase="eval", policy=f"{CHECKPOINT}{checkpoint}", lanes=accounts * len(windows), **rest
    )  # fmt: skip


def _terms(symbol: str, registry: Mapping[str, Instrument], about: About | None) -> Instrument:
    """A symbol's terms: those of the training where it is the same contract, so that a user's instruments file is needed only once."""
    from lob.instruments import resolve

    if about is not None and about.instrument.symbol == symbol:
        return about.instrument.instrument()
    return resolve(symbol, registry)


def sessions_between(
    store: Path, symbol: str, instrument: Instrument, schema: str, start_ns: int, end_ns: int
) -> tuple[tuple[int, int], ...]:
    """A window for each session that has data in [start, end), cut to it. Raises BadInput when there is none."""
    from lob.units import format_time_ns
    from sim.tape import sessions_of

    found = tuple((first, last) for _, first, last in sessions_of(store, symbol, schema, instrument, start_ns, end_ns))
    if not found:
        raise BadInput(
            f"{store}: no session of {symbol} with data between {format_time_ns(start_ns)} and {format_time_ns(end_ns)}; "
            "`sim store ls` shows what is there"
        )
    return found
