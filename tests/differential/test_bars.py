"""Market-order strategies on bars: the same signals through backtesting.py, vectorbt and our replay give the same trades and PnL.

Where they differ, it is by one of these rules, and by nothing else:

- UNITS: neither tool knows a multiplier, so a lot is `multiplier` units there.
- SLIPPAGE: backtesting.py's own is a share of the price and is left out on the way out of a trade; ours is whole ticks at each fill. There
  it comes as a commission: the prices of its trades are ours without the slippage, the money is the same.
- SESSION: the exchange closes at a session's last bar, so nothing is decided at its end; the tools, which know no sessions, are told so.
- FIFO: backtesting.py closes what was opened first, we close at the average cost (as vectorbt does): of a position that was built in
  parts the parts of the result differ, each whole position's does not.
- FLOOR: our exit's share of the position's cost is rounded down to whole ticks, and the remainder stays with what is still open: a part
  differs by less than one tick's value, the whole position not at all.
- DRAIN: what is open at the end we close at the last bar's close, less slippage and fee. backtesting.py closes it at the last bar's open,
  vectorbt not at all: it values it at the last close.
"""

import importlib.util
import json
from typing import NamedTuple

import numpy as np
import pytest

from lob.instruments import Instrument, resolve
from tests.conftest import find_shared_data
from tests.differential.bars import KEEP, MINUTE, STRATEGIES, Market, decides, market_of_file, replayed, synthetic_market, targets
from tests.differential.peers import call_peer

SLIPPAGE_TICKS = 1
NEAR_USD = 1e-4
"""The tools count in floats: a hundredth of a cent."""

REAL = {
    "es": ("ohlcv/ES_1min_2023-09-24_2023-10-09.csv", "ES", "America/New_York", "start", "2023-09-26T13:30", "2023-09-28T02:00"),
    "euro": ("ohlcv/6EH4.XCME_1min_bars_20240101_20240131.csv.gz", "6EH4", "UTC", "end", "2024-01-16T10:00", "2024-01-17T04:00"),
}
MARKETS = ("synthetic", *REAL)


class Trade(NamedTuple):
    """A part of a position that was closed: bars of opening and closing, lots with their sign, prices in ticks, USD."""

    entry: int
    exit: int
    lots: float
    entry_ticks: float
    exit_ticks: float
    pnl: float
    fee: float


class Played(NamedTuple):
    trades: list[Trade]
    total: float


@pytest.fixture(scope="module")
def market_of(tmp_path_factory, request):
    made: dict[str, Market] = {}

    def get(name: str) -> Market:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            if name == "synthetic":
                made[name] = synthetic_market(folder)
            else:
                path, *rest = REAL[name]
                made[name] = market_of_file(request.getfixturevalue("shared_data") / path, folder / "store", *rest)
        return made[name]

    return get


@pytest.fixture(scope="module")
def ours_of(market_of, tmp_path_factory):
    made: dict[tuple, dict] = {}

    def get(name: str, strategy: str, closed: bool = True) -> dict:
        key = (name, strategy, closed)
        if key not in made:
            market = market_of(name)
            made[key] = replayed(market, targets(market, strategy, closed), tmp_path_factory.mktemp("run") / "r", SLIPPAGE_TICKS)
        return made[key]

    return get


def instrument_of(market: Market) -> Instrument:
    return resolve(market.symbol)


def ours(market: Market, tables: dict) -> Played:
    """Our trades, with the average entry price of each part, and the change of equity."""
    bar_of = {start: bar for bar, start in enumerate(market.start_ns.tolist())}
    bar_of[int(market.start_ns[-1]) + MINUTE] = len(market.start_ns) - 1  # the drain's close
    rows = tables["trades"]
    columns = ("ts_entry_ns", "ts_exit_ns", "side", "lots", "cost_ticks", "exit_ticks", "realized_usd_micros", "fee_usd_micros")
    trades = [
        Trade(bar_of[entry], bar_of[leave], side * lots, abs(cost) / lots, out, realized / 1e6, fee / 1e6)
        for entry, leave, side, lots, cost, out, realized, fee in zip(*(rows[column] for column in columns), strict=True)
    ]
    return Played(trades, tables["steps"]["equity_usd_micros"][-1] / 1e6 - 1e9)


def given_of(jobs: dict[str, tuple[Market, np.ndarray]]) -> dict:
    """What a peer is given: markets and targets under the names of jobs."""
    terms, arrays = {}, {}
    for name, (market, wanted) in jobs.items():
        terms[name] = terms_of(instrument_of(market))
        columns = dict(zip(("open", "high", "low", "close"), market.prices.T.copy(), strict=True))
        arrays |= {f"target_{name}": wanted} | {f"{column}_{name}": values for column, values in columns.items()}
    return {"jobs": json.dumps(terms), **arrays}


def terms_of(instrument: Instrument) -> dict[str, float]:
    """In USD and units of price."""
    return {
        "multiplier": float(instrument.multiplier),
        "fee": instrument.fee_usd_micros / 1e6,
        "slippage": SLIPPAGE_TICKS * float(instrument.tick),
    }


