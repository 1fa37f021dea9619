"""A synthetic market whose right answer is known: ten levels, prints, one session of one instrument, byte-equal for a seed.

Hidden under the book lies a fair value V in ticks. Between two events, dt seconds apart, V moves by `0.2 K I dt` plus a draw that is
uniform on [-w, w] with w = sqrt(3 dt): sigma = 1 per sqrt(s). I is the displayed imbalance (B - A) / (B + A) of the ten levels' lots.
After every event (F_LAST) bid = floor(V) and ask = bid + 1, so bid <= V <= ask.

**Imbalance.** I' = r I + sqrt((1 - r^2)(1 - I^2)) u with r = 2^(-dt / 30 s) and u uniform on (-1, 1). It is a coordinate of a point on the
3-sphere that turns by arccos r in a uniform direction: bounded, autocorrelation r exactly, stationary law the semicircle with standard
deviation 1/2. (A Gaussian AR(1) of that deviation would leave [-1, 1].)

**No taker earns at K = 0.** Event times and sizes use draws of their own; so V is a martingale to all that is visible, a buy at the
displayed ask costs at least V and a sale at the bid brings at most V: expected value <= -fees.

**No maker earns at K = 0.** Let V0 be the fair value before an event and b the standing bid. A sell print at b happens exactly when the
new V <= 2 b - V0 + w: where V went through b (the book then moves down), and where it ended above b at a point whose mirror image in b
could have been drawn too (it touched b on the way, and came back). That set, [V0 - w, 2 b - V0 + w], is an interval centred on b, and V
is uniform on it: E[V | print, everything before] = b. (For a Brownian path this is the reflection principle.) Where V went through the ask
no sell prints, which takes the highest values away; levels below b print only when V went through them, so below their price. Hence
E[V after a sell print] <= the bid before it, given anything visible or hidden before, and by symmetry for buys. A queue position cannot
choose better prints: sizes are drawn apart from V, and whoever rests at a level through which V went is filled.

The stated limit: each day starts at the same price, so the gap between two days is predictable; measure day by day.
"""

import datetime as dt
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lob.calendar import CALENDARS, session_bounds
from lob.errors import BadInput
from lob.instruments import Instrument
from lob.records import MBP_10, RTYPE
from lob.synth_kernel import RECORD_WORDS, generate
from lob.units import NS_PER_SECOND

START_TICKS = 20_000
"""Where the bid stands at the open: 5,000.00 for ES."""
INSTRUMENT_ID = 1
LEAST_EVENTS = 100

# How busy each hour of the session is, from its open on (Globex: 18:00 New York): the quietest at least a quarter of the average.
_GLOBEX = (2, 1, 1, 1, 1, 1, 1, 1, 2, 3, 3, 3, 2, 3, 4, 8, 8, 6, 5, 5, 6, 9, 3)
_BUSY = {
    **{name: _GLOBEX for name in CALENDARS if name.startswith("cme_globex")},
    "us_equity_extended": (1, 1, 1, 1, 2, 9, 9, 7, 6, 6, 7, 10, 2, 1, 1, 1),
}


@dataclass(frozen=True)
class SyntheticDay:
    """n MBP-10 records and, row by row, what lies hidden under them once the row's event is over."""

    records: np.ndarray  # MBP_10[n]
    fair_ticks: np.ndarray  # float64[n]: V
    imbalance: np.ndarray  # float64[n]: I before its rounding to whole lots


def synthesize(instrument: Instrument, date: dt.date, events: int, seed: int, edge: float = 0.0) -> SyntheticDay:
    """`events` rows over the instrument's session of a trade date; `edge` is K (1: order flow predicts, 0: nothing does).

    368 bytes of memory a row. Raises BadInput when the date has no session or a number is out of its range.
    """
    if not LEAST_EVENTS <= events < 2**31:
        raise BadInput(f"{events} events: a synthetic day has {LEAST_EVENTS} to {2**31 - 1} rows")
    if not 0 <= seed < 2**63:
        raise BadInput(f"seed {seed}: use a whole number from 0 to {2**63 - 1}")
    if not -10.0 <= edge <= 10.0:
        raise BadInput(f"edge {edge}: use a number from -10 to 10 (0: nothing predicts, 1: imbalance does)")
    open_ns, close_ns = session_bounds(instrument.calendar, date)
    hours = -(-(close_ns - open_ns) // (3600 * NS_PER_SECOND))  # an early close cuts the day's end off
    busy = _BUSY.get(instrument.calendar, (1,))[:hours]
    cumulative = np.array([float(Fraction(sum(busy[:i]), sum(busy))) for i in range(len(busy) + 1)])
    words = np.zeros((events, RECORD_WORDS), np.int64)
    fair, imbalance = np.empty(events), np.empty(events)
    yyyymmdd = date.year * 10_000 + date.month * 100 + date.day
    # The last second stays free, so that the last row is received before the close.
    span_ns = close_ns - open_ns - NS_PER_SECOND
    generate(words, fair, imbalance, seed, yyyymmdd, float(edge), open_ns, span_ns, cumulative, START_TICKS, instrument.tick_price_e9)
    records = words.view(MBP_10).reshape(events)
    records["length"] = MBP_10.itemsize // 4
    records["rtype"] = RTYPE["mbp-10"]
    records["instrument_id"] = INSTRUMENT_ID
    return SyntheticDay(records, fair, imbalance)


def synthesize_day(instrument: Instrument, date: dt.date, events: int, seed: int, edge: float = 0.0) -> np.ndarray:
    """The visible part of `synthesize`: MBP_10[events]."""
    return synthesize(instrument, date, events, seed, edge).records
