"""Laws of the network and its checkpoint: equal seeds give equal bytes, what does not fit is refused, and nothing in it can run code."""

import hashlib
import json
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from lob.errors import BadInput, ForeignCheckpoint, NotFound, TapeproofError
from policy.checkpoint import load, save
from policy.network import BATCH, Architecture, NetworkPolicy, greedy, initialise


def fresh(seed: int = 7, lanes: int = 4, health_ppm: int = 0, **architecture) -> NetworkPolicy:
    return NetworkPolicy(initialise(Architecture(**architecture), seed), health_ppm, "", lanes)


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    save(fresh(health_ppm=250_000), tmp_path / "ck")
    return tmp_path / "ck"


def picks(policy, observation, step=0):
    return [values.clone() for values in policy.act(observation, None, step)]


def test_a_saved_policy_loads_as_itself(checkpoint):
    observation = torch.randn(70, 128, generator=torch.Generator().manual_seed(1))
    ours, loaded = fresh(lanes=70, health_ppm=250_000), load(checkpoint, 70)
    for a, b in zip(picks(ours, observation), picks(loaded, observation), strict=True):
        assert torch.equal(a, b)
    assert loaded.health_ppm == 250_000
    assert load(checkpoint).identity() == loaded.identity()


def test_equal_seeds_give_equal_bytes_and_the_global_generator_is_not_touched(tmp_path):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = save(fresh(), tmp_path / "one")
    torch.manual_seed(2)
    two = save(fresh(), tmp_path / "two")
    torch.manual_seed(1)
    assert torch.equal(before, torch.get_rng_state())
    assert one == two != save(fresh(seed=8), tmp_path / "three")
    for name in ("manifest.json", "tensors.pt"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_layers_first_values_do_not_change_when_another_layer_is_added():
    small, large = initialise(Architecture(hidden=(128, 64)), 3), initialise(Architecture(hidden=(128, 64, 64)), 3)
    assert torch.equal(small.trunk[0].weight, large.trunk[0].weight)
    assert torch.equal(small.heads["order"].weight, large.heads["order"].weight)


def test_a_lanes_pick_does_not_depend_on_the_lanes_beside_it(checkpoint):
    observation = torch.randn(2 * BATCH + 9, 128, generator=torch.Generator().manual_seed(2))
    whole = picks(load(checkpoint, len(observation)), observation)
    for lanes in (1, BATCH - 1, BATCH, BATCH + 1):
        for a, b in zip(picks(load(checkpoint, lanes), observation[:lanes]), whole, strict=True):
            assert torch.equal(a, b[:lanes])


def test_a_pick_does_not_depend_on_torchs_threads(checkpoint):
    observation = torch.randn(BATCH, 128, generator=torch.Generator().manual_seed(3))
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(picks(load(checkpoint, BATCH), observation))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_pick_is_greedy_per_branch_and_the_gate_inputs_follow_their_formulas(checkpoint):
    lanes = 20
    observation = torch.randn(lanes, 128, generator=torch.Generator().manual_seed(4)) * 3
    policy = load(checkpoint, lanes)
    action, conviction, health, variance_scale = picks(policy, observation)
    z = np.linspace(-10, 10, 51)
    weights = {name: tensor.double().numpy() for name, tensor in policy.network.state_dict().items()}
    x = observation.double().numpy()
    for layer in ("trunk.0", "trunk.2"):
        x = np.maximum(x @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"], 0)
    codes, direction = [], None
    for name, choices in (("direction", 4), ("magnitude", 3), ("order", 3), ("urgency", 3)):
        raw = (x @ weights[f"heads.{name}.weight"].T + weights[f"heads.{name}.bias"]).reshape(lanes, choices + 1, 51)
        logits = raw[:, :1] + raw[:, 1:] - raw[:, 1:].mean(axis=1, keepdims=True)
        p = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
        codes.append((p @ z).argmax(axis=1))
        direction = p if direction is None else direction
    expected = direction @ z
    assert action.tolist() == [a * 27 + b * 9 + c * 3 + d for a, b, c, d in zip(*codes, strict=True)]
    assert np.abs(conviction.numpy() / 1e6 - np.clip(expected.max(1) - expected.mean(1), 0, 1)).max() < 2e-6
    picked = direction[np.arange(lanes), codes[0]]
    sigma = np.sqrt(picked @ z**2 - (picked @ z) ** 2)
    assert np.abs(variance_scale.numpy() / 1e6 - 1 / (1 + sigma)).max() < 2e-6
    assert health.tolist() == [250_000] * lanes
    diagnostics = policy.diagnostics()
    assert abs(diagnostics["policy.q_range_ppm_sum"] / 1e6 - (expected.max(1) - expected.min(1)).sum()) < lanes * 2e-5
    assert abs(diagnostics["policy.q_sigma_ppm_sum"] / 1e6 - sigma.sum()) < lanes * 2e-5


def test_of_equal_values_the_lowest_code_is_picked():
    support = torch.linspace(-1, 1, 3)
    uniform = {name: torch.full((2, n, 3), 1 / 3) for name, n in (("direction", 4), ("magnitude", 3), ("order", 3), ("urgency", 3))}
    uniform["magnitude"][1, 1:] = torch.tensor([0.0, 0.0, 1.0])
    action, conviction, *_ = greedy(uniform, support, 1.0)
    assert action.tolist() == [0, 9]
    assert conviction.tolist() == [0.0, 0.0]


def edit(checkpoint: Path, **changes) -> None:
    """Change the manifest as a foreign program would: with a content hash that fits, unless that is what changes."""
    path = checkpoint / "manifest.json"
    manifest = {key: value for key, value in (json.loads(path.read_text()) | changes).items() if value is not ...}
    if "content_hash" not in changes:
        stated = {key: value for key, value in manifest.items() if key != "content_hash"}
        manifest["content_hash"] = hashlib.sha256(json.dumps(stated, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    path.write_text(json.dumps(manifest))


def rewrite(checkpoint: Path, change) -> None:
    """The tensor file with a change made to its dictionary, as a foreign program would write it."""
    path = checkpoint / "tensors.pt"
    tensors = torch.load(path, weights_only=True)
    torch.save(change(tensors), path)


def refusal(checkpoint: Path) -> str:
    with pytest.raises(ForeignCheckpoint) as caught:
        load(checkpoint)
    message = str(caught.value)
    assert message.startswith(f"{checkpoint}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"layout": "0" * 64}, "layout 000000000000"),
        ({"format": 2}, "format 2"),
        ({"format": ...}, "format None"),
        ({"kind": "other"}, "kind 'other'"),
        ({"content_hash": "0" * 64}, "content_hash describes (damaged)"),
        ({"surprise": 1}, "unknown key 'surprise'"),
        ({"health_ppm": ...}, "lacks the key 'health_ppm'"),
        ({"health_ppm": 1_000_001}, "health_ppm is 1000001"),
        ({"health_ppm": 0.5}, "health_ppm is 0.5"),
        ({"tensors": []}, "no JSON object"),
        ({"tensors": {}}, "manifest lacks the key"),
        ({"architecture": []}, "architecture"),
        ({"architecture": Architecture().document() | {"extra": 1}}, "unknown key 'extra'"),
        ({"architecture": Architecture().document() | {"hidden": [10**12]}}, "hidden widths"),
        ({"architecture": Architecture().document() | {"hidden": [128, 64.5]}}, "hidden widths"),
        ({"architecture": Architecture().document() | {"atoms": 1}}, "atoms is 1"),
        ({"architecture": Architecture().document() | {"value_max": -11.0}}, "value_min"),
        ({"architecture": Architecture().document() | {"value_max": None}}, "value_min"),
        ({"architecture": Architecture().document() | {"hidden": [128, 65]}}, "is torch.float32"),
    ],
)
def test_a_foreign_manifest_is_refused_in_one_line_that_says_what_does_not_fit(checkpoint, changes, says):
    edit(checkpoint, **changes)
    assert says in refusal(checkpoint)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: {k: v for k, v in t.items() if k != "trunk.0.bias"}, "lacks the key 'trunk.0.bias'"),
        (lambda t: t | {"extra": torch.zeros(1)}, "unknown key 'extra'"),
        (lambda t: t | {"trunk.0.bias": torch.zeros(127)}, "tensor trunk.0.bias is torch.float32 [127]"),
        (lambda t: t | {"trunk.0.bias": torch.zeros(128, dtype=torch.int32)}, "tensor trunk.0.bias is torch.int32"),
        (lambda t: t | {"trunk.0.bias": torch.zeros(1).expand(128)}, "tensor trunk.0.bias"),
        (lambda t: t | {"trunk.0.bias": t["trunk.0.bias"] + 1e-6}, "tensor trunk.0.bias is not the one"),
        (lambda t: t | {"trunk.0.bias": 3}, "no dictionary of tensors"),
        (lambda t: list(t.values()), "no dictionary of tensors"),
        (lambda t: t | {"trunk.0.weight": torch.zeros(10_000_000)}, "measures"),
    ],
)
def test_tensors_that_do_not_fit_the_architecture_are_refused(checkpoint, change, says):
    rewrite(checkpoint, change)
    assert says in refusal(checkpoint)


