"""Small random markets and complete runs over them, made by the oracle alone: the source of test runs that no production code wrote."""

import random
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path

import numpy as np

from tests.oracle.events import E9, F_LAST, UNDEFINED, Bar, Decision, Event, Row, bar_events, events, schedule
from tests.oracle.lane import Account, Pick, Terms, micros, play

SECOND = 10**9
DAY = 1_703_545_200 * SECOND  # 2023-12-25T23:00Z, a Globex open


@dataclass(frozen=True)
class Root:
    """An instrument of the tests, typed by hand from the exchange's contract specifications."""

    symbol: str
    tick: Fraction
    multiplier: Fraction
    fee: Fraction
    margin: Fraction
    start_ticks: int


ROOTS = (
    Root("ESH4", Fraction(1, 4), Fraction(50), Fraction("2.25"), Fraction(13200), 19_000),
    Root("MNQH4", Fraction(1, 4), Fraction(2), Fraction("0.62"), Fraction(1870), 67_600),
    Root("CLG4", Fraction(1, 100), Fraction(1000), Fraction("2.35"), Fraction(6000), 7_300),
    Root("ZNH4", Fraction(1, 64), Fraction(1000), Fraction("1.57"), Fraction(2000), 7_180),
    Root("6EH4", Fraction(1, 20_000), Fraction(125_000), Fraction("2.42"), Fraction(2700), 22_000),
    Root("GCG4", Fraction(1, 10), Fraction(100), Fraction("2.37"), Fraction(9000), 20_600),
)


def random_rows(root: Root, count: int, rng: random.Random, start: int = DAY, odd: float = 0.08, thin: bool = False) -> list[Row]:
    """`count` book rows of a random walk, a share `odd` of them untrusted, crossed, one-sided, thin or with times out of order."""
    tick = int(root.tick * E9)
    mid, ts, rows = root.start_ticks, start, []
    for i in range(count):
        mid += rng.choice((-2, -1, -1, 0, 0, 0, 1, 1, 2))
        ts += rng.randrange(1, 400_000_000)
        spread = rng.choice((1, 1, 1, 2))
        sizes = [rng.randrange(1, 3 if thin else 9) for _ in range(20)]
        bids = [[(mid - k) * tick, sizes[k]] for k in range(10)]
        asks = [[(mid + spread + k) * tick, sizes[10 + k]] for k in range(10)]
        if thin and 0 < i < count - 1 and rng.random() < 0.3:  # a book of one or two levels: orders are filled in part
            shown = rng.randrange(1, 3)
            bids[shown:] = asks[shown:] = [[UNDEFINED, 0] for _ in range(10 - shown)]
        flags, event, oddity = F_LAST, ts, rng.random() if 0 < i < count - 1 else 1.0
        if oddity < odd:
            kind = rng.randrange(6)
            if kind == 0:
                flags = 0
            elif kind == 1:
                bids[0][0] = asks[0][0] + tick
            elif kind == 2:
                asks = [[UNDEFINED, 0] for _ in range(10)]
            elif kind == 3:
                bids[1:] = [[UNDEFINED, 0] for _ in range(9)]
            elif kind == 4:
                event -= 700_000_000
            else:
                bids[0][0] = asks[0][0]
        recv = ts + rng.randrange(1_000, 300_000)
        rows.append(Row(0, i, event, recv, flags, tuple(map(tuple, bids)), tuple(map(tuple, asks))))  # type: ignore[arg-type]
    return rows


def record_array(rows: list[Row], instrument_id: int = 17) -> np.ndarray:
    """The rows as MBP-10 records (DBN's own layout)."""
    from lob.records import MBP_10

    out = np.zeros(len(rows), MBP_10)
    out["length"], out["rtype"], out["publisher_id"], out["instrument_id"] = 368 // 4, 0x0A, 1, instrument_id
    out["price"], out["action"], out["side"] = UNDEFINED, b"A", b"B"
    out["ts_event"] = [row.ts_event for row in rows]
    out["ts_recv"] = [row.ts_recv for row in rows]
    out["flags"] = [row.flags for row in rows]
    out["sequence"] = np.arange(len(rows))
    out["price"] = [row.bids[0][0] for row in rows]
    for k in range(10):
        for side in ("bid", "ask"):
            levels = [(row.bids if side == "bid" else row.asks)[k] for row in rows]
            out[f"{side}_px_{k:02d}"] = [price for price, _ in levels]
            out[f"{side}_sz_{k:02d}"] = [size for _, size in levels]
            out[f"{side}_ct_{k:02d}"] = [min(size, 1) for _, size in levels]
    return out


