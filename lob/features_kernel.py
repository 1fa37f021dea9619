"""The pass over rows and clock ticks that computes every market feature; `lob.features.FEATURES` says what each slot is.

All state is integers (half ticks, lots) or float64, resets at each session's first row, and is only ever fed rows received at or before
the tick.
"""

import numpy as np

from lob.book import imbalance, microprice_offset
from lob.jit import kernel_cpu
from lob.layout import OFFSET, OFI, OFI_DELTA, OFI_SLOTS

RETURN_SPANS = (1, 5, 15, 60)
VOLATILITY_SPANS = (5, 15, 60, 240)
WILDER = 14
"""Wilder's smoothing length, in clock ticks, for ATR and ADX."""
CUSUM_DRIFT, CUSUM_ALARM, CUSUM_CLIP = 0.5, 5.0, 5.0
"""Page's drift and decision interval, in standard deviations, and the most that one tick may add."""
REFERENCE_HALF_TICKS = 200
"""Least denominator of a return between prices that have no logarithm: 100 ticks."""
OVER_ATR_CLIP = 10.0

IMPACT_SPAN = 60
"""Ticks over which trades are held against the moves of their intervals."""
_LOTS_CLIP = 1 << 20  # lots of an interval: sixty products with a clipped move fit an int64 sum

_RING = 256  # > the longest span, a power of two
_SQUARE_CLIP = 1 << 26  # half ticks: 240 squares of it fit an int64 sum
_NO_BID, _NO_ASK = -(1 << 40), 1 << 40
_NS = 1e-9

# Indices into the integer state.
_COUNT, _PREVIOUS, _MID, _LAST_TIME = 0, 1, 2, 3  # ticks so far, row that the flow is measured from, current mid2, time of the tick before
_HIGH, _LOW, _ROWS, _MARK = 4, 5, 6, 7  # of the interval: mid2 range, rows; last tradable row
_BUY, _SELL, _VOLUME, _FLOWS = 8, 9, 10, 11  # of the interval: lots printed by side and in all, rows with a flow
_TICK_HIGH, _TICK_LOW, _TICK_MID, _MOVE = 12, 13, 14, 15  # of the tick before: bar of mids; its close less the one before
_INTS = 16
# Indices into the float state.
_TR, _UP, _DOWN, _ADX, _RISE, _FALL, _CUSUM = 0, 1, 2, 3, 4, 5, 6
_FLOATS = 8

_SPREAD, _MICROPRICE, _QUEUE = OFFSET["spread_ticks"], OFFSET["microprice_offset_ticks"], OFFSET["queue_imbalance_0"]
_IMBALANCE, _MASS_BID, _MASS_ASK = OFFSET["imbalance_10"], OFFSET["centre_of_mass_bid_ticks"], OFFSET["centre_of_mass_ask_ticks"]
_MASS_SKEW, _SLOPE_BID, _SLOPE_ASK = OFFSET["centre_of_mass_skew_ticks"], OFFSET["depth_slope_bid"], OFFSET["depth_slope_ask"]
_DEPTH_BID, _DEPTH_ASK, _TRADES, _SIGNED = (
    OFFSET["log_depth_bid"],
    OFFSET["log_depth_ask"],
    OFFSET["trade_imbalance"],
    OFFSET["signed_volume"],
)
_LOG_VOLUME, _LOG_EVENTS, _SIN, _COS = OFFSET["log_volume"], OFFSET["log_events"], OFFSET["session_sin"], OFFSET["session_cos"]
_ELAPSED, _DURATION, _STALENESS = OFFSET["session_elapsed"], OFFSET["log_bar_duration_s"], OFFSET["log_staleness_s"]
_ATR, _MOVE_ATR, _RANGE_ATR, _ADX_SLOT = OFFSET["atr_ticks"], OFFSET["move_over_atr"], OFFSET["range_over_atr"], OFFSET["adx"]
_CUSUM_SLOT, _MOMENTUM = OFFSET["cusum"], OFFSET["momentum_60"]
_WEIGHTED, _KYLE, _TOXICITY = OFFSET["imbalance_weighted"], OFFSET["kyle_lambda_60"], OFFSET["toxicity_60"]
_RETURN, _VOLATILITY = OFFSET["log_return_1"], OFFSET["volatility_5"]