def theirs(market: Market, made: dict, job: str) -> Played:
    instrument = instrument_of(market)
    tick, multiplier = float(instrument.tick), float(instrument.multiplier)
    trades = [
        Trade(int(row[0]), int(row[1]), row[2] / multiplier, row[3] / tick, row[4] / tick, row[5], row[6])
        for row in made[f"trades_{job}"].tolist()
    ]
    return Played(sorted(trades, key=lambda trade: (trade.exit, trade.entry)), float(made[f"total_{job}"]))


def backtesting(market: Market, wanted: np.ndarray) -> Played:
    if importlib.util.find_spec("backtesting") is None:
        pytest.skip("backtesting.py is not installed here: make setup")
    from tests.differential.peer_backtesting import play

    return theirs(market, play(given_of({"job": (market, wanted)})), "job")


@pytest.fixture(scope="module")
def vectorbt_of(market_of, tmp_path_factory):
    """What vectorbt makes of a strategy on a market: all of them in one process, because it compiles for half a minute."""
    names = MARKETS if find_shared_data() else ("synthetic",)
    wanted = {
        (name, strategy, closed): targets(market_of(name), strategy, closed)
        for name in names
        for strategy, closed in (*((strategy, True) for strategy in STRATEGIES), ("crossing", False))
    }
    jobs = {"_".join(map(str, key)): (market_of(key[0]), of) for key, of in wanted.items()}
    made = call_peer("peer_vectorbt.py", given_of(jobs), tmp_path_factory.mktemp("vectorbt"))
    return lambda name, strategy, closed=True: theirs(market_of(name), made, f"{name}_{strategy}_{closed}")


def whole_positions(played: Played) -> dict[int, tuple[int, float, float, float]]:
    """{bar of the last exit: (bar of the first entry, lots closed, PnL, fees)} of each position from flat, or from its turn, to its end.

    Two positions never overlap, so one begins where the exits of all earlier ones lie behind.
    """
    positions: list[list[Trade]] = []
    for trade in sorted(played.trades, key=lambda trade: (trade.entry, trade.exit)):
        if positions and trade.entry < max(other.exit for other in positions[-1]):
            positions[-1].append(trade)
        else:
            positions.append([trade])
    return {
        max(trade.exit for trade in parts): (
            min(trade.entry for trade in parts), sum(trade.lots for trade in parts), sum(trade.pnl for trade in parts),
            sum(trade.fee for trade in parts),
        )
        for parts in positions
    }  # fmt: skip


def assert_equal_trades(mine: Played, other: Played, money: Instrument, slippage_in_price: bool) -> None:
    """Trade by trade; `slippage_in_price`: whether the other's prices hold it too (SLIPPAGE: if not, its commission does)."""
    paid = SLIPPAGE_TICKS * money.tick_value_usd_micros / 1e6
    assert len(mine.trades) == len(other.trades)
    for trade, twin in zip(mine.trades, other.trades, strict=True):
        assert (trade.entry, trade.exit, trade.lots) == (twin.entry, twin.exit, pytest.approx(twin.lots))
        side = 1 if trade.lots > 0 else -1
        within = 0 if slippage_in_price else SLIPPAGE_TICKS * side
        assert trade.entry_ticks == pytest.approx(twin.entry_ticks + within, abs=1e-6)
        assert trade.exit_ticks == pytest.approx(twin.exit_ticks - within, abs=1e-6)
        assert trade.pnl == pytest.approx(twin.pnl, abs=NEAR_USD)
        beside = 0.0 if slippage_in_price else 2 * paid * abs(trade.lots)
        assert trade.fee + beside == pytest.approx(twin.fee, abs=NEAR_USD)
    assert mine.total == pytest.approx(other.total, abs=NEAR_USD)


@pytest.mark.parametrize("name", MARKETS)
def test_a_decision_is_made_at_each_bars_end_but_a_sessions_last_and_fills_at_the_next_bars_open(market_of, ours_of, name):
    market, tables = market_of(name), ours_of(name, "crossing")
    bars = decides(market)
    assert tables["steps"]["ts_decided_ns"][:-1] == (market.start_ns[bars] + MINUTE).tolist()
    opens = {int(start): price for start, price in zip(market.start_ns, market.prices[:, 0], strict=True)}
    tick = float(instrument_of(market).tick)
    fills = tables["fills"]
    assert len(fills["side"]) > 50
    for filled, side, price in zip(fills["ts_filled_ns"], fills["side"], fills["price_ticks"], strict=True):
        assert price == round(opens[filled] / tick) + side * SLIPPAGE_TICKS
    if name in REAL:
        assert market.closes_session.any(), "no session ends in this window: SESSION is not tried"


@pytest.mark.parametrize("strategy", ["crossing", "breakout"])
@pytest.mark.parametrize("name", MARKETS)
def test_whole_positions_are_backtesting_pys_trade_by_trade(market_of, ours_of, name, strategy):
    market = market_of(name)
    mine, other = ours(market, ours_of(name, strategy)), backtesting(market, targets(market, strategy))
    assert len(mine.trades) > 20
    assert_equal_trades(mine, other, instrument_of(market), slippage_in_price=False)


