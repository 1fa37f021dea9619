"""Starts `tests.fuzz.child` and gathers what its cases came to; a case that ended the process (crash, hang) is a finding too."""

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

_REPO = Path(__file__).resolve().parent.parent.parent


@dataclass
class Findings:
    """`outcomes`: how often each end was reached. `faults`: what broke a law, with the command that plays the case again."""

    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{len(self.faults)} cases broke a law:\n" + "\n".join(self.faults[:20])


def fuzz(suite: str, seed: int, count: int, folder: Path) -> Findings:
    """Plays cases 0 … count - 1 of a suite."""
    found = Findings()
    first = 0
    while first < count:
        place = folder / f"{suite}-{seed}-{first}"
        command = [sys.executable, "-m", "tests.fuzz.child", suite, str(seed), str(first), str(count - first), str(place)]
        # One thread each for the libraries: pools of them would make the address space that a case adds depend on the machine.
        environment = os.environ | {"OMP_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1", "PYTHONPATH": str(_REPO), "MALLOC_ARENA_MAX": "2"}
        done = subprocess.run(command, cwd=_REPO, env=environment, capture_output=True, text=True)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for line in lines:
            if "outcomes" in line:
                found.outcomes.update(line["outcomes"])
            else:
                found.faults.append(f"{_again(suite, seed, line['case'])}\n{line['error']}\n{line['trace']}")
        if done.returncode == 0:
            break
        if not (place / "number").exists():
            raise AssertionError(f"{' '.join(command)} did not begin: {done.stderr[-3000:]}")
        number = int((place / "number").read_text())
        found.faults.append(f"{_again(suite, seed, number)}\nended the process with {done.returncode}\n{done.stderr[-3000:]}")
        first = number + 1
    return found


def _again(suite: str, seed: int, number: int) -> str:
    return f"python -m tests.fuzz.child {suite} {seed} {number} 1 /tmp/again"
