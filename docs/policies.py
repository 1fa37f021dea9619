"""Writes docs/policies.md from `lob.actions` and `policy.builtin`: `python -m docs.policies`. A test holds the page to them."""

from pathlib import Path

from cuda_env.config import EnvConfig
from lob.actions import ACTIONS, MAGNITUDE_PPM, Direction, Magnitude, OrderKind, Urgency, encode_action
from lob.units import PPM
from policy.architecture import PROFILES
from policy.builtin import ENTER_IMBALANCE, FLAT, HOLD, LONG, SHORT

PAGE = Path(__file__).resolve().parent / "policies.md"


def name_of(code: int) -> str:
    """`long full market normal`: the four branches of an action code."""
    return next(" ".join(member.name.lower() for member in branches) for branches in _every() if _code(branches) == code)


def _every():
    return [(d, m, o, u) for d in Direction for m in Magnitude for o in OrderKind for u in Urgency]


def _code(branches) -> int:
    return int(encode_action.py_func(*map(int, branches)))


_MAGNITUDES = ", ".join(f"{m.name.lower()} {MAGNITUDE_PPM[m] * 100 // PPM} %" for m in Magnitude)

_INTRO = f"""# Policies

Written by `python -m docs.policies` from `lob/actions.py` and `policy/builtin.py`.

`sim replay --policy NAME`, `--policy script:FILE` or `--checkpoint DIR` says what decides. At each decision (a tick of `--clock`) each lane
picks one of {ACTIONS} actions. An action names a **target position**, not an order: `long full` asks to be long `--max-lots` lots, and
asked again it changes nothing; `hold` leaves the position alone; `flat` asks for none. The gates (plan lock, variance scale, margin
cap, Kelly cap, trail stop, capital floor) may shrink the target; the difference to the position goes out as one market order.
[step.md](step.md) says all of it exactly; the log holds what was picked, every gate's value and what came of it.

Magnitudes are shares of `--max-lots`: {_MAGNITUDES}, rounded down, at least one lot. Order kind and urgency are logged as picked and
executed as market: there are no resting orders yet.

## The built-in rules

| name | what it picks at every decision |
|---|---|
| `flat` | {FLAT} ({name_of(FLAT)}): never trades |
| `long` | {LONG} ({name_of(LONG)}): opens at once, and again at the decision after a trail stop |
| `short` | {SHORT} ({name_of(SHORT)}): likewise |
| `random` | uniform over the {ACTIONS} codes: Philox of (`--seed`, lane, step); no lane depends on another |
| `momentum` | the sign of slot `momentum_60`: above zero {LONG} (long), below zero {SHORT} (short), at exactly zero {HOLD} (hold) |
| `imbalance` | slot `imbalance_10`, I = (bid lots - ask lots) / (bid lots + ask lots) over the levels shown; see below |

`imbalance`, in this order: **enter** at I > {ENTER_IMBALANCE} long ({LONG}) unless long already, at I < -{ENTER_IMBALANCE} short ({SHORT})
unless short already (this reverses too); else **leave** ({FLAT}, flat) when long and I < 0, or short and I > 0; else hold ({HOLD}).
Equality enters and leaves nothing. A position in its direction is not resized. On bars the slot is always 0, so it never enters.

All of them ask for full size with a market order, and conviction, health and variance scale are 1, so the variance scale and the Kelly cap
shrink nothing: the margin cap, the plan lock, the trail stop (`--trail-ticks`, {EnvConfig().trail_ticks} unless stated) and the floor
still act. Levels are meant before the observation's normalisation. [observation.md](observation.md) gives the slots' formulas.

## A script

    step,action
    0,{LONG}
    10,{FLAT}

A CSV file in UTF-8 with a header; the columns stand in any order:

| column | needed | values | what |
|---|---|---|---|
| `step` | yes | 0..2147483647 | which decision of the run, counted from 0: ticks of the clock at which a decision was made, not seconds |
| `action` | yes | 0..{ACTIONS - 1} | a code of the table below; words are not read |
| `lane` | no | 0..lanes-1 | whose row it is; without the column every lane does the same |
| `conviction_ppm` | no | 0..{PPM} | gate input of the Kelly cap; {PPM} where there is no such column |
| `health_ppm` | no | 0..{PPM} | gate input of the Kelly cap; likewise |
| `variance_scale_ppm` | no | 0..{PPM} | gate input of the variance scale; likewise |

One row for each (step, lane). **Between its steps**, and for lanes that a step does not list, a script picks {HOLD} (hold): the position
stays as it is, except that the trail stop and the floor may close it; nothing opens it again until a row says so. Steps after the last
decision are never asked for. What is open at the end is closed by the drain. When a step was:

    sim sql --runs RUN "select step, make_timestamp_ns(ts_decided_ns) as decided from steps where lane = 0 order by step limit 20"

## A checkpoint

`sim policy init --seed 7 --out DIR` writes one of an untrained network (`--profile`: {", ".join(PROFILES)}); `sim replay --checkpoint DIR`
plays it greedily: in each branch the choice of greatest value, the mean of what its C51 and its IQN head expect, of equal ones the lowest
code. Conviction is how far the best direction stands above the mean of all, the variance scale 1 / (1 + standard deviation of the picked
one's value), health a number of the checkpoint. A directory holds `manifest.json` (format, kind, fingerprints of the observation's, the
bus's and the network's layouts, architecture, health, how it was trained, shape and SHA-256 of every tensor, content hash) and `tensors.pt`
(weights, signal bus, and the normalisation of the observations that it learned from, which a replay then applies). Loading runs no code.
One of another layout or format, with a tensor too many, too few or changed is refused. A run is known by the content hash, not by the path.

## The {ACTIONS} codes

`code = direction * 27 + magnitude * 9 + order * 3 + urgency`. Magnitude means nothing at hold and flat.

"""


def _codes() -> str:
    heads = [f"{order.name.lower()} {urgency.name.lower()}" for order in OrderKind for urgency in Urgency]
    lines = [f"| | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for direction in Direction:
        for magnitude in Magnitude:
            codes = [str(_code((direction, magnitude, order, urgency))) for order in OrderKind for urgency in Urgency]
            lines.append(f"| **{direction.name.lower()} {magnitude.name.lower()}** | {' | '.join(codes)} |")
    return "\n".join(lines)


def page() -> str:
    """The whole page as Markdown."""
    return _INTRO + _codes() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
