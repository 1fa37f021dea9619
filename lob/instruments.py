"""Instruments: one `Instrument` is the only source of tick, multiplier, fee and margin for PnL, sizing and report alike."""

from dataclasses import dataclass
from fractions import Fraction

from lob.errors import BadInput
from lob.units import PRICE_SCALE, USD_MICROS


@dataclass(frozen=True)
class Instrument:
    """A contract's terms. Prices are in `currency` per unit; one price point of one lot is worth `multiplier`.

    `fee_usd_micros` is per lot and side, `margin_usd_micros` per lot. `calendar` names its trading hours (`lob.calendar`).
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

    @property
    def tick_price_e9(self) -> int:
        """One tick in store prices (1e-9)."""
        return int(self.tick * PRICE_SCALE)

    @property
    def tick_value_usd_micros(self) -> int:
        """One tick of one lot in micro-dollars; even, so that a mark at mid is whole."""
        return int(self.tick * self.multiplier * USD_MICROS)
