"""Accounts that begin and end by word of a caller: what the Gymnasium and the TorchRL form of the environment share.

An *episode* is one account on one window, a session or the part of it that was asked for. It begins with the capital and nothing else, and
ends terminated by the capital floor, or truncated by the window's drain (docs/step.md): the step after the last decision, whose action is
not read and in which what is open closes. Nothing here waits for the device.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cuda_env import state as s
from cuda_env.env import Env
from cuda_env.step import START_PURPOSE
from lob.actions import ACTIONS, Direction, Magnitude, OrderKind, Phase, Urgency, encode_action
from lob.errors import BadInput
from lob.windows import decision_rows
from policy.draws import below, draw
from policy.protocol import constant_picks
from sim.episode_options import plan_episodes
from sim.replay import account_notes, market_notes
from sim.tape import load

if TYPE_CHECKING:
    from sim.config import RunConfig
    from sim.tape import Loaded

BRANCHES = (len(Direction), len(Magnitude), len(OrderKind), len(Urgency))
"""Choices of the four branches of an action, in the order of `lob.actions.encode_action`."""

FORMS = ("branches", "codes")
"""How an action is written: four numbers (direction, magnitude, order, urgency), or one code 0..107."""

SEEDS = 2**64
"""Seeds are below this, as everywhere in the house."""


class Episodes:
    """`lanes` accounts on the windows of one market, each in an episode of its own. All tensors are of `lanes`, on `device`.

    `terminated`, `truncated` (bool): how the episode that a lane is in has ended; they stay until `begin`. `over` (bool): it has ended, or
    none has begun. Of the last step are `earned_usd_micros` int64, `decided` bool and `end_reason` int8 (`lob.actions.EndReason`); a lane
    that was over earned 0, decided nothing, and its reason is NOT_PLAYED.

    With random starts episode e of lane i, counted since the last seed, begins at the row that `Env(restarts=seed)` draws for it. Made
    twice, it is two worlds that share nothing but what is never written.
    """

    def __init__(self, loaded: Loaded, config: RunConfig, device: str = "cpu") -> None:
        phase = Phase[config.phase.upper()]
        self.env = Env(
            loaded.tape, loaded.schedule, loaded.features, config.env, config.lanes, phase, device,
            emit=(), threads=config.execution.threads, diag=False,
        )  # fmt: skip
        self.notes = (*market_notes(loaded.tape, loaded.schedule), *loaded.notes, *account_notes(config))
        self.config, self.lanes, self.seed, self.device = config, config.lanes, config.seed, self.env.device
        self.picks = constant_picks(self.lanes, device)
        self.terminated, self.truncated = (torch.zeros(self.lanes, dtype=torch.bool, device=device) for _ in range(2))
        self.over = torch.ones_like(self.terminated)
        self._everyone = torch.ones_like(self.terminated)
        self._lane_ids = torch.arange(self.lanes, device=device)
        self._episode = torch.full_like(self._lane_ids, -1)
        self._first_rows = self.env.row.clone()
        self._drawn_from = torch.from_numpy(decision_rows(loaded.schedule)).to(device) if config.phase == "train" else None

    # --- what happened ---

    @property
    def earned_usd_micros(self) -> torch.Tensor:
        return self.env.reward_raw

    @property
    def decided(self) -> torch.Tensor:
        return self.env.decided

    @property
    def end_reason(self) -> torch.Tensor:
        return self.env.end_reason

    @property
    def equity_usd_micros(self) -> torch.Tensor:
        """int64: of each account, now."""
        return self.env.state[s.EQUITY, : self.lanes]

    def observe(self) -> torch.Tensor:
        """float32[lanes, 128], a new tensor: what each lane sees now; of a lane that is over, the last that it saw."""
        self.env.observe()
        ended = (self.terminated | self.truncated)[:, None]
        return torch.where(ended, self.env.last_observation, self.env.observation)

    # --- what may be done ---

    def begin_all(self, seed: int | None = None) -> None:
        """The next episode of every lane; with a seed, its first. Raises BadInput for a seed that is none."""
        if seed is not None:
            if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
                raise BadInput(f"seed {seed!r} is not a whole number of 0 to 2^64-1")
            self.seed = seed
            self._episode.fill_(-1)
        self.begin(self._everyone)

    def begin(self, mask: torch.Tensor) -> None:
        """The next episode of the lanes of a bool[lanes] mask."""
        self._episode += mask
        self.env.reset(mask, self._starts())
        for flag in (self.over, self.terminated, self.truncated):
            flag &= ~mask

    def step(self, codes: torch.Tensor) -> None:
        """One decision of every lane: codes int[lanes] of 0..107, of which those of lanes that are over are not read.

        On the CPU raises BadInput for a code out of range, before anything has moved; on CUDA `check` tells of it.
        """
        if self.device.type == "cpu":
            self._refuse(codes)
        self.picks.action.copy_(codes)
        self.env.step(self.picks)
        self.terminated |= self.env.terminated
        self.truncated |= self.env.truncated
        self.over |= self.terminated | self.truncated

    def check(self) -> None:
        """Raise BadInput for a fault that a lane has met on the device, which this waits for."""
        self.env.check()

    def _refuse(self, codes: torch.Tensor) -> None:
        wrong = ((codes < 0) | (codes >= ACTIONS)) & ~self.over
        if wrong.any():
            lane = int(wrong.nonzero()[0])
            raise BadInput(f"lane {lane}: action {int(codes[lane])} is outside 0..{ACTIONS - 1}")

    def _starts(self) -> torch.Tensor:
        """int64[lanes]: where each lane's present episode begins."""
        if self._drawn_from is None:
            return self._first_rows
        words = draw(self.seed, self._lane_ids, self._episode, START_PURPOSE, 1)[0][0]
        return self._drawn_from[below(words, len(self._drawn_from))]


def code_of(branches: Any) -> Any:
    """The codes [n] of actions [n, 4] (tensor or array of integers), -1 where a branch has no such choice."""
    code, fits = encode_action.py_func(*(branches[..., i] for i in range(len(BRANCHES)))), True
    for i, size in enumerate(BRANCHES):
        fits = fits & (branches[..., i] >= 0) & (branches[..., i] < size)
    return fits * (code + 1) - 1


def make_episodes(
    store: str | Path,
    instrument: str,
    start: str,
    end: str,
    lanes: int,
    device: str = "cpu",
    rebuild_features: bool = False,
    **options: Any,
) -> Episodes:
    """The accounts that a user's words ask for (`sim.episode_options.MarketOptions`). Raises BadInput, NotFound, StaleCache."""
    store = Path(store)
    config = plan_episodes(store, instrument, start, end, lanes, **options)
    return Episodes(load(store, config, rebuild_features), config, device)


def check_form(actions: str) -> None:
    """Raises BadInput when `actions` names no way to write an action."""
    if actions not in FORMS:
        raise BadInput(f"actions {actions!r}: choose {' or '.join(FORMS)}")
