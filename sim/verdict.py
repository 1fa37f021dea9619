"""`sim verdict`: eight signals of one run, from its log and the runs beside it, to PASS, WARN, KILL or UNKNOWN.

A training run is judged together with the evaluations of the checkpoint that it chose, which name it in their identity. Every number is a
function of sealed logs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lob.errors import BadInput
from lob.units import counted
from sim import signals as s
from sim.evaluation import EVALUATION
from sim.run_data import stated
from sim.trials import run_manifests

if TYPE_CHECKING:
    from sim.run_data import RunData

GREEDY = "greedy"
"""The selector of the headline evaluation."""

NON_FINITE = "non_finite"
"""How the kind of an event begins that tells of a value which was none."""

VALIDATION = "validation"
"""Kind of the event that gives a validation's score."""

FAULTS = "faults"
"""Folder of a training run in which its learner leaves the state that met such a value."""

UPDATES, OF_EVERY_UPDATE = "learn.updates", ("learn.loss", "learn.grad", "learn.td_abs", "learn.q_dir_abs")
"""Columns of a training's `diag`: the learner's updates so far, and how those begin that each of them makes."""


@dataclass(frozen=True)
class Judgement:
    """What `sim verdict` found. `evaluations` are the run folders that were judged along with it, `left_out` says of the training's other
    ones why they were not."""

    run: str
    head: str
    phase: str
    evaluations: tuple[str, ...]
    signals: tuple[s.Signal, ...]
    left_out: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """The gravest; UNKNOWN signals alone do not keep a run from passing."""
        gravest = s.worst(self.signals).status
        return s.PASS if gravest == s.UNKNOWN else gravest

    def exit_code(self, strict: bool = False) -> int:
        return int(self.status == s.KILL or (strict and self.status == s.WARN))

    def to_json(self) -> dict[str, Any]:
        return {"status": self.status} | asdict(self)


def judge(run_dir: Path, store: Path | None = None, head: str | None = None, against: Path | None = None) -> Judgement:
    """The verdict on a run, in whatever state it is. With a store each fill is also held against its raw market row. `against` is an
    earlier run (an evaluation, or a training with one) from which its greedy evaluation must not have fallen.

    Raises NotFound (no run there), BadInput (a head that is none, a store that cannot judge it, an `against` that cannot be compared).
    """
    from sim.run_data import UNREADABLE, load
    from store.run_read import read_run

    held = consistency_of(run_dir, store, head)
    try:
        run = load(run_dir)
        files = read_run(run_dir)
        phase = run.terms.phases[0]
    except UNREADABLE as error:
        return Judgement(run_dir.name, "", "unknown", (), (s.consistency(0, "", [str(error)], ""),))
    children, left_out = of_the_best(run_dir, run) if phase == "train" else ([], [])
    readable = {folder: part for folder in children if (part := load_or_none(folder)) is not None}
    everything = {run_dir: run, **readable}
    judged = readable if phase == "train" else everything

    def over(name: str, folders: Collection[Path], signal_of: Callable[[Path], s.Signal]) -> s.Signal:
        """The gravest of a signal over some runs; it says which run it speaks of when that is not the one that was asked about."""
        found = [(folder, told(name, partial(signal_of, folder))) for folder in folders]
        gravest = s.worst([signal for _, signal in found])
        folder = next(folder for folder, signal in found if signal is gravest)
        return gravest if folder == run_dir else replace(gravest, sentence=f"{folder.name}: {gravest.sentence}")

    headlines = [folder for folder, part in judged.items() if is_headline(part)]
    found = (
        told("reward_alignment", partial(alignment_of, run)),
        over("eval_pnl", headlines, lambda folder: s.eval_pnl(evaluation_of(judged[folder]))) if headlines else s.eval_pnl(None),
        over("consistency", [run_dir, *children], lambda folder: held if folder == run_dir else consistency_of(folder, store, None)),
        over("leak", judged or everything, lambda folder: leak_of(everything[folder])),
        over("collapse", everything, lambda folder: collapse_of(everything[folder])),
        over("non_finite", everything, lambda folder: non_finite_of(folder, everything[folder])),
        s.determinism(twins_of(run_dir)),
        over("completion", everything, lambda folder: completion_of(everything[folder])),
        *([told("convergence", lambda: s.convergence(validations(run)))] if phase == "train" else []),
        *([told("regression", partial(regression_of, run_dir, against))] if against is not None else []),
    )
    return Judgement(run_dir.name, files.head, phase, tuple(folder.name for folder in children), found, tuple(left_out))


def told(name: str, signal_of: Callable[[], s.Signal]) -> s.Signal:
    """A signal; where what it is computed from is no log or summary of this version, that is what it says."""
    try:
        return signal_of()
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, ArithmeticError) as error:
        return s.Signal(name, s.KILL, f"the log or its summary is not one of this version: {error!r}"[:400])


