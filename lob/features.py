"""The market's part of the observation: what each slot is (`FEATURES`), and its raw values at every decision of a schedule.

A *tick* below is a tick of the run's clock, the ones between two decisions included; the *interval* of a tick holds the rows received
after the tick before it. Everything starts anew with a session: its first tick sees the rows since the session's first, and spans that
reach further back than that first tick stop at it. The *book* is the last tradable row received, *mid* is half its best bid plus ask,
in ticks.
"""

from dataclasses import dataclass

import numpy as np

from lob.features_kernel import CUSUM_ALARM, CUSUM_CLIP, CUSUM_DRIFT, IMPACT_SPAN, RETURN_SPANS, VOLATILITY_SPANS, WILDER, market_rows
from lob.layout import LANE, LANE_SLOTS, OFFSET, OFI, OFI_DELTA, OFI_SLOTS, SLOTS, STATE_DIM
from lob.records import BAR_NS
from lob.schedule import clock_ticks, parse_clock
from lob.tape import Schedule, Tape

STAGES = ("log_return", "raw", "log", "bounded", "lane", "unused")
"""How far a slot's raw value is processed."""

AS_IT_IS = ("bounded", "lane", "unused")
"""Stages that the normaliser leaves alone."""

BOTH, BOOKS = ("books", "bars"), ("books",)


@dataclass(frozen=True)
class Feature:
    """One market slot. `center` and `scale` are typical of an index future at a one-second clock: the normaliser's when none is fitted.
    Where it `diffuses`, the scale grows with the root of the clock's period, as a random walk's does.
    """

    name: str
    stage: str
    unit: str
    formula: str
    source: str
    given_by: tuple[str, ...] = BOTH
    center: float = 0.0
    scale: float = 1.0
    diffuses: bool = False

    @property
    def slot(self) -> int:
        return OFFSET[self.name]


