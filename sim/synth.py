"""The use case behind `sim synth`: one day of the synthetic market as a DBN file."""

import datetime as dt
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lob.calendar import session_bounds
from lob.errors import BadInput
from lob.instruments import REGISTRY, Instrument, front_contract, resolve

DATASET = "TAPEPROOF.SYNTH"
"""What the file says of its origin, so that nobody takes it for a market's."""


def synth(
    instrument: str,
    date: str,
    events: int,
    seed: int,
    edge: float,
    out: str | os.PathLike[str],
    registry: Mapping[str, Instrument] = REGISTRY,
) -> dict[str, Any]:
    """Writes `events` MBP-10 rows of a trade date (yyyy-mm-dd) to `out` (.dbn or .dbn.zst) and says what was written.

    `instrument` is a contract (`ESH4`) or a root, which stands for its front contract on that date. Raises NotFound, BadInput.
    """
    terms = resolve(instrument, registry)
    try:
        day = dt.date.fromisoformat(date)
    except ValueError:
        raise BadInput(f"--date {date!r} is no date: write it like 2024-03-05") from None
    path = Path(out)
    if not path.name.endswith((".dbn", ".dbn.zst")):
        raise BadInput(f"{path}: name the file *.dbn or *.dbn.zst")
    symbol = instrument if instrument != terms.root and "." not in instrument else front_contract(terms, day)
    start_ns, end_ns = session_bounds(terms.calendar, day)

    from lob.synth import INSTRUMENT_ID, synthesize_day
    from store.dbn import write_dbn

    records = synthesize_day(terms, day, events, seed, edge)
    write_dbn(path, records, "mbp-10", symbol, INSTRUMENT_ID, DATASET, start_ns, end_ns)
    with open(path, "rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "file": str(path),
        "sha256": sha256,
        "bytes": path.stat().st_size,
        "schema": "mbp-10",
        "symbol": symbol,
        "root": terms.root,
        "date": day.isoformat(),
        "start_ns": start_ns,
        "end_ns": end_ns,
        "records": len(records),
        "events": int(((records["flags"] & 0x80) != 0).sum()),
        "prints": int((records["action"] == b"T").sum()),
        "seed": seed,
        "edge": edge,
    }
