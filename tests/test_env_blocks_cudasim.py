"""The CUDA kernels of a block of the log in numba's simulator: they keep what the CPU keeps.

`python -m tests.test_env_blocks_cudasim FILE` plays one build, in a process of its own since its switches must be set before numba loads.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.env_builds import CASES, Grid, Njit, Plain, each, make_env, random_inputs, short

CASE = short(CASES[2])
STEPS = 3
EMITTED = {"full": None, "trades": ("trades",), "diag": ()}


def environment(level: str):
    return make_env(CASE) if EMITTED[level] is None else make_env(CASE, emit=EMITTED[level])


def simulated(level: str) -> dict[str, np.ndarray]:
    """{part.table: what a fetch would bring} of blocks of STEPS steps, the last one short, and `overrun`, the counters of a full block
    into which one more step went.
    """
    from cuda_env import kernels_blocks as k
    from cuda_env.blocks import PACKED, Block, block_shapes
    from cuda_env.kernels_cuda import THREADS

    env = environment(level)
    player, shapes = Plain(env), block_shapes(env.world.out, STEPS, 0, 0, "cuda")
    block = each(Block(*(np.zeros(shape, np.int64) for shape in shapes)), Grid)

    def capture():
        counts = player.grids.out.counts.numpy()
        block.ends.data = np.cumsum(counts, axis=1).tolist()  # torch does this on the device
        for kernel, threads in k.launches(player.grids, CASE.lanes):
            kernel[-(-threads // THREADS), THREADS](player.grids, block)

    found = {}
    for step, inputs in enumerate(random_inputs(CASE, env.schedule.decisions), 1):
        player.step(inputs)
        capture()
        if step % STEPS == 0 or step == env.schedule.decisions:
            count, *used = block.counters.data
            part = f"{level}{(step - 1) // STEPS}"
            found[f"{part}.head"], found[f"{part}.steps"] = block.head.numpy()[:count], block.steps.numpy()[:count]
            found |= {f"{part}.{name}": getattr(block, name).numpy()[:rows] for name, rows in zip(PACKED, used, strict=True)}
            assert block.slot[0] == count
            block.counters.data, block.slot.data = [0] * len(block.counters.data), [0]
    for _ in range(STEPS):
        capture()
    before = each(block, lambda grid: grid.numpy())
    capture()
    after = each(block, lambda grid: grid.numpy())
    for name in ("head", "steps", *PACKED):
        assert getattr(before, name).tobytes() == getattr(after, name).tobytes(), "a full block is left alone"
    assert after.slot[0] == STEPS
    found[f"{level}.overrun"] = after.counters
    return found


@pytest.mark.cudasim
def test_simulated_kernels_keep_what_the_cpu_keeps(tmp_path):
    from cuda_env.blocks import BlockLog

    switches = {"NUMBA_DISABLE_JIT": "1", "NUMBA_ENABLE_CUDASIM": "1"}
    command = [sys.executable, "-m", "tests.test_env_blocks_cudasim", str(tmp_path / "simulated.npz")]
    house = Path(__file__).resolve().parent.parent
    done = subprocess.run(command, cwd=house, env=os.environ | switches, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = dict(np.load(tmp_path / "simulated.npz"))
    rows = 0
    for level in EMITTED:
        env = environment(level)
        block, player = BlockLog(env, STEPS), Njit(env)
        assert found.pop(f"{level}.overrun")[0] == STEPS + 1
        assert env.schedule.decisions % STEPS, "the last block is a short one"
        for step, inputs in enumerate(random_inputs(CASE, env.schedule.decisions), 1):
            player.step(inputs)
            block.capture()
            if step % STEPS == 0 or step == env.schedule.decisions:
                captured, part = block.fetch(), f"{level}{(step - 1) // STEPS}"
                for name in ("head", "steps", "orders", "fills", "trades"):
                    kept, simulation = getattr(captured, name), found.pop(f"{part}.{name}")
                    if name == "steps":
                        kept, simulation = kept[:, :, : CASE.lanes], simulation[:, :, : CASE.lanes]
                    assert kept.shape == simulation.shape, (part, name)
                    assert kept.tobytes() == simulation.tobytes(), (part, name)
                    rows += len(kept) if name == "trades" else 0
    assert not found
    assert rows > 10


if __name__ == "__main__":
    np.savez(sys.argv[1], **{name: array for level in EMITTED for name, array in simulated(level).items()})
