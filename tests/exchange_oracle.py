"""The exchange of docs/exchange.md by brute force for one script and one lane: plain Python integers, lists and dicts, no code of the
house."""

from __future__ import annotations

from dataclasses import dataclass, field

FAR = 10**30


@dataclass
class Row:
    ts: int
    recv: int
    bids: list[tuple[int, int]]  # displayed (ticks, lots), best first; as many as `depth` when the book is full
    asks: list[tuple[int, int]]
    trusted: bool
    tradable: bool
    session: int  # -1 outside
    aggressor: int = 0
    print_ticks: int | None = None
    print_lots: int = 0


@dataclass
class Order:
    number: int
    side: int
    style: str  # post or take
    limit: int | None
    lots: int
    sent: int
    arrival: int
    asked: int | None = None
    left: int = 0
    phase: str = "flight"
    ahead: int = 0  # 1/65536 lot
    joined: int = -1
    shown: int | None = None
    printed: int = 0
    accepted: int = 0
    change: tuple | None = None  # (arrival, what, lots, limit)
    slot: int = 0
    state: str = ""
    ended: int = 0
    target: int | None = None  # the position that it is to reach; None: a script's
    reason: str = "crossed"
    kind: int = 0
    picked: int = -1
    urgency: int = -1
    bars: int = 0

    def due(self) -> int:
        if self.phase == "flight":
            return self.arrival
        return self.change[0] if self.change and self.phase in ("waiting", "resting") else FAR