def load_or_none(run_dir: Path) -> RunData | None:
    """A run's log; None where it cannot be read, which its consistency then says."""
    from sim.run_data import UNREADABLE, load

    try:
        return load(run_dir)
    except UNREADABLE:
        return None


# --- the log as the signals want it ---


def consistency_of(run_dir: Path, store: Path | None, head: str | None) -> s.Signal:
    """`sim verify` of a run, as a signal."""
    from sim.verify import verify

    verdict = verify(run_dir, store, head)
    failed = [check.line() for check in verdict.failed]
    return s.consistency(verdict.largest_difference_usd_micros, verdict.largest_at, failed, verdict.proof)


def evaluation_of(run: RunData) -> Mapping[str, Any] | None:
    """What `sim eval` found beyond the log, from the run's summary."""
    found = (run.summary or {}).get(EVALUATION)
    return found if isinstance(found, Mapping) else None


def is_headline(run: RunData) -> bool:
    """Whether the run is a greedy evaluation."""
    evaluation = evaluation_of(run)
    return evaluation is not None and stated(evaluation, "selector.name") == GREEDY


def summary_of(run: RunData) -> Mapping[str, Any]:
    """The run's summary; of a run that wrote none, computed now."""
    from sim.summary import summarize

    return run.summary if run.summary is not None and "phases" in run.summary else summarize(run)


def alignment_of(run: RunData) -> s.Signal:
    from sim.run_data import ints

    config = run.manifest["identity"]["config"]
    diag = run.tables.get("diag")
    names = [name for name in (*s.PROVENANCE, s.LANES_PLAYED) if diag is not None and name in diag.column_names]
    columns = {name: ints(diag, name).tolist() for name in names}
    weights = config.get("reward", {})
    shaped = any(weight for term, weight in weights.items() if term != "whitening")
    return s.reward_alignment(columns, shaped, run.terms.reward_scale_usd_micros, run.terms.lanes)


def leak_of(run: RunData) -> s.Signal:
    return s.leak(evaluation_of(run), summary_of(run)["phases"][0], trade_dates(run))


def trade_dates(run: RunData) -> int:
    """How many trade dates the run's windows touch."""
    from lob.calendar import sessions

    return len({int(date) for window in run.terms.windows for date in sessions(run.terms.calendar, *window).trade_date})


def completion_of(run: RunData) -> s.Signal:
    diag = run.tables.get("diag")
    counts = (
        diag.column(UPDATES).to_pylist() if diag is not None and UPDATES in diag.column_names and run.terms.phases[0] == "train" else None
    )
    return s.completion(run.finished, run.ends, None if counts is None else max((count for count in counts if count), default=0))


def collapse_of(run: RunData) -> s.Signal:
    from sim.run_data import ints

    diag = run.tables.get("diag")
    gates = [name for name in (diag.column_names if diag is not None else ()) if name.startswith("gate.")]
    acted = {name.removeprefix("gate."): int(ints(diag, name).sum()) for name in gates}
    return s.collapse(summary_of(run)["phases"][0], acted)


def non_finite_of(run_dir: Path, run: RunData) -> s.Signal:
    events = run.tables.get("events")
    rows = events.select(["step", "kind", "message"]).to_pylist() if events is not None else []
    said = [(row["step"], row["message"]) for row in rows if row["kind"].startswith(NON_FINITE)]
    return s.non_finite(said, missing_figures(run), (run_dir / FAULTS).is_dir(), run.finished)


def missing_figures(run: RunData) -> list[tuple[int, str]]:
    """(step, column): the first step at which a figure that every update makes has no value although there were updates. A NaN is no value
    in the log."""
    diag = run.tables.get("diag")
    if diag is None or UPDATES not in diag.column_names:
        return []
    updates, steps = diag.column(UPDATES).to_pylist(), diag.column("step").to_pylist()
    found = []
    for name in (name for name in diag.column_names if name.startswith(OF_EVERY_UPDATE)):
        values = diag.column(name).to_pylist()
        at = next((i for i, value in enumerate(values) if value is None and updates[i]), None)
        if at is not None:
            found.append((steps[at], name))
    return found


def validations(run: RunData) -> list[float]:
    """The scores of a training's validations, in dollars, as its events have them."""
    rows = run.tables["events"].select(["kind", "value"]).to_pylist()
    return [row["value"] for row in rows if row["kind"] == VALIDATION]


