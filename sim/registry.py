"""The instruments that a command knows: the built-in ones, a user's file laid over them, and what a store's definitions say of one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from lob.errors import BadInput, NotFound
from lob.instruments import REGISTRY, Instrument, resolve
from lob.units import format_time_ns

if TYPE_CHECKING:
    from store.definitions import Definition


def registry_of(
    file: Path | None,
    store: str | os.PathLike | None = None,
    symbol: str | None = None,
    span: tuple[int | None, int | None] = (None, None),
    note: Callable[[str], None] = lambda line: None,
) -> Mapping[str, Instrument]:
    """The registry with the entries of an instruments file (TOML), if one is given. Raises NotFound or BadInput.

    With a store that holds a definition of `symbol` (for `span`: start and end ns of what is to be played), the definition's tick and
    multiplier are those of an entry in the file that does not state them. A definition that contradicts the built-in terms is refused; one
    that contradicts the file gives way to it, and `note` is called with the line that says so.
    """
    defined = None
    if store is not None and symbol is not None and (Path(store) / "store.json").exists():
        from store.definitions import definition_of

        defined = definition_of(store, symbol, *span)
    registry: Mapping[str, Instrument] = REGISTRY
    if file is not None:
        from store.toml_instruments import read_instruments

        terms = _terms(defined) if defined is not None else {}
        registry = read_instruments(file, defined=terms)
    if defined is not None:
        _hold_against(defined, registry, note, span[1])
    return registry


def contradictions(
    store: str | os.PathLike, symbols: Iterable[str], registry: Mapping[str, Instrument], span: tuple[int | None, int | None] = (None, None)
) -> list[str]:
    """Where the store's definitions of `symbols` (for `span`, as in `registry_of`) say other terms than the registry: one line for the
    contracts of a root that differ alike. Symbols that the registry does not know have none to differ from. Raises BadInput.
    """
    from store.definitions import definition_of

    alike: dict[tuple[str, str], list[str]] = {}
    for symbol in symbols:
        try:
            known = resolve(symbol, registry)
        except NotFound:
            continue
        defined = definition_of(store, symbol, *span)
        if defined is not None and (difference := defined.contradicts(known.tick, known.multiplier, known.currency)) is not None:
            alike.setdefault((known.root, difference), []).append(symbol)
    lines = []
    for (root, difference), (first, *others) in alike.items():
        said = f"the definition of {first}{f' (and of {len(others):,} more)' if others else ''} says {difference} as"
        if REGISTRY.get(root) == registry[root]:
            remedy = f'a replay of it is refused until an instruments file states the terms, under ["{root}"]'
            lines.append(f"{said} {root} has it here: {remedy}")
        else:
            lines.append(f"{said} the instruments file has it under {root}")
    return lines


def _terms(defined: Definition) -> dict[str, dict]:
    """Tick and multiplier under the names that an instruments file may use for them: the contract's, and its root's."""
    if defined.tick is None or defined.multiplier is None:
        return {}
    return {name: {"tick": defined.tick, "multiplier": defined.multiplier} for name in (defined.symbol, defined.asset) if name}


def _hold_against(defined: Definition, registry: Mapping[str, Instrument], note: Callable[[str], None], end_ns: int | None) -> None:
    said = f"the store's definition of {defined.symbol} (from the file of sha256 {defined.source[:12]})"
    try:
        known = resolve(defined.symbol, registry)
    except NotFound as error:
        if defined.tick is None or defined.multiplier is None:
            raise
        name = defined.asset or defined.symbol
        raise NotFound(
            f"{error}; {said} has tick {defined.tick} and multiplier {defined.multiplier}: state only fee_usd, margin_usd and calendar "
            f'in an instruments file under ["{name}"]'
        ) from None
    if (difference := defined.contradicts(known.tick, known.multiplier, known.currency)) is not None:
        if REGISTRY.get(known.root) == known:
            raise BadInput(
                f"{said} says {difference} as {known.root} has it here: state the right terms in an instruments file, under "
                f'["{known.root}"], or take that file out'
            )
        note(f"note: {said} says {difference}: the instruments file's terms are used")
    if defined.expires_ns is not None and end_ns is not None and end_ns > defined.expires_ns:
        note(f"note: {defined.symbol} expires at {format_time_ns(defined.expires_ns)}, inside the range, by {said}")
