"""Whether a file's bars can be what they are said to be: none twice, none closer than a bar is long, not backwards."""

import numpy as np

from lob.errors import BadInput
from lob.records import BAR_NS
from lob.units import format_time_ns


class BarOrder:
    """Watches one instrument's bars go by, batch by batch. It keeps eight bytes a bar, to find one that is given twice."""

    def __init__(self, where: str, schema: str) -> None:
        self.where, self.schema = where, schema
        # The shortest local day has 23 hours.
        self.least_ns = BAR_NS[schema] - (3600 * 10**9 if schema == "ohlcv-1d" else 0)
        self.latest_ns = -(2**62)
        self.seen: list[np.ndarray] = []

    def check(self, ns: np.ndarray, lines: np.ndarray) -> None:
        """Raises BadInput naming the line of the first bar that is there already or too close. Later bars may come earlier in time."""
        latest = np.maximum.accumulate(np.concatenate(([self.latest_ns], ns)))
        step = ns - latest[:-1]
        self._refuse_newest_first(ns)
        close = (step > 0) & (step < self.least_ns)
        if close.any():
            i = int(np.argmax(close))
            raise BadInput(
                f"{self.where}: line {int(lines[i])}: the bar at {format_time_ns(int(ns[i]))} opens {int(step[i]) / 1e9:g} s "
                f"after the one before, less than a bar of {self.schema}: is --schema right?"
            )
        self._refuse_longer_bars(ns)
        self.seen.append(ns.copy())
        if (step <= 0).any():
            self._refuse_twice(ns, lines, int(np.argmax(step <= 0)))
        self.latest_ns = int(latest[-1])

    def _refuse_twice(self, ns: np.ndarray, lines: np.ndarray, first: int) -> None:
        every = np.concatenate(self.seen)
        before = len(every) - len(ns)
        order = np.argsort(every, kind="stable")
        again = order[1:][every[order[1:]] == every[order[:-1]]]
        again = again[again >= before + first]
        if len(again):
            i = int(again.min()) - before
            raise BadInput(
                f"{self.where}: line {int(lines[i])}: the bar at {format_time_ns(int(ns[i]))} is given twice: remove one of the two"
            )

    def _refuse_newest_first(self, ns: np.ndarray) -> None:
        if not self.seen and len(ns) > 2 and (np.diff(ns) < 0).all():
            raise BadInput(f"{self.where}: the bars run from the newest to the oldest: turn the file round")

    def _refuse_longer_bars(self, ns: np.ndarray) -> None:
        """A file of five-minute bars read as one-minute bars: every distance is a multiple of more than one bar."""
        if self.seen or len(ns) < 100 or self.schema == "ohlcv-1d":
            return
        common = int(np.gcd.reduce(np.abs(np.diff(ns))))
        if common >= 2 * BAR_NS[self.schema]:
            raise BadInput(
                f"{self.where}: all bars lie {common / 1e9:g} s or a multiple apart, so they are not {self.schema}: is --schema right?"
            )
