"""The exchange of hftbacktest 2.4 in plain Python, read from its documentation and source, and beside it, one by one and named, the
rules in which ours differs. With no rule it is the peer, with all of `OURS` it is `cuda_env`; it is noted when a rule makes a difference.

What both do:

- The exchange works through what has its time, rows before messages; the strategy knows what it received at or before its decision.
- A limit order that arrives behind the touch joins the queue of its price, behind the size that is known there.
- A print at the order's price takes its lots from the queue ahead, and what is left over from that reaches the order. A print through the
  price fills it, and so does an opposite best that reaches it. All of these at the order's own price.
- `risk_averse`: the queue ahead is never more than the price shows. ("power", n): a size that went, less what was printed since the last
  change, went from behind the order with probability b^n / (b^n + f^n), f and b being the lots ahead and behind.
"""

import heapq
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field

REPRICED = "a post-only order that would cross waits a tick behind the opposite touch; the peer lets it expire"
IN_PARTS = "an order fills by what a print or the opposite side has for it; the peer fills it whole"
WALKED = "a market order walks the levels, and what they do not show expires; the peer fills it whole at the best price"
CONSUMED = "what was taken at a displayed price stays taken until the price leaves the book; the peer forgets it"
WHOLE_LOTS = (
    "a part of a lot ahead is a lot, and the place is held in 2^-16 of one, rounded down; the peer rounds floats to the nearest lot"
)
OUT_OF_SIGHT = (
    "behind the tenth level no queue is known: longest when an order joins there, unshared until it is seen; the peer holds the last size"
)
KNOWN_WITH_ROW = "a fill is known no sooner than the rows up to it are received; the peer's answers may overtake the market's data"
TWO_A_SIDE = "a script has room for two orders a side, and what finds none is not sent; the peer sends it"
OURS = (TWO_A_SIDE, REPRICED, IN_PARTS, WALKED, CONSUMED, WHOLE_LOTS, OUT_OF_SIGHT, KNOWN_WITH_ROW)

ONE, SHARE_BITS, ALMOST_NONE = 2**16, 20, 2**8
"""WHOLE_LOTS: a lot; bits of a share; what of a lot counts as none."""
UNKNOWN_LOTS = 2**31
FAR_NS = 2**62


@dataclass
class PlainOrder:
    id: int
    side: int
    ticks: int
    lots: int
    market: bool = False
    left: int = 0
    ahead: float = 0.0  # lots
    units: int = 0  # the same by WHOLE_LOTS
    printed: int = 0
    sees: bool = True  # its price was in sight at the last row
    state: str = "sent"


@dataclass(frozen=True)
class Row:
    """A row of a tape: `books` are {ticks: lots} of bids and asks where it is tradable, `known` the same with the sizes last seen behind
    its last level, `prints` (aggressor, ticks, lots)."""

    event_ns: int
    recv_ns: int
    prints: tuple[int, int, int] | None
    books: tuple[dict[int, int], dict[int, int]] | None
    known: tuple[dict[int, int], dict[int, int]]
    levels: int


def rows_of(tape) -> list[Row]:
    """The rows from the first tradable one on."""
    shown = [
        [{p: n for p, n in zip(prices, sizes, strict=True) if n} for prices, sizes in zip(ticks.tolist(), lots.tolist(), strict=True)]
        for ticks, lots in ((tape.bid_ticks, tape.bid_lots), (tape.ask_ticks, tape.ask_lots))
    ]
    prints = zip(tape.trade_side.tolist(), tape.trade_ticks.tolist(), tape.trade_lots.tolist(), tape.session.tolist(), strict=True)
    columns = zip(tape.ts_event_ns.tolist(), tape.ts_recv_ns.tolist(), prints, *shown, tape.tradable, tape.trusted, strict=True)
    levels, known, rows = tape.bid_ticks.shape[1], ({}, {}), []
    for event_ns, recv_ns, (side, ticks, lots, session), bids, asks, tradable, trusted in columns:
        if trusted and not bids and not asks:
            known = ({}, {})
        if tradable:
            known = known_after(known[0], bids, 1, levels), known_after(known[1], asks, -1, levels)
        prints = (side, ticks, lots) if side and session >= 0 else None
        rows.append(Row(event_ns, recv_ns, prints, (bids, asks) if tradable else None, known, levels))
    return rows[next(i for i, row in enumerate(rows) if row.books) :]