@kernel_cpu
def market_rows(
    ticks, tick_dates, tick_opens, tick_closes, emit, ts_recv, trusted, tradable, session, bid_ticks, ask_ticks, bid_lots, ask_lots,
    trade_side, trade_lots, books, out,
):  # fmt: skip
    """Fill `out[emit[k]]` (float32[n, 128]) at every tick k with `emit[k] >= 0`; slots that the source cannot give stay 0."""
    levels = bid_lots.shape[1]
    ints, floats = np.zeros(_INTS, np.int64), np.zeros(_FLOATS, np.float64)
    mids, squares, sums = np.zeros(_RING, np.int64), np.zeros(_RING, np.int64), np.zeros(len(VOLATILITY_SPANS), np.int64)
    impacts, impact = np.zeros((_RING, 4), np.int64), np.zeros(4, np.int64)
    flow, depth = np.zeros(levels, np.int64), np.zeros(levels, np.int64)
    ofi, ofi_before = np.zeros(OFI_SLOTS, np.float64), np.zeros(OFI_SLOTS, np.float64)
    slots = np.zeros(out.shape[1], np.float64)
    row, date = 0, -1
    for k in range(len(ticks)):
        if tick_dates[k] != date:
            date = tick_dates[k]
            ints[:], floats[:], sums[:], squares[:], ofi[:], impact[:] = 0, 0.0, 0, 0, 0.0, 0
            ints[_PREVIOUS], ints[_MARK], ints[_LAST_TIME] = -1, -1, tick_opens[k]
            _clear_interval(ints, flow, depth)
        while row < len(ts_recv) and ts_recv[row] <= ticks[k]:
            if session[row] == date:
                _take_row(
                    row, trusted, tradable, bid_ticks, ask_ticks, bid_lots, ask_lots, trade_side, trade_lots, books, ints, flow, depth
                )
            row += 1
        if ints[_MARK] < 0:
            continue
        _take_tick(ints, floats, mids, squares, sums)
        _take_impact(ints, impacts, impact)
        ofi_before[:] = ofi
        _flow_over_depth(flow, depth, ints[_FLOWS], ofi)
        if emit[k] >= 0:
            slots[:] = 0.0
            _write_history(ints, floats, mids, sums, slots)
            _write_clock(ticks[k], tick_opens[k], tick_closes[k], ts_recv[ints[_MARK]], ints, slots)
            slots[_LOG_VOLUME] = np.log1p(float(ints[_VOLUME]))
            if books:
                _write_book(bid_ticks[ints[_MARK]], ask_ticks[ints[_MARK]], bid_lots[ints[_MARK]], ask_lots[ints[_MARK]], slots)
                _write_flow(ints, ofi, ofi_before, slots)
                _write_impact(impact, slots)
            for slot in range(len(slots)):
                out[emit[k], slot] = slots[slot]
        ints[_LAST_TIME] = ticks[k]
        _clear_interval(ints, flow, depth)


@kernel_cpu
def _clear_interval(ints, flow, depth):
    ints[_ROWS], ints[_BUY], ints[_SELL], ints[_VOLUME], ints[_FLOWS] = 0, 0, 0, 0, 0
    ints[_HIGH], ints[_LOW] = -(1 << 40), 1 << 40
    flow[:] = 0
    depth[:] = 0


@kernel_cpu
def _take_row(row, trusted, tradable, bid_ticks, ask_ticks, bid_lots, ask_lots, trade_side, trade_lots, books, ints, flow, depth):
    """One row of the session: prints, range of the mid, order flow against the tradable row before it."""
    ints[_ROWS] += 1
    ints[_VOLUME] += trade_lots[row]
    if trade_side[row] > 0:
        ints[_BUY] += trade_lots[row]
    elif trade_side[row] < 0:
        ints[_SELL] += trade_lots[row]
    if not tradable[row]:
        if trusted[row]:
            ints[_PREVIOUS] = -1  # a cleared, crossed or doubtful book: no flow is measured across it
        return
    mid2 = np.int64(bid_ticks[row, 0]) + ask_ticks[row, 0]
    ints[_MID], ints[_MARK] = mid2, row
    ints[_HIGH], ints[_LOW] = max(ints[_HIGH], mid2), min(ints[_LOW], mid2)
    if books and ints[_PREVIOUS] >= 0:
        before = ints[_PREVIOUS]
        ints[_FLOWS] += 1
        for level in range(len(flow)):
            bid, ask = np.int64(bid_lots[row, level]), np.int64(ask_lots[row, level])
            bid_before, ask_before = np.int64(bid_lots[before, level]), np.int64(ask_lots[before, level])
            bid_price = np.int64(bid_ticks[row, level]) if bid else _NO_BID
            ask_price = np.int64(ask_ticks[row, level]) if ask else _NO_ASK
            bid_price_before = np.int64(bid_ticks[before, level]) if bid_before else _NO_BID
            ask_price_before = np.int64(ask_ticks[before, level]) if ask_before else _NO_ASK
            if bid_price >= bid_price_before:
                flow[level] += bid
            if bid_price <= bid_price_before:
                flow[level] -= bid_before
            if ask_price <= ask_price_before:
                flow[level] -= ask
            if ask_price >= ask_price_before:
                flow[level] += ask_before
            depth[level] += bid + ask
    ints[_PREVIOUS] = row


