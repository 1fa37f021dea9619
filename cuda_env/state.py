"""State of the lanes: one int64[fields, stride] array, field-major. A field's name, meaning and reset rule stand here once.

`stride` is the number of lanes rounded up, so that equal fields of neighbouring lanes lie together and different fields of one lane do
not all fall on one cache set.
"""

from typing import NamedTuple

NONE_MID2 = 2**62
"""In a mid2 field: no value (no stop armed, no mark seen). Real mids are below 2^33."""

KEEP, ZERO, CAPITAL, NOTHING = "keep", "zero", "capital", "nothing"
"""Reset rules: survives a reset; 0; the initial capital; NONE_MID2."""

LIVING, DEAD, DRAINED = 0, 1, 2
"""Values of `status`. A dead lane went through the floor; a drained one is past the end of its window."""


class Field(NamedTuple):
    name: str
    reset: str
    doc: str


FIELDS = (
    Field("clock", KEEP, "steps of the environment so far: the `step` of the log"),
    Field("episode", KEEP, "sessions so far; a reset begins another"),
    Field("cursor", ZERO, "row of the plan that comes next; that of the window's drain when only the drain is left"),
    Field("status", ZERO, "living, dead or drained"),
    Field("breached", ZERO, "1 once the capital floor was met"),
    Field("position", ZERO, "signed lots"),
    Field("cost_ticks", ZERO, "signed sum of lots x price of what is open"),
    Field("open_fee", ZERO, "entry fees of what is open, micro-dollars"),
    Field("cash", CAPITAL, "capital + realised, micro-dollars"),
    Field("equity", CAPITAL, "cash + unrealised at the last mark"),
    Field("peak_equity", CAPITAL, "greatest equity at a mark"),
    Field("fees", ZERO, "fees paid since the reset"),
    Field("trail_mid2", NOTHING, "level of the trailing stop as bid+ask"),
    Field("high_mid2", NOTHING, "greatest mark of the open position"),
    Field("low_mid2", NOTHING, "least mark of the open position"),
    Field("opened_at", ZERO, "row at which the position was opened or reversed"),
    Field("opened_ns", ZERO, "time of the fill that opened or reversed it"),
    Field("wins", ZERO, "closed trade rows that gained"),
    Field("losses", ZERO, "closed trade rows that lost"),
    Field("sum_win", ZERO, "what they gained, micro-dollars"),
    Field("sum_loss", ZERO, "what they lost, micro-dollars, positive"),
    Field("kelly_ppm", ZERO, "Kelly fraction of these"),
    Field("trades", ZERO, "closed trade rows since the reset"),
    Field("last_direction", ZERO, "actual direction of the last decision: -1 short, 1 long, 0 hold, flat or none"),
    Field("taken_event", ZERO, "market row that the lane's last fill met"),
    Field("taken_buys", ZERO, "lots that the lane has bought on that row"),
    Field("taken_sells", ZERO, "lots that it has sold there"),
    Field("order_count", KEEP, "orders so far: the next id"),
    Field("fill_count", KEEP, "fills so far"),
    Field("trade_count", KEEP, "trade rows so far"),
)

NAMES = tuple(field.name for field in FIELDS)


def _index(name: str) -> int:
    return NAMES.index(name)


CLOCK = _index("clock")
EPISODE = _index("episode")
CURSOR = _index("cursor")
STATUS = _index("status")
BREACHED = _index("breached")
POSITION = _index("position")
COST = _index("cost_ticks")
OPEN_FEE = _index("open_fee")
CASH = _index("cash")
EQUITY = _index("equity")
PEAK_EQUITY = _index("peak_equity")
FEES = _index("fees")
TRAIL = _index("trail_mid2")
HIGH = _index("high_mid2")
LOW = _index("low_mid2")
OPENED_AT = _index("opened_at")
OPENED_NS = _index("opened_ns")
WINS = _index("wins")
LOSSES = _index("losses")
SUM_WIN = _index("sum_win")
SUM_LOSS = _index("sum_loss")
KELLY = _index("kelly_ppm")
TRADES = _index("trades")
LAST_DIRECTION = _index("last_direction")
TAKEN_EVENT = _index("taken_event")
TAKEN_BUYS = _index("taken_buys")
TAKEN_SELLS = _index("taken_sells")
ORDER_COUNT = _index("order_count")
FILL_COUNT = _index("fill_count")
TRADE_COUNT = _index("trade_count")


KEPT = -(2**63)
"""In `fresh_values`: the field keeps what it holds. No field ever holds this."""


def fresh_values(capital_usd_micros: int) -> list[int]:
    """What each field holds after a reset, KEPT where it survives it; the cursor is then set to where the lane begins."""
    return [KEPT if keeps else value for value, keeps in zip(reset_values(capital_usd_micros), kept(), strict=True)]


def reset_values(capital_usd_micros: int) -> list[int]:
    """What each field holds after a reset; for `keep` fields, what it holds at the very start."""
    values = {KEEP: 0, ZERO: 0, CAPITAL: capital_usd_micros, NOTHING: NONE_MID2}
    return [values[field.reset] for field in FIELDS]


def kept() -> list[bool]:
    """Which fields survive a reset."""
    return [field.reset == KEEP for field in FIELDS]


def padded(lanes: int) -> int:
    """Stride for a number of lanes: a multiple of 8 (one cache line of int64) that is an odd number of lines."""
    lines = (lanes + 7) // 8
    return 8 * (lines + (lines + 1) % 2)
