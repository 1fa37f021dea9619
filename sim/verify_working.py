"""A lane whose orders work in the book, played again: what its targets and the raw market make of orders, fills and stops.

Written from docs/exchange.md and sharing nothing with the environment. Rows that can do nothing to a lane are passed over: between two
messages numpy finds those that may (`Lane.candidates`), and only these are walked.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from sim.run_data import WorkingTerms
from sim.verify_market import Market

FAR = 1 << 62
ONE, ALMOST_NONE, LONGEST = 1 << 16, 1 << 8, 1 << 31
CROSSED, QUEUE, TRADE_THROUGH, STOP, FLOOR, WINDOW_END = range(6)
FILLED, PARTLY_FILLED, UNFILLED, CANCELLED, EXPIRED = range(5)
MARKET, JOIN, IMPROVE = range(3)
PATIENT, AGGRESSIVE = 1, 2
ENTRY, CANCEL, ACK = 0x656E7472, 0x63616E63, 0x61636B6E
MOST_ORDERS = 4


class LaneTerms(NamedTuple):
    """What an account is, beside."""

    capital_usd_micros: int
    floor_usd_micros: int
    trail_ticks: int
    fee_usd_micros: int
    tick_value_usd_micros: int


class Decision(NamedTuple):
    """A step's decision (or drain): its time, the last row received and the last tradable one by then, and what was picked."""

    ts: int
    received: int
    mark: int
    target: int
    kind: int
    urgency: int


class Filled(NamedTuple):
    step: int
    order: int
    submitted: int
    ts: int
    side: int
    lots: int
    ticks: int
    reason: int
    row: int
    level: int
    ahead: int


def philox_word(lane: int, number: int, purpose: int, seed: int) -> int:
    """First word of Philox4x32-10 (Salmon et al., SC11)."""
    a, b, c, d = lane, number, purpose, 0
    k, m = seed % 2**32, seed >> 32
    for _ in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = q >> 32 ^ b ^ k, q % 2**32, p >> 32 ^ d ^ m, p % 2**32
        k, m = (k + 0x9E3779B9) % 2**32, (m + 0xBB67AE85) % 2**32
    return a


def drawn(quantiles: tuple[int, ...], lane: int, number: int, purpose: int, seed: int) -> int:
    """A latency: docs/exchange.md, "Messages"."""
    if len(quantiles) == 1:
        return quantiles[0]
    place = philox_word(lane, number, purpose, seed) * (len(quantiles) - 1)
    low, high = quantiles[place >> 32 :][:2]
    return low + ((high - low) * (place % 2**32 >> 12) >> 20)


class Rows:
    """A window's part of the market, and which of its rows print."""

    def __init__(self, part: Market) -> None:
        n = len(part.key)
        self.n, self.part = n, part
        self.ts, self.tradable, self.trusted = part.ts_event, part.tradable, part.trusted
        standing = np.maximum.accumulate(np.where(part.trusted, np.arange(n), -1))
        self.standing = standing
        before = np.concatenate([[-1], standing[:-1]])
        at = np.maximum(before, 0)
        open_book = (before >= 0) & part.tradable[at] & (part.session[at] == part.session) & (~part.trusted | part.tradable)
        prints = (part.aggressor != 0) & (part.printed > 0) & part.print_on_tick & (part.session >= 0) & open_book
        self.hits = {1: prints & (part.aggressor < 0), -1: prints & (part.aggressor > 0)}  # by the side that it can fill
        inside = np.flatnonzero(part.session >= 0)
        self.opens = np.zeros(n, bool)
        self.opens[inside[1:]] = np.diff(part.session[inside]) != 0
        self.own = {1: (part.bid, part.bid_lots), -1: (part.ask, part.ask_lots)}
        self.mid2 = part.bid[:, 0] + part.ask[:, 0]

    def displayed(self, side: int, ticks: int, rows: Any) -> np.ndarray:
        """Lots that rows display at a price on its own side; -1 behind the last level of a full book."""
        prices, lots = self.own[side][0][rows], self.own[side][1][rows]
        held = np.where((prices == ticks) & (lots > 0), lots, 0).sum(axis=-1)
        full = (lots > 0).all(axis=-1)
        behind = (ticks - prices[..., -1]) * side < 0
        return np.where((held == 0) & full & behind, -1, held)

    def stands(self, row: int, ts: int) -> bool:
        """Whether the book of a row is one to meet at `ts`."""
        if row < 0 or not self.tradable[row]:
            return False
        session = int(self.part.session_of(np.array([ts]))[0])
        return session >= 0 and int(self.part.session[row]) == session


