"""The instruments that a command knows: the built-in ones, and a user's file laid over them."""

from collections.abc import Mapping
from pathlib import Path

from lob.instruments import REGISTRY, Instrument


def registry_of(file: Path | None) -> Mapping[str, Instrument]:
    """The registry with the entries of an instruments file (TOML), if one is given. Raises NotFound or BadInput."""
    if file is None:
        return REGISTRY
    from store.toml_instruments import read_instruments

    return read_instruments(file)
