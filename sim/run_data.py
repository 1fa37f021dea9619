"""A run's log as summary and verify read it: the manifest's terms, the tables as Arrow, and which part each row came from."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lob.calendar import LONGEST_HOURS
from lob.errors import BadInput, DamagedLog, first_line
from lob.units import PRICE_SCALE, USD_MICROS, exact_fraction

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

PHASES = {"train": 0, "eval": 1, "replay": 2}
SUMMARY_FILES = {"train": "train_summary.json", "eval": "eval_summary.json", "replay": "eval_summary.json"}
FINISHED = "finished"
"""The end state of a run that played its window to the end."""

UNREADABLE = (DamagedLog, OSError, ValueError, KeyError)
"""What reading a run's log raises when its files are gone or are not what a log's are."""

_MISSING: Any = object()
_MOST_TEXT, _MOST_LANES = LONGEST_HOURS, 2**20  # hours of one's own are the longest text of a manifest's terms


class WorkingTerms(NamedTuple):
    """What the manifest says of orders in the book. Latencies are quantiles in ns."""

    power: int  # 0: risk-averse, else the exponent
    maker_fee_usd_micros: int
    entry_ns: tuple[int, ...]
    cancel_ns: tuple[int, ...]
    ack_ns: tuple[int, ...]
    seed: int
    cross_after_ppm: int


@dataclass(frozen=True)
class RunTerms:
    """What summary and verify take from a manifest. Money in micro-dollars, times in ns."""

    level: str
    lanes: int
    phases: tuple[str, ...]
    capital_usd_micros: int
    max_lots: int
    fee_usd_micros: int
    margin_usd_micros: int
    floor_usd_micros: int
    trail_ticks: int
    plan_lock_steps: int
    reward_scale_usd_micros: int
    latency_ns: int
    step_limit: int | None
    instrument: str
    schema: str
    start_ns: int
    end_ns: int
    read_start_ns: int
    read_end_ns: int
    sources: tuple[str, ...]
    columns: list[str] | None
    data_hash: str | None
    calendar: str
    currency: str
    root: str
    tick_price_e9: int
    tick_value_usd_micros: int
    slippage_ticks: int
    windows: tuple[tuple[int, int], ...]
    """[start, end) of each; lane i plays window i modulo their number (training: whatever it draws)."""

    is_joined: bool
    """Each lane is drained by itself at the end of its window; otherwise there is one window, drained for all lanes at once."""

    working: WorkingTerms | None
    """Of orders that work in the book; None: every order is a market order."""

    reads: tuple[tuple[int, int, str], ...]
    """What was read of the store, (start, end, data hash): one read serves one window or several."""

    @property
    def is_bars(self) -> bool:
        return self.schema.startswith("ohlcv")


@dataclass(frozen=True)
class RunData:
    """Tables keep the order in which they are read; `parts` are (name, rows) in that order, so a row number names its part."""

    manifest: Mapping[str, Any]
    tables: Mapping[str, "pa.Table"]
    parts: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    summary: Mapping[str, Any] | None = None
    finished: bool = True
    ends: str = "finished"
    steps: int = -1

    @property
    def terms(self) -> RunTerms:
        return terms_of(self.manifest)

    def has(self, table: str) -> bool:
        return table in self.tables

    def place(self, table: str, row: int) -> tuple[str, int]:
        """(part, row within it) of a row of a table."""
        for name, rows in self.parts.get(table, ()):
            if row < rows:
                return name, row
            row -= rows
        return "", row


def joint_hash(reads: Sequence[Sequence[Any]]) -> str:
    """SHA-256 over the canonical JSON of (start_ns, end_ns, data hash) of every read: the data hash of a run of several windows."""
    return hashlib.sha256(json.dumps([list(one) for one in reads], separators=(",", ":")).encode()).hexdigest()


def stated(manifest: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """The manifest's value at a dotted path; the default where it has none."""
    value: Any = manifest
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return default
        value = value[key]
    return value


