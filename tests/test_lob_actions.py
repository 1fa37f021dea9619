"""Laws of the action code (T11) and of the names that the log stores."""

import pytest

from lob.actions import (
    ACTIONS,
    MAGNITUDE_PPM,
    NOT_PLAYED,
    Direction,
    EndReason,
    FillReason,
    Magnitude,
    OrderKind,
    OrderState,
    Phase,
    Side,
    Urgency,
    decode_action,
    encode_action,
    names,
)

# Every code, counted out by hand: direction slowest, urgency fastest.
COUNTED = [(d, m, o, u) for d in range(4) for m in range(3) for o in range(3) for u in range(3)]


@pytest.mark.parametrize("build", ["compiled", "plain"])
def test_decode_and_encode_are_inverse_over_all_108_actions(build: str) -> None:
    decode = decode_action if build == "compiled" else decode_action.py_func
    encode = encode_action if build == "compiled" else encode_action.py_func
    assert len(COUNTED) == ACTIONS == 108
    assert [tuple(decode(action)) for action in range(ACTIONS)] == COUNTED
    assert [encode(*branches) for branches in COUNTED] == list(range(ACTIONS))


def test_the_golden_codes() -> None:
    assert tuple(decode_action(77)) == (Direction.LONG, Magnitude.FULL, OrderKind.JOIN, Urgency.AGGRESSIVE)
    assert tuple(decode_action(0)) == (Direction.SHORT, Magnitude.QUARTER, OrderKind.MARKET, Urgency.NORMAL)
    assert tuple(decode_action(107)) == (Direction.FLAT, Magnitude.FULL, OrderKind.IMPROVE, Urgency.AGGRESSIVE)


def test_the_sentinel_is_no_action_and_no_other_code() -> None:
    assert NOT_PLAYED == -1 and NOT_PLAYED not in range(ACTIONS)
    for enum in (Direction, Magnitude, OrderKind, Urgency, Phase, FillReason, OrderState):
        assert NOT_PLAYED not in names(enum)
    assert names(EndReason)[NOT_PLAYED] == "not_played"


def test_codes_and_names_are_frozen_because_logs_hold_them() -> None:
    enums = (Direction, Magnitude, OrderKind, Urgency, Side, Phase, EndReason, FillReason, OrderState)
    assert {enum.__name__: names(enum) for enum in enums} == {
        "Direction": {0: "short", 1: "hold", 2: "long", 3: "flat"},
        "Magnitude": {0: "quarter", 1: "half", 2: "full"},
        "OrderKind": {0: "market", 1: "join", 2: "improve"},
        "Urgency": {0: "normal", 1: "patient", 2: "aggressive"},
        "Side": {-1: "sell", 1: "buy"},
        "Phase": {0: "train", 1: "eval", 2: "replay"},
        "EndReason": {
            -1: "not_played", 0: "running", 1: "session_close", 2: "window_end", 3: "step_limit", 4: "tape_end", 5: "capital_floor",
        },
        "FillReason": {0: "crossed", 1: "queue", 2: "trade_through", 3: "stop", 4: "floor", 5: "window_end"},
        "OrderState": {0: "filled", 1: "partly_filled", 2: "unfilled", 3: "cancelled", 4: "expired"},
    }  # fmt: skip


def test_magnitudes_ask_for_a_quarter_a_half_and_the_whole() -> None:
    assert MAGNITUDE_PPM == (250_000, 500_000, 1_000_000)
