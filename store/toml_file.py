"""Reading a user's TOML file: every fault of the file itself in one line."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lob.errors import BadInput, NotFound, first_line


def read_toml(path: str | Path, what: str, parse_float: Callable[[str], Any] = float) -> dict[str, Any]:
    """The tables of a TOML file; `what` it is called in the lines that name it. Raises NotFound, BadInput with file and remedy."""
    try:
        return tomllib.loads(Path(path).read_bytes().decode("utf-8-sig"), parse_float=parse_float)
    except FileNotFoundError:
        raise NotFound(f"{path}: no such {what}") from None
    except OSError as error:
        raise BadInput(f"{path}: the {what} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: not UTF-8 at byte {error.start}: save the {what} as UTF-8") from None
    except (ValueError, RecursionError) as error:  # tomllib's own, and what Python says of numbers and nesting without end
        raise BadInput(f"{path}: not valid TOML: {first_line(error)}") from None
