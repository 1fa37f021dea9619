"""The built-in policies: `flat`, `long`, `short`, `random`, `momentum`, `imbalance` and `script:FILE`.

Each is a rule on the observation and the step alone. They ask for full size with a market order, and their gate inputs (conviction, health,
variance scale) are 1: what then shrinks a position are the margin cap, the trail stop and the floor.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from lob.actions import ACTIONS, Direction, Magnitude, OrderKind, Urgency, encode_action
from lob.errors import BadInput, NotFound
from lob.jit import kernel_cpu
from lob.layout import OFFSET
from lob.philox import below, draw
from lob.units import PPM
from policy.diag_columns import NO_VALUES
from policy.protocol import constant_picks
from policy.script import read_script

if TYPE_CHECKING:
    from lob.picks import Picks

ENTER_IMBALANCE = 0.5
"""`imbalance` goes in beyond this displayed imbalance, in its direction."""

RANDOM_PURPOSE = 0x7069636B
"""Philox purpose of the random policy's draws, apart from every other stream of the same seed ("pick")."""


def _code(direction: Direction, magnitude: Magnitude) -> int:
    return int(encode_action.py_func(int(direction), int(magnitude), int(OrderKind.MARKET), int(Urgency.NORMAL)))


LONG, SHORT = _code(Direction.LONG, Magnitude.FULL), _code(Direction.SHORT, Magnitude.FULL)
HOLD, FLAT = _code(Direction.HOLD, Magnitude.QUARTER), _code(Direction.FLAT, Magnitude.QUARTER)


@kernel_cpu
def draw_actions(seed, step, out):
    """Fill int32[lanes] `out` with an action of 0..107 for each lane, uniform, from Philox(seed, lane, step)."""
    for lane in range(out.shape[0]):
        out[lane] = below(draw(seed, lane, step, RANDOM_PURPOSE)[0], ACTIONS)


class Rule:
    """A policy whose action is `pick(observation, step, out)`, written into its buffer; everything else about it is constant."""

    window = 0

    def __init__(self, picks: Picks, identity: dict[str, Any], pick: Callable[[torch.Tensor, int, Picks], None]) -> None:
        self.name: str = identity["name"]
        self._picks, self._identity, self._pick = picks, identity, pick

    def identity(self) -> dict[str, Any]:
        return dict(self._identity)

    def act(self, observation: torch.Tensor, history: torch.Tensor | None, step: int) -> Picks:
        self._pick(observation, step, self._picks)
        return self._picks

    def diagnostics(self) -> dict[str, int | None]:
        return NO_VALUES


def constant(name: str, action: int, lanes: int, device: str) -> Rule:
    """The same action at every step."""
    picks = constant_picks(lanes, device)
    picks.action.fill_(action)
    return Rule(picks, {"name": name}, lambda observation, step, out: None)


def random(seed: int, lanes: int, device: str) -> Rule:
    """Uniform over the 108 actions; a lane's action depends on seed, lane and step alone."""
    host = torch.zeros(lanes, dtype=torch.int32)
    # Through int64's two's complement: numba types a seed of 2^63 and more as unsigned and would mix signs.
    signed = seed - 2**64 if seed >= 2**63 else seed

    def pick(observation: torch.Tensor, step: int, out: Picks) -> None:
        draw_actions(signed, step, host.numpy())
        out.action.copy_(host)

    return Rule(constant_picks(lanes, device), {"name": "random", "purpose": RANDOM_PURPOSE}, pick)


def momentum(lanes: int, device: str, zero: float) -> Rule:
    """Long while `momentum_60` is above zero, short while it is below, hold at exactly zero. `zero` is 0 in the observation's units."""
    slot, level = OFFSET["momentum_60"], _float32(zero)

    def pick(observation: torch.Tensor, step: int, out: Picks) -> None:
        value = observation[:, slot]
        out.action.fill_(HOLD)
        out.action.masked_fill_(value > level, LONG).masked_fill_(value < level, SHORT)

    return Rule(constant_picks(lanes, device), {"name": "momentum", "slot": "momentum_60"}, pick)


