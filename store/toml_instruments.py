"""Reads a user's instruments file: TOML that adds instruments to the registry or changes the terms of those in it.

[ES]                    # known: only what is stated changes
fee_usd = 1.95

[AAPL]                  # new: all terms, or those of another one and what differs
like = "EQUITY"
margin_usd = 95

["ZW"]
tick = "1/4"            # a number or a quoted fraction; never a rounded binary one
multiplier = 50
fee_usd = 2.40
margin_usd = 2200
calendar = "cme_globex"

[calendars.lme]         # hours of your own, which instruments may then name
zone = "Europe/London"
open = "01:00"          # "-18:00": on the evening before
close = "19:00"
days = ["mon", "tue", "wed", "thu", "fri"]
pre_open_minutes = 15
closed = [2024-12-25]
early = { 2024-12-24 = "12:30" }
"""

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

from lob.calendar import CALENDARS as KNOWN_CALENDARS
from lob.calendar import parse_hours
from lob.errors import BadInput
from lob.instruments import REGISTRY, Instrument
from lob.units import exact_fraction, usd_to_micros
from store.toml_file import read_toml

CALENDARS = "calendars"
"""The table that holds no instrument but hours."""

_TERMS = ("tick", "multiplier", "fee_usd", "margin_usd", "calendar")
_KEYS = (*_TERMS, "currency", "like")


def read_instruments(
    path: str | Path, registry: Mapping[str, Instrument] = REGISTRY, defined: Mapping[str, Mapping[str, Fraction]] | None = None
) -> dict[str, Instrument]:
    """The registry with the file's entries added or laid over it. Raises NotFound or BadInput with file, entry, key and remedy.

    `defined`: {entry: its tick and multiplier} as an exchange's definition has them, for a new entry that does not state them.
    """
    # Decimal keeps 0.1 exactly one tenth; a binary float would not.
    tables = read_toml(path, "instruments file", parse_float=Decimal)
    merged = dict(registry)
    calendars = _calendars(path, tables.pop(CALENDARS, {}))
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise BadInput(f"{path}: {name!r} stands outside a table: put it under the name of its instrument, like [{name}] or [ES]")
        if isinstance(hours := table.get("calendar"), str) and hours in calendars:
            table = table | {"calendar": calendars[hours]}
        merged[name] = _instrument(f"{path}: [{name}]", name, table, merged, (defined or {}).get(name, {}))
    return merged


def _calendars(path: str | Path, tables: Any) -> dict[str, str]:
    """{name: text of its hours} of the file's own calendars. Raises BadInput."""
    if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
        raise BadInput(f"{path}: {CALENDARS!r} holds calendars, each a table of its own, like [{CALENDARS}.lme]")
    found = {}
    for name, table in tables.items():
        where = f"{path}: [{CALENDARS}.{name}]"
        if name in KNOWN_CALENDARS:
            raise BadInput(f"{where}: a calendar of that name is known already: choose another one")
        words = []
        for key, value in table.items():
            if key == "early" and isinstance(value, dict):
                value = [f"{day.replace('-', '')}@{clock}" for day, clock in value.items()]
            elif isinstance(value, list):
                value = [day.strftime("%Y%m%d") if isinstance(day, dt.date) else day for day in value]
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            if re.search(r"\s", f"{key}{text}"):
                raise BadInput(f"{where}: {key} = {_shown(value)} cannot be used: leave out white space")
            words.append(f"{key}={text}")
        found[name] = " ".join(words)
        try:
            parse_hours(found[name])
        except BadInput as error:
            raise BadInput(f"{where}: {str(error).removeprefix('calendar: ')}") from None
    return found


def _instrument(
    where: str, name: str, table: dict[str, Any], registry: Mapping[str, Instrument], defined: Mapping[str, Fraction]
) -> Instrument:
    unknown = [key for key in table if key not in _KEYS]
    if unknown:
        raise BadInput(f"{where}: unknown key {unknown[0]!r}: use {', '.join(_KEYS)}")
    like = table.get("like", name)
    if "like" in table and (not isinstance(like, str) or like not in registry):
        raise BadInput(f"{where}: like = {like!r} names no instrument known so far: use one of {' '.join(sorted(registry))}")
    base = registry.get(like)
    missing = [key for key in _TERMS if key not in table and key not in defined]
    if base is None and missing:
        raise BadInput(f'{where}: a new instrument needs {", ".join(missing)} too (or like = "ES" to take the rest from another one)')
    terms: dict[str, Any] = {"root": name} | (dict(defined) if base is None else {})
    for key, field, parse in (
        ("tick", "tick", _fraction),
        ("multiplier", "multiplier", _fraction),
        ("fee_usd", "fee_usd_micros", _micros),
        ("margin_usd", "margin_usd_micros", _micros),
        ("calendar", "calendar", _text),
        ("currency", "currency", _text),
    ):
        if key in table:
            terms[field] = parse(f"{where}: {key} = {_shown(table[key])}", table[key])
    try:
        return replace(base, **terms) if base else Instrument(**terms)
    except BadInput as error:
        raise BadInput(f"{where}: {error}") from None


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, Decimal) else repr(value)


def _fraction(where: str, value: Any) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
        raise BadInput(f'{where} is no number: write it like 0.25 or "1/64"')
    try:
        return exact_fraction(value)
    except BadInput:
        raise BadInput(f'{where} is no number: write it like 0.25 or "1/64"') from None


def _micros(where: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str | Decimal):
        raise BadInput(f"{where} is no dollar amount: write it like 2.25")
    try:
        return usd_to_micros(value)
    except BadInput:
        raise BadInput(f"{where} is no dollar amount of at most six decimals: write it like 2.25") from None


def _text(where: str, value: Any) -> str:
    if not isinstance(value, str):
        raise BadInput(f"{where} is no text: put it in quotes")
    return value
