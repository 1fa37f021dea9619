"""Writes docs/observation.md from `lob.features.FEATURES` and the layout: `python -m docs.observation`. A test holds the page to them."""

from pathlib import Path

from lob.features import FEATURES, STAGE
from lob.layout import BUS_SLOTS, LANE, LANE_SLOTS, STATE_DIM
from lob.normalise import CLIP
from lob.schedule import MAX_TICKS
from store.feature_cache import WIRE_VERSION, schema_sources

PAGE = Path(__file__).resolve().parent / "observation.md"

_INTRO = f"""# The observation, as built

Written by `python -m docs.observation` from `lob/features.py` and `lob/layout.py`.

{STATE_DIM} float32 slots: the market's (below), the lane's own state from slot {LANE} on, and unused ones, which are 0. Offsets 0-3, 40,
41, 66-73 and 74-81 are fixed. A second input, the signal bus, has {BUS_SLOTS} slots. One assembler fills them for train, eval and replay.

**What a decision sees.** Rows with `ts_recv` at or before it, no others; the last tradable one is the *book*, half its best bid plus ask
the *mid* (in ticks). A *tick* is a tick of the run's clock, also where an order in flight let no decision be made; the *interval* of a
tick holds the rows received after the tick before it. All state starts anew at a session's open, and a run reads its data from the open
of the session that holds its start: a value depends on no window. Spans that reach back beyond the session's first tick stop there.
At most {MAX_TICKS:,} ticks a window.

**OFI.** For two tradable rows in sequence, `e = [Pb >= Pb'] qb - [Pb <= Pb'] qb' - [Pa <= Pa'] qa + [Pa >= Pa'] qa'` (a prime: the
earlier row; a level that is not shown has no lots and the worst price). A trusted row that is not tradable breaks the sequence.

**Normalisation.** `(x - mean) / std`, within {CLIP:g}, except for the stages `bounded`, `lane` and `unused`, which pass unchanged. Mean and
std are the declared center and scale below (a scale that diffuses is multiplied by the root of the clock's period in seconds), or
fitted on a range that ends at or before the run's start. The manifest's `data.normaliser` says which.

**Cache.** `<store>/features/<key>.parquet`, wire version {WIRE_VERSION}. The key is over what was asked for, the data hash included; the
schema hash is over the bytes of {len(schema_sources())} sources, found by following imports from `lob/prepare.py` and
`lob/normalise.py`. An entry of other sources is refused until the run is repeated with `--rebuild-features`.

## Market slots

| slot | name | stage | unit | formula | source | books | bars | center | scale |
|---|---|---|---|---|---|---|---|---|---|
"""


def _market() -> str:
    rows = []
    for f in FEATURES:
        given = " | ".join("yes" if kind in f.given_by else "0" for kind in ("books", "bars"))
        scale = "-" if f.stage == "bounded" else f"{f.scale:.3g}" + (" (diffuses)" if f.diffuses else "")
        center = "-" if f.stage == "bounded" else f"{f.center:g}"
        formula = f.formula.replace("|", chr(92) + "|")
        rows.append(f"| {f.slot} | `{f.name}` | {f.stage} | {f.unit} | {formula} | {f.source} | {given} | {center} | {scale} |")
    return "\n".join(rows)


def page() -> str:
    """The whole page as Markdown."""
    lane = "\n".join(f"| {LANE + i} | `{name}` |" for i, name in enumerate(LANE_SLOTS))
    unused = ", ".join(str(i) for i in range(STATE_DIM) if STAGE[i] == "unused")
    return f"{_INTRO}{_market()}\n\n## The lane's slots (`cuda_env`)\n\n| slot | name |\n|---|---|\n{lane}\n\n## Unused\n\n{unused}\n"


if __name__ == "__main__":
    PAGE.write_text(page())