def _declare() -> tuple[Feature, ...]:
    returns = "log(mid now / mid {n} ticks ago); where a price is <= 0, (now - then) / max(|now|, |then|, 100 ticks)"
    spread_of = [
        Feature(f"log_return_{n}", "log_return", "1", returns.format(n=n), "-", scale=5e-5 * n**0.5, diffuses=True) for n in RETURN_SPANS
    ]
    volatility = [
        Feature(
            f"volatility_{n}",
            "raw",
            "ticks",
            f"root mean square of the last {n} changes of mid, one per tick",
            "-",
            scale=0.5,
            diffuses=True,
        )
        for n in VOLATILITY_SPANS
    ]
    queues = [
        Feature(f"queue_imbalance_{i}", "bounded", "1", f"(b - a) / (b + a), lots at level {i}; 0 if none", "Gould and Bonart 2016", BOOKS)
        for i in range(10)
    ]
    ofi = "sum of e over the interval / (2 x mean lots per side), at level {i}: the move in ticks that it predicts"
    paper = "Cont, Kukanov, Stoikov 2014; Xu, Gould, Howison 2018"
    flows = [Feature(f"ofi_{i}", "raw", "ticks", ofi.format(i=i), paper, BOOKS, 0.0, 0.5, True) for i in range(OFI_SLOTS - 1)]
    whole = Feature(
        f"ofi_{OFI_SLOTS - 1}",
        "raw",
        "ticks",
        "mean of the level OFIs over all levels",
        "Cont, Cucuringu, Zhang 2023",
        BOOKS,
        0.0,
        0.5,
        True,
    )
    change = "ofi_{i} now less the tick before"
    deltas = [Feature(f"ofi_delta_{i}", "raw", "ticks", change.format(i=i), "-", BOOKS, 0.0, 0.5, True) for i in range(OFI_SLOTS)]
    return (
        *spread_of,
        *volatility,
        Feature("spread_ticks", "raw", "ticks", "ask - bid", "-", BOOKS, 1.0, 0.5),
        Feature("microprice_offset_ticks", "raw", "ticks", "(bid x a + ask x b) / (a + b) - mid; best", "Stoikov 2018", BOOKS, 0.0, 0.25),
        *queues,
        Feature("imbalance_10", "bounded", "1", "(B - A) / (B + A), lots B and A over all levels", "-", BOOKS),
        Feature("centre_of_mass_bid_ticks", "raw", "ticks", "sum of (mid - price) x lots / B, over the bids", "-", BOOKS, 5.0, 1.0),
        Feature("centre_of_mass_ask_ticks", "raw", "ticks", "sum of (price - mid) x lots / A, over the asks", "-", BOOKS, 5.0, 1.0),
        Feature("centre_of_mass_skew_ticks", "raw", "ticks", "centre of mass of the bids - that of the asks", "-", BOOKS),
        Feature("depth_slope_bid", "log", "log lots/tick", "log1p(B / (best - last shown bid + 1 tick))", "-", BOOKS, 4.0, 0.5),
        Feature("depth_slope_ask", "log", "log lots/tick", "log1p(A / (last shown - best ask + 1 tick))", "-", BOOKS, 4.0, 0.5),
        Feature("log_depth_bid", "log", "log lots", "log1p(B)", "-", BOOKS, 6.0, 0.5),
        Feature("log_depth_ask", "log", "log lots", "log1p(A)", "-", BOOKS, 6.0, 0.5),
        Feature("trade_imbalance", "bounded", "1", "(buys - sells) / (buys + sells), lots of the interval by aggressor", "-", BOOKS),
        Feature("signed_volume", "log", "log lots", "sign(buys - sells) x log1p(|buys - sells|)", "-", BOOKS, 0.0, 2.0),
        Feature("log_volume", "log", "log lots", "log1p(lots printed in the interval, auctions too)", "-", BOTH, 2.0, 2.0),
        Feature("log_events", "log", "log rows", "log1p(rows of the session in the interval)", "-", BOOKS, 2.0, 2.0),
        Feature("session_sin", "bounded", "1", "sin(2 pi x session_elapsed)", "-"),
        Feature("session_cos", "bounded", "1", "cos(2 pi x session_elapsed)", "-"),
        Feature("session_elapsed", "bounded", "1", "(tick - open) / (close - open), of the calendar's session", "-"),
        Feature("log_bar_duration_s", "log", "log s", "log1p(seconds since the tick before, or open)", "-", BOTH, 1.0, 1.0),
        Feature("log_staleness_s", "log", "log s", "log1p(seconds since the book was received)", "-", BOTH, 0.0, 1.0),
        Feature("atr_ticks", "raw", "ticks", f"Wilder's true range, {WILDER} bars of mid (first: mean)", "Wilder 1978", diffuses=True),
        Feature("move_over_atr", "raw", "1", "change of mid in the interval / ATR, within 10; 0 at ATR 0", "-"),
        Feature("range_over_atr", "raw", "1", "(high - low) of mid in the interval / ATR, at most 10; 0 at ATR 0", "-"),
        Feature("adx", "bounded", "1", f"Wilder's ADX({WILDER}) / 100, bars of mid; 0 for the first {2 * WILDER - 1} ticks", "Wilder 1978"),
        Feature(
            "cusum", "bounded", "1",
            f"(S+ - S-) / {CUSUM_ALARM:g}, within 2; S+ = max(0, S+ + x - {CUSUM_DRIFT:g}), S- = max(0, S- - x - {CUSUM_DRIFT:g}), x = "
            f"change of mid over the root mean square of the 60 before it, within {CUSUM_CLIP:g}; both restart after one "
            f"passes {CUSUM_ALARM:g}",
            "Page 1954",
        ),
        Feature("momentum_60", "bounded", "1", "tanh(change of mid over 60 ticks / root of the sum of its squared changes)", "-"),
        Feature(
            "imbalance_weighted", "bounded", "1", "(B - A) / (B + A), B and A the lots over all levels, those of level i over 2^i",
            "Cao, Hansch, Wang 2009", BOOKS,
        ),
        Feature(
            "kyle_lambda_60", "raw", "ticks/lot",
            f"sum of x y / sum of x^2 over the last {IMPACT_SPAN} ticks after the session's first, x = buys - sells of the interval, "
            "y = change of mid; 0 where nothing printed",
            "Kyle 1985", BOOKS, 0.0, 0.01,
        ),
        Feature(
            "toxicity_60", "bounded", "1",
            f"sum of |buys - sells| / sum of (buys + sells) over the last {IMPACT_SPAN} ticks after the session's first: "
            "VPIN with the clock's ticks for buckets",
            "Easley, Lopez de Prado, O'Hara 2012", BOOKS,
        ),
        *flows,
        whole,
        *deltas,
    )  # fmt: skip


