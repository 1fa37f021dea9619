"""Play jobs in vectorbt: `python peer_vectorbt.py IN.npz OUT.npz`. Runs in the environment of `make differential`, without our code.

In and out as in `peer_backtesting`. A lot is `multiplier` units, for the tool knows no multiplier. A bar's order fills at the price that it
is given: the open, plus or minus slippage by its side. What is open at the end stays open: it has no row, and the total values it at the
last close.
"""

import json
import sys

import numpy as np
import vectorbt as vbt

KEEP = 99
CASH = 1e9


def played(open_, close, target, multiplier, fee, slippage):
    held = np.zeros(len(open_))  # position after the order of each bar, in lots: decided at the end of the bar before
    for bar in range(1, len(open_)):
        held[bar] = held[bar - 1] if target[bar - 1] == KEEP else target[bar - 1]
    lots = np.diff(held, prepend=0.0)
    portfolio = vbt.Portfolio.from_orders(
        close,
        size=np.where(lots != 0, held * multiplier, np.nan),
        size_type="targetamount",
        direction="both",
        price=open_ + np.sign(lots) * slippage,
        fixed_fees=np.abs(lots) * fee,
        init_cash=CASH,
    )
    trades = (
        portfolio.exit_trades.closed.records_readable if hasattr(portfolio, "exit_trades") else portfolio.trades.closed.records_readable
    )
    sign = np.where(trades["Direction"] == "Long", 1.0, -1.0)
    columns = [
        trades["Entry Timestamp"],
        trades["Exit Timestamp"],
        sign * trades["Size"],
        trades["Avg Entry Price"],
        trades["Avg Exit Price"],
    ]
    columns += [trades["PnL"], trades["Entry Fees"] + trades["Exit Fees"]]
    return np.array([np.asarray(column, np.float64) for column in columns]).T, np.array(portfolio.final_value() - CASH)


def main(source, destination):
    made = {}
    with np.load(source) as given:
        for name, terms in json.loads(str(given["jobs"])).items():
            arrays = (given[f"{part}_{name}"] for part in ("open", "close", "target"))
            made[f"trades_{name}"], made[f"total_{name}"] = played(*arrays, **terms)
    np.savez(destination, **made)


if __name__ == "__main__":
    main(*sys.argv[1:])
