"""Laws of the temporal encoder: the state space is its recurrence, attention is torch's, and what lies before the start is not seen."""

import math
from dataclasses import replace

import pytest
import torch

from lob.layout import OFFSET, SLOTS
from policy import temporal
from policy.architecture import profile
from policy.model import Actor, Model, initialise

DEFAULT = profile("default")
WINDOW, WIDTH = DEFAULT.window, DEFAULT.width
C = temporal.constants(DEFAULT, "cpu", torch.float32)


def draw(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(scope="module")
def model() -> Model:
    """First values, moved a little, so that nothing hides behind a zero or a one."""
    model = initialise(DEFAULT, 3).requires_grad_(False)
    model.flat.add_(draw(len(model.flat), seed=9) * 0.05)
    return model


def masks(rows: int) -> torch.Tensor:
    """bool[rows, window]: the first row sees all, the next one less, and so on."""
    return torch.arange(WINDOW) >= (torch.arange(rows) % WINDOW).unsqueeze(1)


def scanned(weights: dict[str, list], rows: list[list[float]]) -> list[float]:
    """The state-space block as its recurrence says it, one row after another, in plain Python floats."""

    def times(matrix, vector):
        return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]

    heads, share = DEFAULT.scan_heads, WIDTH // DEFAULT.scan_heads
    state = [[0.0] * DEFAULT.states for _ in range(WIDTH)]
    taken: list[float] = []
    for row in rows:
        raw = [a + b for a, b in zip(times(weights["scan.step.weight"], row), weights["scan.step.bias"], strict=True)]
        steps = [math.log1p(math.exp(value)) for value in raw]
        write, taken = times(weights["scan.write.weight"], row), times(weights["scan.take.weight"], row)
        for i in range(WIDTH):
            step, rate = steps[i // share], math.exp(weights["scan.rate"][i // share])
            for n in range(DEFAULT.states):
                state[i][n] = math.exp(-step * rate) * state[i][n] + step * taken[i] * write[n]
    assert heads * share == WIDTH
    read = times(weights["scan.read.weight"], rows[-1])
    y = [a + d * x for a, d, x in zip(times(state, read), weights["scan.skip"], taken, strict=True)]
    gate = times(weights["scan.gate.weight"], rows[-1])
    gated = [a * g / (1 + math.exp(-g)) for a, g in zip(y, gate, strict=True)]
    return [a + b for a, b in zip(times(weights["scan.out.weight"], gated), weights["scan.out.bias"], strict=True)]


def test_the_scan_is_its_recurrence_over_the_rows_that_are_there(model):
    rows, mask = draw(4, WINDOW, WIDTH), masks(4 * 5)[::5]
    found = temporal.scan(model.weights, rows, mask, C)
    weights = {name: tensor.double().tolist() for name, tensor in model.weights.items() if name.startswith("scan.")}
    for i in range(4):
        expected = scanned(weights, rows[i][mask[i]].double().tolist())
        assert found[i].tolist() == pytest.approx(expected, abs=2e-5)


def test_the_scan_depends_on_the_order_of_rows_and_forgets_old_ones_more(model):
    rows, mask = draw(1, WINDOW, WIDTH), masks(1)
    there = temporal.scan(model.weights, rows, mask, C)
    turned = torch.cat([rows[:, :-1].flip(1), rows[:, -1:]], dim=1)
    assert float((temporal.scan(model.weights, turned, mask, C) - there).abs().max()) > 1e-4

    def felt(place: int) -> float:
        moved = rows.repeat(64, 1, 1)
        moved[:, place] += draw(64, WIDTH, seed=4)
        return float((temporal.scan(model.weights, moved, masks(1).expand(64, -1), C) - there).abs().mean())

    assert felt(0) < felt(WINDOW - 2)


def test_attention_is_torchs_own_with_the_present_row_as_the_query(model):
    rows, mask = draw(20, WINDOW, WIDTH), masks(20)
    oracle = torch.nn.MultiheadAttention(WIDTH, DEFAULT.attention_heads, batch_first=True)
    w = {name.removeprefix("attention."): tensor for name, tensor in model.weights.items() if name.startswith("attention.")}
    with torch.no_grad():
        oracle.in_proj_weight.copy_(torch.cat([w["query.weight"], w["key.weight"], w["value.weight"]]))
        oracle.in_proj_bias.copy_(torch.cat([w["query.bias"], torch.zeros(WIDTH), w["value.bias"]]))
        oracle.out_proj.weight.copy_(w["out.weight"])
        oracle.out_proj.bias.copy_(w["out.bias"])
        expected, _ = oracle(rows[:, -1:], rows, rows, key_padding_mask=~mask)
    found = temporal.attend(model.weights, rows, mask, DEFAULT.attention_heads)
    assert float((found - expected.squeeze(1)).abs().max()) < 1e-5


def test_an_embedded_row_is_its_own_map_beside_that_of_its_order_flow(model):
    names = [f"ofi_{i}" for i in range(8)] + [f"ofi_delta_{i}" for i in range(8)] + ["log_bar_duration_s", "centre_of_mass_skew_ticks"]
    assert [SLOTS[slot] for slot in temporal.FLOW_SLOTS] == names
    history, w = draw(3, WINDOW, 96), model.weights
    flow = history[:, :, [OFFSET[name] for name in names]]
    both = torch.cat([history @ w["row.weight"].T + w["row.bias"], flow @ w["flow.weight"].T + w["flow.bias"]], dim=2)
    assert w["flow.weight"].shape == (10, 18)
    assert float((temporal.embed(w, history, C) - both * torch.sigmoid(both)).abs().max()) < 1e-5


def test_rows_before_the_start_are_those_of_zeros_that_nothing_precedes():
    history = draw(4, WINDOW, 96)
    history[1, :5] = 0
    history[2, 7] = 0  # a row of zeros between real ones is a row
    history[3] = 0  # nothing but zeros: the present row is there all the same
    present = temporal.present_rows(history, C)
    assert present[0].all() and present[2].all()
    assert present[1].tolist() == [False] * 5 + [True] * (WINDOW - 5)
    assert present[3].tolist() == [False] * (WINDOW - 1) + [True]


@pytest.mark.parametrize("block", ["scan", "attend"])
def test_what_a_masked_row_holds_changes_nothing(model, block):
    rows, mask = draw(WINDOW, WINDOW, WIDTH), masks(WINDOW)

    def read(of: torch.Tensor) -> torch.Tensor:
        w = model.weights
        return temporal.scan(w, of, mask, C) if block == "scan" else temporal.attend(w, of, mask, DEFAULT.attention_heads)

    other = torch.where(mask.unsqueeze(2), rows, draw(WINDOW, WINDOW, WIDTH, seed=5) * 100)
    assert torch.equal(read(rows), read(other))
    seen = torch.where(mask.unsqueeze(2), rows + 0.1, rows)
    assert float((read(seen) - read(rows)).abs().amax(1).min()) > 1e-4


def test_a_lane_at_its_start_is_read_as_one_with_a_shorter_window_would_be(model):
    """The network of window 4 has the same weights; a history of 4 real rows is the same to both."""
    short = Model(replace(DEFAULT, window=4)).requires_grad_(False)
    short.flat.copy_(model.flat)
    observation, bus, history = draw(6, 128), draw(127, seed=2), torch.zeros(6, WINDOW, 96)
    history[:, -4:] = draw(6, 4, 96, seed=3)
    long_said, short_said = model(observation, history, bus).heads, short(observation, history[:, -4:], bus).heads
    assert float((long_said.logits - short_said.logits).abs().max()) < 1e-5


def test_the_first_memories_of_the_scan_reach_from_a_row_to_the_window():
    """exp(-step * rate) of a row: the shortest memory is below two rows, the longest beyond the window."""
    specs = {spec.name: spec for spec in temporal.temporal_layout(DEFAULT)}

    def forgotten(sign: int) -> float:
        rate, step = (specs[name].centre + sign * specs[name].spread for name in ("scan.rate", "scan.step.bias"))
        return math.exp(rate) * math.log1p(math.exp(step))

    assert 1 / forgotten(1) < 2 and 1 / forgotten(-1) > WINDOW


def test_lanes_may_look_up_what_the_encoder_says_of_their_row_instead_of_their_history(model):
    """A table over a tape of two windows, against each lane's own history."""
    rows, first = 40, [0] * 25 + [25] * 15
    features = draw(rows, 96, seed=6)

    def history(of: torch.Tensor) -> torch.Tensor:
        past = torch.zeros(len(of), WINDOW, 96)
        for i, row in enumerate(of.tolist()):
            seen = features[max(first[row], row - WINDOW + 1) : row + 1]
            past[i, WINDOW - len(seen) :] = seen
        return past

    actor, lanes = Actor(model), torch.tensor([0, 3, 24, 25, 26, 39, 39])
    table = actor.encode_tape(history, rows)
    observation, bus = draw(len(lanes), 128, seed=7), draw(127, seed=8)
    own, looked_up = actor(observation, history(lanes), bus), actor(observation, None, bus, table[lanes])
    assert table.shape == (rows, 2 * WIDTH)
    assert float((own.logits - looked_up.logits).abs().max()) < 1e-5
    assert float((own.quantiles - looked_up.quantiles).abs().max()) < 1e-5


def test_a_network_that_reads_history_says_so_when_it_gets_none(model):
    with pytest.raises(ValueError, match="last 16 rows"):
        model(draw(2, 128), None, draw(127))
