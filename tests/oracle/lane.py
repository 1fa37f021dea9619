"""The oracle's physics: one lane's account in Fractions of a dollar, straight from docs/step.md. Slow, and shares no code with `cuda_env`.

`play` runs one lane over a schedule: from picks (all gates) or from logged targets (`targets=`: what the gates let through is given, and
only the fills are regenerated). It returns rows, one dict per log row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import floor

from tests.oracle.events import Decision, Event

SHORT, HOLD, LONG, FLAT = range(4)
CROSSED, STOP, FLOOR, WINDOW_END = 0, 3, 4, 5
RUNNING, SESSION_CLOSE, CAPITAL_FLOOR = 0, 1, 5
MAGNITUDE = (Fraction(1, 4), Fraction(1, 2), Fraction(1))
MICROS = 10**6


@dataclass(frozen=True)
class Terms:
    """What the account depends on. Money in Fractions of a dollar."""

    tick_value: Fraction
    fee: Fraction
    margin: Fraction
    capital: Fraction
    floor: Fraction
    max_lots: int
    trail_ticks: int = 0
    plan_lock_steps: int = 0
    reward_scale: Fraction = Fraction(1)
    bars: bool = False


@dataclass(frozen=True)
class Pick:
    action: int
    conviction_ppm: int = MICROS
    health_ppm: int = MICROS
    variance_scale_ppm: int = MICROS


@dataclass
class Account:
    lane: int
    cash: Fraction
    position: int = 0
    cost: int = 0
    open_fee: Fraction = Fraction(0)
    trail: int | None = None
    opened_step: int = 0
    opened_ts: int = 0
    marks: list[int] = field(default_factory=list)  # mid2 of every mark since the position was opened
    breached: bool = False
    dead: bool = False
    wins: list[Fraction] = field(default_factory=list)
    losses: list[Fraction] = field(default_factory=list)
    taken: dict[tuple[int, int], int] = field(default_factory=dict)  # (event, side) -> lots
    counts: dict[str, int] = field(default_factory=dict)
    rows: dict[str, list[dict]] = field(default_factory=lambda: {"steps": [], "orders": [], "fills": [], "trades": []})


def micros(dollars: Fraction) -> int:
    value = dollars * MICROS
    assert value.denominator == 1, f"{dollars} is finer than a micro-dollar"
    return int(value)


def _micro_floor(dollars: Fraction) -> Fraction:
    return Fraction(floor(dollars * MICROS), MICROS)


def _sign(x: int) -> int:
    return (x > 0) - (x < 0)


def _next_id(account: Account, table: str) -> int:
    count = account.counts.get(table, 0)
    account.counts[table] = count + 1
    return account.lane * 2**32 + count


def magnitude_bin(position: int, max_lots: int) -> int:
    share = Fraction(abs(position), max_lots)
    return 0 if share < Fraction(3, 8) else 1 if share < Fraction(3, 4) else 2


def unrealized(account: Account, mid2: int, terms: Terms) -> Fraction:
    return (account.position * mid2 - 2 * account.cost) * terms.tick_value / 2


def kelly_ppm(account: Account) -> int:
    """b*p - q over b, as docs/step.md lays it out in integers."""
    trades = len(account.wins) + len(account.losses)
    won, lost = micros(sum(account.wins, Fraction(0))), micros(sum(account.losses, Fraction(0)))
    if trades == 0 or lost >= won:
        return 0
    while won >= 2**43:
        won, lost = won // 2, lost // 2
    ratio = (won - lost) * MICROS // won
    return len(account.wins) * ratio // trades


def _book(
    account: Account, terms: Terms, key: dict, order: dict, before: int, lots: int, price: int, ts: int, event: Event, level: int
) -> None:
    """One fill: cash, position, cost, and the trade row if it reduces."""
    side = order["side"]
    fee = lots * terms.fee
    fill = key | {
        "fill_id": _next_id(account, "fills"), "order_id": order["order_id"], "ts_submitted_ns": order["ts_submitted_ns"],
        "ts_filled_ns": ts, "side": side, "lots": lots, "price_ticks": price, "fee_usd_micros": micros(fee), "reason": order["reason"],
        "market_source": event.source, "market_row": event.row, "book_level": event.level if terms.bars else level,
    }  # fmt: skip
    account.rows["fills"].append(fill)
    order["filled_lots"] += lots
    account.cash -= fee
    closing = min(lots, abs(account.position)) if side == -_sign(account.position) else 0
    if closing:
        sign = _sign(account.position)
        out = floor(Fraction(account.cost * closing, abs(account.position)))
        entry_fee = _micro_floor(account.open_fee * closing / abs(account.position))
        exit_fee = closing * terms.fee
        gross = (sign * closing * price - out) * terms.tick_value
        realized = gross - exit_fee - entry_fee
        open_values = [(sign * closing * mid2 - 2 * out) * terms.tick_value / 2 for mid2 in (*account.marks, 2 * price)]
        account.rows["trades"].append(key | {
            "trade_id": _next_id(account, "trades"), "fill_id": fill["fill_id"], "ts_entry_ns": account.opened_ts, "ts_exit_ns": ts,
            "side": sign, "lots": closing, "cost_ticks": out, "exit_ticks": price, "bars_held": key["step"] - account.opened_step,
            "mfe_usd_micros": micros(max([Fraction(0), *open_values])), "mae_usd_micros": micros(min([Fraction(0), *open_values])),
            "magnitude_bin": magnitude_bin(before, terms.max_lots), "realized_usd_micros": micros(realized),
            "fee_usd_micros": micros(exit_fee + entry_fee), "exit_reason": order["reason"],
        })  # fmt: skip
        account.cash += gross
        account.cost -= out
        account.open_fee -= entry_fee
        account.position += side * closing
        if realized > 0:
            account.wins.append(realized)
        elif realized < 0:
            account.losses.append(-realized)
    opening = lots - closing
    if opening:
        if account.position == 0:
            account.opened_step, account.opened_ts, account.marks = key["step"], ts, []
        account.position += side * opening
        account.cost += side * opening * price
        account.open_fee += opening * terms.fee


def _execute(account: Account, tape: Sequence[Event], terms: Terms, key: dict, order: dict, before: int, index: int, ts: int) -> None:
    """The order walks the levels of one event for what it still wants; what this lane took there before is gone from the top."""
    event, side = tape[index], order["side"]
    gone = account.taken.get((index, side), 0)
    for level, (price, shown) in enumerate(event.asks if side > 0 else event.bids):
        wanted = order["lots"] - order["filled_lots"]
        if terms.bars:
            shown = 2**62
        skipped = min(gone, shown)
        gone -= skipped
        lots = min(wanted, shown - skipped)
        if terms.bars and level > 0:
            break
        if lots:
            _book(account, terms, key, order, before, lots, price, ts, event, level)
            account.taken[index, side] = account.taken.get((index, side), 0) + lots


def _order(account: Account, key: dict, delta: int, reason: int, pick: tuple[int, int], submitted: int, met: int) -> dict:
    order = key | {
        "order_id": _next_id(account, "orders"), "ts_submitted_ns": submitted, "ts_event_ns": met, "side": _sign(delta), "kind": 0,
        "picked_kind": pick[0], "urgency": pick[1], "lots": abs(delta), "filled_lots": 0, "limit_ticks": None, "reason": reason,
    }  # fmt: skip
    account.rows["orders"].append(order)
    return order


def gates(account: Account, terms: Terms, step: int, pick: Pick, equity: Fraction, mark_mid2: int) -> dict:
    """The gates of docs/step.md in their order, each with its column."""
    direction, magnitude = pick.action // 27, pick.action % 27 // 9
    locked = direction
    if account.position and terms.plan_lock_steps and step - account.opened_step < terms.plan_lock_steps:
        locked = HOLD
    scaled = max(1, floor(terms.max_lots * MAGNITUDE[magnitude] * Fraction(pick.variance_scale_ppm, MICROS)))
    margin_cap = max(0, floor(equity / terms.margin))
    kelly = kelly_ppm(account)
    safety = 500_000 + pick.health_ppm // 2
    kelly_cap = max(1, max(kelly, pick.conviction_ppm, safety) * safety * terms.max_lots // 10**12)
    lots = min(scaled, margin_cap, kelly_cap)
    target = {LONG: lots, SHORT: -lots, FLAT: 0, HOLD: account.position}[locked]
    trail = account.position != 0 and terms.trail_ticks > 0 and account.trail is not None
    hit = trail and (mark_mid2 <= account.trail if account.position > 0 else mark_mid2 >= account.trail)  # type: ignore[operator]
    at_floor = equity <= terms.floor
    if hit or at_floor or account.breached:
        target = 0
    return {
        "picked_action": pick.action, "picked_direction": direction, "picked_magnitude": magnitude, "picked_order": pick.action % 9 // 3,
        "picked_urgency": pick.action % 3, "conviction_ppm": pick.conviction_ppm, "health_ppm": pick.health_ppm,
        "variance_scale_ppm": pick.variance_scale_ppm, "locked_direction": locked,
        "scaled_lots": {FLAT: 0, HOLD: -1}.get(locked, scaled), "margin_cap_lots": margin_cap, "kelly_ppm": kelly,
        "kelly_cap_lots": kelly_cap, "trail_triggered": int(hit),
        "floor_triggered": int(at_floor or account.breached), "target_lots": target,
    }  # fmt: skip


_UNPLAYED = (
    "picked_action", "picked_direction", "picked_magnitude", "picked_order", "picked_urgency", "conviction_ppm", "health_ppm",
    "variance_scale_ppm", "locked_direction", "scaled_lots", "margin_cap_lots", "kelly_ppm", "kelly_cap_lots", "trail_triggered",
    "floor_triggered", "actual_action", "actual_direction", "actual_magnitude", "actual_order", "actual_urgency",
)  # fmt: skip


def _floor_scan(account: Account, tape: Sequence[Event], terms: Terms, key: dict, start: int, stop: int) -> None:
    """Marks every tradable event in [start, stop]; from the first at or under the floor on, the resting stop order closes what is open."""
    order = None
    before = account.position
    for i in range(start, stop + 1):
        if not tape[i].tradable:
            continue
        if order is None and account.cash + unrealized(account, tape[i].mid2, terms) <= terms.floor:
            account.breached = True
            if account.position:
                order = _order(account, key, -account.position, FLOOR, (-1, -1), tape[i].ts_event, tape[i].ts_event)
        if order is not None and account.position:
            _execute(account, tape, terms, key, order, before, i, tape[i].ts_event)


def _actual(picked: dict, sent: bool, held: bool, position: int, max_lots: int) -> dict:
    """What physics made of the pick: docs/step.md, "Actual action"."""
    if held and not sent:
        direction, magnitude = HOLD, 0
    else:
        direction = LONG if position > 0 else SHORT if position < 0 else FLAT
        magnitude = magnitude_bin(position, max_lots) if position else 0
    urgency = picked["picked_urgency"]
    return {
        "actual_direction": direction, "actual_magnitude": magnitude, "actual_order": 0, "actual_urgency": urgency,
        "actual_action": direction * 27 + magnitude * 9 + urgency,
    }  # fmt: skip


def play(
    lane: int,
    tape: Sequence[Event],
    decisions: Sequence[Decision],
    terms: Terms,
    picks: Sequence[Pick] | None = None,
    targets: Sequence[int] | None = None,
    final_reason: int = 2,
    phase: int = 2,
) -> Account:
    """All log rows of one lane. `decisions[-1]` is the drain. Exactly one of `picks` and `targets` is given."""
    account = Account(lane, terms.capital)
    episode = 0
    for step in range(len(decisions)):
        now, drain = decisions[step], step == len(decisions) - 1
        after = now if drain else decisions[step + 1]
        key = {"phase": phase, "lane": lane, "episode": episode, "step": step}
        cash_before = account.cash
        closing = now.fill if drain else after.mark  # the row that the step is marked at
        mid2 = tape[now.mark].mid2
        equity_before = account.cash + unrealized(account, mid2, terms)
        n_fills, n_trades = len(account.rows["fills"]), len(account.rows["trades"])
        was_dead = account.dead
        row = dict.fromkeys(_UNPLAYED, -1) | {"target_lots": 0}
        if not was_dead:
            before = account.position
            if drain:
                if before:
                    order = _order(account, key, -before, WINDOW_END, (-1, -1), now.ts_filled, now.ts_filled)
                    _execute(account, tape, terms, key, order, before, now.fill, now.ts_filled)
                    assert account.position == 0
            else:
                if picks is not None:
                    row |= gates(account, terms, step, picks[step], equity_before, mid2)
                    target = row["target_lots"]
                    reason = FLOOR if row["floor_triggered"] else STOP if row["trail_triggered"] else CROSSED
                else:
                    assert targets is not None
                    target, reason = targets[step], CROSSED
                    if account.breached or equity_before <= terms.floor:
                        reason = FLOOR
                if equity_before <= terms.floor:
                    account.breached = True
                sent = target != before
                if sent:
                    intent = (row["picked_order"], row["picked_urgency"]) if reason == CROSSED else (-1, -1)
                    order = _order(account, key, target - before, reason, intent, now.ts, now.ts_filled)
                    _execute(account, tape, terms, key, order, before, now.fill, now.ts_filled)
                start = (now.fill if sent else now.observed) + 1
                _floor_scan(account, tape, terms, key, start, after.observed)
                if account.position and (before == 0 or _sign(before) != _sign(account.position)):
                    account.trail = None
                mid2 = tape[after.mark].mid2
                if account.position and terms.trail_ticks:
                    sign = _sign(account.position)
                    level = mid2 - sign * 2 * terms.trail_ticks
                    account.trail = level if account.trail is None else sign * max(sign * account.trail, sign * level)
                if account.position:
                    account.marks.append(mid2)
                if account.cash + unrealized(account, mid2, terms) <= terms.floor:
                    account.breached = True
                if picks is not None:
                    if account.breached:
                        row["floor_triggered"] = 1
                    traded = len(account.rows["fills"]) > n_fills
                    row |= _actual(row, traded, row["locked_direction"] == HOLD, account.position, terms.max_lots)
                account.dead = account.breached and account.position == 0
        if drain or account.position == 0:
            account.trail = None
        mid2 = tape[closing].mid2
        fills = account.rows["fills"][n_fills:]
        equity = account.cash + unrealized(account, mid2, terms)
        if was_dead:
            end_reason = -1
        elif account.dead or (drain and account.breached):
            end_reason = CAPITAL_FLOOR
        elif drain:
            end_reason = final_reason
        else:
            end_reason = SESSION_CLOSE if after.session != now.session else RUNNING
        raw = micros(equity - equity_before) if not was_dead else 0
        scaled_reward = float(Fraction(raw, MICROS) / terms.reward_scale)
        row |= key | {
            "ts_observed_ns": tape[now.observed].ts_recv, "ts_decided_ns": now.ts, "position_lots": account.position,
            "cost_ticks": account.cost, "mark_mid2_ticks": mid2, "mark_source": tape[closing].source, "mark_row": tape[closing].row,
            "trail_mid2_ticks": account.trail, "cash_usd_micros": micros(account.cash), "equity_usd_micros": micros(equity),
            "realized_usd_micros": micros(account.cash - cash_before), "unrealized_usd_micros": micros(equity - account.cash),
            "fee_usd_micros": sum(fill["fee_usd_micros"] for fill in fills), "reward_raw": raw, "reward_shaped": raw / MICROS,
            "reward_scaled": scaled_reward, "reward_whitened": scaled_reward,
            "end_reason": end_reason, "is_drain": int(drain),
        }  # fmt: skip
        account.rows["steps"].append(row)
        assert len(account.rows["trades"]) >= n_trades
        if after.session != now.session:
            episode += 1
    for order in account.rows["orders"]:
        order["state"] = 0 if order["filled_lots"] == order["lots"] else 1 if order["filled_lots"] else 2
    return account
