"""Selection on the GPU: the fused kernel beside the same selection in separate torch operations, both captured in a graph.

    python -m benchmarks.bench_select [--lanes 65536] [--rounds 5]

Heads of 51 atoms and 5 quantiles for 13 choices, as the network's product leaves them. Before a time is printed both have to pick the same
in every lane, but for lanes that 64-bit arithmetic shows to be nearer to a tie than float32 can tell. What limits the kernel: reading the
heads once (1.5 kB a lane in bfloat16), and 663 exponentials a lane.
"""

import argparse

import torch

from lob.picks import Picks
from policy.controls import SelectControls
from policy.heads import CHOICES, HeadOutput
from policy.select import select, to_picks
from policy.select_scalar import SELECTORS
from tests.oracle_select import pick

ATOMS, QUANTILES, SEED, STEP = 51, 5, 7, 11
EACH = ATOMS + QUANTILES
REPLAYS = 200
NEAR_TIE = 1e-5


def make_heads(lanes: int, dtype: torch.dtype, device: str) -> HeadOutput:
    generator = torch.Generator().manual_seed(1)
    cells = (torch.randn(lanes, CHOICES * EACH, generator=generator) * 2).to(dtype).to(device).unflatten(1, (CHOICES, EACH))
    return HeadOutput(cells[..., :ATOMS], cells[..., ATOMS:])


def make_controls(device: str) -> SelectControls:
    values = ([0.1] * 4, [0.01] * 4, [0.05] * CHOICES, 1.0, 1.0)
    return SelectControls(*(torch.tensor(value, device=device) for value in values))


def assert_equal_but_for_ties(one: torch.Tensor, other: torch.Tensor, heads: HeadOutput, support, controls, selector: str) -> int:
    """The number of lanes that differ: few, and each within `NEAR_TIE` of a tie."""
    lanes = torch.nonzero(one != other).flatten().tolist()
    stated = {name: value.tolist() for name, value in controls._asdict().items()}
    assert len(lanes) <= len(one) // 200, f"{len(lanes)} lanes of {len(one)} differ"
    for lane in lanes:
        rows = (part[lane].double().tolist() for part in heads)
        assert pick(*rows, support.tolist(), stated, selector, True, SEED, lane, STEP).margin < NEAR_TIE, f"lane {lane} differs"
    return len(lanes)


def microseconds(work, stream: torch.cuda.Stream, rounds: int) -> float:
    """Best round's time of one replay of `work`, captured on the stream."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        work()
    best = float("inf")
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(rounds + 1):
        with torch.cuda.stream(stream):
            start.record()
            for _ in range(REPLAYS):
                graph.replay()
            stop.record()
        torch.cuda.synchronize()
        best = min(best, 1000 * start.elapsed_time(stop) / REPLAYS)
    return best


@torch.no_grad()
def bench(lanes: int, dtype: torch.dtype, selector: str, rounds: int) -> None:
    from policy.select_kernel import facts, fused_select

    heads, controls = make_heads(lanes, dtype, "cuda"), make_controls("cuda")
    support, ids = torch.linspace(-10, 10, ATOMS, device="cuda"), torch.arange(lanes, device="cuda")
    step, health = torch.tensor([STEP], device="cuda"), torch.tensor(500_000, dtype=torch.int32, device="cuda")
    fused_picks, torch_picks = (Picks(*(torch.zeros(lanes, dtype=torch.int32, device="cuda") for _ in range(4))) for _ in range(2))
    stream = torch.cuda.Stream()
    launch = fused_select(
        ATOMS, QUANTILES, dtype, support, controls, selector, True, SEED, ids, step, fused_picks, facts(lanes, "cuda"), stream
    )  # fmt: skip

    def separate() -> None:
        to_picks(select(heads, support, controls, selector, True, SEED, ids, step), health, torch_picks)

    fused_us = microseconds(lambda: launch(heads), stream, rounds)
    torch_us = microseconds(separate, stream, rounds)
    ties = assert_equal_but_for_ties(fused_picks.action, torch_picks.action, heads, support, controls, selector)
    terabytes = lanes * CHOICES * EACH * heads.logits.element_size() / fused_us / 1e6
    what = f"{lanes:7d} lanes, {str(dtype).removeprefix('torch.'):8s}, {selector:9s}"
    print(
        f"{what} fused {fused_us:7.1f} us ({terabytes:5.2f} TB/s), torch operations {torch_us:8.1f} us: {torch_us / fused_us:5.1f} times;"
        f" equal but for {ties} near ties"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lanes", type=int, nargs="+", default=[4096, 65536])
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("no CUDA device here: the kernel is not timed")
        return
    for lanes in options.lanes:
        for dtype in (torch.float32, torch.bfloat16):
            for selector in SELECTORS:
                bench(lanes, dtype, selector, options.rounds)


if __name__ == "__main__":
    main()
