"""`sim features`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cli.output import Json, columns, emit


def register(app: typer.Typer) -> None:
    app.command("features")(features)


def features(
    explain: Annotated[
        bool, typer.Option("--explain", help="Say of each slot what it is, where it comes from, and its typical size.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the slots that a policy observes.

    128 slots: the market's, computed from rows received before the decision, and the lane's own state. Unused slots are
    zero and left out of the table. A checkpoint of a layout with another fingerprint is refused.

    \b
    Examples:
      sim features
      sim features --explain
      sim features --json | jq '.slots[] | select(.stage == "bounded") | .name'
    """
    from sim.features import list_slots

    found = list_slots()
    named = [slot for slot in found["slots"] if slot["stage"] != "unused"]
    rows = [
        (str(s["slot"]), s["name"], s["stage"], s["unit"] or "", "+".join(s["given_by"]), s["formula"] or "the lane's own state")
        for s in named
    ]
    table = columns([("slot", "name", "stage", "unit", "given by", "formula"), *rows])
    if explain:
        table = "\n".join(map(_explained, named))
    rest = f"{len(found['slots']) - len(named)} slots are unused and zero; layout {found['fingerprint']}"
    emit(found, f"{table}\n\n{rest}", as_json)


def _explained(slot: dict[str, Any]) -> str:
    """A slot in words: what it is, and what the normaliser makes of it where nothing was fitted."""
    of = f", given by {' and '.join(slot['given_by'])}" if slot["given_by"] else ""
    lines = [f"{slot['slot']:>3}  {slot['name']} ({slot['unit'] or 'the lane'}, {slot['stage']}{of})"]
    lines.append(f"     {slot['formula'] or 'the state of the account itself (docs/observation.md)'}")
    if slot["source"]:
        lines.append(f"     source: {slot['source']}")
    if slot["typical"]:
        lines.append(
            f"     typical of an index future at a one-second clock: {slot['typical']['center']:g} +- {slot['typical']['scale']:g}"
        )
    return "\n".join(lines)
