"""A lane's orders, fills and stops by brute force from docs/exchange.md, "A step": given what its gates let through, plain Python, no
code of the house."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from tests.exchange_oracle import Exchange, Order, Row
from tests.oracle_philox import philox4x32_10

JOIN, IMPROVE = 1, 2
PATIENT, AGGRESSIVE = 1, 2


@dataclass
class Terms:
    capital: int
    floor: int
    trail_ticks: int
    tick_value: int
    taker_fee: int
    maker_fee: int
    cross_ppm: int
    seed: int
    entry: tuple[int, ...]
    cancel: tuple[int, ...]
    ack: tuple[int, ...]

    def latency(self, quantiles: tuple[int, ...], lane: int, number: int, purpose: int) -> int:
        if len(quantiles) == 1:
            return quantiles[0]
        word = philox4x32_10((lane, number, purpose, 0), (self.seed % 2**32, self.seed >> 32))[0]
        place = word * (len(quantiles) - 1)
        low, high = quantiles[place >> 32], quantiles[(place >> 32) + 1]
        return low + ((high - low) * (place % 2**32 >> 12) >> 20)


@dataclass
class Decision:
    """One row of a plan and what the gates made of the lane's pick there."""

    ts: int
    observed: int
    mark: int
    target: int
    kind: int
    urgency: int