@dataclass
class Order:
    number: int
    side: int
    style: str  # post, take, sweep
    kind: int
    reason: int
    lots: int
    left: int
    submitted: int
    arrival: int
    step: int
    limit: int = FAR
    asked: int = FAR
    target: int | None = None
    picked: int = -1
    urgency: int = -1
    phase: str = "flight"  # flight, waiting, resting, done
    accepted: int = 0
    joined: int = -1
    ahead: int = 0
    shown: int = -1
    printed: int = 0
    change: tuple[int, str] | None = None
    state: int = -1
    ended: int = 0
    ended_step: int = -1

    @property
    def due(self) -> int:
        return self.arrival if self.phase == "flight" else (self.change[0] if self.change else FAR)


@dataclass
class Lane:
    """One lane over one window. `orders` and `fills` are what the log must hold; `breached`, `kinds` go by step."""

    rows: Rows
    working: WorkingTerms
    terms: LaneTerms
    number: int
    next: int = 0
    step: int = 0
    position: int = 0
    base: int = 0  # capital + cash flow - fees
    trail: int | None = None
    is_breached: bool = False
    last_ts: int = 0
    orders: list[Order] = field(default_factory=list)
    live: list[Order] = field(default_factory=list)
    fills: list[Filled] = field(default_factory=list)
    consumed: dict[tuple[int, int], list[int]] = field(default_factory=dict)  # (side, ticks) -> lots, row up to which it was there
    breached: list[bool] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)

    def equity(self, mid2: Any) -> Any:
        return self.base + self.position * mid2 * (self.terms.tick_value_usd_micros // 2)

    # -- orders begin and end
    def send(self, **values: Any) -> Order:
        order = Order(number=len(self.orders), step=self.step, **values)
        self.orders.append(order)
        self.live.append(order)
        return order

    def end(self, order: Order, state: int, ts: int) -> None:
        order.phase, order.state, order.ended, order.ended_step = "done", state, ts, self.step
        self.live.remove(order)

    def take_out(self, ts: int) -> None:
        for order in list(self.live):
            self.end(order, CANCELLED, ts)

    # -- fills
    def fill(self, order: Order, lots: int, ticks: int, reason: int, row: int, level: int, ts: int) -> None:
        passive = reason in (QUEUE, TRADE_THROUGH)
        fee = self.working.maker_fee_usd_micros if passive else self.terms.fee_usd_micros
        self.base -= order.side * lots * ticks * self.terms.tick_value_usd_micros + lots * fee
        before, self.position = self.position, self.position + order.side * lots
        if self.position and before * self.position <= 0:
            self.trail = None
        order.left -= lots
        self.fills.append(
            Filled(self.step, order.number, order.submitted, ts, order.side, lots, ticks, reason, row, level, order.joined)
        )  # fmt: skip

    def there(self, side: int, ticks: int, shown: int, row: int) -> int:
        """Of `shown` lots that a row displays, those that the lane has not consumed."""
        entry = self.consumed.get((side, ticks))
        if entry is None:
            return shown
        lots, known = entry
        between = np.arange(known + 1, row + 1)
        between = between[self.rows.tradable[between]]
        if len(between) and (self.rows.displayed(-side, ticks, between) <= 0).any():
            del self.consumed[side, ticks]
            return shown
        entry[1] = max(known, row)
        return max(0, shown - lots)

    def walk(self, order: Order, row: int, ts: int) -> None:
        """What a row displays against an order: all of it to one that takes, at its limit and beyond to one that rests."""
        prices, sizes = self.rows.own[-order.side]
        for level in range(prices.shape[1]):
            ticks, shown = int(prices[row, level]), int(sizes[row, level])
            if shown == 0:
                continue
            rests = order.style == "post"
            if rests and (order.limit - ticks) * order.side < 0:
                return
            lots = min(order.left, self.there(order.side, ticks, shown, row))
            if lots > 0:
                entry = self.consumed.setdefault((order.side, ticks), [0, row])
                entry[0] += lots
                self.fill(order, lots, order.limit if rests else ticks, TRADE_THROUGH if rests else order.reason, row, level, ts)
            if order.left == 0:
                return

    def come(self, order: Order, row: int, ts: int) -> None:
        """An order comes to the book of a row."""
        if order.style == "post":
            touch = int(self.rows.own[-order.side][0][row, 0])
            if (order.limit - touch) * order.side >= 0:
                order.limit = touch - order.side
            order.shown = int(self.rows.displayed(order.side, order.limit, row))
            order.ahead = (LONGEST if order.shown < 0 else order.shown) * ONE
            order.phase, order.accepted, order.printed = "resting", ts, 0
            order.joined = LONGEST - 1 if order.shown < 0 else order.shown
            return
        if order.style == "take" and order.joined < 0:
            order.accepted = ts
        self.walk(order, row, ts)
        if order.left == 0:
            self.end(order, FILLED, ts)
        elif order.style == "take":
            self.end(order, UNFILLED if order.left == order.lots else PARTLY_FILLED, ts)

    def is_needed(self, order: Order, ts: int) -> bool:
        """In-flight mitigation: an order is cut to what its target still needs."""
        if order.target is None:
            return True
        needed = (order.target - self.position) * order.side
        if needed <= 0:
            self.end(order, CANCELLED, ts)
        elif needed < order.left:
            order.lots, order.left = order.lots - order.left + needed, needed
        return needed > 0

    def arrives(self, order: Order, ts: int) -> None:
        """A message of an order is there: itself, its cancel or its crossing."""
        if order.phase != "flight":
            assert order.change is not None
            what, order.change = order.change[1], None
            if what == "cancel":
                self.end(order, CANCELLED, ts)
                return
            order.style = "take"
        elif not self.is_needed(order, ts):
            return
        standing = int(self.rows.standing[self.next - 1]) if self.next else -1
        if self.rows.stands(standing, ts):
            self.come(order, standing, ts)
        else:
            order.phase = "waiting"

    # -- rows
    def candidates(self, stop: int) -> np.ndarray:
        """Rows of [next, stop) that may do something to the lane as it stands now."""
        first, rows = self.next, self.rows
        if stop <= first or not (self.live or self.position):
            return np.empty(0, np.int64)
        part = slice(first, stop)
        tradable = rows.tradable[part]
        chosen = np.zeros(stop - first, bool)
        for order in self.live:
            if order.phase == "waiting":
                chosen |= tradable
            elif order.phase == "resting":
                chosen |= rows.opens[part]
                chosen |= rows.hits[order.side][part] & ((order.limit - rows.part.print_ticks[part]) * order.side >= 0)
                chosen |= tradable & ((order.limit - rows.own[-order.side][0][part, 0]) * order.side >= 0)
                shown = rows.displayed(order.side, order.limit, part)[tradable]
                chosen[np.flatnonzero(tradable)[shown != np.append(order.shown, shown[:-1])]] = True
        if self.position:
            chosen |= tradable & self.stops_at(rows.mid2[part])
        return first + np.flatnonzero(chosen)

    def stops_at(self, mid2: Any) -> Any:
        """Whether a mid meets the floor or the trail, while no stop is closing already."""
        if any(order.style == "sweep" for order in self.live):
            return np.zeros(np.shape(mid2), bool)
        met = self.equity(mid2) <= self.terms.floor_usd_micros
        if self.terms.trail_ticks and self.trail is not None:
            met = met | ((mid2 - self.trail) * self.position <= 0)
        return met

    def take_row(self, row: int) -> bool:
        """What a row does to the lane; returns whether another set of rows may do something to it from here on."""
        before = (len(self.fills), len(self.orders), [(order.number, order.phase) for order in self.live])
        rows, ts = self.rows, int(self.rows.ts[row])
        if rows.opens[row]:
            for order in [order for order in self.live if order.phase == "resting"]:
                self.end(order, EXPIRED, ts)
        tradable, budget = bool(rows.tradable[row]), int(rows.part.printed[row])
        resting = [order for order in self.live if order.phase == "resting"]
        for order in sorted(resting, key=lambda o: (-o.side, -o.limit * o.side, o.number)):
            if rows.hits[order.side][row] and budget > 0:
                budget -= self.meet_print(order, row, budget, ts)
            if order.left and tradable:
                self.walk(order, row, ts)
            if order.left == 0:
                self.end(order, FILLED, ts)
            elif tradable:
                self.requeue(order, int(rows.displayed(order.side, order.limit, row)))
        if tradable:
            if self.position and bool(self.stops_at(int(rows.mid2[row]))):
                self.stop(row, ts)
            for order in [order for order in self.live if order.phase == "waiting"]:
                if self.is_needed(order, ts):
                    self.come(order, row, ts)
        return before != (len(self.fills), len(self.orders), [(order.number, order.phase) for order in self.live])

    def meet_print(self, order: Order, row: int, budget: int, ts: int) -> int:
        """Lots that a resting order gets of a print that has `budget` left."""
        past = (order.limit - int(self.rows.part.print_ticks[row])) * order.side
        if past < 0:
            return 0
        lots, reason = min(order.left, budget), TRADE_THROUGH
        if past == 0:
            whole = -(-max(0, order.ahead - ALMOST_NONE) // ONE)
            lots, reason = max(0, min(order.left, budget - whole)), QUEUE
            order.printed += int(self.rows.part.printed[row])
        order.ahead = 0 if past > 0 else max(0, order.ahead - budget * ONE)
        if lots:
            self.fill(order, lots, order.limit, reason, row, -1, ts)
        return lots

    def requeue(self, order: Order, shown: int) -> None:
        """The place of an order after the displayed size at its price."""
        if shown == order.shown:
            return
        last, printed = order.shown, order.printed
        order.shown, order.printed = shown, 0
        if shown < 0:
            return
        gone, n = last - shown - printed, self.working.power
        if n and last >= 0 and gone > 0 and order.ahead > 0:
            behind = max(0, last * ONE - order.ahead)
            halvings = max(0, max(order.ahead, behind).bit_length() - 42 // n)
            front, back = (order.ahead >> halvings) ** n, (behind >> halvings) ** n
            moved = gone * ((front << 20) // (front + back) if front else 0) >> 4
            order.ahead = max(0, order.ahead - max(moved, gone * ONE - behind))
        order.ahead = min(order.ahead, shown * ONE)

    def stop(self, row: int, ts: int) -> None:
        """A stop that rests at the exchange is met at a row."""
        at_floor = self.equity(int(self.rows.mid2[row])) <= self.terms.floor_usd_micros
        self.is_breached |= bool(at_floor)
        self.take_out(ts)
        size = abs(self.position)
        self.send(
            side=-1 if self.position > 0 else 1, style="sweep", kind=MARKET, reason=FLOOR if at_floor else STOP, lots=size, left=size,
            submitted=ts, arrival=ts, accepted=ts, phase="waiting",
        )  # fmt: skip

    def play(self, last: int, until: int) -> None:
        """Rows up to `last` and messages, as far as `until`."""
        rows = self.rows
        end = min(last + 1, int(np.searchsorted(rows.ts, until, side="right")))
        while True:
            order = min(self.live, key=lambda o: (o.due, o.number), default=None)
            due = order.due if order is not None else FAR
            stop = min(end, int(np.searchsorted(rows.ts, due, side="right"))) if due < FAR else end
            for row in self.candidates(stop).tolist():
                self.next = row + 1
                if self.take_row(row):
                    break
            else:
                self.next = max(self.next, stop)
                if order is None or due > until or (self.next < rows.n and rows.ts[self.next] <= due):
                    return
                self.arrives(order, due)

    # -- decisions
    def decide(self, d: Decision) -> None:
        """Orders of a decision, given the target that its gates let through."""
        mark = int(self.rows.mid2[d.mark])
        self.is_breached |= bool(self.equity(mark) <= self.terms.floor_usd_micros)
        at_trail = self.terms.trail_ticks and self.position and self.trail is not None and (mark - self.trail) * self.position <= 0
        reason = FLOOR if self.is_breached else (STOP if at_trail else CROSSED)
        if self.is_breached:
            self.take_out(d.ts)
        stays = False
        for order in self.live:
            crosses_at = order.change[0] if order.change is not None and order.change[1] == "cross" else FAR
            is_sent = order.style == "take" or crosses_at - (order.arrival - order.submitted) <= d.ts
            agrees = reason == CROSSED and (order.target, order.picked, order.urgency) == (d.target, d.kind, PATIENT)
            if order.style == "sweep" or (agrees and not is_sent and order.change is None):
                stays = True
            elif is_sent:
                stays |= order.target == d.target
            elif order.change is None or order.change[1] != "cancel":
                takes = drawn(self.working.cancel_ns, self.number, order.number, CANCEL, self.working.seed)
                order.change = (max(d.ts + takes, order.arrival), "cancel")
        kind, delta = MARKET, d.target - self.position
        if not stays and delta and len(self.live) < MOST_ORDERS:
            kind = self.send_picked(d, delta, reason)
        self.kinds.append(kind)
        self.last_ts = d.ts

    def send_picked(self, d: Decision, delta: int, reason: int) -> int:
        side = 1 if delta > 0 else -1
        ahead = [order.arrival for order in self.live if order.phase == "flight"]
        ahead += [order.change[0] for order in self.live if order.change is not None]
        takes = drawn(self.working.entry_ns, self.number, len(self.orders), ENTRY, self.working.seed)
        arrival = max([d.ts + takes, *ahead])
        order = self.send(
            side=side, style="take", kind=MARKET, reason=reason, lots=abs(delta), left=abs(delta), submitted=d.ts, arrival=arrival,
            accepted=arrival, target=d.target,
        )  # fmt: skip
        if reason != CROSSED:
            return MARKET
        order.picked, order.urgency = d.kind, d.urgency
        if d.kind == MARKET:
            return MARKET
        bid, ask = int(self.rows.part.bid[d.mark, 0]), int(self.rows.part.ask[d.mark, 0])
        is_better = d.kind == IMPROVE and ask - bid >= 2
        order.style, order.kind = "post", IMPROVE if is_better else JOIN
        order.limit = order.asked = (bid if side > 0 else ask) + (side if is_better else 0)
        if d.urgency == AGGRESSIVE:
            length = d.ts - self.last_ts if self.last_ts else 0
            order.change = (arrival + length * self.working.cross_after_ppm // 1_000_000, "cross")
        return order.kind

    def mark(self, row: int, coming: int) -> None:
        """A step's closing mark, and what it means for the trail and the floor."""
        mid2 = int(self.rows.mid2[row])
        if not self.position:
            self.trail = None
        elif self.terms.trail_ticks:
            level = mid2 - 2 * self.terms.trail_ticks * (1 if self.position > 0 else -1)
            kept = level if self.trail is None else self.trail
            self.trail = max(level, kept) if self.position > 0 else min(level, kept)
        self.is_breached |= bool(self.equity(mid2) <= self.terms.floor_usd_micros)
        if self.is_breached and not self.position:
            self.take_out(coming)
        self.breached.append(self.is_breached)

    def close(self, row: int) -> None:
        """The drain: live up to its row, take out what works, close at what it displays."""
        ts = int(self.rows.ts[row])
        self.play(row - 1, ts)
        self.take_out(ts)
        if self.position:
            self.consumed.clear()
            size = abs(self.position)
            order = self.send(
                side=-1 if self.position > 0 else 1, style="take", kind=MARKET, reason=WINDOW_END, lots=size, left=size, submitted=ts,
                arrival=ts, accepted=ts,
            )  # fmt: skip
            self.come(order, row, ts)


def play_lane(
    rows: Rows, working: WorkingTerms, terms: LaneTerms, lane: int, decisions: Iterator[Decision], drain: int | None
) -> Lane:  # fmt: skip
    """The decisions of a lane one after another; the last one given is the drain (at row `drain`), or, where that is None, one of which
    only the time is known."""
    account = Lane(rows, working, terms, lane, base=terms.capital_usd_micros)
    d = next(decisions)
    account.next = d.received + 1
    for coming in decisions:
        is_dead = account.is_breached and not account.position
        if not is_dead:
            account.decide(d)
            last = coming.received if drain is None or coming.kind >= 0 else min(coming.received, drain - 1)
            account.play(last, coming.ts - drawn(working.ack_ns, lane, account.step, ACK, working.seed))
            account.mark(coming.mark, coming.ts)
        account.step += 1
        d = coming
    if drain is not None and not (account.is_breached and not account.position):
        account.close(drain)
    return account