def test_a_weight_that_is_not_finite_is_refused_though_its_hash_is_right(tmp_path):
    policy = fresh()
    policy.network.trunk[0].bias.data[3] = float("nan")
    save(policy, tmp_path / "ck")
    assert "not finite" in refusal(tmp_path / "ck")


def test_values_that_overflow_stop_the_run_instead_of_being_picked_from():
    policy = fresh()
    for tensor in policy.network.state_dict().values():
        tensor.fill_(1e30)
    with pytest.raises(ForeignCheckpoint, match="not finite at step 5"):
        policy.act(torch.ones(4, 128), None, 5)


class Bomb:
    """A pickle that, unpickled by a reader that runs code, creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_nothing_in_a_checkpoint_can_run_code(checkpoint, tmp_path):
    mark = tmp_path / "ran"
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists()  # the bomb works where code may run
    mark.unlink()
    rewrite(checkpoint, lambda tensors: tensors | {"trunk.0.bias": Bomb(mark)})
    refusal(checkpoint)
    (checkpoint / "tensors.pt").write_bytes(pickle.dumps(Bomb(mark)))
    refusal(checkpoint)
    (checkpoint / "manifest.json").write_bytes(pickle.dumps(Bomb(mark)))
    refusal(checkpoint)
    assert not mark.exists()


def test_a_tensor_file_that_unpacks_to_more_than_it_measures_is_refused_unread(checkpoint):
    path = checkpoint / "tensors.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tensors/data.pkl", b"\0" * 50_000_000)
    assert "unpacks to more" in refusal(checkpoint)


@pytest.mark.parametrize("name", ["manifest.json", "tensors.pt"])
def test_a_missing_cut_or_flipped_file_never_loads_as_another_policy(checkpoint, name):
    path = checkpoint / name
    whole, good = path.read_bytes(), load(checkpoint).identity()
    path.unlink()
    assert name in refusal(checkpoint)
    random = np.random.default_rng(5)
    for length in random.integers(0, len(whole) - 2, 10):
        path.write_bytes(whole[:length])
        refusal(checkpoint)
    refused = 0
    for position, bit in zip(random.integers(0, len(whole), 60), random.integers(0, 8, 60), strict=True):
        damaged = bytearray(whole)
        damaged[position] ^= 1 << bit
        path.write_bytes(damaged)
        try:
            # A flip in zip padding, or in a blank of the JSON, changes nothing; anything else must be refused.
            assert load(checkpoint).identity() == good
        except TapeproofError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused >= 20


def test_a_checkpoint_appears_whole_and_is_never_overwritten(checkpoint, tmp_path, monkeypatch):
    with pytest.raises(BadInput, match="exists already"):
        save(fresh(seed=9), checkpoint)
    assert load(checkpoint).health_ppm == 250_000

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("policy.tensor_file.os.rename", full)
    with pytest.raises(BadInput, match="No space left"):
        save(fresh(), tmp_path / "later")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ck"]


def test_what_is_no_checkpoint_is_not_found_or_refused(checkpoint, tmp_path):
    with pytest.raises(NotFound, match="no checkpoint directory"):
        load(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    assert "manifest.json cannot be read" in refusal(tmp_path / "empty")
    shutil.copytree(checkpoint, tmp_path / "moved")
    assert load(tmp_path / "moved").identity() == load(checkpoint).identity()


def test_what_a_network_says_is_quantised_to_the_nearest_millionth_halves_to_even():
    from policy.select import to_ppm

    values = torch.tensor([0.5, 1.5, 2.5, 0.4, 0.6], dtype=torch.float64) / 1_000_000
    assert to_ppm(values).tolist() == [0, 2, 2, 0, 1]
    assert to_ppm(torch.tensor([0.0, 1.0, 0.145305])).tolist() == [0, 1_000_000, 145_305]
