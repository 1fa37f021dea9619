"""Play jobs in hftbacktest: `python peer_hftbacktest.py IN.npz OUT.npz`. Runs in the environment of `make differential`, without our code.

In: event arrays; per job `script_<name>` (int64[4, T]: times of decision in ns, ascending, and lots of the bid, of the ask, and of a
market order); and `jobs`, JSON of {name: terms}: `market` (name of its event array); `behind_ticks`, how far the quotes stand behind the
touch; `queue`, "risk_averse" or ["power", n]; `depth`, "roi" or "hashmap"; `entry_ns`, `response_ns`; `tick`, `multiplier`; `maker_fee`,
`taker_fee` in USD a lot; `low_ticks`, `high_ticks`, what the array of prices holds; `repeats`.

Out: per job `fills_<name>` (rows: exchange ns, local ns, side, price in ticks, lots, order, maker), `orders_<name>` (rows: submitted ns,
side, price in ticks, lots, order), and `accounts`, JSON of {name: position, balance, fee, trades, seconds of each repeat}.
"""

import json
import sys
import time

import numpy as np
from hftbacktest import (
    ALL_ASSETS,
    FILLED,
    GTC,
    GTX,
    LIMIT,
    MARKET,
    BacktestAsset,
    HashMapMarketDepthBacktest,
    ROIVectorMarketDepthBacktest,
)
from numba import njit


@njit
def note_fills(orders, response_ns, fills, count):
    """Rows of the orders that the strategy has learnt to be filled; the caller then forgets them."""
    values = orders.values()
    while values.has_next():
        order = values.get()
        if order.status == FILLED:
            row = fills[count]
            row[0], row[1] = order.exch_timestamp, order.exch_timestamp + response_ns
            row[2], row[3], row[4] = order.side, order.exec_price_tick, round(order.exec_qty)
            row[5], row[6] = order.order_id, order.price_tick == order.exec_price_tick and order.order_type == LIMIT
            count += 1
    return count


@njit
def play_script(hbt, decide_ns, behind, bid_lots, ask_lots, take_lots, tick, response_ns, fills, sent):
    """At each decision: a quote goes when the touch has moved or no lots are wanted, and stays otherwise; and a market order."""
    count, ids = 0, 0
    live = np.zeros(2, np.int64)  # order id of the bid and of the ask, 0 for none
    price_of = np.zeros(2, np.int64)
    for t in range(len(decide_ns)):
        if hbt.elapse(decide_ns[t] - hbt.current_timestamp) != 0:
            break
        orders = hbt.orders(0)
        trades = hbt.state_values(0).num_trades
        if trades != count:
            count = note_fills(orders, response_ns, fills, count)
        hbt.clear_inactive_orders(ALL_ASSETS)
        depth = hbt.depth(0)
        for side in range(2):
            wanted = depth.best_bid_tick - behind if side == 0 else depth.best_ask_tick + behind
            lots = bid_lots[t] if side == 0 else ask_lots[t]
            if live[side] != 0 and live[side] not in orders:
                live[side] = 0
            if live[side] != 0 and (lots == 0 or price_of[side] != wanted):
                hbt.cancel(0, live[side], False)
                live[side] = 0
            if live[side] == 0 and lots != 0:
                ids += 1
                if side == 0:
                    hbt.submit_buy_order(0, ids, wanted * tick, lots, GTX, LIMIT, False)
                else:
                    hbt.submit_sell_order(0, ids, wanted * tick, lots, GTX, LIMIT, False)
                live[side], price_of[side] = ids, wanted
                sent[ids - 1] = (decide_ns[t], 1 - 2 * side, wanted, lots, ids)
        if take_lots[t] != 0:
            ids += 1
            if take_lots[t] > 0:
                hbt.submit_buy_order(0, ids, depth.best_ask_tick * tick, take_lots[t], GTC, MARKET, False)
            else:
                hbt.submit_sell_order(0, ids, depth.best_bid_tick * tick, -take_lots[t], GTC, MARKET, False)
            sent[ids - 1] = (decide_ns[t], 1 if take_lots[t] > 0 else -1, 0, abs(take_lots[t]), ids)
    return count, ids


def make(events, terms):
    asset = (
        BacktestAsset()
        .data(events)
        .linear_asset(terms["multiplier"])
        .constant_order_latency(terms["entry_ns"], terms["response_ns"])
        .no_partial_fill_exchange()
        .trading_qty_fee_model(terms["maker_fee"], terms["taker_fee"])
        .tick_size(terms["tick"])
        .lot_size(1.0)
        .roi_lb(terms["low_ticks"] * terms["tick"])
        .roi_ub(terms["high_ticks"] * terms["tick"])
    )
    if terms["queue"] == "risk_averse":
        asset.risk_adverse_queue_model()
    else:
        asset.power_prob_queue_model(terms["queue"][1])
    return (ROIVectorMarketDepthBacktest if terms["depth"] == "roi" else HashMapMarketDepthBacktest)([asset])


def play(job, terms, given):
    events, (decide_ns, *lots) = given[terms["market"]], given[f"script_{job}"]
    hbt = make(events, terms)
    capacity = 3 * len(decide_ns) + 3
    fills, sent = np.zeros((capacity, 7), np.int64), np.zeros((capacity, 5), np.int64)
    tick, response_ns = terms["tick"], terms["response_ns"]
    hbt.elapse(0)  # before it, the clock stands at no time at all
    begun = time.perf_counter()
    count, ids = play_script(hbt, decide_ns, terms["behind_ticks"], *lots, tick, response_ns, fills, sent)
    seconds = time.perf_counter() - begun
    hbt.elapse(int(events["local_ts"][-1]) + 10**9 - hbt.current_timestamp)
    count = note_fills(hbt.orders(0), response_ns, fills, count)
    state = hbt.state_values(0)
    account = {
        "position": state.position, "balance": state.balance, "fee": state.fee, "trades": state.num_trades, "seconds": seconds,
    }  # fmt: skip
    hbt.close()
    return fills[:count], sent[:ids], account


def main(source, target):
    with np.load(source) as file:
        given = {name: file[name] for name in file.files}
    jobs = json.loads(str(given["jobs"]))
    out, accounts = {}, {}
    for job, terms in jobs.items():
        for _ in range(terms.get("repeats", 1)):
            out[f"fills_{job}"], out[f"orders_{job}"], account = play(job, terms, given)
            seconds = accounts.get(job, {}).get("seconds", []) + [account["seconds"]]
            accounts[job] = account | {"seconds": seconds}
    np.savez(target, accounts=json.dumps(accounts), **out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
