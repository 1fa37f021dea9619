"""Play jobs in backtesting.py: `python peer_backtesting.py IN.npz OUT.npz`, or `play` from the same interpreter. Without our code.

In: `jobs`, JSON of {name: {multiplier, fee, slippage}} (USD a lot and side; slippage in units of price), and per job `open_<name>`,
`high_<name>`, `low_<name>`, `close_<name>` (float64[n]) and `target_<name>` (int64[n]): the position in lots that is wanted after the bar's
end, KEEP where nothing is decided. Out: per job `trades_<name>` (rows: entry bar, exit bar, signed units, entry price, exit price, PnL net
of commission, commission) and `total_<name>` (final less initial equity).

A lot is `multiplier` units, for the tool knows no multiplier. Its `spread` is a share of the price and is not charged on the way out of a
trade, so slippage comes as a commission.
"""

import json
import sys
import warnings

import numpy as np
import pandas as pd
from backtesting import Backtest, Strategy

KEEP = 99
CASH = 1e9


def play(given):
    """{name of an output: array} of {name of an input: array}."""
    made = {}
    for name, terms in json.loads(str(given["jobs"])).items():
        columns = {column.capitalize(): given[f"{column}_{name}"] for column in ("open", "high", "low", "close")}
        made[f"trades_{name}"], made[f"total_{name}"] = _played(pd.DataFrame(columns), given[f"target_{name}"], **terms)
    return made


def _played(bars, targets, multiplier, fee, slippage):
    class Follow(Strategy):
        def init(self):
            pass

        def next(self):
            wanted = targets[len(self.data) - 1]
            if wanted == KEEP:
                return
            units = int(wanted * multiplier) - self.position.size
            if units > 0:
                self.buy(size=units)
            elif units < 0:
                self.sell(size=-units)

    def commission(units, price):
        return abs(units) * (fee / multiplier + slippage)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the index is no dates
        stats = Backtest(bars, Follow, cash=CASH, commission=commission, finalize_trades=True).run()
    trades = stats["_trades"]
    columns = ("EntryBar", "ExitBar", "Size", "EntryPrice", "ExitPrice", "PnL", "Commission")
    return np.array([trades[column].to_numpy(np.float64) for column in columns]).T, np.array(stats["Equity Final [$]"] - CASH)


if __name__ == "__main__":
    with np.load(sys.argv[1]) as file:
        np.savez(sys.argv[2], **play({name: file[name] for name in file.files}))