@pytest.mark.parametrize("name", MARKETS)
def test_positions_in_parts_are_backtesting_pys_position_by_position(market_of, ours_of, name):
    market = market_of(name)
    mine, other = ours(market, ours_of(name, "sizing")), backtesting(market, targets(market, "sizing"))
    whole, twins = whole_positions(mine), whole_positions(other)
    paid = SLIPPAGE_TICKS * instrument_of(market).tick_value_usd_micros / 1e6
    assert len(whole) > 20
    assert whole.keys() == twins.keys()
    for end, (entry, lots, pnl, fee) in whole.items():
        assert (entry, pytest.approx(lots), pytest.approx(pnl, abs=NEAR_USD)) == twins[end][:3]
        assert fee + 2 * paid * abs(lots) == pytest.approx(twins[end][3], abs=NEAR_USD)
    assert mine.total == pytest.approx(other.total, abs=NEAR_USD)
    assert [trade.pnl for trade in mine.trades] != pytest.approx([trade.pnl for trade in other.trades]), (
        "no part differs: FIFO is not tried"
    )


@pytest.mark.parametrize("name", MARKETS)
def test_what_is_open_at_the_end_closes_at_our_last_close_and_at_backtesting_pys_last_open(market_of, ours_of, name):
    market = market_of(name)
    money = instrument_of(market)
    mine, other = ours(market, ours_of(name, "crossing", closed=False)), backtesting(market, targets(market, "crossing", closed=False))
    last, twin = mine.trades[-1], other.trades[-1]
    open_, close = market.prices[-1, 0], market.prices[-1, 3]
    assert (last.entry, last.exit, last.lots) == (twin.entry, len(market.start_ns) - 1, twin.lots)
    apart = (close - open_) * last.lots * float(money.multiplier)
    assert last.pnl == pytest.approx(twin.pnl + apart, abs=NEAR_USD)
    assert mine.total == pytest.approx(other.total + apart, abs=NEAR_USD)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", MARKETS)
def test_the_tools_are_told_nothing_but_what_was_wanted_after_each_bar(market_of, name, strategy):
    market = market_of(name)
    wanted = targets(market, strategy)
    assert set(wanted.tolist()) <= {KEEP, -4, -2, -1, 0, 1, 2, 4}
    assert len(set(wanted.tolist())) >= 4
    assert (wanted[market.closes_session] == KEEP).all()


@pytest.mark.differential
@pytest.mark.parametrize("strategy", ["crossing", "breakout"])
@pytest.mark.parametrize("name", MARKETS)
def test_whole_positions_are_vectorbts_trade_by_trade(market_of, ours_of, vectorbt_of, name, strategy):
    market, other = market_of(name), vectorbt_of(name, strategy)
    assert_equal_trades(ours(market, ours_of(name, strategy)), other, instrument_of(market), slippage_in_price=True)


@pytest.mark.differential
@pytest.mark.parametrize("name", MARKETS)
def test_positions_in_parts_are_vectorbts_part_by_part_but_for_the_rounding_of_their_cost(market_of, ours_of, vectorbt_of, name):
    market = market_of(name)
    money = instrument_of(market)
    mine, other = ours(market, ours_of(name, "sizing")), vectorbt_of(name, "sizing")
    assert len(mine.trades) == len(other.trades)
    rounded = 0
    for trade, twin in zip(mine.trades, other.trades, strict=True):
        assert (trade.entry, trade.exit, trade.lots) == (twin.entry, twin.exit, pytest.approx(twin.lots))
        assert trade.exit_ticks == pytest.approx(twin.exit_ticks, abs=1e-6)
        assert abs(trade.pnl - twin.pnl) < money.tick_value_usd_micros / 1e6 + NEAR_USD
        rounded += abs(trade.pnl - twin.pnl) > NEAR_USD
    assert rounded, "no part differs: FLOOR is not tried"
    whole, twins = whole_positions(mine), whole_positions(other)
    assert whole.keys() == twins.keys()
    for end, (entry, lots, pnl, fee) in whole.items():
        assert twins[end] == (entry, pytest.approx(lots), pytest.approx(pnl, abs=NEAR_USD), pytest.approx(fee, abs=NEAR_USD))
    assert mine.total == pytest.approx(other.total, abs=NEAR_USD)


@pytest.mark.differential
@pytest.mark.parametrize("name", MARKETS)
def test_what_is_open_at_the_end_vectorbt_values_at_the_last_close(market_of, ours_of, vectorbt_of, name):
    market = market_of(name)
    money = instrument_of(market)
    mine, other = ours(market, ours_of(name, "crossing", closed=False)), vectorbt_of(name, "crossing", closed=False)
    last = mine.trades[-1]
    assert len(other.trades) == len(mine.trades) - 1
    to_close = abs(last.lots) * (SLIPPAGE_TICKS * money.tick_value_usd_micros + money.fee_usd_micros) / 1e6
    assert mine.total == pytest.approx(other.total - to_close, abs=NEAR_USD)
