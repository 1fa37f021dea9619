"""Plays many cases of one fuzzer in a process of their own, within limits of memory and time that end it when a case passes them.

    python -m tests.fuzz.child SUITE SEED FIRST COUNT FOLDER

plays cases FIRST … FIRST + COUNT - 1 of a suite, or of several at once (runs+stores); a case follows from (SEED, number) alone, so COUNT 1
plays one again. It prints one JSON line per case that broke a law and one at the end. `tests.fuzz.limits` starts it, and starts it again
behind a case that ended it.
"""

import faulthandler
import importlib
import json
import resource
import sys
import traceback
from collections import Counter
from pathlib import Path

import numpy as np

from tests.fuzz.mutate import pick

ROOM_BYTES = 1 << 30
"""Address space that a case may add to what the process has once it is warm: buffers and windows, no size that a file claims."""
SECONDS = 20
"""A case of a few kilobytes that takes longer hangs (a usual one takes some milliseconds; the machine may be busy)."""


def main(suite: str, seed: int, first: int, count: int, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    plays = [importlib.import_module(f"tests.fuzz.{name}").prepare(folder / name) for name in suite.split("+")]

    def play(rng: np.random.Generator) -> str:
        return pick(rng, plays)(rng)

    for number in range(3 * len(plays)):  # what is imported, compiled and read once is there before the limit is set
        _quietly(play, np.random.default_rng([10**6, number]))
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + ROOM_BYTES, size + ROOM_BYTES))
    outcomes: Counter[str] = Counter()
    for number in range(first, first + count):
        (folder / "number").write_text(str(number))
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        try:
            outcomes[play(np.random.default_rng([seed, number]))] += 1
        except Exception as error:
            said = {"case": number, "error": repr(error)[:2000], "trace": traceback.format_exc()[-3000:]}
            print(json.dumps(said), flush=True)
        faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"outcomes": dict(outcomes)}), flush=True)


def _quietly(play, rng: np.random.Generator) -> None:
    try:
        play(rng)
    except Exception:
        return


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
