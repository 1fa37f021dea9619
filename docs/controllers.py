"""Writes docs/controllers.md from the declarations of bus, health, controls, rewards and bands: `python -m docs.controllers`. A test holds
the page to them."""

from pathlib import Path

from lob.layout import BUS_SLOTS
from policy import bands
from policy.diag_columns import REWARD_TERMS
from policy.explore import EPSILON_FLOOR, PASSIVE_CEILING
from policy.health import ControlConfig, responses
from policy.health_kernels import PARTS
from policy.lane_kernels import WHITEN_WEIGHT
from policy.rewards import RewardConfig
from policy.signals import FAST, IN_USE, LABEL_SCALE_WEIGHT, SLOTS, SLOW

PAGE = Path(__file__).resolve().parent / "controllers.md"

_INTRO = f"""# Signals, controllers, rewards

Written by `python -m docs.controllers` from `policy/signals.py`, `policy/health.py`, `policy/rewards.py`, `policy/bands.py`.

## How it hangs together

The **signal bus** is float32[{BUS_SLOTS}] on the device. What learning and picking measure is averaged into its slots; health and every
control are computed from them; selection and learning read their controls as views of the same memory. So the bus, two clocks and the
counts of picks are all that controllers remember: a checkpoint that holds them resumes as if never stopped. Slots without a use are named
`unused_NNN` and are 0. The network sees asinh of the whole bus. `diag` has a column `signal.<name>` for every slot in use.

A training step calls, in this order: `select` (reads the controls), the environment, `LanePass` (rewards, and what is counted of the
lanes), `Controllers.observe_step`, the learner (`observe_labels` before its forward pass), `observe_update`, `update`. Nothing of it looks
at the host. `spectral_gap` alone is measured now and then, between two steps (`observe_features`).

An **EMA** moves by `w * (value - slot)`, and by `1 / (n + 1)` of it for the n-th value while that is more: a plain mean at first, so that
no invented start can bias it. A value that is not finite, or a share of nothing, moves nothing. w is {FAST:g} ({SLOW:g} for
`loss_slow`); the label scale alone starts at its reset value and moves by {LABEL_SCALE_WEIGHT:g} from the first batch on.

**No deadlock.** A control is `base * (1 - amplitude * ...)` with an amplitude below 1, so no state of health shuts it; no component of
health is multiplied by a control; the less a policy trades, the more it is made to try. Tests start from a bus of zeros, and from the worst
figures a run can give, and see everything open again. (A seed's readiness gate waited for the progress that it held back, and stayed shut.)

## Learning health

`learning_health` is the weighted mean of seven components, each within 0 and 1, none of them sensitive to the unit of rewards. Physics
takes it as whole parts per million (`health_ppm`): the floor and the safety of the Kelly cap are 0.5 + 0.5 health.

| component | weight | formula | why as much |
|---|---|---|---|
"""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _row(*cells: str) -> str:
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _settings(config: type, skip: tuple[str, ...] = ()) -> list[str]:
    rows = ["| setting | default | what |", "|---|---|---|"]
    rows += [
        _row(f"`{name}`", f"{field.default}", (field.description or "").strip())
        for name, field in config.model_fields.items()
        if name not in skip
    ]
    return rows


def _controls() -> list[str]:
    rows = ["| control | follows | from | to |", "|---|---|---|---|"]
    for row in responses(ControlConfig()):
        low, high = sorted((row.offset, row.offset + row.slope))
        rows.append(_row(f"`{row.control}`", f"`{row.drive}`" if row.slope else "nothing", f"{low:.6g}", f"{high:.6g}"))
    return rows


def _signals() -> list[str]:
    rows = ["| slot | name | at a reset | holds | read by | why |", "|---|---|---|---|---|---|"]
    for i in IN_USE:
        slot = SLOTS[i]
        kind = f"EMA: {slot.holds}" if 0 < slot.weight < 1 else slot.holds
        rows.append(_row(str(i), f"`{slot.name}`", f"{slot.reset:.6g}", kind, slot.read_by, slot.reason))
    return rows


