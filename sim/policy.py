"""The policy of a run, from what the user named: a built-in, `script:FILE` or a checkpoint directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lob.errors import BadInput

if TYPE_CHECKING:
    from lob.normalise import Normaliser
    from policy.protocol import Policy

CHECKPOINT = "checkpoint:"
"""How a policy that is a checkpoint directory begins."""


def make_policy(
    spec: str, seed: int, lanes: int, device: str = "cpu", mean: Any = None, std: Any = None, selector: str = "greedy"
) -> Policy:
    """The policy that `spec` names: a built-in's name, `script:FILE`, or `checkpoint:DIR`.

    `mean` and `std` (float64[128]) are the normalisation of the observations it will see (`policy.builtin.make`); a trained checkpoint
    sees no other than its own (`normaliser_of`). A network picks by `selector` (`policy.select`), a rule by itself. Torch computes the
    network on one thread: its batches are small, and one thread leaves the bits of a pick independent of the machine's cores. Raises
    NotFound, BadInput or ForeignCheckpoint.
    """
    import torch

    torch.set_num_threads(1)
    if device != "cpu" and not spec.startswith(CHECKPOINT):
        raise BadInput(f"--device {device}: the policy {spec} is a rule, which needs no network; only a checkpoint computes there")
    if spec.startswith(CHECKPOINT):
        import numpy as np

        from policy.checkpoint import load, policy_of

        if device != "cpu":
            from sim.exactness import exact
            from sim.loop_config import LoopConfig

            exact(LoopConfig.model_validate({"device": device}))
        checkpoint, content = load(Path(spec.removeprefix(CHECKPOINT)), device)
        trained = checkpoint.normaliser
        if trained is not None and not (np.array_equal(trained.mean, mean) and np.array_equal(trained.std, std)):
            raise BadInput(f"{spec} learned from observations that were {trained.label}: play it on the same normalisation")
        return policy_of(checkpoint, content, lanes, selector, seed)
    from policy.builtin import make

    return make(spec, seed, lanes, device, mean, std)


def normaliser_of(spec: str) -> Normaliser | None:
    """The normalisation that the policy was trained on, if it is a checkpoint that states one: what it plays must be normalised so."""
    if not spec.startswith(CHECKPOINT):
        return None
    from policy.checkpoint import load

    return load(Path(spec.removeprefix(CHECKPOINT)))[0].normaliser


def init_checkpoint(seed: int, out: Path, health_ppm: int = 0, profile_name: str = "small") -> dict[str, Any]:
    """Write the checkpoint of an untrained network of a named profile to the new directory `out`; its facts as JSON values."""
    if not 0 <= seed < 2**64:
        raise BadInput(f"seed {seed} is not a whole number of 0 to 2^64-1")
    from lob.layout import layout_fingerprint
    from policy.architecture import profile
    from policy.bus import control_state
    from policy.checkpoint import Checkpoint, save
    from policy.model import initialise, parameters

    architecture = profile(profile_name)
    about = {"seed": seed, "profile": profile_name}
    content = save(Checkpoint(initialise(architecture, seed), control_state().bus, health_ppm, about=about), out)
    return {
        "checkpoint": str(out),
        "content_hash": content,
        "layout": layout_fingerprint(),
        "profile": profile_name,
        "architecture": architecture.document(),
        "parameters": parameters(architecture),
        "seed": seed,
    }
