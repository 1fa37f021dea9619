"""Prioritised replay on the device: a ring of [steps, lanes] compact records, drawn in proportion to integer priorities.

A record holds tape rows and the lane's own sixteen slots, not observations: the environment's one assembler rebuilds those. Everything
that changes between two steps lies in tensors that keep their addresses, so that `add`, `sample` and `update` can be captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from lob.errors import BadInput, ForeignCheckpoint
from policy import replay_kernels as k
from policy.launch import Launcher, in_order

Assemble = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(rows int64[n], lane rows float32[n, 16]) -> observations float32[n, 128]."""
History = Callable[[int, torch.Tensor], torch.Tensor]
"""(W, rows int64[n]) -> market slots of the W rows up to each, float32[n, W, 96]."""


class Sample(NamedTuple):
    """What one batch drew, slots ascending. The tensors are the memory's own, overwritten by the next sample."""

    slots: torch.Tensor  # int64[batch]
    generation: torch.Tensor  # int32[batch]: how many steps were written before the slot's; tells a slot from its overwritten self
    priority: torch.Tensor  # int64[batch]
    weights: torch.Tensor  # float32[batch]: importance weights, the greatest of the batch 1; all 0 from an empty memory
    action: torch.Tensor  # int32[batch]
    returns: torch.Tensor  # float32[batch]: sum of gamma^k r_k over the window
    discount: torch.Tensor  # float32[batch]: gamma^taken, 0 where the window ends in a termination
    taken: torch.Tensor  # int32[batch]: decisions in the window, 1..n
    row: torch.Tensor  # int64[batch]: tape row of the observation
    lane_row: torch.Tensor  # float32[batch, 16]
    next_row: torch.Tensor  # int64[batch]: of the observation that the bootstrap reads
    next_lane_row: torch.Tensor  # float32[batch, 16]
    label_row: torch.Tensor  # int64[batch]: of the observation one decision later, whatever n
    episode: torch.Tensor  # int32[batch]
    step: torch.Tensor  # int32[batch]
    last_slots: torch.Tensor  # int64[batch]: the last record of the window


class Batch(NamedTuple):
    """A sample with its observations reassembled."""

    sample: Sample
    observation: torch.Tensor  # float32[batch, 128]
    history: torch.Tensor | None  # float32[batch, W, 96]; None without a window
    next_observation: torch.Tensor  # float32[batch, 128]
    next_history: torch.Tensor | None
    label: torch.Tensor  # float32[batch]: slot 0 of the observation one decision later


class _Drawn(NamedTuple):
    slots: Any
    last: Any
    priority: Any
    taken: Any
    returns: Any
    discount: Any


