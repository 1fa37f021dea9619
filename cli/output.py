"""How every command speaks: the result on stdout (text, or one JSON document), everything else on stderr."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout and nothing else there.")]

Progress = Callable[..., None]
"""What a use case calls as it goes: (done) or (done, total), in whatever unit it counts."""

BAR_AFTER_S = 1.0
COMPILING = "note: compiling kernels, once per build: up to a minute; the next such command starts at once"


def say(line: str) -> None:
    """A message to the person, on stderr."""
    print(line, file=sys.stderr, flush=True)


def emit(document: Any, text: str, as_json: bool) -> None:
    """The command's result. JSON is strict: a NaN or an Infinity in it is a fault of ours and raises ValueError.

    It is flushed here, so that a reader who has gone away is met here and not by the interpreter's last flush.
    """
    print(json.dumps(document, allow_nan=False, ensure_ascii=False, indent=2) if as_json else text, flush=True)


def complain(message: str, as_json: bool) -> None:
    """Why there is no result, as the one JSON document on stdout where JSON was asked for. The line on stderr is the caller's."""
    if as_json:
        emit({"error": message}, "", True)


def columns(rows: Sequence[tuple[str, ...]], indent: str = "") -> str:
    """Rows of cells as aligned text; the cells of a column are padded to its widest."""
    if not rows:
        return ""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(indent + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


@contextmanager
def progress(label: str) -> Iterator[Progress]:
    """A bar on stderr, once the work has taken more than a second on a terminal; silent where stderr is none.

    A use case that cannot count calls nothing, and the bar moves without an end.
    """
    if not sys.stderr.isatty():
        yield lambda done, total=None: None
        return
    counted: dict[str, int | None] = {"completed": 0, "total": None}
    shown: list[tuple[Any, Any]] = []

    def show() -> None:
        bar = _bar()
        shown.append((bar, bar.add_task(label, **counted)))
        bar.start()

    def update(done: int, total: int | None = None) -> None:
        counted.update(completed=done, total=total)
        for bar, task in shown:
            bar.update(task, **counted)

    timer = threading.Timer(BAR_AFTER_S, show)
    timer.daemon = True
    timer.start()
    try:
        yield update
    finally:
        timer.cancel()
        timer.join()
        for bar, _ in shown:
            bar.stop()


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