def write_dbn(rows: list[Row], symbol: str, path: Path) -> None:
    """A DBN file of the rows, its metadata encoded by the public library."""
    import databento_dbn as dbn

    metadata = dbn.Metadata(
        dataset="GLBX.MDP3", start=rows[0].ts_recv, stype_out=dbn.SType.INSTRUMENT_ID, schema=dbn.Schema.MBP_10,
        stype_in=dbn.SType.RAW_SYMBOL, symbols=[symbol], partial=[], not_found=[], mappings=[], ts_out=False,
    )  # fmt: skip
    path.write_bytes(metadata.encode() + record_array(rows).tobytes())


@dataclass(frozen=True)
class OracleRun:
    root: Root
    terms: Terms
    rows: list[Row]
    sessions: list[tuple[int, int, int]]
    tape: list[Event]
    decisions: list[Decision]
    accounts: list[Account]
    picks: list[list[Pick]]  # [lane][step]
    latency: int
    clock: str
    start: int
    end: int
    bars: list[Bar] | None = None  # then `rows` is empty
    slippage: int = 1

    def table(self, name: str) -> list[dict]:
        """All lanes' rows of one table in key order (phase, step, lane, id)."""
        rows = [row for account in self.accounts for row in account.rows[name]]
        return sorted(rows, key=lambda row: (row["phase"], row["step"], row["lane"]))


def random_picks(count: int, rng: random.Random) -> list[Pick]:
    return [
        Pick(rng.randrange(108), rng.randrange(0, 1_000_001), rng.randrange(0, 1_000_001), rng.randrange(1, 1_000_001))
        for _ in range(count)
    ]


def one_session(start: int, hours: int = 23) -> list[tuple[int, int, int]]:
    return [(20231226, start, start + hours * 3600 * SECOND)]


def short_sessions(start: int, count: int, seconds: int, halt: int) -> list[tuple[int, int, int]]:
    """`count` sessions of some seconds each, with halts between them."""
    step = (seconds + halt) * SECOND
    return [(20231226 + i, start + i * step, start + i * step + seconds * SECOND) for i in range(count)]


def random_terms(root: Root, rng: random.Random) -> Terms:
    tick_value = root.tick * root.multiplier
    capital = root.margin * rng.choice((2, 5, 9, 30))
    return Terms(
        tick_value=tick_value,
        fee=root.fee + Fraction(rng.randrange(0, 200_000), 10**6),
        margin=root.margin,
        capital=capital,
        floor=capital - tick_value * rng.choice((20, 60, 200, 10**4)),
        max_lots=rng.choice((1, 3, 4, 8)),
        trail_ticks=rng.choice((0, 0, 3, 8)),
        plan_lock_steps=rng.choice((0, 0, 2, 5)),
        reward_scale=Fraction(rng.choice((1, 100, 1000))),
    )


def random_run(
    seed: int,
    rows: int = 240,
    lanes: int = 3,
    clock_ms: int = 1_000,
    thin: bool = False,
    sessions: list[tuple[int, int, int]] | None = None,
) -> OracleRun:
    """A run of `lanes` lanes with random instrument, terms, latency and picks over a random market."""
    rng = random.Random(seed)
    root = rng.choice(ROOTS)
    market = random_rows(root, rows, rng, thin=thin)
    terms = random_terms(root, rng)
    latency = rng.choice((0, 1_000_000, 250_000_000, 2 * SECOND))
    open_hours = sessions or one_session(DAY)
    tape = events(market, root.tick, open_hours)
    end = market[-1].ts_recv + 1
    ticks = range(DAY, end, clock_ms * 1_000_000)
    decisions = schedule(tape, open_hours, ticks, end, latency, terms.max_lots)
    assert len(decisions) > 1, "the market is too short for a decision"
    picks = [random_picks(len(decisions), rng) for _ in range(lanes)]
    accounts = [play(lane, tape, decisions, terms, picks[lane]) for lane in range(lanes)]
    return OracleRun(root, terms, market, open_hours, tape, decisions, accounts, picks, latency, f"{clock_ms}ms", DAY, end)


