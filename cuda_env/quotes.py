"""A script that quotes and takes, played by the exchange itself: T decisions of one or many lanes in one call, no policy between them.

    quotes = Quotes(ts_ns, observed_event, bid_ticks, ask_ticks, bid_lots, ask_lots, take_lots, from_touch=0)
    played = play_quotes(tape, config, quotes, lanes=1, latency_ns=1_000_000, slots=4096)
    played.fills["price_ticks"], played.orders["state"], played.position_lots, played.cash_usd_micros

or, with buffers of one's own, `cuda_env.kernels_quotes.run_quotes(quotes, market, params, state, out)` (njit;
`cuda_env.kernels_live_cuda.quotes` is the same for CUDA, one thread a lane).
"""

from typing import Any, NamedTuple

import numpy as np

from cuda_env import arrays as a
from cuda_env import state as s
from cuda_env import working as w
from cuda_env.config import EnvConfig
from cuda_env.live import live
from lob.actions import NOT_PLAYED, FillReason, OrderKind
from lob.errors import BadInput
from lob.jit import scalar
from lob.tape import Tape

CROSSED = int(FillReason.CROSSED)
MARKET, JOIN = int(OrderKind.MARKET), int(OrderKind.JOIN)


class Quotes(NamedTuple):
    """What the script wants at each of T decisions. Every array but the first two is [T or 1, lanes or 1]: one row for all decisions, one
    column for all lanes.

    At a decision, a side's order at the wanted limit is kept (with other lots it is modified: fewer keep their place), one at another limit
    is cancelled and a new one sent at the same time; where both slots of the side are taken (a market order stands in one of its side
    while it is on its way), nothing is sent at this decision. 0 lots want no order. `observed_event` is the last row received by then;
    nothing later is seen.
    """

    ts_ns: Any  # int64[T], ascending
    observed_event: Any  # int64[T], ascending
    bid_ticks: Any  # int32: limit of the bid; with from_touch how far behind the best bid that was seen
    ask_ticks: Any  # int32: of the ask; with from_touch how far behind the best ask
    bid_lots: Any  # int32
    ask_lots: Any  # int32
    take_lots: Any  # int32: a market order beside them, signed, +: buy
    from_touch: Any  # 1: limits are distances


@scalar
def begin_live(lane, last, state):
    """The lane's exchange begins behind row `last`, whose book, or an earlier one, stands."""
    state[w.NEXT, lane] = last + 1


@scalar
def send(lane, slot, side, style, limit, lots, ts, params, state):
    """Send an order that no pick asked for: a quote, or a market order."""
    arrival = ts + w.entry_latency(lane, state[s.ORDER_COUNT, lane], params)
    kind = MARKET if style == w.TAKE else JOIN
    w.place(lane, slot, side, style, limit, lots, ts, arrival, CROSSED, kind, NOT_PLAYED, NOT_PLAYED, w.FAR, params, state)


@scalar
def wanted(values, step, lane):
    """The value of an array of `Quotes` at a decision for a lane."""
    return values[step if values.shape[0] > 1 else 0, lane if values.shape[1] > 1 else 0]


@scalar
def quote(lane, step, quotes, market, params, state, out):
    """One decision of the script: live up to what is known at it, then send what it asks for."""
    ts, last = quotes.ts_ns[step], quotes.observed_event[step]
    if state[w.NEXT, lane] < 0:
        begin_live(lane, last, state)
    live(lane, last, ts - w.ack_latency(lane, step, params), False, market, params, state, out)
    seen = last
    if quotes.from_touch != 0:
        while seen >= 0 and market.marks[seen] & a.TRADABLE == 0:
            seen -= 1
    for which in range(2):
        side = 1 if which == 0 else -1
        lots = wanted(quotes.bid_lots if which == 0 else quotes.ask_lots, step, lane)
        limit = wanted(quotes.bid_ticks if which == 0 else quotes.ask_ticks, step, lane)
        if quotes.from_touch != 0:
            if seen < 0:
                continue
            limit = (market.bid_ticks[seen, 0] - limit) if which == 0 else (market.ask_ticks[seen, 0] + limit)
        kept, free = False, -1
        for slot in range(2 * which, 2 * which + 2):
            if state[w.at(slot, w.PHASE), lane] == w.FREE:
                free = slot
            elif state[w.at(slot, w.STYLE), lane] == w.POST and state[w.at(slot, w.CHANGE), lane] != w.CANCEL:
                if lots > 0 and state[w.at(slot, w.ASKED), lane] == limit:
                    kept = True
                    if state[w.at(slot, w.CHANGE), lane] == w.NO_CHANGE and state[w.at(slot, w.ORDER_LOTS), lane] != lots:
                        w.modify(lane, slot, lots, limit, ts, params, state)
                else:
                    w.cancel(lane, slot, ts, params, state)
        if lots > 0 and not kept and free >= 0:
            send(lane, free, side, w.POST, limit, lots, ts, params, state)
    lots = wanted(quotes.take_lots, step, lane)
    if lots != 0:
        side = 1 if lots > 0 else -1
        first = 0 if lots > 0 else 2
        for slot in range(first, first + 2):
            if state[w.at(slot, w.PHASE), lane] == w.FREE:
                send(lane, slot, side, w.TAKE, w.FAR, abs(lots), ts, params, state)
                break
    state[s.CLOCK, lane] = step + 1


