"""What one tick of one lot is worth, typed by hand from the exchanges' contract specifications: verify's own word on the multiplier.

It is deliberately no import from `lob.instruments`: a wrong multiplier in the registry has to differ from something.
"""

from typing import NamedTuple


class ContractTerms(NamedTuple):
    """Smallest price move (1e-9), what it is worth per lot and what one full point is worth (micro-dollars)."""

    tick_price_e9: int
    tick_value_usd_micros: int
    point_value_usd_micros: int


TERMS: dict[str, ContractTerms] = {
    "ES": ContractTerms(250_000_000, 12_500_000, 50_000_000),
    "MES": ContractTerms(250_000_000, 1_250_000, 5_000_000),
    "NQ": ContractTerms(250_000_000, 5_000_000, 20_000_000),
    "MNQ": ContractTerms(250_000_000, 500_000, 2_000_000),
    "RTY": ContractTerms(100_000_000, 5_000_000, 50_000_000),
    "M2K": ContractTerms(100_000_000, 500_000, 5_000_000),
    "YM": ContractTerms(1_000_000_000, 5_000_000, 5_000_000),
    "MYM": ContractTerms(1_000_000_000, 500_000, 500_000),
    "CL": ContractTerms(10_000_000, 10_000_000, 1_000_000_000),
    "MCL": ContractTerms(10_000_000, 1_000_000, 100_000_000),
    "GC": ContractTerms(100_000_000, 10_000_000, 100_000_000),
    "MGC": ContractTerms(100_000_000, 1_000_000, 10_000_000),
    "ZN": ContractTerms(15_625_000, 15_625_000, 1_000_000_000),
    "ZB": ContractTerms(31_250_000, 31_250_000, 1_000_000_000),
    "ZF": ContractTerms(7_812_500, 7_812_500, 1_000_000_000),
    "ZT": ContractTerms(3_906_250, 7_812_500, 2_000_000_000),
    "6E": ContractTerms(50_000, 6_250_000, 125_000_000_000),
    "M6E": ContractTerms(100_000, 1_250_000, 12_500_000_000),
}

CALENDAR = {
    **dict.fromkeys(("ES", "MES", "NQ", "MNQ", "RTY", "M2K", "YM", "MYM"), "cme_globex"),
    **dict.fromkeys(("CL", "MCL", "GC", "MGC"), "cme_globex_energy_metals"),
    **dict.fromkeys(("ZN", "ZB", "ZF", "ZT"), "cme_globex_rates"),
    **dict.fromkeys(("6E", "M6E"), "cme_globex_fx"),
}
"""Trading hours of each contract in the table."""
CURRENCY = "USD"
"""All of them settle in dollars."""

_MONTHS = "FGHJKMNQUVXZ"


def root_of(symbol: str) -> str | None:
    """Root of ES, ESH4, ESH24, ES.FUT, ES.c.0 when the table has it, else None. The longest root wins (MES before ES)."""
    head, dot, _ = symbol.partition(".")
    for root in sorted(TERMS, key=len, reverse=True):
        rest = head.removeprefix(root)
        if head == root or (not dot and rest != head and rest[:1] in _MONTHS and rest[1:].isdigit() and 1 <= len(rest[1:]) <= 2):
            return root
    return None


def terms_for(symbol: str) -> ContractTerms | None:
    root = root_of(symbol)
    return TERMS[root] if root else None
