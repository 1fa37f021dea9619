"""Runs a command of `sim` in this process, as a user would meet it."""

import contextlib
import io
import json
from pathlib import Path

from cli.app import app


def sim(*arguments: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command; an exception that it lets through is the caller's."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            app(args=[str(argument) for argument in arguments], prog_name="sim")
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    return code, out.getvalue(), err.getvalue()


def spoken(arguments: list[object]) -> int:
    """Runs a command and holds it to how every command speaks; returns its exit code.

    0, 1 or 2; on failure one line of error and no traceback, or a verdict; with --json one strict document on stdout.
    """
    code, out, err = sim(*arguments)
    assert code in (0, 1, 2), f"exit code {code}: {err}"
    assert "Traceback" not in err, err
    if err.startswith("Usage: "):  # the parser's own refusal
        assert code == 2 and "\nError: " in err
        return code
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    others = [line for line in err.splitlines() if not line.startswith(("error: ", "warning: ", "note: "))]
    assert not others and len(errors) <= 1, f"more than one line: {err!r}"
    assert code != 2 or errors, f"no line says why: {out!r} {err!r}"
    assert all(len(line) < 3000 and line.isprintable() for line in errors), errors
    if "--json" in arguments:
        json.loads(out, parse_constant=lambda name: 1 / 0)
    return code


def names_of(folder: Path) -> list[Path]:
    """Every file below a folder, in order."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
