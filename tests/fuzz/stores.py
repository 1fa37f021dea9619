"""The fuzzer of what reads a market store: `sim store`, `sql`, `ingest`, `replay` and `verify` over damaged catalogues, parts and caches.

Each ends with 0, 1 or 2 and one line; what only reads changes nothing; nothing outside the store is read or removed, whatever its records
say; and an ingest beside the damage goes in or leaves what was there.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sim.ingest import ingest
from store.market import compact
from tests.fuzz.command import names_of, spoken
from tests.fuzz.documents import bytes_damaged, changed, json_bytes, other_rows
from tests.fuzz.mutate import pick
from tests.fuzz.runs import DAMAGED_BEFORE, market, snapshot
from tests.replays import MINUTE

BARS = "time,open,high,low,close,volume\n2023-01-03 10:00,1,2,1,2,5\n2023-01-03 10:01,1,2,1,2,5\n"


def prepare(folder: Path) -> Callable[[np.random.Generator], str]:
    """A store of a synthetic day and of bars, as it is and compacted, a replay of it, a file to put in, and one outside that must stay."""
    made = folder / "made"
    shutil.rmtree(folder, ignore_errors=True)
    played, run = market(folder.parent / "market")
    store = shutil.copytree(played, made / "store")
    for name, hour in (("bars.csv", " 10:"), ("later.csv", " 12:")):
        (made / name).write_text(BARS.replace(" 10:", hour))
        ingest(made / name, store, instrument="BARS", schema="ohlcv-1m", timezone="UTC")
    merged = shutil.copytree(store, made / "merged")
    assert len(compact(merged)) == 1
    (made / "more.csv").write_text(BARS.replace("2023", "2022"))
    outside = folder / "outside.parquet"
    shutil.copy(next((store / "market").rglob("*.parquet")), outside)

    def play(rng: np.random.Generator) -> str:
        case = folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(pick(rng, (store, store, merged)), case / "store")
        for _ in range(int(pick(rng, (1, 1, 1, 2)))):
            damage(case / "store", rng)
        ended = _case(case, made, run, rng)
        assert outside.exists(), "a file outside the store was removed"
        return ended

    return play


def damage(store: Path, rng: np.random.Generator) -> None:
    """Bytes of some file; a value of a record; rows of a part; or a plan that a killed ingest would have left."""
    records, parts = sorted((store / "catalog").glob("*.json")), sorted((store / "market").rglob("*.parquet"))
    try:
        match rng.integers(0, 9):
            case 0 | 1:
                bytes_damaged(pick(rng, names_of(store)), rng)
            case 8 if list((store / "merged").glob("*")):
                path = pick(rng, sorted((store / "merged").glob("*")))
                path.write_bytes(json_bytes(changed(json.loads(path.read_bytes()), rng)))
            case 2 | 3 | 4:
                path = pick(rng, records)
                document = json.loads(path.read_bytes())
                path.write_bytes(json_bytes(changed(document, rng, pick(rng, ((), (), ("parts",), ("quality",), ("spans",))))))
            case 5:
                path = pick(rng, records)
                document = json.loads(path.read_bytes())
                document["parts"][0]["path"] = pick(rng, ("../../outside.parquet", "/etc/passwd", "store.json", "../../outside", "market"))
                path.write_bytes(json_bytes(document))
            case 6:
                plan = store / "staging/1.killed" / pick(rng, ("plan.json", "retired.json"))
                plan.parent.mkdir(parents=True, exist_ok=True)
                stated = {"sha256": "0" * 64, "parts": ["../../outside.parquet"]}
                plan.write_bytes(
                    pick(
                        rng,
                        (json_bytes(stated), json_bytes(changed(stated, rng)), b"{", b"[]", b'{"sha256": 1}', b'["../../outside.parquet"]'),
                    )
                )
            case _:
                other_rows(pick(rng, parts), rng)
    except DAMAGED_BEFORE:
        return


def _case(case: Path, made: Path, run: Path, rng: np.random.Generator) -> str:
    store = case / "store"
    before = snapshot(store)
    reads: list[list[object]] = [
        ["store", "ls", "--store", store],
        ["store", "quality", "--store", store],
        ["sql", pick(rng, ("from market.mbp_10", "select * from market.ohlcv_1m", "from market.quality", "describe")), "--store", store],
        ["verify", run, "--store", store],
    ]
    writes: list[list[object]] = [
        ["ingest", made / "more.csv", "--store", store, "--instrument", "BARS", "--schema", "ohlcv-1m", "--timezone", "UTC"],
        ["store", "rm", "--store", store, "--file", "bars.csv"],
        ["store", "rm", "--store", store, "--file", "ESH4.dbn"],
        ["store", "compact", "--store", store],
    ]
    command = pick(rng, reads + writes)
    if rng.random() < 0.25:
        start = json.loads((run / "manifest.json").read_bytes())["identity"]["config"]["tape"]["start_ns"]
        window = [str(np.datetime64(ns, "ns"))[:19] for ns in (start, start + 3 * MINUTE)]
        command = ["replay", "--store", store, "--instrument", "ESH4", "--start", window[0], "--end", window[1], "--policy", "random"]
        command += ["--runs", case / "runs"]
    code = spoken([*command, "--json"] if rng.random() < 0.5 else command)
    after = snapshot(store)
    if command[:2] == ["store", "compact"] and code == 0:
        spoken(["store", "ls", "--store", store])
    if command in reads or (command[0] == "ingest" and code):
        ours = {name: content for name, content in after.items() if not name.startswith("staging")}
        assert ours == {name: content for name, content in before.items() if not name.startswith("staging")}, (
            f"{command[0]} changed the store"
        )
    return f"{' '.join(map(str, command[:2])) if command[0] == 'store' else command[0]} {code}"


def _kept(files: dict) -> dict:
    """What of a store's files is no leftover of an ingest that was killed."""
    return {name: content for name, content in files.items() if not name.startswith("staging")}
