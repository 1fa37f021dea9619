"""`sim policy`: checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.output import Json, emit, progress

group = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Make policy checkpoints.")


def register(app: typer.Typer) -> None:
    app.add_typer(group, name="policy")


@group.callback()
def policy() -> None:
    """Make policy checkpoints, the directories that `sim replay --checkpoint` loads."""


@group.command("init")
def init(
    out: Annotated[Path, typer.Option(help="Directory to make; it must not exist.")],
    seed: Annotated[int, typer.Option(help="Seed of the weights: equal seeds give equal bytes.")] = 0,
    profile: Annotated[str, typer.Option(help="Size of the network: small (two CPU cores), trunk or default (a GPU).")] = "small",
    health_ppm: Annotated[
        int, typer.Option(min=0, max=1_000_000, help="Learning health that the Kelly gate reads, in ppm; an untrained network has none.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """Write the checkpoint of an untrained network.

    A C51 and IQN network with random weights, ready to replay: equal seeds give equal bytes.

    \b
    Examples:
      sim policy init --seed 7 --out checkpoints/untrained
      sim replay --store S --instrument ESH4 --start 2023-12-25T23:00 --end 2023-12-26T00:00 \\
                 --clock 1s --checkpoint checkpoints/untrained --runs R
    """
    from lob.units import counted
    from sim.policy import init_checkpoint

    with progress("policy init"):
        made = init_checkpoint(seed, out, health_ppm, profile)
    text = f"{out}: {counted(made['parameters'], 'parameter')} ({profile}), seed {seed}\ncontent {made['content_hash']}"
    emit(made, text, as_json)