def known_after(known: dict[int, int], shown: dict[int, int], side: int, levels: int) -> dict[int, int]:
    """What is known of a side's sizes after a row: what it shows, and beyond a full row's last level what was known before."""
    if len(shown) < levels:
        return shown
    last = min(shown) if side > 0 else max(shown)
    return {ticks: lots for ticks, lots in known.items() if (ticks - last) * side < 0} | shown


def share_of(front: int, back: int, power: int) -> int:
    """WHOLE_LOTS: front^n / (front^n + back^n) in 2^-20, of numbers cut to the bits that leave the powers room."""
    cut = max(0, max(front, back).bit_length() - 42 // power)
    ahead, behind = (front >> cut) ** power, (back >> cut) ** power
    return (ahead << SHARE_BITS) // (ahead + behind)


@dataclass
class PlainExchange:
    """A book, orders that work in it, and what happened: `fills` are (ns, order, ticks, lots)."""

    queue: object
    rules: tuple[str, ...] = ()
    acted: dict[str, list[int]] = field(default_factory=dict)  # when each rule made a difference
    now_ns: int = 0
    known: tuple[dict[int, int], dict[int, int]] = field(default_factory=lambda: ({}, {}))
    shown: tuple[dict[int, int], dict[int, int]] = field(default_factory=lambda: ({}, {}))
    levels: int = 10
    working: dict[int, PlainOrder] = field(default_factory=dict)
    fills: list = field(default_factory=list)
    taken: tuple[Counter, Counter] = field(default_factory=lambda: (Counter(), Counter()))  # of bids, of asks

    def acts(self, rule: str, differs: bool = True) -> bool:
        """Whether a rule holds; counted when it makes a difference."""
        if rule in self.rules and differs:
            self.acted.setdefault(rule, []).append(self.now_ns)
        return rule in self.rules

    def fill(self, order: PlainOrder, ns: int, ticks: int, lots: int) -> None:
        order.left -= lots
        self.fills.append((ns, order, ticks, lots))
        if order.left == 0:
            order.state = "filled"
            self.working.pop(order.id, None)

    def in_sight(self, order: PlainOrder) -> bool:
        shown = self.shown[0 if order.side > 0 else 1]
        if len(shown) < self.levels:
            return True
        return (order.ticks - (min(shown) if order.side > 0 else max(shown))) * order.side >= 0

    def free_lots(self, order: PlainOrder, lots: int) -> int:
        """What of a print at the order's price is left over from the queue ahead; the peer asks only whether anything is."""
        ahead = max(0, -((ALMOST_NONE - order.units) // ONE))
        free, theirs = max(0, lots - ahead), order.ahead - lots <= -0.5
        if self.acts(WHOLE_LOTS, (free > 0) != theirs):
            return free
        return lots if theirs else 0

    def join(self, order: PlainOrder, lots: int) -> None:
        order.ahead, order.units = float(lots), lots * ONE

    def print(self, side: int, ticks: int, lots: int, ns: int) -> None:
        """`side` is the aggressor's: it meets orders of the other side, the better limit first, then the older."""
        for order in sorted(self.working.values(), key=lambda order: (-order.side * order.ticks, order.id)):
            through = (order.ticks - ticks) * order.side
            if order.side == side or through < 0:
                continue
            free = lots
            if through == 0:
                free = self.free_lots(order, lots)
                order.ahead, order.units = order.ahead - lots, max(0, order.units - lots * ONE)
                order.printed += lots
            else:
                self.join(order, 0)
            if free > 0:
                part = min(free, order.left) if self.acts(IN_PARTS, free < order.left) else order.left
                self.fill(order, ns, order.ticks, part)

    def advance(self, order: PlainOrder, before: int, after: int) -> None:
        """What a new size at the order's price does to its place in the queue."""
        if self.queue != "risk_averse":
            gone, power, order.printed = before - after - order.printed, self.queue[1], 0
            front, back = order.ahead, before - order.ahead
            if gone >= 0:
                weights = front**power, back**power
                behind = 1.0 if sum(weights) == 0 else weights[1] / sum(weights)
                order.ahead = front - (1 - behind) * gone + min(back - behind * gone, 0.0)
            units, rest = order.units, max(0, before * ONE - order.units)
            if gone > 0 and units > 0:
                moved = gone * share_of(units, rest, int(power)) >> (SHARE_BITS - 16)
                order.units = max(0, units - max(moved, gone * ONE - rest))
        order.ahead, order.units = min(order.ahead, after), min(order.units, after * ONE)

    def take(self, order: PlainOrder, ns: int, resting: bool) -> None:
        """What the displayed opposite side has for an order that crosses it: at its own price for a resting one."""
        which = 1 if order.side > 0 else 0
        levels = sorted(self.shown[which].items(), key=lambda level: level[0] * order.side)
        for ticks, lots in levels:
            if resting and (order.ticks - ticks) * order.side < 0:
                break
            left_there = lots - self.taken[which][ticks]
            there = left_there if self.acts(CONSUMED, left_there < min(lots, order.left)) else lots
            part = min(there, order.left) if self.acts(IN_PARTS if resting else WALKED, lots < order.left) else order.left
            if CONSUMED in self.rules:
                part = min(part, there)
            if part > 0:
                if CONSUMED in self.rules:
                    self.taken[which][ticks] += part
                self.fill(order, ns, order.ticks if resting else ticks, part)
            if order.left == 0:
                break

    def see(self, row: Row) -> None:
        """Live through a row: its print, then its book."""
        self.now_ns = row.event_ns
        if row.prints:
            self.print(*row.prints, row.event_ns)
        before, self.known = self.known, row.known
        if not row.books:
            return
        self.levels, self.shown = row.levels, row.books
        for which in range(2):
            for ticks in [ticks for ticks in self.taken[which] if ticks not in row.books[which]]:
                del self.taken[which][ticks]
        for order in sorted(self.working.values(), key=lambda order: (-order.side * order.ticks, order.id)):
            self.take(order, row.event_ns, True)
            if order.id not in self.working:
                continue
            which = 0 if order.side > 0 else 1
            was, now = before[which].get(order.ticks, 0), self.known[which].get(order.ticks, 0)
            saw, order.sees = order.sees, self.in_sight(order)
            if OUT_OF_SIGHT in self.rules and not order.sees:
                continue
            if not saw and self.acts(OUT_OF_SIGHT, was != now and self.queue != "risk_averse"):
                order.ahead, order.units, order.printed = min(order.ahead, now), min(order.units, now * ONE), 0
                continue
            if was != now:
                self.advance(order, was, now)

    def receive(self, order: PlainOrder, ns: int) -> None:
        self.now_ns = ns
        order.left = order.lots
        opposite = self.shown[1 if order.side > 0 else 0]
        touch = (min(opposite) if order.side > 0 else max(opposite)) if opposite else None
        if order.market:
            self.take(order, ns, False)
            order.state = "filled" if order.left == 0 else "expired"
            return
        if touch is not None and (order.ticks - touch) * order.side >= 0:
            if not self.acts(REPRICED):
                order.state = "expired"
                return
            order.ticks = touch - order.side
        order.sees = self.in_sight(order)
        unknown = self.acts(OUT_OF_SIGHT, not order.sees) and not order.sees
        self.join(order, UNKNOWN_LOTS if unknown else self.known[0 if order.side > 0 else 1].get(order.ticks, 0))
        order.state = "working"
        self.working[order.id] = order

    def cancel(self, order: PlainOrder) -> None:
        if self.working.pop(order.id, None):
            order.state = "cancelled"


@dataclass(frozen=True)
class Script:
    """At decision t: post-only quotes of `bid_lots[t]` and `ask_lots[t]` lots (0: none), `behind` ticks behind the touch that was seen; one
    is kept while its price is wanted, cancelled and replaced when it is not. And a market order of |take_lots[t]| lots."""

    decide_ns: list[int]
    behind: int
    bid_lots: list[int]
    ask_lots: list[int]
    take_lots: list[int]


def play(rows: list[Row], script: Script, queue, entry_ns: int, response_ns: int, rules: tuple[str, ...] = ()):
    """(fills, orders, acted): fills as (exchange ns, local ns, side, ticks, lots, order id) in the order of time, every `PlainOrder`, and
    when each rule made a difference."""
    exchange = PlainExchange(queue, rules)
    arriving: list = []  # (ns, n, order, whether it is a cancel)
    answers: list = []  # (ns, n, order)
    orders: list[PlainOrder] = []
    live: dict[int, PlainOrder] = {}  # of each side, what the strategy takes to be working
    asked: dict[int, int] = {}  # the price at which each quote was sent
    over: set[int] = set()  # orders that it knows to be over
    busy: dict[int, set[int]] = {1: set(), -1: set()}  # of each side, those that it does not
    touch, local_ns = None, []
    seen = happened = sent = 0

    def until(now):
        nonlocal touch, seen, happened, sent
        while True:
            times = (
                rows[seen].recv_ns if seen < len(rows) else FAR_NS, answers[0][0] if answers else FAR_NS,
                rows[happened].event_ns if happened < len(rows) else FAR_NS, arriving[0][0] if arriving else FAR_NS,
            )  # fmt: skip
            at = min(times)
            if at > now:
                return
            kind = times.index(at)
            if kind == 0:
                books = rows[seen].books
                touch = (max(books[0]), min(books[1])) if books else touch
                seen += 1
            elif kind == 1:
                order = heapq.heappop(answers)[2]
                over.add(order.id)
                busy[order.side].discard(order.id)
            else:
                before, held = len(exchange.fills), list(exchange.working.values())
                if kind == 2:
                    exchange.see(rows[happened])
                    happened += 1
                else:
                    _, _, order, is_cancel = heapq.heappop(arriving)
                    exchange.cancel(order) if is_cancel else exchange.receive(order, at)
                    held.append(order)
                over_now = [order for order in held if order.state not in ("working", "sent")]
                if over_now or len(exchange.fills) > before:
                    answer = at + response_ns
                    received = max(answer, rows[happened - 1].recv_ns)
                    if exchange.acts(KNOWN_WITH_ROW, bisect_left(script.decide_ns, answer) < bisect_left(script.decide_ns, received)):
                        answer = received
                    local_ns.extend([answer] * (len(exchange.fills) - before))
                    for order in over_now:
                        sent += 1
                        heapq.heappush(answers, (answer, sent, order))

    def send(side, ticks, lots, market, now):
        nonlocal sent
        full = len(busy[side]) >= 2
        if exchange.acts(TWO_A_SIDE, full) and full:
            return None
        sent += 1
        order = PlainOrder(len(orders) + 1, side, ticks, lots, market)
        orders.append(order)
        busy[side].add(order.id)
        heapq.heappush(arriving, (now + entry_ns, sent, order, False))
        return order

    for number, now in enumerate(script.decide_ns):
        until(now)
        for which, side, lots in ((0, 1, script.bid_lots[number]), (1, -1, script.ask_lots[number])):
            wanted = touch[which] - side * script.behind
            held = live.get(which)
            if held is not None and held.id in over:
                held = None
            if held is not None and (not lots or asked[held.id] != wanted):
                sent += 1
                heapq.heappush(arriving, (now + entry_ns, sent, held, True))
                held = None
            if held is None and lots:
                held = send(side, wanted, lots, False, now)
                if held is not None:
                    asked[held.id] = wanted
            live[which] = held
        if take := script.take_lots[number]:
            send(1 if take > 0 else -1, 0, abs(take), True, now)
    until(rows[-1].recv_ns + 10**9)
    fills = [
        (ns, known, order.side, ticks, lots, order.id) for (ns, order, ticks, lots), known in zip(exchange.fills, local_ns, strict=True)
    ]
    return sorted(fills, key=lambda fill: (fill[0], fill[5])), orders, exchange.acted