class QuoteRun(NamedTuple):
    """What a script did: rows of every fill and order, lane by lane in the order in which they came (columns of
    `cuda_env.arrays.WORKING_FILL_SLOTS` and `WORKING_ORDER_SLOTS`, and `lane`), and each lane's account after the last decision,
    int64[lanes]."""

    fills: dict[str, np.ndarray]
    orders: dict[str, np.ndarray]
    position_lots: np.ndarray
    cost_ticks: np.ndarray
    cash_usd_micros: np.ndarray
    fees_usd_micros: np.ndarray
    state: np.ndarray


def make_quotes(
    tape: Tape, ts_ns: np.ndarray, bid_ticks: Any, ask_ticks: Any, bid_lots: Any = 1, ask_lots: Any = 1, take_lots: Any = 0,
    from_touch: bool = False,
) -> Quotes:  # fmt: skip
    """`Quotes` of numbers, [T] or [T, lanes] values, with the rows that each decision has received. Raises BadInput: times that do not
    ascend, or none of them after the tape's first row, or values that are neither one nor T."""
    ts = np.ascontiguousarray(ts_ns, np.int64)
    if not len(ts) or (np.diff(ts) < 0).any() or ts[0] < tape.ts_recv_ns[0]:
        raise BadInput("decision times must ascend, and the first must not come before the tape's first row has been received")

    def shaped(values: Any) -> np.ndarray:
        array = np.asarray(values, np.int32)
        if array.ndim > 2 or (array.ndim > 0 and len(array) not in (1, len(ts))):
            raise BadInput(f"what is wanted has shape {array.shape}: give one value, or one for each of the {len(ts)} decisions")
        return np.ascontiguousarray(array.reshape(-1, 1) if array.ndim < 2 else array)

    observed = np.searchsorted(tape.ts_recv_ns, ts, side="right") - 1
    bids, asks, bid_sizes, ask_sizes, takes = (shaped(values) for values in (bid_ticks, ask_ticks, bid_lots, ask_lots, take_lots))
    return Quotes(ts, observed.astype(np.int64), bids, asks, bid_sizes, ask_sizes, takes, int(from_touch))


def quote_buffers(config: EnvConfig, lanes: int, slots: int) -> tuple[np.ndarray, a.Out]:
    """(state of the lanes, outputs with `slots` rows of fills and of orders a lane for the whole run; 0: nothing is logged)."""
    stride = s.padded(lanes)
    initial = np.array(s.reset_values(config.capital_usd_micros) + w.initial_values(), np.int64)
    tables = {"orders": len(a.WORKING_ORDER_SLOTS), "fills": len(a.WORKING_FILL_SLOTS), "trades": len(a.TRADE_SLOTS)}
    logged = {name: np.zeros((lanes if slots and name != "trades" else 0, slots, width), np.int64) for name, width in tables.items()}
    flat = {name: np.zeros(lanes, dtype) for name, dtype in a.OUT_DTYPES.items()}
    counts, steps, codes = np.zeros((3, stride), np.int64), np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int16)
    return np.repeat(initial[:, None], stride, axis=1), a.Out(**flat, **logged, counts=counts, steps=steps, codes=codes)


def play_quotes(
    tape: Tape, config: EnvConfig, quotes: Quotes, lanes: int = 1, latency_ns: int = 0, slots: int = 4096, threads: int = 1
) -> QuoteRun:
    """Play a script on the CPU. `latency_ns` is an order's where the config states none; `slots` bounds the fills and the orders of a
    lane (0: keep none). Raises BadInput: no queue model, a tape without prices of prints, values for another number of lanes, more rows
    than slots, an account beyond 64 bits."""
    from cuda_env.kernels_quotes import run_quotes, run_quotes_many
    from lob.jit import set_threads

    if config.queue_model == "none":
        raise BadInput("quotes work in the book: set queue_model to risk_averse, proportional or power")
    if widths := {column.shape[1] for column in quotes[2:7]} - {1, lanes}:
        raise BadInput(f"what is wanted is for {max(widths)} lanes, not for {lanes}: give one column, or one for each lane")
    terms = config.resolved(tape.instrument)
    market = a.market_arrays(tape, working=True)
    params = a.params_vector(terms, tape.instrument, lanes, 0, False, 64, 0, latency_ns)
    state, out = quote_buffers(terms, lanes, slots)
    if threads > 1:
        set_threads(threads)
        run_quotes_many(quotes, market, params, state, out)
    else:
        run_quotes(quotes, market, params, state, out)
    if out.fault.any():
        lane = int(np.flatnonzero(out.fault)[0])
        raise BadInput(f"lane {lane}: {a.FAULTS[int(out.fault[lane])]}")

    def rows(stored: np.ndarray, counts: np.ndarray, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        used = np.arange(stored.shape[1]) < counts[: len(stored), None]
        lane = np.repeat(np.arange(len(stored)), counts[: len(stored)])
        return dict(zip(names, stored[used].T, strict=True)) | {"lane": lane}

    position, cost, cash, fees = (state[field, :lanes].copy() for field in (s.POSITION, s.COST, s.CASH, s.FEES))
    fills = rows(out.fills, out.counts[a.FILLS_WRITTEN], a.WORKING_FILL_SLOTS)
    return QuoteRun(fills, rows(out.orders, out.counts[a.ORDERS_WRITTEN], a.WORKING_ORDER_SLOTS), position, cost, cash, fees, state)
