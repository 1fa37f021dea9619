"""Books in plain Python, for tests: a dict of orders, levels as sorted lists. Shares no code with `lob.order_book`, `lob.book_mbo` or
`lob.book_lobster`; written from docs/book.md."""

from dataclasses import dataclass, field

LAST, SNAPSHOT, MAYBE_BAD = 128, 32, 4
NO_PRICE = 2**63 - 1
COUNTED = ("unknown_cancels", "unknown_modifies", "duplicate_adds", "oversized_cancels", "bad_messages", "unfounded_rows")


@dataclass
class PlainBook:
    """Orders in the order of their priority at each price: the dict's own order, an order that loses its turn being put in anew."""

    orders: dict[int, tuple[str, int, int]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTED, 0))
    started: bool = False
    event_open: bool = False
    pending: tuple | None = None

    def side(self, side: str) -> list[tuple[int, int, int]]:
        """(price, lots, orders), best first."""
        found: dict[int, list[int]] = {}
        for where, price, lots in self.orders.values():
            if where == side:
                found.setdefault(price, []).append(lots)
        return [(price, sum(found[price]), len(found[price])) for price in sorted(found, reverse=side == "B")]

    def queue(self, side: str, price: int) -> list[tuple[int, int]]:
        return [(ident, lots) for ident, (where, at, lots) in self.orders.items() if (where, at) == (side, price)]

    def depth(self, side: str, price: int) -> int | None:
        prices = [level[0] for level in self.side(side)]
        return prices.index(price) if price in prices else None

    def view(self) -> tuple[list, list]:
        return self.side("B")[:10], self.side("A")[:10]

    def change(self, action: str, ident: int, side: str, price: int, size: int) -> list[int]:
        """Depths that the message touched: where it came to first, then what it left."""
        if action == "C":
            if size == 0:
                self.counts["bad_messages"] += 1
                return []
            if ident not in self.orders:
                self.counts["unknown_cancels"] += 1
                return []
            where, at, lots = self.orders[ident]
            touched = self.depth(where, at)
            if size > lots:
                self.counts["oversized_cancels"] += 1
            if size >= lots:
                del self.orders[ident]
            else:
                self.orders[ident] = (where, at, lots - size)
            return [touched]
        if side not in ("A", "B") or price == NO_PRICE or (action == "A" and size == 0):
            self.counts["bad_messages"] += 1
            return []
        if ident in self.orders and action == "A":
            self.counts["duplicate_adds"] += 1
            return []
        if ident not in self.orders:
            if action == "M":
                self.counts["unknown_modifies"] += 1
            if size == 0:
                return []
            self.orders[ident] = (side, price, size)
            return [self.depth(side, price)]
        where, at, lots = self.orders[ident]
        left = self.depth(where, at)
        if size == 0:
            del self.orders[ident]
            return [left]
        if (where, at) == (side, price) and size <= lots:
            self.orders[ident] = (side, price, size)
            return [left]
        del self.orders[ident]
        self.orders[ident] = (side, price, size)
        return [self.depth(side, price), left]

    def play(self, number: int, action: str, ident: int, side: str, price: int, size: int, flags: int) -> list[tuple]:
        """Rows (message number, action, side, price, size, flags, depth, bids, asks) that a message gives."""
        rows = []
        if flags & SNAPSHOT:
            if self.pending is None:
                self.orders.clear()
                self.started = True
        elif self.pending is not None:
            rows += self.end_snapshot()
        depth = None
        if action == "R":
            self.orders.clear()
            self.started = True
            depth = 0
        elif action == "T":
            depth = 0
        elif action in "ACM":
            touched = [at for at in self.change(action, ident, side, price, size) if at < 10]
            depth = touched[0] if touched else None
        elif action not in "FN":
            self.counts["bad_messages"] += 1
        if flags & SNAPSHOT:
            self.pending = (number, price, size, flags)
            return rows + (self.end_snapshot() if flags & LAST else [])
        if depth is None and flags & LAST and self.event_open:
            depth = 10
        if depth is not None:
            self.counts["unfounded_rows"] += not self.started
            shown = flags if self.started else flags | MAYBE_BAD
            rows.append((number, action, side, price, size, shown, depth, *self.view()))
            self.event_open = True
        if flags & LAST:
            self.event_open = False
        return rows

    def orders_only(self, action: str, ident: int, side: str, price: int, size: int, _flags: int) -> None:
        """What an A, C or M of a sound stream does to the orders, without looking where they stand."""
        where, at, lots = self.orders.get(ident, (side, price, 0))
        left = lots - size if action == "C" else size
        if action != "M" or size > lots or (where, at) != (side, price):
            self.orders.pop(ident, None)
        if left > 0:
            self.orders[ident] = (side, price, left)

    def end_snapshot(self) -> list[tuple]:
        if self.pending is None:
            return []
        number, price, size, flags = self.pending
        self.pending, self.event_open = None, False
        return [(number, "A", "N", price, size, flags | LAST, 0, *self.view())]