def _bound(below: float | None, above: float | None) -> str:
    stated = [("<", below), (">", above)]
    return " or ".join(f"{sign} {bound:g}" for sign, bound in stated if bound is not None) or "-"


def _bands() -> list[str]:
    rows = ["| metric | warning | error | why |", "|---|---|---|---|"]
    for name, band in bands.BANDS.items():
        warning, error = _bound(band.warn_below, band.warn_above), _bound(band.error_below, band.error_above)
        rows.append(_row(f"`{name}`", warning, error, band.reason))
    return rows


def _terms() -> list[str]:
    return ["| term | what |", "|---|---|", *(_row(f"`{name}`", doc) for name, doc in REWARD_TERMS.items())]


def page() -> str:
    """The whole page as Markdown."""
    parts = [_row(f"`{name}`", f"{part.percent} %", part.formula, part.reason) for name, part in PARTS.items()]
    table = "\n".join
    return f"""{_INTRO}{table(parts)}

## Controls

What each one moves between at the default settings (section `control`):

{table(_controls())}

The four shares of the gradient budget sum to 1: `share_iqn` is `iqn_ratio` of what `share_cql` and `share_aux` leave, `share_c51` the rest.

{table(_settings(ControlConfig))}

Exploration has a section of its own, `select`. `epsilon` is half a cosine from start to end, never below {EPSILON_FLOOR:g}; the
direction's never below {PASSIVE_CEILING:g} of `passive_pressure`, so that a policy that stopped trading tries again.
`tau_floor.direction` is at least `tau_reference * q_dir_abs_ref`; conviction is the best direction's advantage over the mean one, over
`conviction_scale`. Evaluation and replay read neither epsilon nor bonus.

## The slots

{len(IN_USE)} of {BUS_SLOTS} are in use. The start of a fold puts all of them back (`policy/fold.py`).

{table(_signals())}

## Rewards

Four tensors, none computed in place of another: **raw** is the exact change of equity in micro-dollars; **shaped** is raw in dollars plus
the weighted terms; **scaled** is shaped over the account's `reward_scale_usd_micros`; **whitened**, which replay stores, is scaled over
the root mean square of the scaled rewards of lanes that held a position (all so far, then an EMA of {WHITEN_WEIGHT:g}; squares are
summed as whole multiples of 2^-24, so that no order of lanes matters) times the root of the horizon, so that returns have a deviation of 1.
No dollar of the log comes from any but the first. Terms are
about 1 for a full position; a weight is what a unit is worth in scaled reward. Each term is computed, and its sum logged
(`reward.<term>_ppm_sum`), at any weight.

{table(_terms())}

There is **no inventory penalty** (J4): a cost for holding a position makes flat the best policy, which a test shows. Idleness is charged
instead, with the edge that the policy itself predicts, so that no hindsight enters. `potential` alone leaves the best policy as it is (Ng,
Harada and Russell 1999): Phi is the position's share of `max_lots` times `imbalance_10`, and 0 after a termination. A test shows that on a
five-state problem, and that paying for the state itself fails the same check. Micro-rewards of alternating bars cancel over several
steps: why n is 1.

{table(_settings(RewardConfig))}

## What ends a run

Once a block of the log, each metric's mean is held against its band. {bands.TERMINAL} errors in a row end the run; a warning never does. A
streak writes an event when it begins, at {bands.PERSISTENT} and at {bands.TERMINAL}. A metric that is not finite is an error, one that is
null leaves its streak as it is. `support.filled` is `q_dir_abs_ref` over `v_half`, `experts.least_used` the least `expert_use`.

{table(_bands())}

The run also ends when the gradient's mean norm at least doubles in each of {bands.ESCALATIONS} blocks and then stands more than
{bands.ABOVE_ORDINARY:g} times above the median of the blocks before. Either way a checkpoint is saved first. The start of a fold forgets
streaks and norms.
"""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
