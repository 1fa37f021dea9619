"""`sim features`."""

from __future__ import annotations

import typer

from cli.output import Json, columns, emit


def register(app: typer.Typer) -> None:
    app.command("features")(features)


def features(as_json: Json = False) -> None:
    """List the slots that a policy observes.

    128 slots: the market's, computed from rows received before the decision, and the lane's own state. Unused slots are
    zero and left out of the table. A checkpoint of a layout with another fingerprint is refused.

    \b
    Examples:
      sim features
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
    rest = f"{len(found['slots']) - len(named)} slots are unused and zero; layout {found['fingerprint']}"
    emit(found, f"{table}\n\n{rest}", as_json)
