"""The vocabulary of a step: actions, gates' outcomes, orders, fills, ends. Codes are what the log stores; names are what SQL shows.

An action is `direction*27 + magnitude*9 + order*3 + urgency`, 0..107 (72 = long, full, market, normal; 77 = long, full, join, aggressive).
"""

from enum import IntEnum

from lob.jit import scalar

NOT_PLAYED = -1
"""What a slot holds that was never played (a dead lane, the drain row). Never 0: 0 decodes as short, quarter."""

ACTIONS = 108


class Direction(IntEnum):
    SHORT = 0
    HOLD = 1
    LONG = 2
    FLAT = 3


class Magnitude(IntEnum):
    QUARTER = 0
    HALF = 1
    FULL = 2


class OrderKind(IntEnum):
    MARKET = 0
    JOIN = 1
    IMPROVE = 2


class Urgency(IntEnum):
    NORMAL = 0
    PATIENT = 1
    AGGRESSIVE = 2


class Side(IntEnum):
    """Of an order or a fill; for a trade, the side of the position that was closed."""

    SELL = -1
    BUY = 1


class Phase(IntEnum):
    TRAIN = 0
    EVAL = 1
    REPLAY = 2


class EndReason(IntEnum):
    """Why an episode ended on this step. RUNNING: it did not. NOT_PLAYED: the lane was dead before the step began."""

    NOT_PLAYED = -1
    RUNNING = 0
    SESSION_CLOSE = 1
    WINDOW_END = 2
    STEP_LIMIT = 3
    TAPE_END = 4
    CAPITAL_FLOOR = 5


class FillReason(IntEnum):
    """Why an order filled. QUEUE and TRADE_THROUGH belong to passive orders."""

    CROSSED = 0
    QUEUE = 1
    TRADE_THROUGH = 2
    STOP = 3
    FLOOR = 4
    WINDOW_END = 5


class OrderState(IntEnum):
    """How an order ended: wholly filled, partly (the book showed no more; the rest expired), or not at all. The last two belong to orders
    that work in the book, whatever of them had filled: cancelled, and expired at the end of the session."""

    FILLED = 0
    PARTLY_FILLED = 1
    UNFILLED = 2
    CANCELLED = 3
    EXPIRED = 4


MAGNITUDE_PPM = (250_000, 500_000, 1_000_000)
"""Share of `max_lots` that each magnitude asks for, in parts per million."""


@scalar
def encode_action(direction, magnitude, order, urgency):
    """The action code 0..107 of four branch codes."""
    return direction * 27 + magnitude * 9 + order * 3 + urgency


@scalar
def decode_action(action):
    """(direction, magnitude, order, urgency) of an action code 0..107."""
    return action // 27, action % 27 // 9, action % 9 // 3, action % 3


def names(enum: type[IntEnum]) -> dict[int, str]:
    """{code: lower-case name}: what a coded column declares, so that SQL can show names."""
    return {int(member): member.name.lower() for member in enum}