def terms_of(manifest: Mapping[str, Any]) -> RunTerms:
    """The manifest's terms. Raises DamagedLog naming the key that is missing or holds what no run's does."""
    try:
        terms = _terms(manifest)
    except (TypeError, ValueError, ArithmeticError, AttributeError, BadInput) as error:
        raise DamagedLog(f"manifest.json: its terms cannot be read ({first_line(error)[:200]}): no run states such") from None
    bounds = {"lanes": (1, _MOST_LANES), "max_lots": (0, 2**31), "reward_scale_usd_micros": (1, 2**62), "tick_price_e9": (1, 2**62)}
    for name, (least, most) in bounds.items():
        if not least <= getattr(terms, name) <= most:
            raise DamagedLog(f"manifest.json: {name} is {getattr(terms, name)}, and no run's is below {least} or above {most}")
    if terms.phases[0] not in PHASES:
        raise DamagedLog(f"manifest.json: phase {terms.phases[0]!r} is none of {', '.join(PHASES)}")
    return terms


def _terms(manifest: Mapping[str, Any]) -> RunTerms:
    def get(path: str, default: Any = _MISSING) -> Any:
        value = stated(manifest, path, _MISSING)
        if value is not _MISSING:
            return value
        if default is not _MISSING:
            return default
        raise DamagedLog(f"manifest.json: `{path}` is missing: this is no run that summary and verify can judge")

    def whole(path: str, default: Any = _MISSING) -> int:
        value = get(path, default)
        if type(value) is not int or abs(value) >= 2**63:
            raise ValueError(f"`{path}` is {str(value)[:40]!r}, no whole number of 64 bits")
        return value

    def text(path: str) -> str:
        value = get(path)
        if not isinstance(value, str) or not value.isprintable() or len(value) > _MOST_TEXT:
            raise ValueError(f"`{path}` is {str(value)[:40]!r}, no short text")
        return value

    config, env, tape, data = "identity.config.", "identity.config.env.", "identity.config.tape.", "identity.data."
    start, end = whole(tape + "start_ns"), whole(tape + "end_ns")
    windows, reads, columns = get(tape + "windows", None), get(data + "reads", None), get(data + "columns", None)
    tick, multiplier = exact_fraction(text(config + "instrument.tick")), exact_fraction(text(config + "instrument.multiplier"))
    return RunTerms(
        level=text("log.level"),
        lanes=whole(config + "lanes"),
        phases=(text(config + "phase"),),
        capital_usd_micros=whole(env + "capital_usd_micros"),
        max_lots=whole(env + "max_lots"),
        fee_usd_micros=whole(env + "fee_usd_micros"),
        margin_usd_micros=whole(env + "margin_usd_micros"),
        floor_usd_micros=whole(env + "floor_usd_micros"),
        trail_ticks=whole(env + "trail_ticks"),
        plan_lock_steps=whole(env + "plan_lock_steps"),
        reward_scale_usd_micros=whole(env + "reward_scale_usd_micros"),
        latency_ns=whole(tape + "latency_ns"),
        step_limit=get(tape + "step_limit", None),
        instrument=text(config + "instrument.symbol"),
        schema=text(tape + "market_schema"),
        start_ns=start,
        end_ns=end,
        read_start_ns=whole(data + "read_start_ns", start),
        read_end_ns=whole(data + "read_end_ns", end),
        sources=tuple(str(source) for source in get(data + "sources")),
        columns=columns if columns is None else [str(name) for name in columns],
        data_hash=None if get(data + "data_hash", None) is None else text(data + "data_hash"),
        calendar=text(config + "instrument.calendar"),
        currency=text(config + "instrument.currency"),
        root=text(config + "instrument.root"),
        tick_price_e9=int(tick * PRICE_SCALE),
        tick_value_usd_micros=int(tick * multiplier * USD_MICROS),
        slippage_ticks=whole(tape + "slippage_ticks", 1),
        windows=tuple((int(first), int(last)) for first, last in windows or [(start, end)]),
        is_joined=windows is not None,
        working=_working(get, env, whole(tape + "latency_ns")),
        reads=tuple((int(first), int(last), str(said)) for first, last, said in reads or ()),
    )


