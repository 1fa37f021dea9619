"""Blocks of the log on a real CUDA device: steps that a graph holds are logged as the CPU logs them. Skipped where there is no device."""

import pytest
import torch

from cuda_env.blocks import NULL, BlockLog
from lob.errors import BadInput
from lob.picks import Picks
from tests.env_builds import CASES, Njit, make_env, random_inputs
from tests.test_env_blocks import EXTRA, LEVELS, assert_same_rows, joined, one_by_one
from tests.test_env_cuda import MANY, on_device

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
]


def put_sums(block, picks):
    """Vectors that follow from the picks: int64 sums, one of them null when even, and float64 values."""
    total = picks.action.sum()
    block.put(torch.stack([torch.where(total % 2 == 0, NULL, total), total + 1]))
    block.put(torch.stack([total.to(torch.float64) / 4, -total.to(torch.float64)]))


def wanted_rows(case, level, count):
    """The rows of the first `count` steps on the CPU, a step at a time, with what `put_sums` puts."""
    env = make_env(case, emit=LEVELS[level])
    block, singles = BlockLog(env, 1, EXTRA), []
    for inputs in random_inputs(case, env.schedule.decisions)[:count]:
        Njit(env).step(inputs)
        put_sums(block, Picks(*(torch.from_numpy(row) for row in inputs)))
        block.capture()
        single, drained = one_by_one(env), block.drain()
        for column in EXTRA:
            single["diag"][column.name] = drained["diag"][column.name]
        singles.append(single)
    return joined(singles)


@pytest.mark.parametrize("level", LEVELS)
def test_a_captured_step_is_logged_as_the_cpu_logs_it(level):
    env = make_env(MANY, device="cuda", emit=LEVELS[level])
    inputs = random_inputs(MANY, env.schedule.decisions)
    played = on_device(inputs)
    block = BlockLog(env, 16, EXTRA)
    clock = torch.zeros(1, dtype=torch.int64, device="cuda")
    row = torch.zeros((1, *inputs.shape[1:]), dtype=torch.int32, device="cuda")
    picks = Picks(*row[0])

    def one():
        torch.index_select(played, 0, clock, out=row)
        env.observe()
        env.step(picks)
        put_sums(block, picks)
        block.capture()
        clock.add_(1)

    begun = [tensor.clone() for tensor in (env.state, *env.world.sums)]
    env.stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(env.stream):
        for _ in range(2):  # loads every module: that is not allowed during capture
            one()
    block.fetch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=env.stream):
        one()
    for tensor, before in zip((env.state, *env.world.sums), begun, strict=True):
        tensor.copy_(before)
    clock.zero_()
    torch.cuda.synchronize()

    count, parts = 40, []
    for step in range(count):
        with torch.cuda.stream(env.stream):
            graph.replay()
        if (step + 1) % 16 == 0 or step == count - 1:
            parts.append(block.drain())
    assert [len(part["diag"]["step"]) for part in parts] == [16, 16, 8]
    assert_same_rows(joined(parts), wanted_rows(MANY, level, count))


def test_the_device_plays_on_while_the_host_makes_columns():
    env, reference = make_env(MANY, device="cuda"), make_env(MANY)
    inputs = random_inputs(MANY, reference.schedule.decisions)[:12]
    block, parts, singles = BlockLog(env, 4), [], []
    fetched = None
    for step, row in enumerate(inputs, 1):
        env.step(Picks(*on_device(row)))
        block.capture()
        if step % 4 == 0:
            if fetched is not None:
                parts.append(block.columns(fetched))
            fetched = block.fetch()
        Njit(reference).step(row)
        singles.append(one_by_one(reference))
    parts.append(block.columns(fetched))
    assert_same_rows(joined(parts), joined(singles))


def test_a_step_too_many_is_told_at_the_drain_and_writes_nothing():
    env = make_env(MANY, device="cuda")
    block = BlockLog(env, 2)
    for row in random_inputs(MANY, 3):
        env.step(Picks(*on_device(row)))
        block.capture()
    with pytest.raises(ValueError, match="3 steps were captured in a block of 2, and 1 are lost"):
        block.drain()


def test_a_fault_is_told_at_the_drain():
    env = make_env(MANY, device="cuda")
    block = BlockLog(env, 2)
    inputs = random_inputs(MANY, 1)
    inputs[0, 0, 777] = 108
    env.step(Picks(*on_device(inputs[0])))
    block.capture()
    with pytest.raises(BadInput, match=r"^lane 777, step 0: the action is outside"):
        block.drain()


def test_the_buffers_hold_the_most_rows_that_a_block_can_write():
    env = make_env(CASES[0], device="cuda")
    out, block = env.world.out, BlockLog(env, 8)
    rows = 8 * sum(getattr(out, name).numel() + getattr(out, name)[..., 0].numel() for name in ("orders", "fills", "trades"))
    assert block.bytes > 8 * rows
    with pytest.raises(BadInput, match=r"use fewer block steps \(7 fit\)"):
        BlockLog(env, 8, budget_bytes=block.bytes - 1)


def test_emitting_at_full_speed_fits_the_budget_of_a_training_run():
    """What the budget promises: 64 steps of `trades` at 4,096 lanes."""
    env = make_env(CASES[0]._replace(lanes=4096), device="cuda", emit=("trades",))
    assert BlockLog(env, 64).bytes < 2**31 // 3
