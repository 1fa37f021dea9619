"""hftbacktest's rules for whole-size fills, read from its documentation and source and written again in plain Python, one price at a time.

An oracle that needs no environment of its own, and the place to look up what the peer does:

- The exchange works through what has its time, data before orders; the strategy knows what it received at or before its decision.
- A limit order that arrives behind the touch joins the queue of its price, behind the size that the exchange knows there. One that would
  cross expires if it is post-only. A market order fills whole at the best opposite price, whatever its size.
- A print at the order's price takes its lots from the queue ahead; below zero the order is filled, whole. A print through the price fills
  the order, and so does an opposite best that reaches it. All of these at the order's own price.
- `risk_averse`: the queue ahead is never more than the price shows. ("power", n): a size that went, less what was printed since the last
  change, went from behind the order with probability b^n / (b^n + f^n), f and b being the lots ahead and behind.
"""

import heapq
from dataclasses import dataclass, field

from tests.differential.hft_events import BUY, CLEAR, SELL, TRADE


@dataclass
class PlainOrder:
    id: int
    side: int
    ticks: int
    lots: int
    market: bool
    ahead: float = 0.0
    printed: float = 0.0
    state: str = "sent"
    filled_ns: int = 0
    fill_ticks: int = 0


@dataclass
class PlainMarket:
    """One party's book: the exchange's, or what the strategy has received."""

    sizes: tuple[dict[int, int], dict[int, int]] = field(default_factory=lambda: ({}, {}))

    def best(self, side: int) -> int | None:
        """Best bid (side 0) or ask (side 1)."""
        held = self.sizes[side]
        return None if not held else (max(held) if side == 0 else min(held))


def apply(market: PlainMarket, event: tuple) -> tuple[int, int, int, int]:
    """(side, price, size before, size after) of a depth event."""
    _, _, _, side, ticks, lots = event
    before = market.sizes[side].pop(ticks, 0)
    if lots:
        market.sizes[side][ticks] = lots
        other = market.sizes[1 - side]  # the peer forgets an opposite best that a new price crosses
        for price in [p for p in other if (ticks - p) * (1 - 2 * side) >= 0]:
            del other[price]
    return side, ticks, before, lots


def rows_of(events) -> list[tuple]:
    """(exchange ns, local ns, kind, side 0 bid/buy 1 ask/sell, ticks, lots) of converted events."""
    kinds, ticks = events["ev"] & 0xFF, (events["px"] * 4).round().astype(int)
    sides = [0 if ev & BUY else 1 if ev & SELL else -1 for ev in events["ev"].tolist()]
    columns = (
        events["exch_ts"].tolist(),
        events["local_ts"].tolist(),
        kinds.tolist(),
        sides,
        ticks.tolist(),
        events["qty"].astype(int).tolist(),
    )
    return list(zip(*columns, strict=True))


def advance(order: PlainOrder, before: int, after: int, queue) -> None:
    """What a new size at the order's price does to its place in the queue."""
    if queue == "risk_averse":
        order.ahead = min(order.ahead, after)
        return
    gone = before - after - order.printed
    order.printed = 0.0
    if gone < 0:
        order.ahead = min(order.ahead, after)
        return
    front, back = order.ahead, before - order.ahead
    weights = front ** queue[1], back ** queue[1]
    behind = 1.0 if sum(weights) == 0 else weights[1] / sum(weights)
    order.ahead = min(front - (1 - behind) * gone + min(back - behind * gone, 0.0), after)


class PlainExchange:
    """Everything that the peer's exchange keeps: a book and working orders. `fills` are (ns, order) in order of time."""

    def __init__(self, queue):
        self.book, self.queue = PlainMarket(), queue
        self.working: dict[int, PlainOrder] = {}

    def fill(self, order, ns, ticks):
        order.state, order.filled_ns, order.fill_ticks = "filled", ns, ticks
        self.working.pop(order.id, None)

    def see(self, event) -> list[PlainOrder]:
        """Apply one market event; the orders that it filled."""
        ns, _, kind, side, ticks, lots = event
        held = list(self.working.values())
        if kind == CLEAR:
            self.book = PlainMarket()
        elif kind == TRADE:  # `side` is the aggressor's: it meets orders of the other side
            for order in [o for o in held if o.side != (1 if side == 0 else -1)]:
                through = (ticks - order.ticks) * -order.side
                if through == 0:
                    order.ahead -= lots
                    order.printed += lots
                if through > 0 or (through == 0 and order.ahead <= -0.5):
                    self.fill(order, ns, order.ticks)
        else:
            _, _, before, after = apply(self.book, event)
            for order in held:
                if order.side == 1 - 2 * side and order.ticks == ticks:
                    advance(order, before, after, self.queue)
            best = self.book.best(side)
            if after and best == ticks and before == 0:
                for order in held:
                    if order.side == 2 * side - 1 and (best - order.ticks) * order.side <= 0:
                        self.fill(order, ns, order.ticks)
        return [order for order in held if order.state == "filled"]

    def receive(self, order, ns) -> None:
        opposite = self.book.best(1 if order.side > 0 else 0)
        if order.market:
            self.fill(order, ns, opposite)
        elif opposite is not None and (order.ticks - opposite) * order.side >= 0:
            order.state = "expired"
        else:
            order.state, order.ahead = "working", self.book.sizes[0 if order.side > 0 else 1].get(order.ticks, 0)
            self.working[order.id] = order