class Memory:
    """`lanes` x `steps` records; one `add` writes a record for every lane and overwrites the oldest.

    `alpha` is the exponent of the priorities, fixed for the memory's life: leaves of two exponents would mix two distributions. Draws are
    Philox's, named by `seed` and by the number of batches drawn. Raises BadInput on sizes out of range.
    """

    def __init__(self, lanes: int, steps: int, batch: int, n_step: int, alpha: float, seed: int, device: str = "cpu") -> None:
        if min(lanes, steps, batch, n_step) < 1:
            raise BadInput(f"replay of {lanes} lanes, {steps} steps, batches of {batch}, n-step {n_step}: each must be at least 1")
        if lanes * steps > k.CAPACITY_LIMIT:
            raise BadInput(f"replay of {lanes} lanes x {steps} steps: {k.CAPACITY_LIMIT} records at most; use fewer steps")
        if not 0 <= alpha <= 1:
            raise BadInput(f"replay alpha {alpha}: must lie within 0..1")
        self.lanes, self.steps, self.batch, self.n_step, self.alpha, self.seed = lanes, steps, batch, n_step, alpha, seed
        self.capacity = lanes * steps
        self.device = torch.device(device)
        sizes = _level_sizes(self.capacity)
        first = [sum(sizes[:i]) for i in range(len(sizes))]

        def full(shape, value, dtype):
            # Filled, so that every page is touched now: a machine too small for the memory says so at the start.
            return torch.full(shape, value, dtype=dtype, device=self.device)

        self._params = torch.tensor(
            [seed - 2**64 if seed >= 2**63 else seed, lanes, steps, n_step, batch, len(sizes), *first], device=self.device
        )
        self._alpha = full((1,), alpha, torch.float64)
        self.words = full((self.capacity, k.WORDS), 0, torch.int32)
        self.words[:, k.WRITTEN] = k.NEVER
        self.sums = full((sum(sizes),), 0, torch.int64)
        self.written = full((1,), 0, torch.int64)
        self.drawn = full((1,), 0, torch.int64)
        self.greatest = full((1,), k.PRIORITY_ONE, torch.int64)
        self.dropped = full((1,), 0, torch.int64)
        self._stage = full((lanes, k.WORDS), 0, torch.int32)
        self._stage_floats = self._stage.view(torch.float32)
        self._gamma = full((1,), 1.0, torch.float64)
        long, real, int32 = torch.int64, torch.float32, torch.int32
        self._out = _Drawn(*(full((batch,), 0, dtype) for dtype in (long, long, long, int32, real, real)))
        self._marked = full((batch,), 0, torch.int64)
        self._errors = full((batch,), 0, torch.float32)
        self._slots, self._generation = full((batch,), 0, torch.int64), full((batch,), 0, torch.int32)
        self._runner = (_CudaRunner if self.device.type == "cuda" else _CpuRunner)(self, sizes)

    @property
    def bytes(self) -> int:
        """Bytes that records and sums occupy."""
        return self.words.nbytes + self.sums.nbytes

    @property
    def leaves(self) -> torch.Tensor:
        """int64[capacity]: the priority of every slot (step-major: slot = step * lanes + lane), a view."""
        return self.sums[: self.capacity]

    @property
    def total(self) -> torch.Tensor:
        """int64[1]: the sum of all priorities, a view."""
        return self.sums[-1:]

    def add(
        self,
        row: torch.Tensor,
        lane_row: torch.Tensor,
        action: torch.Tensor,
        reward: torch.Tensor,
        next_row: torch.Tensor,
        next_lane_row: torch.Tensor,
        terminated: torch.Tensor,
        ends: torch.Tensor,
        valid: torch.Tensor,
        episode: torch.Tensor,
        step: torch.Tensor,
    ) -> None:
        """One decision of every lane. [lanes] each, the lane rows float32[lanes, 16]; types are converted.

        `ends`: the episode ended, by termination or truncation; the next row is then the ended episode's own last observation. `valid` is
        false where the lane did not decide: that record can never be drawn.
        """
        stage = self._stage
        integers = ((k.ROW, row), (k.ACTION, action), (k.NEXT_ROW, next_row), (k.EPISODE, episode), (k.STEP, step))
        for place, values in integers:
            stage[:, place].copy_(values)
        stage[:, k.FLAGS].copy_(valid.int() * k.VALID + terminated.int() * k.TERMINATED + ends.int() * k.ENDS)
        floats = self._stage_floats
        floats[:, k.REWARD].copy_(reward)
        floats[:, k.LANE_ROW : k.NEXT_LANE_ROW].copy_(lane_row)
        floats[:, k.NEXT_LANE_ROW :].copy_(next_lane_row)
        self._runner.store()
        self.written += 1

    def sample(self, gamma: torch.Tensor, beta: torch.Tensor) -> Sample:
        """Draw a batch, one record from each of `batch` equal strata of the total priority. `gamma`, `beta` are float32[].

        Importance weights are (least priority of the batch / priority)^beta: (1 / N P(i))^beta over its maximum, from the same integers.
        """
        self._gamma.copy_(gamma)
        self._runner.sample()
        self.drawn += 1
        out = self._out
        begin = self.words.index_select(0, out.slots)
        end = self.words.index_select(0, out.last)
        ratio = out.priority.amin().double() / out.priority.clamp(min=1)
        return Sample(
            slots=out.slots,
            generation=begin[:, k.WRITTEN],
            priority=out.priority,
            weights=torch.where(out.priority > 0, ratio.pow(beta), 0.0).float(),
            action=begin[:, k.ACTION],
            returns=out.returns,
            discount=out.discount,
            taken=out.taken,
            row=begin[:, k.ROW].long(),
            lane_row=begin[:, k.LANE_ROW : k.NEXT_LANE_ROW].view(torch.float32),
            next_row=end[:, k.NEXT_ROW].long(),
            next_lane_row=end[:, k.NEXT_LANE_ROW :].view(torch.float32),
            label_row=begin[:, k.NEXT_ROW].long(),
            episode=begin[:, k.EPISODE],
            step=begin[:, k.STEP],
            last_slots=out.last,
        )

    def observations(self, sample: Sample, assemble: Assemble, history: History, width: int) -> Batch:
        """The sample's observations, from the environment's own assembler, with histories of `width` rows (None for 0)."""
        observation = assemble(sample.row, sample.lane_row)
        next_observation = assemble(sample.next_row, sample.next_lane_row)
        # Slot 0 is the market's, so any lane row will do; with windows of one decision it is in the next observation already.
        after_one = next_observation if self.n_step == 1 else assemble(sample.label_row, sample.lane_row)
        past, next_past = (history(width, rows) if width else None for rows in (sample.row, sample.next_row))
        return Batch(sample, observation, past, next_observation, next_past, after_one[:, 0])

    def update(self, sample: Sample, errors: torch.Tensor) -> None:
        """New priorities max(1, round(error^alpha * 2^20)) for a sample's slots; `errors` is float[batch], >= 0.

        Of equal slots the last entry counts. An entry whose slot was overwritten since, or whose error is not finite, is dropped and
        counted in `dropped`.
        """
        self._slots.copy_(sample.slots)
        self._generation.copy_(sample.generation)
        self._errors.copy_(errors)
        self._runner.mark()
        torch.maximum(self.greatest, self._marked.amax(), out=self.greatest)
        self.dropped += (self._marked < 0).sum()

    def state_dict(self) -> dict[str, Any]:
        """Everything that goes on, in copies: settings as numbers, the rest as tensors on the CPU."""
        tensors = {name: tensor.to("cpu", copy=True) for name, tensor in self._kept().items()}
        return {"settings": self._settings(), **tensors}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state, copying. Raises ForeignCheckpoint where settings, names, shapes or types are not this memory's."""
        kept = self._kept()
        if set(state) != {"settings", *kept}:
            raise ForeignCheckpoint(f"replay state holds {sorted(state)}, not {sorted({'settings', *kept})}; make it anew")
        if state["settings"] != self._settings():
            raise ForeignCheckpoint(
                f"replay state was made with {state['settings']}, this memory is {self._settings()}; resume with the same settings"
            )
        for name, tensor in kept.items():
            if state[name].shape != tensor.shape or state[name].dtype != tensor.dtype:
                raise ForeignCheckpoint(f"replay state's {name} does not fit this memory; use the checkpoint that the run wrote")
        for name, tensor in kept.items():
            tensor.copy_(state[name])
        self._runner.rebuild()

    def _kept(self) -> dict[str, torch.Tensor]:
        return {
            "words": self.words,
            "leaves": self.leaves,
            "written": self.written,
            "drawn": self.drawn,
            "greatest": self.greatest,
            "dropped": self.dropped,
        }

    def _settings(self) -> dict[str, int | float]:
        names = ("lanes", "steps", "batch", "n_step", "alpha", "seed")
        return {name: getattr(self, name) for name in names}