FEATURES = _declare()
"""Every market feature, in slot order.

Of OFI: e of two tradable rows in sequence = [Pb >= Pb'] qb - [Pb <= Pb'] qb' - [Pa <= Pa'] qa + [Pa >= Pa'] qa' (a prime: the earlier
row; a level that is not shown has no lots and the worst price); a trusted row that is not tradable breaks the sequence.
"""

_STAGE_OF = {feature.slot: feature.stage for feature in FEATURES} | {LANE + i: "lane" for i in range(len(LANE_SLOTS))}
STAGE: tuple[str, ...] = tuple(_STAGE_OF.get(slot, "unused") for slot in range(STATE_DIM))
"""The stage of each of the 128 slots."""

assert sorted(f.name for f in FEATURES) == sorted(s for i, s in enumerate(SLOTS) if STAGE[i] not in ("lane", "unused"))
assert [f.slot for f in FEATURES] == sorted(f.slot for f in FEATURES) and OFI + OFI_SLOTS == OFI_DELTA


def absent_slots(schema: str) -> tuple[str, ...]:
    """Names of the market slots that a schema cannot give; they are 0."""
    kind = "bars" if schema in BAR_NS else "books"
    return tuple(feature.name for feature in FEATURES if kind not in feature.given_by)


def period_s(clock: str, schema: str) -> float:
    """Seconds between two ticks of a clock, as far as its name says: 1 for event and volume clocks."""
    kind, size = parse_clock(clock)
    return {"time": size * 1e-9, "bar": BAR_NS.get(schema, 0) * 1e-9}.get(kind, 1.0)


def market_features(tape: Tape, plan: Schedule) -> np.ndarray:
    """float32[D+1, 128]: raw market slots at every decision and, last, at the drain; lane and unused slots are 0.

    The tape has to begin at or before the open of the first decision's session: values then depend on no window. Clock ticks between
    decisions count as ticks; the drain's moment is one more.
    """
    first = int(np.searchsorted(tape.session_open_ns, plan.ts_decided_ns[0], side="right")) - 1
    drain_ns = int(plan.ts_decided_ns[-1])
    ticks, dates = clock_ticks(tape, plan.clock, int(tape.session_open_ns[first]), drain_ns)
    ticks, dates = np.append(ticks, drain_ns), np.append(dates, plan.session[-1]).astype(np.int32)
    emit = np.full(len(ticks), -1, dtype=np.int64)
    emit[np.searchsorted(ticks, plan.ts_decided_ns)] = np.arange(plan.decisions + 1)
    order = np.searchsorted(tape.session_dates, dates)
    out = np.zeros((plan.decisions + 1, STATE_DIM), dtype=np.float32)
    market_rows(
        ticks, dates, tape.session_open_ns[order], tape.session_close_ns[order], emit, tape.ts_recv_ns, tape.trusted, tape.tradable,
        tape.session, tape.bid_ticks, tape.ask_ticks, tape.bid_lots, tape.ask_lots, tape.trade_side, tape.trade_lots,
        tape.schema not in BAR_NS, out,
    )  # fmt: skip
    return out
