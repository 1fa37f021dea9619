"""Killing a process at a chosen moment, without unwinding: at its n-th call that touches the file system, or after a time.

`until_done` starts a job, kills it, starts it again, and so on, until it comes to its end. `python -m tests.kills N FOLDER MODULE [ARG …]`
runs a module that dies at its N-th such call below FOLDER: for commands that have to be processes of their own, like `cli.main`.
"""

import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

KILLED = 9
"""Exit code of a process that `die_at_event` ended."""

EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "os.scandir", "os.symlink", "os.link")


def fork(work: Callable[[], object]) -> int:
    """Start `work` in a forked child; its process id. The child ends with 0, or 1 when the work raised (its traceback goes to stderr)."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def in_child(work: Callable[[], object]) -> int:
    """Run `work` in a forked child; its exit code, which is 0 or KILLED."""
    code = os.waitstatus_to_exitcode(os.waitpid(fork(work), 0)[1])
    assert code in (0, KILLED), f"the child failed with {code}"
    return code


def die_at_event(number: int, work: Callable[[], object], below: Path | None = None) -> None:
    """Do `work` in this process, which ends at its `number`-th call that touches the file system (below a folder), in whatever thread."""
    left = number

    def count(event: str, arguments: tuple) -> None:
        nonlocal left
        if event in EVENTS and (below is None or any(_lies_in(argument, below) for argument in arguments)):
            left -= 1
            if left < 0:
                os._exit(KILLED)

    sys.addaudithook(count)
    work()


def _lies_in(argument: object, folder: Path) -> bool:
    return isinstance(argument, str | os.PathLike) and os.fspath(argument).startswith(os.fspath(folder))


def kill_after(seconds: float, work: Callable[[], object]) -> int:
    """Run `work` in a forked child and SIGKILL it after a time; KILLED, or 0 when it came to its end before."""
    child = fork(work)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL), f"the child failed with {code}"
    return KILLED if code else 0


def kill_command_after(seconds: float, command: list[str], **options: object) -> int:
    """Run a command and SIGKILL it after a time; KILLED, or 0 when it came to its end before."""
    process = subprocess.Popen(command, **options)  # type: ignore[call-overload]
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        code = process.wait()
    assert code in (0, KILLED, -signal.SIGKILL), f"{command} failed with {code}"
    return KILLED if code else 0


def until_done(attempts: Iterable[Callable[[], int]]) -> int:
    """Make attempts, each of which is killed (KILLED) or comes to its end (0), until one does; how many were killed."""
    for killed, attempt in enumerate(attempts):
        if attempt() == 0:
            return killed
    raise AssertionError("no attempt came to its end")


def proved_files(run_dir: Path, but: tuple[str, ...] = ("abandoned", "unhashed", "unhashed.jsonl")) -> dict[str, bytes | str]:
    """{name: bytes, or where a link leads} of all that a resumed run must have as the run that never stopped has it."""
    found: dict[str, bytes | str] = {}
    for path in sorted(run_dir.rglob("*")):
        name = path.relative_to(run_dir)
        if name.parts[0] in but:
            continue
        if path.is_symlink():
            found[str(name)] = f"-> {os.readlink(path)}"
        elif path.is_file():
            found[str(name)] = path.read_bytes()
    return found


if __name__ == "__main__":
    number, folder, module = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
    sys.argv = [module, *sys.argv[4:]]
    die_at_event(number, lambda: runpy.run_module(module, run_name="__main__", alter_sys=True), folder)
