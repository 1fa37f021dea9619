"""Scan the step loop: `python -m tests.scanners`. Exit 1 on a finding that nothing explains, or an explanation of nothing."""

import sys
from collections import Counter
from pathlib import Path

from tests.scanners.house import read
from tests.scanners.report import judge, report
from tests.scanners.rules import scan
from tests.scanners.step_loop import reached


def main() -> int:
    house = read(Path(__file__).resolve().parent.parent.parent)
    loop = reached(house)
    judged = judge(scan(house, loop))
    print(report(judged, Counter(one.unit.file for one in loop)))
    return 1 if judged.open or judged.idle else 0


if __name__ == "__main__":
    sys.exit(main())
