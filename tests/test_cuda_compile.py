"""Every CUDA kernel of the environment compiles for the reference card, on machines without one too."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cuda_env import kernels_blocks, kernels_cuda, kernels_live_cuda
from tests.cuda_compile import named


def declared() -> set[str]:
    """Names of the kernels that the modules declare, but for those that other kernels call."""
    kind = type(kernels_cuda.step)
    modules = (kernels_blocks, kernels_cuda, kernels_live_cuda)
    found = [(module, *pair) for module in modules for pair in vars(module).items() if isinstance(pair[1], kind)]
    return {named(module, name) for module, name, one in found if not one.targetoptions.get("device")}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="NVIDIA's compiler comes as Python packages for Linux alone")
def test_every_kernel_of_the_environment_compiles_for_the_reference_card():
    house = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [sys.executable, "-m", "tests.cuda_compile"], cwd=house, env=dict(os.environ), capture_output=True, text=True
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = {line.split()[0] for line in done.stdout.splitlines()}
    assert compiled == declared() and "kernels_cuda.observe" in compiled