@kernel_cpu
def _flow_over_depth(flow, depth, flows, ofi):
    """OFI over twice the mean depth per side, level by level: the move in ticks that it predicts. The last slot is the mean over levels."""
    total = 0.0
    for level in range(len(flow)):
        value = float(flow[level]) * flows / depth[level] if depth[level] else 0.0
        total += value
        if level < OFI_SLOTS - 1:
            ofi[level] = value
    ofi[OFI_SLOTS - 1] = total / len(flow)


@kernel_cpu
def _take_tick(ints, floats, mids, squares, sums):
    """The interval becomes a bar of mids: history of returns, Wilder's averages, CUSUM. `_COUNT` bars stand before this one."""
    n, mid = ints[_COUNT], ints[_MID]
    if ints[_HIGH] < ints[_LOW]:  # nothing tradable was received: the book stands
        ints[_HIGH], ints[_LOW] = mid, mid
    if n > 0:
        move = mid - ints[_TICK_MID]
        deviation = np.sqrt(sums[2] / min(n - 1, VOLATILITY_SPANS[2])) if n > 1 else 0.0  # of the ticks before this one
        x = min(max(move / deviation, -CUSUM_CLIP), CUSUM_CLIP) if deviation > 0 else 0.0
        if max(floats[_RISE], floats[_FALL]) > CUSUM_ALARM:
            floats[_RISE], floats[_FALL] = 0.0, 0.0
        floats[_RISE] = max(0.0, floats[_RISE] + x - CUSUM_DRIFT)
        floats[_FALL] = max(0.0, floats[_FALL] - x - CUSUM_DRIFT)
        floats[_CUSUM] = (floats[_RISE] - floats[_FALL]) / CUSUM_ALARM

        clipped = min(max(move, -_SQUARE_CLIP), _SQUARE_CLIP)
        squares[n % _RING] = clipped * clipped
        for i in range(len(VOLATILITY_SPANS)):
            sums[i] += squares[n % _RING]
            if n > VOLATILITY_SPANS[i]:
                sums[i] -= squares[(n - VOLATILITY_SPANS[i]) % _RING]
        ints[_MOVE] = move

        up, down = ints[_HIGH] - ints[_TICK_HIGH], ints[_TICK_LOW] - ints[_LOW]
        true_range = max(ints[_HIGH], ints[_TICK_MID]) - min(ints[_LOW], ints[_TICK_MID])
        weight = 1.0 / min(n, WILDER)
        floats[_TR] += (true_range - floats[_TR]) * weight
        floats[_UP] += ((up if up > down and up > 0 else 0) - floats[_UP]) * weight
        floats[_DOWN] += ((down if down > up and down > 0 else 0) - floats[_DOWN]) * weight
        if n >= WILDER:
            both = floats[_UP] + floats[_DOWN]
            dx = abs(floats[_UP] - floats[_DOWN]) / both if both > 0 else 0.0
            floats[_ADX] += (dx - floats[_ADX]) / min(n - WILDER + 1, WILDER)
    mids[n % _RING] = mid
    ints[_TICK_HIGH], ints[_TICK_LOW], ints[_TICK_MID] = ints[_HIGH], ints[_LOW], mid
    ints[_COUNT] = n + 1


@kernel_cpu
def _take_impact(ints, impacts, impact):
    """Sums over the last moves, after `_take_tick`: x y and x^2, y in half ticks and x the signed lots; |x|, and lots of either side."""
    n = ints[_COUNT] - 1
    if n == 0:
        return  # no move is known yet
    lots = min(max(ints[_BUY] - ints[_SELL], -_LOTS_CLIP), _LOTS_CLIP)
    move = min(max(ints[_MOVE], -_SQUARE_CLIP), _SQUARE_CLIP)
    if n > IMPACT_SPAN:
        for i in range(4):
            impact[i] -= impacts[(n - IMPACT_SPAN) % _RING, i]
    newest = impacts[n % _RING]
    newest[0], newest[1], newest[2], newest[3] = lots * move, lots * lots, abs(ints[_BUY] - ints[_SELL]), ints[_BUY] + ints[_SELL]
    for i in range(4):
        impact[i] += newest[i]


@kernel_cpu
def _return_between(now, before):
    """log(now/before), or the difference over the larger of the two (at least 100 ticks) where a price is not positive."""
    if now > 0 and before > 0:
        return np.log(now / before)
    return (now - before) / max(abs(now), abs(before), REFERENCE_HALF_TICKS)


