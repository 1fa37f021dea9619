"""`sim doctor`."""

from __future__ import annotations

from typing import Any

import typer

from cli.output import Json, columns, emit, progress


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(as_json: Json = False) -> None:
    """Say what this machine has.

    Versions, processors, GPU, compile cache, disk. Exit 1 when something that must hold does not.

    \b
    Examples:
      sim doctor
      sim doctor --json | jq .gpu
    """
    from sim.doctor import examine

    with progress("doctor"):
        found = examine()
    emit(found, _text(found), as_json)
    raise typer.Exit(0 if found["ok"] else 1)


def _text(found: dict[str, Any]) -> str:
    processors, cache = found["processors"], found["cache"]
    gpus = [f"{gpu['name']} ({gpu['memory_bytes'] / 2**30:.0f} GiB)" for gpu in found["gpu"]["devices"]]
    facts = [
        ("tapeproof", f"{found['tapeproof']} in {found['house']}"),
        ("python", f"{found['python']} on {found['platform']}"),
        ("processors", f"{processors['usable']} usable of {processors['machine']}, {processors['model']}"),
        ("memory", f"{processors['memory_bytes'] / 2**30:.1f} GiB" if processors["memory_bytes"] else "unknown"),
        ("gpu", "; ".join(gpus) or "none: everything runs on the CPU"),
        ("cache", f"{cache['folder']} ({cache['bytes'] / 1e6:.1f} MB)"),
    ]
    checks = [("ok" if check["ok"] else "FAILED", check["name"], check["found"], check["remedy"] or "") for check in found["checks"]]
    return f"{columns(facts)}\n\n{columns(checks)}"