@dataclass
class Exchange:
    rows: list[Row]
    sessions: list[tuple[int, int]]
    depth: int
    model: str
    power: int
    orders: list[Order] = field(default_factory=list)
    fills: list[tuple] = field(default_factory=list)  # (order number, ts, side, lots, ticks, reason, row, level)
    consumed: dict[tuple[int, int], int] = field(default_factory=dict)
    next: int = 0
    standing: int = -1
    after_fill: list[int] = field(default_factory=list)  # position after each fill

    def live_orders(self) -> list[Order]:
        return [o for o in self.orders if o.phase in ("flight", "waiting", "resting")]

    def send(self, order: Order) -> None:
        order.number = len(self.orders)
        self.orders.append(order)

    # -- what a row shows
    def shown_at(self, side: int, limit: int, row: Row) -> int | None:
        levels = row.bids if side > 0 else row.asks
        for ticks, lots in levels:
            if ticks == limit:
                return lots
        worst = levels[-1][0] if levels else None
        if len(levels) == self.depth and worst is not None and (limit - worst) * side < 0:
            return None
        return 0

    def prints(self, index: int) -> bool:
        row = self.rows[index]
        before = next((r for r in reversed(self.rows[:index]) if r.trusted), None)
        return bool(
            row.aggressor
            and row.print_ticks is not None
            and row.session >= 0
            and before is not None
            and before.tradable
            and before.session == row.session
            and (not row.trusted or row.tradable)
        )

    def book_stands(self, ts: int) -> bool:
        if self.standing < 0 or not self.rows[self.standing].tradable:
            return False
        for first, last in self.sessions:
            if first <= ts < last:
                return first <= self.rows[self.standing].ts
        return False

    # -- acts
    def fill(self, order: Order, lots: int, ticks: int, reason: str, row: int, level: int, ts: int) -> None:
        order.left -= lots
        self.fills.append((order.number, ts, order.side, lots, ticks, reason, row, level))
        self.after_fill.append(sum(side * n for _, _, side, n, *_ in self.fills))
        if level >= 0:
            book = self.rows[row].asks if order.side > 0 else self.rows[row].bids
            key = (order.side, book_price(self.rows[row], order.side, level, book))
            self.consumed[key] = self.consumed.get(key, 0) + lots

    def end(self, order: Order, state: str, ts: int) -> None:
        order.phase, order.state, order.ended = "done", state, ts

    def walk(self, order: Order, index: int, ts: int) -> None:
        row = self.rows[index]
        for level, (ticks, lots) in enumerate(row.asks if order.side > 0 else row.bids):
            if order.style == "post" and (order.limit - ticks) * order.side < 0:
                break
            n = min(order.left, lots - self.consumed.get((order.side, ticks), 0))
            if n > 0:
                price, reason = (order.limit, "trade_through") if order.style == "post" else (ticks, order.reason)
                self.fill(order, n, price, reason, index, level, ts)
            if order.left == 0:
                break

    def come(self, order: Order, index: int, ts: int) -> None:
        row = self.rows[index]
        if order.style != "post":
            if order.joined < 0 and order.style == "take":
                order.accepted = ts
            self.walk(order, index, ts)
            if order.style == "sweep" and order.left:
                return
            state = "filled" if order.left == 0 else ("unfilled" if order.left == order.lots else "partly_filled")
            self.end(order, state, ts)
            return
        touch = (row.asks if order.side > 0 else row.bids)[0][0]
        if (order.limit - touch) * order.side >= 0:
            order.limit = touch - order.side
        shown = self.shown_at(order.side, order.limit, row)
        order.shown, order.ahead, order.printed, order.phase = shown, (2**31 if shown is None else shown) * 65536, 0, "resting"
        if order.joined < 0:
            order.joined, order.accepted = (2**31 - 1 if shown is None else shown), ts

    def message(self, order: Order, ts: int) -> None:
        if order.phase != "flight":
            _, what, lots, limit = order.change
            order.change = None
            if what == "cancel":
                self.end(order, "cancelled", ts)
                return
            if what == "cross":
                order.style = "take"
            elif not self.modified(order, lots, limit, ts):
                return
        elif not self.still_needed(order, ts):
            return
        if self.book_stands(ts):
            self.come(order, self.standing, ts)
        else:
            order.phase = "waiting"

    def still_needed(self, order: Order, ts: int) -> bool:
        """At its arrival an order for a target is cut to what that still needs."""
        if order.target is None:
            return True
        needed = (order.target - self.position()) * order.side
        if needed <= 0:
            self.end(order, "cancelled", ts)
            return False
        if needed < order.left:
            order.lots -= order.left - needed
            order.left = needed
        return True

    def position(self) -> int:
        return sum(side * lots for _, _, side, lots, *_ in self.fills)

    def stops(self, index: int) -> None:
        """What stops at a tradable row; a script has none."""

    def modified(self, order: Order, lots: int, limit: int, ts: int) -> bool:
        """A change arrives; returns whether the order comes to the book anew."""
        filled = order.lots - order.left
        keeps = limit == order.limit and lots <= order.lots
        order.lots, order.left, order.limit, order.asked = max(lots, filled), max(lots - filled, 0), limit, limit
        if lots <= filled:
            self.end(order, "cancelled" if lots < filled or filled == 0 else "filled", ts)
            return False
        return not keeps

    def requeue(self, order: Order, shown: int | None) -> None:
        if shown == order.shown:
            return
        last, order.shown = order.shown, shown
        printed, order.printed = order.printed, 0
        if shown is None:
            return
        if self.model != "risk_averse" and last is not None:
            n = self.power if self.model == "power" else 1
            gone, behind = last - shown - printed, max(0, last * 65536 - order.ahead)
            if gone > 0 and order.ahead > 0:
                front, back = order.ahead, behind
                while max(front, back) >= 2 ** (42 // n):
                    front, back = front // 2, back // 2
                share = front**n * 2**20 // (front**n + back**n) if front else 0
                order.ahead -= min(order.ahead, max(gone * share // 16, gone * 65536 - behind))
        order.ahead = min(order.ahead, shown * 65536)

    def take_row(self, index: int) -> None:
        row = self.rows[index]
        earlier = [r.session for r in self.rows[:index] if r.session >= 0]
        if row.session >= 0 and earlier and earlier[-1] != row.session:
            for order in self.orders:
                if order.phase == "resting":
                    self.end(order, "expired", row.ts)
        if row.trusted:
            self.standing = index
        if row.tradable:
            for side, ticks in list(self.consumed):
                book = row.asks if side > 0 else row.bids
                if ticks not in [price for price, _ in book]:
                    del self.consumed[side, ticks]
        budget = row.print_lots if self.prints(index) else 0
        for side in (1, -1):
            resting = [o for o in self.orders if o.phase == "resting" and o.side == side]
            for order in sorted(resting, key=lambda o: (-o.limit * o.side, o.number)):
                if budget > 0 and row.aggressor == -side:
                    past = (order.limit - row.print_ticks) * side
                    n = 0
                    if past > 0:
                        n, reason, order.ahead = min(order.left, budget), "trade_through", 0
                    elif past == 0:
                        whole = -((-(order.ahead - 256)) // 65536) if order.ahead > 256 else 0
                        n, reason = max(0, min(order.left, budget - whole)), "queue"
                        order.ahead = max(0, order.ahead - budget * 65536)
                        order.printed += row.print_lots
                    if n > 0:
                        self.fill(order, n, order.limit, reason, index, -1, row.ts)
                        budget -= n
                if order.left and row.tradable:
                    self.walk(order, index, row.ts)
                if order.left == 0:
                    self.end(order, "filled", row.ts)
                elif row.tradable:
                    self.requeue(order, self.shown_at(side, order.limit, row))
        if row.tradable:
            self.stops(index)
            for order in [o for o in self.orders if o.phase == "waiting"]:
                if self.still_needed(order, row.ts):
                    self.come(order, index, row.ts)

    def play(self, last: int, until: int) -> None:
        while True:
            coming = self.rows[self.next].ts if self.next < len(self.rows) else FAR
            order = min(self.live_orders(), key=lambda o: (o.due(), o.number), default=None)
            if order is not None and order.due() < coming:
                if order.due() > until:
                    return
                self.message(order, order.due())
            else:
                if self.next > last or coming > until:
                    return
                self.take_row(self.next)
                self.next += 1


def book_price(row: Row, side: int, level: int, book: list[tuple[int, int]]) -> int:
    return book[level][0]


@dataclass
class Script:
    """What `cuda_env.quotes.Quotes` says, for one lane: lists over decisions."""

    ts: list[int]
    bid: list[tuple[int, int]]  # (limit, lots)
    ask: list[tuple[int, int]]
    take: list[int]


def play(rows, sessions, depth, model, power, script: Script, entry: int, cancel: int, ack: int) -> Exchange:
    market = Exchange(rows, sessions, depth, model, power)
    for i, ts in enumerate(script.ts):
        last = max(k for k, row in enumerate(rows) if row.recv <= ts)
        if i == 0:
            market.next = last + 1
            market.standing = max((k for k in range(last + 1) if rows[k].trusted), default=-1)
        market.play(last, ts - ack)
        for side, (limit, lots) in ((1, script.bid[i]), (-1, script.ask[i])):
            own = [o for o in market.live_orders() if o.side == side and o.style == "post"]
            kept = False
            for order in own:
                if order.change and order.change[1] == "cancel":
                    continue
                if lots and order.asked == limit:
                    kept = True
                    if order.change is None and order.lots != lots:
                        order.change = (max(ts + cancel, order.arrival), "modify", lots, limit)
                else:
                    order.change = (max(ts + cancel, order.arrival), "cancel", 0, 0)
            free = [slot for slot in ((0, 1) if side > 0 else (2, 3)) if slot not in [o.slot for o in market.live_orders()]]
            if lots and not kept and free:
                market.send(Order(0, side, "post", limit, lots, ts, ts + entry, asked=limit, left=lots, slot=free[-1]))
        free = [slot for slot in ((0, 1) if script.take[i] > 0 else (2, 3)) if slot not in [o.slot for o in market.live_orders()]]
        if script.take[i] and free:
            lots, side = abs(script.take[i]), 1 if script.take[i] > 0 else -1
            market.send(Order(0, side, "take", None, lots, ts, ts + entry, left=lots, slot=free[0]))
    return market
