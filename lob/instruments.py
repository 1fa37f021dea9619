"""Instruments: one `Instrument` is the only source of tick, multiplier, fee and margin for PnL, sizing and report alike."""

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from lob.calendar import hours_of
from lob.errors import BadInput, NotFound
from lob.units import PRICE_SCALE, USD_MICROS, usd_to_micros

_MOST_USD_MICROS = 10**15
"""Keeps sums over lots, ticks and steps far inside int64."""


@dataclass(frozen=True)
class Instrument:
    """A contract's terms. Prices are in `currency` per unit; one price point of one lot is worth `multiplier`.

    `fee_usd_micros` is per lot and side, `margin_usd_micros` per lot. `calendar` names its trading hours, or states them (`lob.calendar`).
    """

    root: str
    tick: Fraction
    multiplier: Fraction
    fee_usd_micros: int
    margin_usd_micros: int
    calendar: str
    currency: str = "USD"

    def __post_init__(self) -> None:
        if self.tick <= 0 or (self.tick * PRICE_SCALE).denominator != 1:
            raise BadInput(f"instrument {self.root}: tick {self.tick} is no positive multiple of 1e-9")
        value = self.tick * self.multiplier * USD_MICROS
        if value <= 0 or value.denominator != 1 or value.numerator % 2:
            raise BadInput(f"instrument {self.root}: tick value {value} micro-dollars is not a positive even whole number")
        if self.fee_usd_micros < 0 or self.margin_usd_micros <= 0:
            raise BadInput(f"instrument {self.root}: the fee must be >= 0 and the margin > 0")
        if max(int(value), self.fee_usd_micros, self.margin_usd_micros) > _MOST_USD_MICROS:
            raise BadInput(f"instrument {self.root}: tick value, fee and margin must each stay below a thousand million dollars a lot")
        try:
            hours_of(self.calendar)
        except (NotFound, BadInput) as error:
            raise BadInput(f"instrument {self.root}: {error}") from None
        if self.currency != "USD":
            raise BadInput(f"instrument {self.root}: currency {self.currency!r} cannot be accounted: every amount here is in USD")

    @property
    def tick_price_e9(self) -> int:
        """One tick in store prices (1e-9)."""
        return int(self.tick * PRICE_SCALE)

    @property
    def tick_value_usd_micros(self) -> int:
        """One tick of one lot in micro-dollars; even, so that a mark at mid is whole."""
        return int(self.tick * self.multiplier * USD_MICROS)


def _future(root: str, tick: str, multiplier: str, fee_usd: str, margin_usd: str, hours: str = "cme_globex") -> Instrument:
    return Instrument(root, Fraction(tick), Fraction(multiplier), usd_to_micros(fee_usd), usd_to_micros(margin_usd), hours)


_METALS, _RATES, _FX = "cme_globex_energy_metals", "cme_globex_rates", "cme_globex_fx"


# Tick and multiplier are the exchange's contract terms. Fees and margins differ by broker and by day: these are plausible all-in fees per
# side and initial margins, there to be overridden; only ES's are given (2.25 and 17,900).
_FUTURES = (
    _future("ES", "1/4", "50", "2.25", "17900"),
    _future("MES", "1/4", "5", "0.62", "1790"),
    _future("NQ", "1/4", "20", "2.25", "26000"),
    _future("MNQ", "1/4", "2", "0.62", "2600"),
    _future("RTY", "1/10", "50", "2.25", "8000"),
    _future("M2K", "1/10", "5", "0.62", "800"),
    _future("YM", "1", "5", "2.25", "12000"),
    _future("MYM", "1", "1/2", "0.62", "1200"),
    _future("CL", "1/100", "1000", "2.40", "6500", _METALS),
    _future("MCL", "1/100", "100", "0.77", "650", _METALS),
    _future("GC", "1/10", "100", "2.50", "11000", _METALS),
    _future("MGC", "1/10", "10", "0.77", "1100", _METALS),
    _future("ZN", "1/64", "1000", "1.65", "2100", _RATES),
    _future("ZB", "1/32", "1000", "1.75", "4100", _RATES),
    _future("ZF", "1/128", "1000", "1.50", "1500", _RATES),
    _future("ZT", "1/256", "2000", "1.50", "1200", _RATES),
    _future("6E", "1/20000", "125000", "2.50", "2700", _FX),
    _future("M6E", "1/10000", "12500", "0.54", "270", _FX),
)