def _level_sizes(capacity: int) -> list[int]:
    """Nodes of each level of the sum tree, leaves first, every level but the root padded to whole families."""
    sizes = [-(-capacity // k.FAN) * k.FAN]
    while (parents := sizes[-1] // k.FAN) > 1:
        sizes.append(-(-parents // k.FAN) * k.FAN)
    return [*sizes, 1]


class _CpuRunner:
    """Calls the compiled loops on the tensors' own memory."""

    def __init__(self, memory: Memory, sizes: list[int]) -> None:
        m = memory
        sums, words, floats = m.sums.numpy(), m.words.numpy(), m.words.view(torch.float32).numpy()
        params, written, stage = m._params.numpy(), m.written.numpy(), m._stage.numpy()
        drawn, gamma, greatest, alpha = m.drawn.numpy(), m._gamma.numpy(), m.greatest.numpy(), m._alpha.numpy()
        out = _Drawn(*(tensor.numpy() for tensor in m._out))
        update = tuple(tensor.numpy() for tensor in (m._slots, m._generation, m._errors, m._marked))
        self.store = lambda: k.store(sums, words, stage, params, written, greatest)
        self.sample = lambda: k.sample(sums, words, floats, params, drawn, gamma, out)
        self.mark = lambda: k.mark(sums, words, params, alpha, *update)
        self.rebuild = lambda: k.rebuild(sums, params)


class _CudaRunner:
    """Launches the kernels, one level of the tree after the other."""

    def __init__(self, memory: Memory, sizes: list[int]) -> None:
        from policy import replay_cuda as kernels

        m, block = memory, kernels.THREADS
        self._sums, self._sizes = m.sums, sizes
        floats = m.words.view(torch.float32)
        update = (m._slots, m._generation, m._errors, m._marked)
        launch = Launcher(m.device)
        self.sample = launch.bind(kernels.sample, m.batch, block, m.sums, m.words, floats, m._params, m.drawn, m._gamma, m._out)
        mark = [launch.bind(kernels.mark, m.batch, block, m.sums, m.words, m._params, m._alpha, *update)]
        leaf = (m.sums, m.words, m._stage, m._params, m.written, m.greatest)
        store = [launch.bind(kernels.store, m.lanes * k.WORDS, block, *leaf)]
        for level in range(1, len(sizes)):
            number = torch.tensor([level], device=m.device)
            above = m.lanes // k.FAN**level + 2  # a row of lanes reaches into one more family at each end at most
            store.append(launch.bind(kernels.refresh_above_row, above, block, m.sums, m._params, m.written, number))
            mark.append(launch.bind(kernels.refresh_above_batch, m.batch, block, m.sums, m._params, m._slots, number))
        self.mark, self.store = in_order(mark), in_order(store)

    def rebuild(self) -> None:
        """Every node above the leaves, by torch: integer sums are exact in any order."""
        at = 0
        for size, above in zip(self._sizes, self._sizes[1:], strict=False):
            level = self._sums[at : at + size].view(-1, k.FAN).sum(dim=1)
            at += size
            self._sums[at : at + above].zero_()[: len(level)].copy_(level)
