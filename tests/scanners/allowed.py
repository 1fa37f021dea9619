"""Findings that are no faults, each with the reason. An entry that matches nothing fails the suite: take it out."""

from __future__ import annotations

from typing import NamedTuple

from tests.scanners.rules import Finding


class Allowed(NamedTuple):
    """Findings of a rule in one function whose text contains `what`."""

    rule: str
    function: str  # file:name
    what: str
    reason: str

    def covers(self, finding: Finding) -> bool:
        return (finding.rule, f"{finding.file}:{finding.function}") == (self.rule, self.function) and self.what in finding.what


ALLOWED = (
    Allowed(
        "BORROW", "policy/launch.py:Launcher.bind.launch", "_wrap",
        "the heads that the losses read are new tensors at each eager update; a captured graph holds them, wrapped at its capture",
    ),
    Allowed("BORROW", "policy/launch.py:Launcher._wrap", "_wrap", "a named tuple, part by part, for the launch above"),
    Allowed("BORROW", "policy/launch.py:Launcher._wrap", "as_cuda_array", "the wrapping itself, for the launch above"),
    Allowed("BORROW", "policy/launch.py:Launcher._stream", "external_stream", "made once for each stream, and kept"),
    Allowed(
        "BORROW", "policy/select_kernel.py:fused_select.launch", "wrap",
        "the heads are new tensors at each eager step; a captured graph holds them, wrapped at its capture",
    ),
    Allowed("BORROW", "policy/select_kernel.py:fused_select.wrap", "as_cuda_array", "the wrapping itself, for the launch above"),
    Allowed(
        "BORROW", "policy/select_kernel.py:matrix_of", "torch.int16",
        "numba has no bfloat16: the kernel takes its 16 bits as an integer and shifts them (`bfloat16_value`)",
    ),
    Allowed(
        "BORROW", "policy/memory.py:Memory.sample", "torch.float32",
        "a record is packed, integers and floats in one row of words, and its rows are gathered anew for each batch",
    ),
    Allowed("BORROW", "policy/loss_kernels.py:exp32", "np.float32", "an exponent made of bits is what the function is"),
    Allowed(
        "BORROW", "cuda_env/run_cpu.py:CpuRunner.step", "as_numpy",
        "on the CPU any policy's tensors are taken; a view of one is under a microsecond",
    ),
    Allowed("BORROW", "cuda_env/run_cpu.py:as_numpy", "as_numpy", "the view itself, for the step above"),
    Allowed("CPURO", "cuda_env/blocks.py:BlockLog.fetch", "check", "once a block: faults are heard of when rows are waited for"),
    Allowed("CPURO", "cuda_env/blocks_cuda.py:CudaCapture.fetch", "synchronize", "once a block: rows that are read must have arrived"),
)  # fmt: skip