def _working(get: Callable[..., Any], env: str, latency_ns: int) -> WorkingTerms | None:
    """What the manifest says of orders in the book."""
    model = get(env + "queue_model", "none")
    if model == "none":
        return None
    power = {"risk_averse": 0, "proportional": 1}.get(model) if model != "power" else int(get(env + "queue_power"))
    if power is None:
        raise DamagedLog(f"manifest.json: queue_model {model!r} is none that this build knows")
    entry = tuple(get(env + "entry_latency_ns") or (latency_ns,))
    cancel = tuple(get(env + "cancel_latency_ns") or entry)
    maker, seed, share = (int(get(env + name)) for name in ("maker_fee_usd_micros", "latency_seed", "cross_after_ppm"))
    return WorkingTerms(power, maker, entry, cancel, tuple(get(env + "ack_latency_ns")), seed, share)


def summary_file(terms: RunTerms) -> str:
    """Name of the file that holds the run's summary."""
    return SUMMARY_FILES[terms.phases[0]]


def ints(table: "pa.Table", name: str, null: int = 0) -> "np.ndarray":
    """One integer column as numpy, in its own width; nulls become `null`."""
    import pyarrow.compute as pc

    column = table.column(name).combine_chunks()
    if column.null_count:
        column = pc.fill_null(column, null)
    return column.to_numpy(zero_copy_only=False)


def distinct(values: "np.ndarray") -> "np.ndarray":
    """The distinct values, ascending. (`np.unique` goes through a hash table, several times slower on columns that repeat.)"""
    import numpy as np

    if not len(values):
        return values[:0]
    least, most = int(values.min()), int(values.max())
    if least == most:
        return values[:1]
    if least >= 0 and most < max(len(values), 1 << 16):
        return np.flatnonzero(np.bincount(values)).astype(values.dtype)
    ordered = np.sort(values)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])]


def place_in(values: "np.ndarray", some: "np.ndarray") -> "np.ndarray":
    """Where each value would stand in `some` (ascending, distinct), as `np.searchsorted` says; at once when `some` has no gaps."""
    import numpy as np

    if len(some) and int(some[-1]) - int(some[0]) + 1 == len(some):
        return np.clip(values - some[0], 0, len(some))
    return np.searchsorted(some, values)


def among(values: "np.ndarray", some: "np.ndarray") -> "np.ndarray":
    """bool[n]: which values are in `some` (ascending, distinct)."""
    import numpy as np

    if not len(some):
        return np.zeros(len(values), bool)
    return some[np.minimum(place_in(values, some), len(some) - 1)] == values


def load(run_dir: str | Path) -> RunData:
    """The committed log of a run directory: sealed parts in chain order, then the committed journal. Raises DamagedLog, NotFound."""
    import pyarrow.parquet as pq

    from store.run_read import read_run, read_table

    files = read_run(run_dir)
    tables, parts = {}, {}
    for name in files.tables:
        rows = read_table(files, name)
        held = [(str(path.relative_to(files.run_dir)), pq.read_metadata(path).num_rows) for path in files.parts[name]]
        if files.journal[name].num_rows:
            held.append(("journal", files.journal[name].num_rows))
        if kept(files.tables[name].levels, files.manifest["log"]["level"]):
            tables[name], parts[name] = rows, tuple(held)
    summary = files.run_dir / SUMMARY_FILES.get(str(stated(files.manifest, "identity.config.phase")), SUMMARY_FILES["eval"])
    return RunData(
        files.manifest,
        tables,
        parts,
        _summary(summary) if summary.is_file() else None,
        files.state == FINISHED,
        files.ends,
        files.steps,
    )


def _summary(path: Path) -> dict[str, Any]:
    from store.manifest import parse_json

    found = parse_json(path.read_bytes())
    if not isinstance(found, dict):
        raise DamagedLog(f"{path}: no JSON object: not the summary that a run wrote")
    return found


def kept(levels: tuple[str, ...], level: str) -> bool:
    """Whether a table with these levels is written at a run's level."""
    return level.partition(":")[0] in levels
