"""Killing a process at a chosen moment: at its n-th call that touches the file system, or after a time; without unwinding."""

import os
import sys
from collections.abc import Callable

KILLED = 9
"""Exit code of a child that `die_at_event` ended."""
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.scandir", "os.symlink", "os.link")


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked child; its exit code: 0, KILLED, or 1 when it raised (the traceback goes to stderr)."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, KILLED), f"the child failed with {code}"
    return code


def die_at_event(number: int, work: Callable[[], object]) -> None:
    """Do `work` in this process, which ends at its `number`-th call that touches the file system, in whatever thread."""
    left = number

    def count(event: str, arguments: object) -> None:
        nonlocal left
        if event in EVENTS:
            left -= 1
            if left < 0:
                os._exit(KILLED)

    sys.addaudithook(count)
    work()
