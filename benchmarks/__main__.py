"""Every benchmark in turn, each in a process of its own: `python -m benchmarks [NAME …]`, NAME like `dbn` or `env`.

Wants an idle machine; each benchmark asserts its output before it prints a time, and the first that fails ends the run.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

NAMES = tuple(sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py")))


def main(chosen: list[str]) -> int:
    unknown = sorted(set(chosen) - set(NAMES))
    if unknown:
        print(f"no benchmark called {', '.join(unknown)}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    print(f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f}")
    for name in chosen or NAMES:
        print(f"\n== {name}", flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.bench_{name}"], check=False)
        if done.returncode:
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