EQUITY = Instrument("EQUITY", Fraction(1, 100), Fraction(1), usd_to_micros("0.005"), usd_to_micros(100), "us_equity_extended")
"""A US share: a lot is one share. Its margin depends on the price of the share: state it in an instruments file."""

REGISTRY: Mapping[str, Instrument] = {instrument.root: instrument for instrument in (*_FUTURES, EQUITY)}
"""root -> instrument. A user's TOML file (`store.toml_instruments`) makes a registry with more or other entries."""

MONTH_CODES = "FGHJKMNQUVXZ"
"""Delivery months January to December."""

_CONTRACT = re.compile(rf"[{MONTH_CODES}][0-9]{{1,2}}|\.FUT|\.[cnv]\.[0-9]+")
_OUTRIGHT = re.compile(rf"[{MONTH_CODES}][0-9]{{1,2}}$|[^A-Z0-9]")
_SHARE = re.compile(r"[A-Z]{1,6}([./][A-Z]{1,2})?")


def resolve(symbol: str, registry: Mapping[str, Instrument] = REGISTRY, equity: bool = False) -> Instrument:
    """The instrument of a root (`ES`), a contract (`ESH4`, `ESH24`), a parent (`ES.FUT`) or a continuous symbol (`ES.c.0`, `.n.`, `.v.`).

    An entry of that very name comes first, then the longest root. With `equity` a share's symbol that is not in the registry gets the terms
    of `EQUITY` under its own name. Spreads and options have terms of their own and never resolve to an outright. Raises NotFound.
    """
    if symbol in registry:
        return registry[symbol]
    roots = [root for root in registry if symbol.startswith(root) and _CONTRACT.fullmatch(symbol[len(root) :])]
    if roots:
        return registry[max(roots, key=len)]
    if equity and _SHARE.fullmatch(symbol):
        return replace(registry["EQUITY"], root=symbol)
    if re.search(r"[-: ]", symbol):
        raise NotFound(
            f"instrument {symbol!r} looks like a spread or an option, and its terms are not those of an outright: "
            f'describe it in an instruments file under ["{symbol}"]'
        )
    raise NotFound(
        f"instrument {symbol!r} is not known: use a root or a contract of {' '.join(sorted(registry))}, "
        f'or describe it in an instruments file under ["{symbol}"] (a share: like = "EQUITY")'
    )


# Which contract is traded most, root by root: its delivery months, and the day of which month (relative to delivery) it is last the front.
_QUARTERLY = ("HMUZ", 0, 10)
_FRONT = {
    **dict.fromkeys(("ZN", "ZB", "ZF", "ZT"), ("HMUZ", -1, 25)),
    **dict.fromkeys(("CL", "MCL"), (MONTH_CODES, -1, 17)),
    **dict.fromkeys(("GC", "MGC"), ("GJMQVZ", -1, 25)),
}


def front_contract(instrument: Instrument, date: dt.date) -> str:
    """Symbol of the contract that is usually traded most on a date: `ESH4` for ES on 2024-03-05. A share, or an entry that is a
    contract or a spread itself, has no contracts: its root.

    A convention by day of the month, not the exchange's roll calendar; roots without a rule of their own are quarterly.
    """
    if not instrument.calendar.startswith("cme_globex") or _OUTRIGHT.search(instrument.root):
        return instrument.root
    codes, shift, last_day = _FRONT.get(instrument.root, _QUARTERLY)
    months = date.year * 12 + date.month - 1
    earliest = months - shift + (date.day > last_day)
    delivery = next(month for month in range(earliest, earliest + 12) if MONTH_CODES[month % 12] in codes)
    return f"{instrument.root}{MONTH_CODES[delivery % 12]}{delivery // 12 % 10}"
