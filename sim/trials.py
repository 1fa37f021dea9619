"""How many strategies were tried on a stretch of market, counted in the run catalogue: what a Sharpe ratio has to be deflated by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lob.errors import DamagedLog, NotFound

Window = tuple[int, int]
"""[start_ns, end_ns)."""

COUNTED_PHASES = ("train", "eval")
RULE = (
    "distinct config hashes of training and evaluation runs under the runs folder, this one included, over the same instrument and a "
    "window that overlaps; trials that left no run there are not known"
)


@dataclass(frozen=True)
class Trials:
    """`configs` are the distinct config hashes, ascending; `runs` how many run folders hold them."""

    configs: tuple[str, ...]
    runs: int

    @property
    def count(self) -> int:
        return len(self.configs)

    def document(self) -> dict[str, Any]:
        """As JSON values. How many folders an equal run lies in changes nothing, so it is left out."""
        return {"count": self.count, "rule": RULE, "configs": list(self.configs)}


def windows_of(config: Mapping[str, Any]) -> tuple[Window, ...]:
    """The windows of a run's config, as its manifest states it."""
    tape = config["tape"]
    return tuple((int(start), int(end)) for start, end in tape.get("windows") or ((tape["start_ns"], tape["end_ns"]),))


def overlap(a: Sequence[Window], b: Sequence[Window]) -> bool:
    """Whether two sets of windows share a moment."""
    return any(first < other_end and other_first < end for first, end in a for other_first, other_end in b)


def run_manifests(runs: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """(folder, manifest) of every run directly under `runs`, by name; what is no run, or damaged, is passed over."""
    from store.manifest import MANIFEST, read_manifest

    for path in sorted(runs.glob(f"*/{MANIFEST}")):
        try:
            yield path.parent, read_manifest(path.parent)
        except (DamagedLog, NotFound):
            continue


def count_trials(runs: Path, configs: Sequence[Mapping[str, Any]]) -> Trials:
    """The trials on the windows of `configs` (documents of `sim.config.hashed_document`, all of one instrument), themselves included."""
    from sim.config import config_hash

    symbol = configs[0]["instrument"]["symbol"]
    windows = [window for config in configs for window in windows_of(config)]
    found, held = {config_hash(dict(config)) for config in configs}, 0
    for _, manifest in run_manifests(runs):
        try:
            config = manifest["identity"]["config"]
            counts = config["phase"] in COUNTED_PHASES and config["instrument"]["symbol"] == symbol
            if counts and overlap(windows_of(config), windows):
                found.add(config_hash(config))
                held += 1
        except (KeyError, TypeError, ValueError):
            continue  # another program's manifest, or another version's
    return Trials(tuple(sorted(found)), held)
