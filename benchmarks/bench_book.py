"""Messages a second into books of ten levels: DBN `mbo` to `mbp-10`. The output is checked before a time is printed.

The stream is made from a seed: a book of thousands of orders, most messages near the touch, in the proportions of a real ES day (42 % adds,
26 % cancels, 18 % modifies, 14 % trades and fills). With --file a real DBN file is played instead, unchecked: the tests check that.
"""

import argparse
import os
import time

import numpy as np

from lob.book_mbo import FAULTS, MboBook, Room, build, finish
from lob.records import F_LAST, F_SNAPSHOT, MBO
from tests.oracle_book import PlainBook

BATCH = 65_536
CHECKED = 3_000
"""Messages whose rows are compared with those of the book in plain Python, which is slow; of the rest the last book is."""


def stream(n: int, seed: int) -> np.ndarray:
    """`n` messages of one instrument, begun by a snapshot of 2,000 orders."""
    random = np.random.default_rng(seed)
    made = np.zeros(n, MBO)
    made["length"], made["rtype"], made["publisher_id"], made["instrument_id"] = 14, 0xA0, 1, 7
    made["ts_recv"] = made["ts_event"] = 1_700_000_000 * 10**9 + np.arange(n) * 1000
    made["flags"], made["sequence"] = F_LAST, np.arange(n)
    kinds = random.choice([0, 1, 2, 3], n, p=[0.42, 0.26, 0.18, 0.14])
    away = np.minimum(random.geometric(0.25, n) - 1, 400)
    sides, sizes, picks = random.integers(0, 2, n), random.integers(1, 20, n), random.random(n)
    ids: list[int] = []
    terms: dict[int, tuple[bytes, int]] = {}
    for i in range(n):
        kind = 0 if i < 2000 or len(ids) < 1000 else 1 if len(ids) > 10_000 else int(kinds[i])
        message = made[i]
        if kind == 0:
            side = b"B" if sides[i] else b"A"
            price = (20_000 - int(away[i]) if sides[i] else 20_001 + int(away[i])) * 250_000_000
            ids.append(i)
            terms[i] = side, price
            message["action"], message["order_id"], message["size"] = b"A", i, sizes[i]
        elif kind == 3:
            side, price = b"B", 20_001 * 250_000_000
            message["action"], message["size"], message["flags"] = b"T" if i % 3 == 0 else b"F", sizes[i], 0
        else:
            place = int(picks[i] * len(ids))
            ident = ids[place]
            side, price = terms[ident]
            message["order_id"], message["size"] = ident, sizes[i]
            if kind == 1:
                ids[place] = ids[-1]
                ids.pop()
                message["action"], message["size"] = b"C", 2**32 - 1
            else:
                message["action"] = b"M"
        message["side"], message["price"] = side, price
    made["flags"][:2000] |= F_SNAPSHOT
    made["flags"][:1999] &= ~np.uint8(F_LAST)
    return made


def play(messages: np.ndarray) -> tuple[MboBook, int, np.ndarray]:
    """(book, rows, faults) of the whole stream in batches, as an ingest asks for them: what a batch gave is gone with the next."""
    room = Room()
    book, faults, rows = MboBook(), np.zeros((1, len(FAULTS)), np.int64), 0
    numbers, periods = np.arange(BATCH), np.zeros(BATCH, np.int64)
    for first in range(0, len(messages), BATCH):
        part = messages[first : first + BATCH]
        rows += len(build(book, part, numbers[: len(part)], periods[: len(part)], faults, room)[0])
    return book, rows + len(finish(book)[0]), faults[0]


def check(messages: np.ndarray) -> None:
    """The first rows are a plain book's, and so is the book that stands at the end."""
    from lob.order_book import ASK, BID, side_levels

    first = messages[: 2000 + CHECKED]
    found, _ = build(MboBook(), first, np.arange(len(first)), np.zeros(len(first), np.int64), np.zeros((1, len(FAULTS)), np.int64))
    plain, due = PlainBook(), []
    for i, m in enumerate(messages):
        fields = m["action"].decode(), int(m["order_id"]), m["side"].decode(), int(m["price"]), int(m["size"]), int(m["flags"])
        if i < len(first):
            due += plain.play(i, *fields)
        elif fields[0] in "ACM":
            plain.orders_only(*fields)
    assert len(found) == len(due), "another number of rows"
    for row, (_, _, _, _, _, flags, depth, bids, asks) in zip(found, due, strict=True):
        assert (int(row["flags"]), int(row["depth"])) == (flags, depth)
        for side, levels in (("bid", bids), ("ask", asks)):
            for level, (price, lots, orders) in enumerate(levels):
                shown = tuple(int(row[f"{side}_{what}_{level:02d}"]) for what in ("px", "sz", "ct"))
                assert shown == (price, lots, orders), (row, level)
    book, _, _ = play(messages)
    assert [side_levels(book.arrays, side) for side in (BID, ASK)] == [plain.side(side) for side in "BA"], "another book at the end"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--file", help="a DBN file of schema mbo to play instead")
    options = parser.parse_args()
    if options.file:
        from store.dbn import read_batches

        messages = np.concatenate([batch.copy() for batch in read_batches(options.file)])
        messages = messages[: options.messages]
    else:
        messages = stream(options.messages, 1)
        check(messages)
    play(messages)
    walls, cpus, rows = [], [], 0
    for _ in range(options.rounds):
        wall, cpu = time.perf_counter(), time.process_time()
        _, rows, _ = play(messages)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    n = len(messages)
    print(
        f"mbo -> mbp-10  {n / min(walls) / 1e6:5.2f} M messages/s ({n / min(cpus) / 1e6:.2f} per CPU-second, one core; "
        f"{rows / n:.2f} rows a message; load {os.getloadavg()[0]:.1f})"
    )
    print("limit: 368 bytes are written for each row; the rest is finding the order by its id, and its level")


if __name__ == "__main__":
    main()
