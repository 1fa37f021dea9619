"""A scripted policy: a CSV file that says which action is picked when.

    step,action            every lane does the same
    0,72                   long, full, market, normal
    10,81                  flat

Columns by name, in any order: `step` and `action` (0..107) are required; `lane` makes a row one lane's own; `conviction_ppm`, `health_ppm`
and `variance_scale_ppm` (0..1000000) set the gate inputs, which are 1000000 where no column says otherwise. At a step, or for a lane, that
the file does not list, the pick is hold. Steps count from 0.
"""

import csv
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lob.actions import ACTIONS
from lob.errors import BadInput
from policy.protocol import FULL_PPM

_LIMIT = {"action": ACTIONS - 1, "conviction_ppm": FULL_PPM, "health_ppm": FULL_PPM, "variance_scale_ppm": FULL_PPM}
_REQUIRED = ("step", "action")
_OPTIONAL = ("lane", "conviction_ppm", "health_ppm", "variance_scale_ppm")
_LAST_STEP = 2**31 - 1
_EVERY_LANE = -1
_PAGE = "docs/policies.md"


@dataclass(frozen=True)
class Script:
    """Rows in order of step: the values to pick, one row per (step, lane), or one per step for every lane (lane -1)."""

    step: np.ndarray  # int64[rows], ascending
    lane: np.ndarray  # int64[rows]
    values: np.ndarray  # int32[4, rows]: action and the three gate inputs, in the order of `Picks`
    sha256: str

    @property
    def rows(self) -> int:
        return len(self.step)

    def fill(self, step: int, unlisted: int, out: Sequence[np.ndarray]) -> None:
        """Write the picks of one step into four int32[lanes] arrays; lanes that are not listed get `unlisted` and full ppm."""
        for target, value in zip(out, (unlisted, FULL_PPM, FULL_PPM, FULL_PPM), strict=True):
            target.fill(value)
        first, last = np.searchsorted(self.step, (step, step + 1))
        if first == last:
            return
        chosen = slice(None) if self.lane[first] == _EVERY_LANE else self.lane[first:last]
        for target, values in zip(out, self.values, strict=True):
            target[chosen] = values[first:last]


def read_script(path: Path, lanes: int) -> Script:
    """Read and check a script for a run of `lanes` lanes. Raises BadInput naming file and line."""
    content, text = _read(path)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    seen: dict[tuple[int, int], int] = {}
    values: list[list[int]] = []
    try:
        header = _header(path, next(reader, []))
        for cells in reader:
            if not cells:
                continue
            where = f"{path}: line {reader.line_num}"
            if len(cells) != len(header):
                raise BadInput(f"{where}: {len(cells)} cells under {len(header)} columns; write one cell for each of {','.join(header)}")
            row = dict(zip(header, cells, strict=True))
            step = _whole(where, "step", row["step"], _LAST_STEP)
            lane = _whole(where, "lane", row["lane"], lanes - 1) if "lane" in row else _EVERY_LANE
            if (step, lane) in seen:
                raise BadInput(f"{where}: step {step} stands already in line {seen[step, lane]}; keep one row per step and lane")
            seen[step, lane] = reader.line_num
            values.append([_whole(where, name, row[name], limit) if name in row else FULL_PPM for name, limit in _LIMIT.items()])
    except csv.Error as error:
        raise BadInput(f"{path}: line {reader.line_num}: {error}; write plain CSV") from None
    if not seen:
        raise BadInput(f"{path}: no row below the header; list at least one step and its action")
    keys = np.array(list(seen), dtype=np.int64)
    order = np.lexsort((keys[:, 1], keys[:, 0]))
    table = np.ascontiguousarray(np.array(values, dtype=np.int32)[order].T)
    return Script(keys[order, 0], keys[order, 1], table, hashlib.sha256(content).hexdigest())


def _read(path: Path) -> tuple[bytes, str]:
    try:
        content = path.read_bytes()
        return content, content.decode("utf-8-sig")
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}); give script:FILE a CSV file with columns step and action") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: byte {error.start} is not UTF-8; save the script as UTF-8 CSV") from None


def _header(path: Path, cells: list[str]) -> list[str]:
    header = [name.strip() for name in cells]
    twice, unknown = len(set(header)) != len(header), set(header) - {*_REQUIRED, *_OPTIONAL}
    if twice or unknown or not set(_REQUIRED) <= set(header):
        raise BadInput(
            f"{path}: line 1: the header is {','.join(header)!r}; write step,action and, if wanted, {', '.join(_OPTIONAL)} ({_PAGE})"
        )
    return header


def _whole(where: str, name: str, cell: str, most: int) -> int:
    """A cell as a whole number of 0..most."""
    text = cell.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 10) or int(text) > most:
        codes = f": {_PAGE} lists the codes" if name == "action" else ""
        raise BadInput(f"{where}: {name} is {cell[:40]!r}; write a whole number of 0 to {most}{codes}")
    return int(text)