def replay(rows, decide_ns, strategy, queue, entry_ns, response_ns):
    """(fills, orders): every fill as (exchange ns, local ns, side, ticks, lots, order id), in order of time, and every `PlainOrder`.

    `strategy(now, book, working, position)` is asked at each decision and returns orders to send and ids to cancel, in order; `working`
    holds its orders that it does not know to be over.
    """
    exchange, known = PlainExchange(queue), PlainMarket()
    arriving: list = []  # (ns, n, order or id to cancel)
    answers: list = []  # (ns, n, order, what has become of it)
    orders: dict[int, PlainOrder] = {}
    alive: dict[int, PlainOrder] = {}
    fills, seen, happened, sent, position = [], 0, 0, 0, 0
    for number, now in enumerate([*decide_ns, rows[-1][1] + 10**9]):
        while True:
            times = (
                rows[seen][1] if seen < len(rows) else None,
                answers[0][0] if answers else None,
                rows[happened][0] if happened < len(rows) else None,
                arriving[0][0] if arriving else None,
            )
            due = [(at, kind) for kind, at in enumerate(times) if at is not None and at <= now]
            if not due:
                break
            at, kind = min(due)
            if kind == 0:
                if rows[seen][2] == CLEAR:
                    known = PlainMarket()
                elif rows[seen][2] != TRADE:
                    apply(known, rows[seen])
                seen += 1
            elif kind == 1:
                _, _, order, state = heapq.heappop(answers)
                if state != "working":
                    alive.pop(order.id, None)
                if state == "filled":
                    position += order.side * order.lots
                    fills.append((order.filled_ns, at, order.side, order.fill_ticks, order.lots, order.id))
            else:
                if kind == 2:
                    changed = exchange.see(rows[happened])
                    happened += 1
                else:
                    _, _, what = heapq.heappop(arriving)
                    if isinstance(what, PlainOrder):
                        exchange.receive(what, at)
                        changed = [what]
                    else:
                        changed = [exchange.working.pop(what)] if what in exchange.working else []
                        for order in changed:
                            order.state = "cancelled"
                for order in changed:
                    sent += 1
                    heapq.heappush(answers, (at + response_ns, sent, order, order.state))
        for what in strategy(now, known, alive, position) if number < len(decide_ns) else ():
            sent += 1
            if isinstance(what, PlainOrder):
                orders[what.id] = alive[what.id] = what
            heapq.heappush(arriving, (now + entry_ns, sent, what))
    return sorted(fills, key=lambda fill: (fill[0], fill[5])), orders


def quotes(behind: int, lots: int, limit: int):
    """Two post-only quotes `behind` ticks behind the touch; one is replaced when the touch has moved, and left alone when it has not."""
    live: dict[int, PlainOrder] = {}
    count = 0

    def decide(_, book, alive, position):
        nonlocal count
        actions = []
        for side, sign in ((0, 1), (1, -1)):
            wanted = book.best(side) - sign * behind
            fits = sign * position + lots <= limit
            held = live.get(side)
            if held is not None and held.id not in alive:
                held = None
            if held is not None and (not fits or held.ticks != wanted):
                actions.append(held.id)
                held = None
            if held is None and fits:
                count += 1
                held = PlainOrder(count, sign, wanted, lots, False)
                actions.append(held)
            live[side] = held
        return actions

    return decide


def signals(values):
    """A market order of |value| lots at each decision whose value is not 0."""
    waiting = list(values)[::-1]
    count = 0

    def decide(*_):
        nonlocal count
        value = waiting.pop()
        if value == 0:
            return []
        count += 1
        return [PlainOrder(count, 1 if value > 0 else -1, 0, abs(value), True)]

    return decide
