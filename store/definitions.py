"""An instrument's terms as the exchange's own definition in a store has them (DBN schema `definition`).

CME states a future's multiplier as `unit_of_measure_qty` (its `contract_multiplier` is undefined), and what a tick is worth as
`min_price_increment_amount` in units of `display_factor`. Where both are there they must agree: a hog's 40,000 pounds are no multiplier of
a price in cents.
"""

import os
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lob.units import PRICE_SCALE
from store.catalog import check_store
from store.market_read import list_parts, read_columns

_COLUMNS = (
    "min_price_increment", "display_factor", "min_price_increment_amount", "unit_of_measure_qty", "expiration", "activation", "asset",
    "currency",
)  # fmt: skip


@dataclass(frozen=True)
class Definition:
    """What a definition says of `symbol`. `tick` None: undefined. `multipliers`: what one price point of one lot may be worth, by its
    two ways of saying it, the same one once; `currency` "" and `expires_ns` None where not said. `source`: the file's SHA-256.
    """

    symbol: str
    asset: str
    tick: Fraction | None
    multipliers: tuple[Fraction, ...]
    is_confirmed: bool
    currency: str
    expires_ns: int | None
    source: str

    @property
    def multiplier(self) -> Fraction | None:
        """The multiplier, where both ways of saying it agree."""
        return self.multipliers[0] if self.is_confirmed else None

    def contradicts(self, tick: Fraction, multiplier: Fraction, currency: str = "USD") -> str | None:
        """What of stated terms the definition says otherwise (`tick 1/2, not 1/4`), or None."""
        if self.tick is not None and self.tick != tick:
            return f"tick {self.tick}, not {tick}"
        if self.multipliers and multiplier not in self.multipliers:
            return f"multiplier {' or '.join(map(str, self.multipliers))}, not {multiplier}"
        if self.currency not in ("", currency):
            return f"currency {self.currency}, not {currency}"
        return None


def definition_of(store: str | os.PathLike, symbol: str, start_ns: int | None = None, end_ns: int | None = None) -> Definition | None:
    """The last definition of `symbol` in the store; None when it holds none.

    With a range, only of a contract that lives in it: a year later or earlier the same name is another contract's (ESH4 of 2014 and of
    2024). Raises NotFound, BadInput, StaleCache.
    """
    parts = [part for part in list_parts(check_store(store)) if (part.schema, part.instrument) == ("definition", symbol)]
    if not parts:
        return None
    first, last = min(part.start_ns for part in parts), max(part.end_ns for part in parts)
    held = read_columns(store, symbol, "definition", first, last + 1, _COLUMNS)

    def value(name: str, row: int) -> int | None:
        return None if held.undefined[name][row] else int(held.arrays[name][row])

    for row in range(held.rows - 1, -1, -1):
        expires, begins = value("expiration", row), value("activation", row)
        over = expires is not None and start_ns is not None and expires <= start_ns
        early = begins is not None and end_ns is not None and begins >= end_ns
        if not over and not early:
            break
    else:
        return None
    amounts = {name: value(name, row) for name in ("min_price_increment_amount", "unit_of_measure_qty", "display_factor")}
    tick_e9 = value("min_price_increment", row)
    tick = Fraction(tick_e9, PRICE_SCALE) if tick_e9 is not None and tick_e9 > 0 else None
    size, of_tick = _multipliers(tick, amounts["unit_of_measure_qty"], amounts["min_price_increment_amount"], amounts["display_factor"])
    return Definition(
        symbol=symbol,
        asset=_text(held.arrays["asset"][row]),
        tick=tick,
        multipliers=tuple(dict.fromkeys(found for found in (size, of_tick) if found is not None)),
        is_confirmed=size is not None and size == of_tick,
        currency=_text(held.arrays["currency"][row]),
        expires_ns=value("expiration", row),
        source=held.sources[held.source[row]],
    )


def _multipliers(
    tick: Fraction | None, size_e9: int | None, amount_e9: int | None, factor_e9: int | None
) -> tuple[Fraction | None, Fraction | None]:
    """What a price point is worth by the contract's size, and by what a tick is worth."""
    size = Fraction(size_e9, PRICE_SCALE) if size_e9 is not None and size_e9 > 0 else None
    if tick is None or not amount_e9 or not factor_e9 or amount_e9 < 0 or factor_e9 < 0:
        return size, None
    return size, Fraction(amount_e9, factor_e9) / tick


def _text(value: np.bytes_) -> str:
    return bytes(value).decode("utf-8")
