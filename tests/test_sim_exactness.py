"""How exactly floats are computed: the modes, and what they refuse."""

import pytest
import torch

from lob.errors import BadInput
from sim.exactness import WORKSPACE, exact
from sim.loop_config import LoopConfig


@pytest.fixture(autouse=True)
def as_it_was():
    """Torch's switches belong to the whole process."""
    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    matmul, cudnn = torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.fp32_precision
    fill = torch.utils.deterministic.fill_uninitialized_memory
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(deterministic)
    torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.fp32_precision = matmul, cudnn
    torch.utils.deterministic.fill_uninitialized_memory = fill


@pytest.mark.parametrize(("mode", "deterministic", "precision"), [(0, False, "tf32"), (1, True, "ieee"), (2, False, "ieee")])
def test_the_fast_mode_allows_tf32_the_exact_one_only_deterministic_algorithms_the_control_neither(mode, deterministic, precision):
    exact(LoopConfig(determinism=mode))
    assert torch.are_deterministic_algorithms_enabled() == deterministic
    assert torch.backends.cuda.matmul.fp32_precision == torch.backends.cudnn.fp32_precision == precision


def test_torchs_threads_are_the_configs_whatever_the_environment_says(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    exact(LoopConfig(torch_threads=2))
    assert torch.get_num_threads() == 2


def test_a_device_that_is_not_there_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match="this machine has no CUDA device") as error:
        exact(LoopConfig(device="cuda"))
    assert "\n" not in str(error.value)


def test_a_workspace_that_would_change_the_order_of_sums_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv(WORKSPACE, ":16:8")
    with pytest.raises(BadInput, match=f"{WORKSPACE} is :16:8: determinism 1 needs :4096:8"):
        exact(LoopConfig(device="cuda"))
