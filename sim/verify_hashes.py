"""The hashes that a manifest claims, computed anew: the sources that shape features, the observation layout, the build."""

from collections.abc import Mapping
from typing import Any

from sim.run_data import stated
from sim.verify_types import OK, Check, failed, skipped


def check_build(identity: Mapping[str, Any]) -> list[Check]:
    """Schema hash and layout fingerprint against this build's.

    A run of this very build must carry them. A run of another build may differ, and then says nothing false: its sources are not here to
    be hashed, which is said. They touch observations, not accounts: the five computations need neither.
    """
    from lob.layout import layout_fingerprint
    from sim.house import code_hash
    from store.feature_cache import schema_hash

    claims = {
        "schema_hash": (stated(identity, "data.schema_hash"), schema_hash(), "identity.data.schema_hash"),
        "layout_fingerprint": (identity.get("layout_fingerprint"), layout_fingerprint(), "identity.layout_fingerprint"),
    }
    same_build = stated(identity, "code.sha256") == code_hash()
    checks = []
    for name, (said, found, place) in claims.items():
        if said == found:
            checks.append(Check(name, OK, ""))
        elif said is None:
            checks.append(skipped(name, "the manifest holds none"))
        elif same_build:
            checks.append(failed(name, f"the manifest says {said}, the same build gives {found}", "manifest", place))
        else:
            checks.append(skipped(name, f"the run was written by another build, with {str(said)[:16]}; this one has {found[:16]}"))
    return checks
