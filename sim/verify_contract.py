"""`sim verify` on the contract's terms: the run's, held against the hand-typed table and against the exchange's definition in the store."""

from pathlib import Path
from typing import TYPE_CHECKING

from sim.run_data import RunTerms
from sim.verify_terms import CALENDAR, CURRENCY, ContractTerms, root_of, terms_for
from sim.verify_types import OK, Check, failed, skipped

if TYPE_CHECKING:
    from store.definitions import Definition

_E9, _MICROS = 10**9, 10**6


def defined_in(store: str | Path, terms: RunTerms) -> "Definition | None":
    """The definition of the run's instrument that the store holds for its time, or None. Raises NotFound, BadInput."""
    from store.definitions import definition_of

    return definition_of(store, terms.instrument, terms.start_ns, terms.end_ns)


def check_contract(terms: RunTerms, defined: "Definition | None") -> tuple[ContractTerms | None, str | None, list[Check]]:
    """(terms to compute with, None: the run's own word; what proves them, None: nothing; checks)."""
    checks = _against_definition(terms, defined)
    hand = terms_for(terms.instrument)
    if hand is not None:
        by = "the hand-typed table" + (" and the store's definition" if defined is not None and checks[0].status == OK else "")
        return hand, by, [*checks, *_against_table(terms, hand)]
    if defined is not None and defined.tick is not None and defined.multiplier is not None:
        tick_value = int(defined.tick * defined.multiplier * _MICROS)
        found = ContractTerms(int(defined.tick * _E9), tick_value, int(defined.multiplier * _MICROS))
        return found, f"the store's definition of {defined.symbol} alone", checks
    why = (
        f"{terms.instrument} is in no hand-typed table: the run's own {terms.tick_value_usd_micros} micro-dollars a tick "
        "are used, unproved; "
        "add the contract's tick and point value to sim/verify_terms.py, or put its definition into the store, to have them proved"
    )
    return None, None, [*checks, skipped("multiplier", why)]


def _against_definition(terms: RunTerms, defined: "Definition | None") -> list[Check]:
    """The run's tick and multiplier against the exchange's own definition; no check without one."""
    if defined is None:
        return []
    from fractions import Fraction

    tick = Fraction(terms.tick_price_e9, _E9)
    multiplier = Fraction(terms.tick_value_usd_micros, _MICROS) / tick
    difference = defined.contradicts(tick, multiplier, terms.currency)
    if difference is None:
        return [Check("definition", OK, "")]
    of = f"the definition of {defined.symbol} (from the file of sha256 {defined.source[:12]})"
    detail = f"{of} says {difference} as the run computes with"
    return [failed("definition", detail, "manifest", "identity.config.instrument")]


def _against_table(terms: RunTerms, hand: ContractTerms) -> list[Check]:
    checks = []
    for column, said, typed in (
        ("tick", terms.tick_price_e9, hand.tick_price_e9),
        ("multiplier", terms.tick_value_usd_micros, hand.tick_value_usd_micros),
    ):
        unit = "e-9" if column == "tick" else " micro-dollars a tick"
        detail = f"the run computes with {said}{unit}, the contract {terms.instrument} has {typed}{unit}"
        checks.append(
            failed(column, detail, "manifest", f"identity.config.instrument.{column}") if said != typed else Check(column, OK, "")
        )
    for column, told, typed_text in (
        ("root", terms.root, root_of(terms.instrument) or ""),
        ("currency", terms.currency, CURRENCY),
    ):
        detail = f"the run says {told}, the contract {terms.instrument} has {typed_text}"
        place = f"identity.config.instrument.{column}"
        checks.append(failed(column, detail, "manifest", place) if told != typed_text else Check(column, OK, ""))
    hours = CALENDAR[root_of(terms.instrument) or ""]
    if terms.calendar != hours:
        why = (
            f"the run keeps the hours `{terms.calendar}`, the contract {terms.instrument} trades by `{hours}`: "
            "its sessions are its own word"
        )
        checks.append(skipped("calendar", why))
    return checks
