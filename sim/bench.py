"""The use case behind `sim bench`: a few benchmarks that any installation can run, on a synthetic market, in seconds.

Every round's output is checked after the clock has stopped; a benchmark of which one check fails gives no time at all, only why. What is
measured stands in `sim.bench_cases`; the benchmarks that compare with other tools stand in the repository's `benchmarks`.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lob.errors import CheckFailed, NotFound

Progress = Callable[[int, int], None]
"""Called with (rounds done, rounds in all)."""


class Trial(NamedTuple):
    """A benchmark that is ready to run. Of a round, `work` alone is timed."""

    size: str
    """What one round goes through, in words."""

    quantity: float
    """How many of the benchmark's units one round makes."""

    set_up: Callable[[], Any]
    work: Callable[[Any], Any]
    check: Callable[[Any, Any], None]
    """Called with what `set_up` and `work` gave; raises CheckFailed, in a line, where the output is not what it must be."""


class Case(NamedTuple):
    """A benchmark. `prepare(folder, threads)` makes its market in a folder of its own."""

    name: str
    what: str
    unit: str
    checked: str
    """What is checked of each round's output."""

    limit: str
    """What limits the figure."""

    prepare: Callable[[Path, int], Trial]


class Measured(NamedTuple):
    """Seconds of each round, or why there are none."""

    case: Case
    size: str
    quantity: float
    seconds: tuple[float, ...]
    refused: str | None

    def document(self) -> dict[str, Any]:
        """As JSON values; `median`, `least` and `greatest` are in `unit`, and null where the time was refused."""
        rates = sorted(self.quantity / seconds for seconds in self.seconds)
        figures = (statistics.median(rates), rates[0], rates[-1]) if rates else (None, None, None)
        return {
            "name": self.case.name,
            "what": self.case.what,
            "unit": self.case.unit,
            "size": self.size,
            **dict(zip(("median", "least", "greatest"), figures, strict=True)),
            "seconds": list(self.seconds),
            "checked": self.case.checked,
            "limit": self.case.limit,
            "refused": self.refused,
        }


def require(holds: bool, otherwise: str) -> None:
    """Raise CheckFailed unless something holds."""
    if not holds:
        raise CheckFailed(otherwise)


def measure(
    case: Case, trial: Trial, rounds: int, progress: Callable[[], None] = lambda: None, clock: Callable[[], float] = time.perf_counter
) -> Measured:
    """`rounds` timed rounds after one that compiles and warms up, and is checked like the others."""
    seconds: list[float] = []
    for turn in range(rounds + 1):
        given = trial.set_up()
        begun = clock()
        output = trial.work(given)
        took = clock() - begun
        try:
            trial.check(given, output)
        except CheckFailed as fault:
            return Measured(case, trial.size, trial.quantity, (), str(fault))
        if turn > 0:
            seconds.append(took)
        progress()
    return Measured(case, trial.size, trial.quantity, tuple(seconds), None)


def bench(chosen: Sequence[str], rounds: int, threads: int, progress: Progress | None = None) -> dict[str, Any]:
    """Run the chosen benchmarks, or all, one after the other: machine, versions, load, and `results` (`Measured.document`).

    `ok` is false when a time was refused. Raises NotFound for a name that is none.
    """
    from sim.bench_cases import cases
    from sim.doctor import examine

    known = {case.name: case for case in cases()}
    if unknown := [name for name in chosen if name not in known]:
        raise NotFound(f"no benchmark {', '.join(unknown)}; there are {', '.join(known)}")
    running = [known[name] for name in dict.fromkeys(chosen or known)]
    load = os.getloadavg()[0]
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, len(running) * (rounds + 1))

    results = []
    for case in running:
        with tempfile.TemporaryDirectory(prefix="sim-bench-") as folder:
            results.append(measure(case, case.prepare(Path(folder), threads), rounds, advance).document())
    machine = examine()
    return {
        "machine": {name: machine[name] for name in ("platform", "processors", "gpu")} | {"load": load},
        "versions": {"tapeproof": machine["tapeproof"], "python": machine["python"], **machine["packages"]},
        "rounds": rounds,
        "threads": threads,
        "results": results,
        "ok": all(result["refused"] is None for result in results),
    }
