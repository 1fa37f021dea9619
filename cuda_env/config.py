"""What an account is: capital, size limit, costs, stops. Every value is logged in the manifest and read by physics from one vector."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_serializer, model_validator

from lob.errors import BadInput
from lob.instruments import Instrument
from lob.units import USD_MICROS, format_usd

MAX_LOTS_LIMIT = 1_000_000
"""`max_lots` at most: with it, every product of two gate inputs in ppm and a size stays below 2^63."""

MONEY_LIMIT_USD_MICROS = 2**61
"""No account may hold more than this (2.3 trillion dollars): sums of two such amounts stay below 2^63."""


LATENCY_LIMIT_NS = 3600 * 10**9
"""No message takes longer than this; with it, a drawn latency's product stays below 2^63."""

Latency = Annotated[tuple[Annotated[int, Field(ge=0, le=LATENCY_LIMIT_NS)], ...], Field(min_length=1, max_length=1024)]
"""Nanoseconds as evenly spaced quantiles, ascending, drawn with straight lines between them: one value is a constant, two are a uniform
distribution from the least to the greatest."""

WORKING_FIELDS = (
    "queue_model", "queue_power", "maker_fee_usd_micros", "entry_latency_ns", "cancel_latency_ns", "ack_latency_ns", "latency_seed",
    "cross_after_ppm",
)  # fmt: skip
"""Settings of the event-level exchange: a configuration without it says nothing of them."""


class EnvConfig(BaseModel):
    """One account's terms. `None` means: from the instrument (fee, margin) or half of the capital (floor)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    capital_usd_micros: int = Field(100_000 * USD_MICROS, gt=0, le=MONEY_LIMIT_USD_MICROS)
    """Cash at the start of an account. The default carries four ES lots at their margin and a loss of half."""

    max_lots: int = Field(4, gt=0, le=MAX_LOTS_LIMIT)
    """Size of a full position. Four lots is the least at which quarter, half and full differ."""

    fee_usd_micros: int | None = Field(None, ge=0, le=MONEY_LIMIT_USD_MICROS // MAX_LOTS_LIMIT)
    """Fee per lot and side."""

    margin_usd_micros: int | None = Field(None, gt=0)
    """Margin per lot, for the margin cap."""

    floor_usd_micros: int | None = Field(None, ge=-MONEY_LIMIT_USD_MICROS, le=MONEY_LIMIT_USD_MICROS)
    """Equity at or below which the account is closed and stays closed."""

    trail_ticks: int = Field(40, ge=0, le=2**30)
    """Distance of the trailing stop from the best mark; 0: none. 40 ticks are ten ES points, several times an ordinary minute's range."""

    plan_lock_steps: int = Field(0, ge=0, le=2**30)
    """Decisions for which a new position keeps its direction; 0: none, since a lock hides what a policy would have done."""

    reward_scale_usd_micros: int = Field(1_000 * USD_MICROS, gt=0)
    """`reward_scaled` is `reward_shaped` over this: a thousand dollars, the size of a good or bad hour of one ES lot, becomes 1."""

    queue_model: Literal["none", "risk_averse", "proportional", "power"] = "none"
    """How an order's place in the queue moves (docs/exchange.md). none: no order works in the book, every one is a market order. Otherwise
    the lane lives through every row between two decisions."""

    queue_power: Literal[1, 2, 3] = 3
    """Exponent of `power`; 1 is what `proportional` is."""

    maker_fee_usd_micros: int | None = Field(
        None, ge=-MONEY_LIMIT_USD_MICROS // MAX_LOTS_LIMIT, le=MONEY_LIMIT_USD_MICROS // MAX_LOTS_LIMIT
    )
    """Fee per lot and side of a passive fill; below 0 it is a rebate, which raises cash. None: `fee_usd_micros`."""

    entry_latency_ns: Latency | None = None
    """From sending an order to its arrival at the exchange. None: the tape's latency."""

    cancel_latency_ns: Latency | None = None
    """From sending a cancel to its arrival. None: as an order's."""

    ack_latency_ns: Latency = (0,)
    """From what happens at the exchange to the lane's knowing it."""

    latency_seed: int = Field(0, ge=0, lt=2**63)
    """Of the drawn latencies, apart from the run's other draws."""

    cross_after_ppm: int = Field(500_000, ge=0, le=1_000_000)
    """Urgency `aggressive`: the share of a step's time after which the rest of a passive order is crossed; half of it."""

    @field_validator("entry_latency_ns", "cancel_latency_ns", "ack_latency_ns", mode="before")
    @classmethod
    def _as_quantiles(cls, value: Any) -> Any:
        """From a number or a list too, as settings and JSON have them."""
        return (value,) if isinstance(value, int) else tuple(value) if isinstance(value, list) else value

    @field_validator("entry_latency_ns", "cancel_latency_ns", "ack_latency_ns")
    @classmethod
    def _ascending(cls, value: Any) -> Any:
        if value is not None and list(value) != sorted(value):
            raise ValueError("quantiles of a latency ascend")
        return value

    @model_serializer(mode="wrap")
    def _without_what_is_off(self, dump: Callable[["EnvConfig"], dict[str, Any]]) -> dict[str, Any]:
        """Without working orders the settings of working orders are no part of the account. Quantiles are lists, as JSON has them."""
        values = {name: list(value) if isinstance(value, tuple) else value for name, value in dump(self).items()}
        return {name: value for name, value in values.items() if self.queue_model != "none" or name not in WORKING_FIELDS}

    @model_validator(mode="after")
    def _no_setting_without_effect(self) -> "EnvConfig":
        if self.queue_model == "none" and (odd := sorted(self.model_fields_set & set(WORKING_FIELDS) - {"queue_model"})):
            raise ValueError(f"{', '.join(odd)} acts on orders that work in the book: set queue_model too")
        return self

    @model_validator(mode="after")
    def _floor_below_capital(self) -> "EnvConfig":
        if self.floor_usd_micros is not None and self.floor_usd_micros >= self.capital_usd_micros:
            floor, capital = format_usd(self.floor_usd_micros), format_usd(self.capital_usd_micros)
            raise ValueError(f"the floor of {floor} must be below the capital of {capital}")
        return self

    def resolved(self, instrument: Instrument) -> "EnvConfig":
        """The same terms with nothing left open: fee and margin from the instrument, the floor from the capital."""
        values = self.model_dump()
        if values["fee_usd_micros"] is None:
            values["fee_usd_micros"] = instrument.fee_usd_micros
        if values["margin_usd_micros"] is None:
            values["margin_usd_micros"] = instrument.margin_usd_micros
        if values["floor_usd_micros"] is None:
            values["floor_usd_micros"] = self.capital_usd_micros // 2
        if self.queue_model != "none" and values["maker_fee_usd_micros"] is None:
            values["maker_fee_usd_micros"] = values["fee_usd_micros"]
        return EnvConfig(**values)


def check_magnitudes(config: EnvConfig, tick_value_usd_micros: int, low_mid2: int, high_mid2: int) -> None:
    """Refuse a size that could outgrow int64 on this tape: `max_lots` over the tape's whole range of mids, in micro-dollars.

    Raises BadInput.
    """
    worst = config.max_lots * (high_mid2 - low_mid2) * tick_value_usd_micros // 2
    if worst > MONEY_LIMIT_USD_MICROS:
        raise BadInput(
            f"max_lots {config.max_lots}: the tape's range of {(high_mid2 - low_mid2) // 2} ticks at that size exceeds"
            f" {MONEY_LIMIT_USD_MICROS // USD_MICROS} dollars; use fewer lots"
        )