@kernel_cpu
def _write_history(ints, floats, mids, sums, slots):
    last = ints[_COUNT] - 1  # bars before this one: the moves that are known
    mid = ints[_MID]
    for i in range(len(RETURN_SPANS)):
        slots[_RETURN + i] = _return_between(mid, mids[(last - min(RETURN_SPANS[i], last)) % _RING])
    for i in range(len(VOLATILITY_SPANS)):
        if last > 0:
            slots[_VOLATILITY + i] = 0.5 * np.sqrt(sums[i] / min(VOLATILITY_SPANS[i], last))
    if sums[2] > 0:
        slots[_MOMENTUM] = np.tanh((mid - mids[(last - min(60, last)) % _RING]) / np.sqrt(float(sums[2])))
    slots[_ATR] = 0.5 * floats[_TR]
    if floats[_TR] > 0:
        slots[_MOVE_ATR] = min(max(ints[_MOVE] / floats[_TR], -OVER_ATR_CLIP), OVER_ATR_CLIP)
        slots[_RANGE_ATR] = min((ints[_TICK_HIGH] - ints[_TICK_LOW]) / floats[_TR], OVER_ATR_CLIP)
    slots[_ADX_SLOT] = floats[_ADX] if last >= 2 * WILDER - 1 else 0.0
    slots[_CUSUM_SLOT] = floats[_CUSUM]


@kernel_cpu
def _write_clock(tick, opens, closes, marked, ints, slots):
    elapsed = (tick - opens) / (closes - opens)
    slots[_ELAPSED] = elapsed
    slots[_SIN], slots[_COS] = np.sin(2 * np.pi * elapsed), np.cos(2 * np.pi * elapsed)
    slots[_DURATION] = np.log1p((tick - ints[_LAST_TIME]) * _NS)
    slots[_STALENESS] = np.log1p((tick - marked) * _NS)


@kernel_cpu
def _write_flow(ints, ofi, ofi_before, slots):
    buy, sell = ints[_BUY], ints[_SELL]
    slots[_TRADES] = imbalance(buy, sell)
    if buy != sell:
        slots[_SIGNED] = np.log1p(float(abs(buy - sell))) * (1.0 if buy > sell else -1.0)
    slots[_LOG_EVENTS] = np.log1p(float(ints[_ROWS]))
    for i in range(OFI_SLOTS):
        slots[OFI + i] = ofi[i]
        slots[OFI_DELTA + i] = ofi[i] - ofi_before[i]


@kernel_cpu
def _write_impact(impact, slots):
    if impact[1] > 0:
        slots[_KYLE] = 0.5 * impact[0] / impact[1]
    if impact[3] > 0:
        slots[_TOXICITY] = impact[2] / impact[3]


@kernel_cpu
def _write_book(bid_ticks, ask_ticks, bid_lots, ask_lots, slots):
    """What the last tradable book shows."""
    levels = len(bid_lots)
    mid = 0.5 * (np.int64(bid_ticks[0]) + ask_ticks[0])
    spread = np.int64(ask_ticks[0]) - bid_ticks[0]
    bids, asks, mass_bid, mass_ask = np.int64(0), np.int64(0), 0.0, 0.0
    weighted_bid, weighted_ask = np.int64(0), np.int64(0)
    last_bid, last_ask = np.int64(bid_ticks[0]), np.int64(ask_ticks[0])
    for level in range(levels):
        bid, ask = np.int64(bid_lots[level]), np.int64(ask_lots[level])
        if level < 10:
            slots[_QUEUE + level] = imbalance(bid, ask)
        weighted_bid, weighted_ask = weighted_bid + (bid << (levels - 1 - level)), weighted_ask + (ask << (levels - 1 - level))
        if bid:
            bids += bid
            mass_bid += (mid - bid_ticks[level]) * bid
            last_bid = np.int64(bid_ticks[level])
        if ask:
            asks += ask
            mass_ask += (ask_ticks[level] - mid) * ask
            last_ask = np.int64(ask_ticks[level])
    slots[_SPREAD] = spread
    slots[_MICROPRICE] = microprice_offset(spread, np.int64(bid_lots[0]), np.int64(ask_lots[0]))
    slots[_IMBALANCE] = imbalance(bids, asks)
    slots[_WEIGHTED] = imbalance(weighted_bid, weighted_ask)
    slots[_MASS_BID], slots[_MASS_ASK] = mass_bid / bids, mass_ask / asks
    slots[_MASS_SKEW] = slots[_MASS_BID] - slots[_MASS_ASK]
    slots[_SLOPE_BID] = np.log1p(bids / (abs(bid_ticks[0] - last_bid) + 1.0))
    slots[_SLOPE_ASK] = np.log1p(asks / (abs(last_ask - ask_ticks[0]) + 1.0))
    slots[_DEPTH_BID], slots[_DEPTH_ASK] = np.log1p(float(bids)), np.log1p(float(asks))