def regression_of(run_dir: Path, against: Path) -> s.Signal:
    """The greedy evaluation of a run against that of an earlier one. Raises BadInput where the two cannot be compared."""
    from policy.bands import Measured, more_than_halved

    now, before = headline(run_dir), headline(against)
    if before is None:
        raise BadInput(f"{against}: there is no greedy evaluation of it to compare with; `sim eval` makes one")
    if now is None:
        return s.regression(None, None, fell=False)
    ours, theirs = (part.summary[EVALUATION] for part in (now, before))  # type: ignore[index]
    if [(day["start_ns"], day["end_ns"]) for day in ours["days"]] != [(day["start_ns"], day["end_ns"]) for day in theirs["days"]]:
        raise BadInput(f"--against {against}: it was evaluated on other days; evaluate both on the same ones")
    sharpe, was = (found["statistics"]["sharpe_per_day"] for found in (ours, theirs))
    if sharpe is None or was is None:
        return s.regression(sharpe, was, fell=False)
    codes = (part.manifest["identity"]["code"]["sha256"] for part in (now, before))
    measured = [Measured(value, GREEDY, code) for value, code in zip((sharpe, was), codes, strict=True)]
    return s.regression(sharpe, was, more_than_halved(measured[1], measured[0]))


def headline(run_dir: Path) -> RunData | None:
    """The greedy evaluation that a folder is, or that a training's best checkpoint led to: of several the first by name. None: there is
    none that can be read. Raises DamagedLog when the folder's own log cannot."""
    from sim.run_data import load

    run = load(run_dir)
    parts = (run, *map(load_or_none, of_the_best(run_dir, run)[0]))
    return next((part for part in parts if part is not None and is_headline(part)), None)


# --- the runs beside it ---


def evaluations_of(run_dir: Path) -> list[Path]:
    """Finished evaluations beside a run that name one of its chain's heads as their parent's, by name; of equal ones (equal trainings have
    equal evaluations) the run's own, else the first."""
    from store.chain import read_chain

    heads = {line["hash"] for line in read_chain(run_dir).lines}
    found: dict[str, tuple[bool, str, Path]] = {}
    for folder, manifest in run_manifests(run_dir.parent):
        parent, head = stated(manifest, "identity.parent.head"), manifest["head"]
        if str(parent) in heads and head is not None:
            place = (manifest["attributes"].get("parent") != run_dir.name, folder.name, folder)
            found[head] = min(place, found.get(head, place))
    return [folder for _, _, folder in sorted(found.values(), key=lambda place: place[1])]


def of_the_best(run_dir: Path, run: RunData) -> tuple[list[Path], list[str]]:
    """(a training's evaluations that played the checkpoint which validation chose, a line for each other one: what it played instead).

    The checkpoint is told by the hash of its content, in the training's summary and in the evaluation's identity."""
    from store.manifest import read_manifest

    chosen = stated(run.summary or {}, "training.best_content_hash")
    chosen = chosen if isinstance(chosen, str) else None
    judged, left_out = [], []
    for folder in evaluations_of(run_dir):
        played = str(stated(read_manifest(folder), "identity.config.policy.checkpoint") or "none")
        if played == chosen:
            judged.append(folder)
        else:
            best = f"and the best is {chosen[:10]}" if chosen else "and the training's summary names no best one"
            left_out.append(f"left out: {folder.name}, which played the checkpoint of content {played[:10]}, {best}")
    return judged, left_out


def twins_of(run_dir: Path) -> dict[str, str | None]:
    """Runs beside it that started from the same hash (config, seeds, data, code, device) and have ended -> the first difference."""
    from store.chain import CHAIN, read_chain

    own = read_chain(run_dir)
    if not own.lines or own.end is None:
        return {}
    twins = {}
    for path in sorted(run_dir.parent.glob(f"*/{CHAIN}")):
        other = read_chain(path.parent)
        if path.parent != run_dir and other.end is not None and other.lines[0] == own.lines[0]:
            twins[path.parent.name] = first_difference(own.lines, other.lines)
    return twins


def first_difference(chain: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> str | None:
    """The first segment and table in which two chains differ. Their end lines may: a summary also tells of other runs."""
    for line, its in zip(chain, other, strict=False):
        if "end" in line or "end" in its:
            break
        for table in line.get("tables", {}):
            if line["tables"][table]["sha256"] != its["tables"].get(table, {}).get("sha256"):
                return f"table {table} of segment {line['k']}, steps {line['steps'][0]} to {line['steps'][1] - 1}"
    ends = [line["end"]["steps"] for line in (chain[-1], other[-1]) if "end" in line]
    return f"it has {counted(ends[1], 'step')}, this one {ends[0]}" if len(ends) == 2 and ends[0] != ends[1] else None


def render(found: Judgement) -> str:
    """The verdict as text, a line for each signal."""
    judged = f", with {', '.join(found.evaluations)}" if found.evaluations else ""
    unknown = ", ".join(signal.name for signal in found.signals if signal.status == s.UNKNOWN)
    last = f"{found.status}, with {unknown} not judged" if found.status == s.PASS and unknown else found.status
    lines = [f"run {found.run} ({found.phase}){judged}", *found.left_out, *(signal.line() for signal in found.signals), last]
    return "\n".join(lines)
