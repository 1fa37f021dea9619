"""What a policy observes, slot by slot, as the commands show it."""

from __future__ import annotations

from typing import Any


def list_slots() -> dict[str, Any]:
    """The 128 slots of the observation and the layout's fingerprint, as JSON values. Lane and unused slots have no formula."""
    from lob.features import AS_IT_IS, FEATURES, STAGE
    from lob.layout import SLOTS, layout_fingerprint

    declared = {feature.slot: feature for feature in FEATURES}
    slots: list[dict[str, Any]] = []
    for slot, name in enumerate(SLOTS):
        row: dict[str, Any] = {"slot": slot, "name": name, "stage": STAGE[slot]}
        feature = declared.get(slot)
        row["unit"] = feature.unit if feature else None
        row["given_by"] = list(feature.given_by) if feature else []
        row["formula"] = feature.formula if feature else None
        row["source"] = feature.source if feature and feature.source != "-" else None
        row["typical"] = {"center": feature.center, "scale": feature.scale} if feature and feature.stage not in AS_IT_IS else None
        slots.append(row)
    return {"fingerprint": layout_fingerprint(), "slots": slots}