@dataclass
class Lane(Exchange):
    terms: Terms | None = None
    number: int = 0
    trail: int | None = None
    breached: bool = False
    dead: bool = False
    last_decided: int = 0
    steps: list[int] = field(default_factory=list)  # position after each step
    step_of_fill: list[int] = field(default_factory=list)
    step: int = 0

    def fill(self, order: Order, lots: int, ticks: int, reason: str, row: int, level: int, ts: int) -> None:
        before = self.position()
        super().fill(order, lots, ticks, reason, row, level, ts)
        self.step_of_fill.append(self.step)
        if before * self.position() <= 0 and self.position() != 0:
            self.trail = None  # opened or reversed: no level until the next mark

    def mid2(self, index: int) -> int:
        return self.rows[index].bids[0][0] + self.rows[index].asks[0][0]

    def equity(self, mid2: int) -> int:
        flow = sum(-side * lots * ticks for _, _, side, lots, ticks, *_ in self.fills)
        passive = ("queue", "trade_through")
        fees = sum(lots * (self.terms.maker_fee if why in passive else self.terms.taker_fee) for _, _, _, lots, _, why, *_ in self.fills)
        return self.terms.capital + flow * self.terms.tick_value + self.position() * mid2 * self.terms.tick_value // 2 - fees

    def met_trail(self, mid2: int) -> bool:
        held = self.position()
        return self.terms.trail_ticks > 0 and held != 0 and self.trail is not None and (mid2 - self.trail) * held <= 0

    def take_out(self, ts: int) -> None:
        for order in self.live_orders():
            self.end(order, "cancelled", ts)

    def stops(self, index: int) -> None:
        if self.position() == 0 or any(order.style == "sweep" for order in self.live_orders()):
            return
        mid2, reason = self.mid2(index), None
        if self.equity(mid2) <= self.terms.floor:
            reason, self.breached = "floor", True
        elif self.met_trail(mid2):
            reason = "stop"
        if reason:
            ts, held = self.rows[index].ts, self.position()
            self.take_out(ts)
            side = -1 if held > 0 else 1
            stop = Order(0, side, "sweep", None, abs(held), ts, ts, left=abs(held), accepted=ts, phase="waiting", reason=reason)
            self.send(stop)

    def decide(self, d: Decision) -> None:
        mark = self.mid2(d.mark)
        self.breached = self.breached or self.equity(mark) <= self.terms.floor
        reason = "floor" if self.breached else ("stop" if self.met_trail(mark) else "crossed")
        if self.breached:
            self.take_out(d.ts)
        stays, behind = False, d.ts
        for order in reversed(self.live_orders()):
            crossing = order.change is not None and order.change[1] == "cross"
            sent = order.style == "take" or (crossing and order.change[0] - (order.arrival - order.sent) <= d.ts)
            agrees = reason == "crossed" and (order.target, order.picked, order.urgency) == (d.target, d.kind, PATIENT) and not order.change
            if order.style == "sweep" or (agrees and not sent):
                stays = True
            elif sent:
                stays = stays or order.target == d.target
            elif order.change is None or order.change[1] != "cancel":
                takes = self.terms.latency(self.terms.cancel, self.number, order.number, 0x63616E63)
                order.change = (max(d.ts + takes, order.arrival), "cancel", 0, 0)
        for order in self.live_orders():
            behind = max([behind] + [order.arrival] * (order.phase == "flight") + ([order.change[0]] if order.change else []))
        delta = d.target - self.position()
        if not stays and delta and len(self.live_orders()) < 4:
            self.send_picked(d, delta, reason, behind)
        self.last_decided = d.ts

    def send_picked(self, d: Decision, delta: int, reason: str, behind: int) -> None:
        side = 1 if delta > 0 else -1
        takes = self.terms.latency(self.terms.entry, self.number, len(self.orders), 0x656E7472)
        arrival = max(d.ts + takes, behind)
        order = Order(0, side, "take", None, abs(delta), d.ts, arrival, left=abs(delta), accepted=arrival, target=d.target, reason=reason)
        if reason == "crossed":
            order.picked, order.urgency = d.kind, d.urgency
            if d.kind:
                bid, ask = self.rows[d.mark].bids[0][0], self.rows[d.mark].asks[0][0]
                better = d.kind == IMPROVE and ask - bid >= 2
                order.style, order.kind = "post", IMPROVE if better else JOIN
                order.limit = order.asked = (bid if side > 0 else ask) + side * better
                if d.urgency == AGGRESSIVE:
                    length = d.ts - self.last_decided if self.last_decided else 0
                    order.change = (d.ts + length * self.terms.cross_ppm // 10**6 + arrival - d.ts, "cross", 0, 0)
        self.send(order)

    def after(self, mark: int, coming: int) -> None:
        """The closing mark of a step."""
        held, mid2 = self.position(), self.mid2(mark)
        if held == 0:
            self.trail = None
        elif self.terms.trail_ticks:
            level = mid2 - (1 if held > 0 else -1) * 2 * self.terms.trail_ticks
            self.trail = level if self.trail is None else (max if held > 0 else min)(level, self.trail)
        self.breached = self.breached or self.equity(mid2) <= self.terms.floor
        if self.breached and held == 0:
            self.take_out(coming)
            self.dead = True
        self.steps.append(held)


def play_lane(rows: list[Row], sessions, depth, model, power, terms: Terms, number: int, plan: list[Decision], drain: int) -> Lane:
    """Decisions and then the drain, whose row closes what is open."""
    lane = Lane(rows, sessions, depth, model, power, terms=terms, number=number)
    first = plan[0]
    lane.next = first.observed + 1
    lane.standing = max((k for k in range(first.observed + 1) if rows[k].trusted), default=-1)
    for step, (d, coming) in enumerate(pairwise(plan)):
        lane.step = step
        if lane.dead:
            lane.steps.append(0)
            continue
        lane.decide(d)
        last = coming.observed if step + 2 < len(plan) else min(coming.observed, drain - 1)
        lane.play(last, coming.ts - terms.latency(terms.ack, number, step, 0x61636B6E))
        lane.after(coming.mark, coming.ts)
    lane.step = len(plan) - 1
    if not lane.dead:
        ts = rows[drain].ts
        lane.play(drain - 1, ts)
        lane.take_out(ts)
        held = lane.position()
        if held:
            lane.consumed.clear()
            order = Order(0, -1 if held > 0 else 1, "take", None, abs(held), ts, ts, left=abs(held), accepted=ts, reason="window_end")
            lane.send(order)
            lane.come(order, drain, ts)
    return lane
