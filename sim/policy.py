"""The policy of a run, from what the user named: a built-in, `script:FILE` or a checkpoint directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lob.errors import BadInput

if TYPE_CHECKING:
    from policy.protocol import Policy


def make_policy(spec: str, seed: int, lanes: int, device: str = "cpu", mean: Any = None, std: Any = None) -> Policy:
    """The policy that `spec` names: a built-in's name, `script:FILE`, or `checkpoint:DIR`.

    `mean` and `std` (float64[128]) are the normalisation of the observations it will see (`policy.builtin.make`).
    Raises NotFound, BadInput or ForeignCheckpoint. Torch computes the network on one thread: its batches are small, and one thread
    leaves the bits of a pick independent of the machine's cores.
    """
    import torch

    torch.set_num_threads(1)
    if spec.startswith("checkpoint:"):
        from policy.checkpoint import load

        return load(Path(spec.removeprefix("checkpoint:")), lanes, device)
    from policy.builtin import make

    return make(spec, seed, lanes, device, mean, std)


def init_checkpoint(seed: int, out: Path, health_ppm: int = 0) -> dict[str, Any]:
    """Write the checkpoint of an untrained network to the new directory `out`; its facts as JSON values."""
    if not 0 <= seed < 2**64:
        raise BadInput(f"seed {seed} is not a whole number of 0 to 2^64-1")
    from lob.layout import layout_fingerprint
    from policy.checkpoint import save
    from policy.network import Architecture, NetworkPolicy, initialise

    architecture = Architecture()
    policy = NetworkPolicy(initialise(architecture, seed), health_ppm, "", lanes=1)
    content = save(policy, out)
    parameters = sum(tensor.numel() for tensor in policy.network.parameters())
    return {
        "checkpoint": str(out),
        "content_hash": content,
        "layout": layout_fingerprint(),
        "architecture": architecture.document(),
        "parameters": parameters,
        "seed": seed,
    }
