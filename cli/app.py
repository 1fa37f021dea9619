"""The command line's root: the commands, and how an error becomes one line and an exit code.

A command parses, calls a use case of `sim/`, prints. Heavy packages are imported inside the command that needs them.

Exit codes: 0 done, 1 falsified or a failed check, 2 usage or unusable input, 70 a fault of ours (with its traceback), 130 interrupted.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from cli import bench, doctor, evaluate, export, features, ingest, policy, replay, seal, sql, store, synth, train, verdict, verify, watch
from cli.output import complain, say
from lob.errors import BadInput, TapeproofError, first_line

INTERRUPTED, BROKEN_PIPE, OUT_OF_MEMORY = 130, 141, 2

REFUSED_PLACES = {
    errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT,
}  # fmt: skip
"""What the system says of a path that somebody named and that no command can use."""

UsageError: type[Exception] = typer.BadParameter.__mro__[1]
"""What a wrong command line raises; typer's public name for it depends on its version."""


class House(TyperGroup):
    """The command group that turns our errors into one line on stderr, an exit code and, with --json, `{"error": ...}` on stdout."""

    def invoke(self, ctx: Any) -> Any:
        as_json = "--json" in ctx.args
        try:
            return _answered(super().invoke, ctx, as_json)
        except BrokenPipeError:
            # Whoever read our output has enough of it; what is still buffered must not raise again at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None


def _answered(invoke: Callable[[Any], Any], ctx: Any, as_json: bool) -> Any:
    try:
        return invoke(ctx)
    except UsageError as error:
        complain(error.format_message(), as_json)  # type: ignore[attr-defined]
        raise
    except TapeproofError as error:
        line = _with_notes(str(error), error)
        say(f"error: {line}")
        complain(line, as_json)
        raise typer.Exit(error.exit_code) from None
    except OSError as error:
        if error.filename is None or error.errno not in REFUSED_PLACES:
            raise
        line = str(BadInput(f"{error.filename}: {error.strerror}: name another place, or make this one usable"))
        say(f"error: {line}")
        complain(line, as_json)
        raise typer.Exit(BadInput.exit_code) from None
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        line = f"out of memory ({first_line(error)}); take fewer --lanes, a smaller learner.capacity or a shorter window"
        line = _with_notes(line, error)
        say(f"error: {line}")
        complain(line, as_json)
        raise typer.Exit(OUT_OF_MEMORY) from None
    except KeyboardInterrupt as interrupt:
        line = f"interrupted{f': {interrupt}' if str(interrupt) else ''}"
        say(line)
        complain(line, as_json)
        raise typer.Exit(INTERRUPTED) from None


def _with_notes(line: str, error: Exception) -> str:
    """The line, and what those whom the error passed had to add, as what a run keeps."""
    return "; ".join([line, *getattr(error, "__notes__", ())])


def _is_out_of_memory(error: Exception) -> bool:
    """numpy and Python raise MemoryError; torch a subclass of RuntimeError on CUDA, on the CPU a bare one that names its allocator."""
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "DefaultCPUAllocator" in str(error)


app = typer.Typer(
    cls=House,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from sim.house import version

        print(version())
        raise typer.Exit(0)


@app.callback()
def house(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Replay any market range against any policy, and prove every dollar of the result from the log.

    \b
    Exit codes: 0 done, 1 falsified or a failed check, 2 usage or unusable input,
    70 a fault of ours, 130 interrupted. Every command has --help and --json;
    with --json, what failed is {"error": "..."} on stdout too.
    """


for module in (synth, ingest, store, replay, train, evaluate, verify, verdict, sql, watch, export, seal, policy, features, doctor, bench):
    module.register(app)