MINUTE = 60 * SECOND


def random_bars(root: Root, count: int, rng: random.Random, start: int = DAY) -> list[Bar]:
    """`count` one-minute bars of a random walk, with gaps, an undefined price, one off the tick and inconsistent ones among them."""
    tick = int(root.tick * E9)
    price, out, ts = root.start_ticks, [], start
    for i in range(count):
        ts += MINUTE * (1 if rng.random() < 0.9 else rng.randrange(2, 5))
        first = price + rng.randrange(-3, 4)
        last = first + rng.randrange(-6, 7)
        low, high = min(first, last) - rng.randrange(0, 5), max(first, last) + rng.randrange(0, 5)
        price = last
        prices = [first * tick, low * tick, high * tick, last * tick]
        if 2 < i < count - 1 and rng.random() < 0.05:
            kind = rng.randrange(3)
            if kind == 0:
                prices[2] = UNDEFINED
            elif kind == 1:
                prices[0] += 1
            else:
                prices[1] = prices[2] + tick
        out.append(Bar(i, ts, tuple(prices)))  # type: ignore[arg-type]
    return out


def random_bar_run(seed: int, bars: int = 60, lanes: int = 3, sessions: list[tuple[int, int, int]] | None = None) -> OracleRun:
    """A run over random one-minute bars, decided at each bar's end."""
    rng = random.Random(seed)
    root = rng.choice(ROOTS)
    market = random_bars(root, bars, rng)
    terms = replace(random_terms(root, rng), bars=True)
    latency, slippage = rng.choice((0, 1_000_000, 90 * SECOND)), rng.choice((1, 2))
    open_hours = sessions or one_session(DAY)
    tape = bar_events(market, MINUTE, root.tick, slippage, open_hours)
    end = tape[-1].ts_recv + 1
    decisions = schedule(tape, open_hours, [bar.start + MINUTE for bar in market], end, latency, terms.max_lots)
    picks = [random_picks(len(decisions), rng) for _ in range(lanes)]
    accounts = [play(lane, tape, decisions, terms, picks[lane]) for lane in range(lanes)]
    return OracleRun(root, terms, [], open_hours, tape, decisions, accounts, picks, latency, "bar", DAY, end, market, slippage)


def manifest_of(run: OracleRun) -> dict:
    """The manifest's parts that summary and verify read."""
    root, terms = run.root, run.terms
    env = {
        "capital_usd_micros": micros(terms.capital), "max_lots": terms.max_lots, "fee_usd_micros": micros(terms.fee),
        "margin_usd_micros": micros(terms.margin), "floor_usd_micros": micros(terms.floor), "trail_ticks": terms.trail_ticks,
        "plan_lock_steps": terms.plan_lock_steps, "reward_scale_usd_micros": micros(terms.reward_scale),
    }  # fmt: skip
    instrument = {
        "symbol": root.symbol, "root": root.symbol[:-2], "tick": str(root.tick), "multiplier": str(root.multiplier), "currency": "USD",
        "calendar": "always", "fee_usd_micros": micros(root.fee), "margin_usd_micros": micros(root.margin),
    }  # fmt: skip
    schema = "ohlcv-1m" if run.bars else "mbp-10"
    tape = {
        "market_schema": schema, "clock": run.clock, "start_ns": run.start, "end_ns": run.end, "latency_ns": run.latency,
        "slippage_ticks": run.slippage, "step_limit": None,
    }  # fmt: skip
    config = {"phase": "replay", "lanes": len(run.accounts), "seed": 0, "instrument": instrument, "tape": tape, "env": env}
    return {"log": {"level": "full"}, "identity": {"config": config, "data": {"sources": ["0" * 64]}}}