def imbalance(lanes: int, device: str, zero: float, enter_long: float, enter_short: float) -> Rule:
    """In at |imbalance_10| > 0.5 in its direction, flat when it changes sign against the position, else hold.

    The position comes from the observation (`position_sign`), so the rule keeps no state. The levels are 0, +0.5 and -0.5 in the
    observation's units. A position already in the direction of the imbalance is held, not resized.
    """
    identity = {"name": "imbalance", "slot": "imbalance_10", "enter_ppm": int(ENTER_IMBALANCE * PPM)}
    slot, sign = OFFSET["imbalance_10"], OFFSET["position_sign"]
    middle, upper, lower = _float32(zero), _float32(enter_long), _float32(enter_short)

    def pick(observation: torch.Tensor, step: int, out: Picks) -> None:
        value, position = observation[:, slot], observation[:, sign]
        out.action.fill_(HOLD)
        turned = ((position > 0) & (value < middle)) | ((position < 0) & (value > middle))
        out.action.masked_fill_(turned, FLAT)
        out.action.masked_fill_((value > upper) & (position <= 0), LONG).masked_fill_((value < lower) & (position >= 0), SHORT)

    return Rule(constant_picks(lanes, device), identity, pick)


def script(path: Path, lanes: int, device: str) -> Rule:
    """The actions of a CSV file (`policy.script`); hold at steps and lanes that it does not list."""
    plan = read_script(path, lanes)
    host = constant_picks(lanes, "cpu")

    def pick(observation: torch.Tensor, step: int, out: Picks) -> None:
        plan.fill(step, HOLD, [values.numpy() for values in host])
        for target, source in zip(out, host, strict=True):
            target.copy_(source)

    return Rule(constant_picks(lanes, device), {"name": "script", "sha256": plan.sha256, "rows": plan.rows}, pick)


NAMES = ("flat", "long", "short", "random", "momentum", "imbalance", "script:FILE")


def make(spec: str, seed: int, lanes: int, device: str = "cpu", mean: Any = None, std: Any = None) -> Rule:
    """The built-in policy that `spec` names, for `lanes` lanes.

    `mean` and `std` (float64[128]) are the normalisation of the observations that it will see: a rule's level of +0.5 is meant before it.
    Raises NotFound for an unknown name, BadInput for a script that cannot be used.
    """

    def level(slot: str, value: float) -> float:
        return value if mean is None or std is None else (value - float(mean[OFFSET[slot]])) / float(std[OFFSET[slot]])

    if not 1 <= lanes < 2**31:
        raise BadInput(f"{lanes} lanes: a run has at least one lane")
    if spec.startswith("script:"):
        return script(Path(spec.removeprefix("script:")), lanes, device)
    match spec:
        case "flat":
            return constant("flat", FLAT, lanes, device)
        case "long":
            return constant("long", LONG, lanes, device)
        case "short":
            return constant("short", SHORT, lanes, device)
        case "random":
            return random(seed, lanes, device)
        case "momentum":
            return momentum(lanes, device, level("momentum_60", 0.0))
        case "imbalance":
            levels = (level("imbalance_10", value) for value in (0.0, ENTER_IMBALANCE, -ENTER_IMBALANCE))
            return imbalance(lanes, device, *levels)
    raise NotFound(f"there is no policy {spec!r}: choose one of {', '.join(NAMES)}, or give a checkpoint directory")


TABULATED = ("flat", "long", "short", "momentum", "imbalance")
"""Rules that look at the market of a row and at the sign of the lane's position alone."""


TABLE_ROWS = 2**16
"""Rows that a rule is asked about at once: 32 MiB of observations, whatever the market's length."""


def tabulate(spec: str, observations: torch.Tensor, mean: Any = None, std: Any = None) -> torch.Tensor:
    """int32[R, 3]: what a rule of TABULATED picks on each of float32[R, 128] market rows for a lane that is short, flat and long: asked of
    the rule itself, once a sign. Raises NotFound."""
    if spec not in TABULATED:
        raise NotFound(f"the policy {spec!r} has no table of its picks: {', '.join(TABULATED)} have one")
    table = torch.empty((len(observations), 3), dtype=torch.int32)
    for rows, picked in zip(observations.split(TABLE_ROWS), table.split(TABLE_ROWS), strict=True):
        rule, seen = make(spec, 0, len(rows), mean=mean, std=std), rows.clone()
        for sign in (-1, 0, 1):
            seen[:, OFFSET["position_sign"]] = sign
            picked[:, sign + 1] = rule.act(seen, None, 0).action
    return table


def _float32(value: float) -> float:
    """The value as the float32 observation would hold it, so that a comparison meets equal numbers as equal."""
    return float(torch.tensor(value, dtype=torch.float32))
