"""The training loop's own section of a configuration: how long, how often, how exactly."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator


class LoopConfig(BaseModel):
    """Counts are training steps: one decision of every lane."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int = Field(2_000, ge=1, lt=2**31)
    eval_steps: int | None = Field(None, ge=1, lt=2**31)
    """Decisions of each test window that are evaluated at the end; none: all of them."""

    warmup_steps: int = Field(20, ge=1)
    """Steps before the first update: the memory has to hold more than one batch's worth of different decisions."""

    env_steps_per_update: int = Field(1, ge=1, le=4096)
    """K: the environment steps K times for each update of the learner."""

    block_steps: int = Field(50, ge=1, le=4096)
    """Steps between two looks at the device: log rows are fetched, faults raised and bands checked once a block."""

    checkpoint_every: int = Field(500, ge=1)
    """Steps between two checkpoints; the log is sealed behind them."""

    validate_every: int = Field(500, ge=1)
    """Steps between two greedy plays of the validation days, which choose `best`."""

    keep_checkpoints: int = Field(2, ge=1, le=1000)
    """The newest checkpoints that stay, beside `best` and `last`."""

    determinism: Literal[0, 1, 2] = 1
    """0: fast (TF32 and whatever algorithm is quickest); 1: exact, the default; 2: torch's default algorithms without TF32, the control."""

    torch_threads: int = Field(1, ge=1, le=1024)
    """Threads of torch on the CPU. In the config, not the execution: a matrix product's last bits may depend on them."""

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the network's products; weights, targets and sums stay float32."""

    device: Literal["cpu", "cuda"] = "cpu"

    shards: int = Field(1, ge=1, le=1024)
    """Parts that lanes and batches are divided into, one network learning from all; as many processes as divide it may share a run."""

    @model_validator(mode="after")
    def _blocks_meet_checkpoints(self) -> LoopConfig:
        for name in ("checkpoint_every", "validate_every"):
            if getattr(self, name) % self.env_steps_per_update:
                raise ValueError(f"{name} has to be a multiple of env_steps_per_update: a checkpoint lies between two whole updates")
        return self
