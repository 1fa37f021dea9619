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
from lob.normalise import Normaliser
from policy.architecture import PROFILES, Architecture, profile
from policy.bus import control_state
from policy.checkpoint import Checkpoint, load, policy_of, save
from policy.model import HISTORY_SLOTS, initialise, layout
from policy.network import BATCH, NetworkPolicy
from policy.weights import fingerprint

NORMALISER = Normaliser(np.linspace(-1, 1, 128), np.linspace(0.5, 2, 128), "fitted on the days of a test")
ABOUT = {"instrument": "ESH4", "days": ["2024-03-05"], "step": 500, "lr": 3e-4, "best": None}


def fresh(seed: int = 7, health_ppm: int = 0, sizes: Architecture | None = None, **rest) -> Checkpoint:
    return Checkpoint(initialise(sizes or Architecture(), seed), control_state().bus, health_ppm, **rest)


def loaded_policy(directory: Path, lanes: int = 1) -> NetworkPolicy:
    return policy_of(*load(directory), lanes)


@pytest.fixture
def checkpoint(tmp_path) -> Path:
    save(fresh(health_ppm=250_000, normaliser=NORMALISER, about=ABOUT), tmp_path / "ck")
    return tmp_path / "ck"


def seen(policy, rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Observations of `rows` lanes and their history; lane i's history begins i mod window rows before the present one."""
    generator = torch.Generator().manual_seed(seed)
    observation = torch.randn(rows, 128, generator=generator)
    if not policy.window:
        return observation, None
    history = torch.randn(rows, policy.window, HISTORY_SLOTS, generator=generator)
    history[:, -1] = observation[:, :HISTORY_SLOTS]
    for lane in range(rows):
        history[lane, : policy.window - 1 - lane % policy.window] = 0
    return observation, history


def picks(policy, observation, history=None, step=0):
    return [values.clone() for values in policy.act(observation, history, step)]


def test_a_saved_policy_loads_as_itself(checkpoint):
    observation = torch.randn(70, 128, generator=torch.Generator().manual_seed(1))
    ours, loaded = policy_of(fresh(health_ppm=250_000), "", 70), loaded_policy(checkpoint, 70)
    for a, b in zip(picks(ours, observation), picks(loaded, observation), strict=True):
        assert torch.equal(a, b)
    assert picks(loaded, observation)[2].tolist() == [250_000] * 70
    assert loaded_policy(checkpoint).identity() == loaded.identity()


@pytest.mark.parametrize("name", list(PROFILES))
def test_everything_that_is_saved_comes_back_bit_for_bit(tmp_path, name):
    saved = fresh(health_ppm=7, sizes=profile(name), normaliser=NORMALISER, about=ABOUT)
    content = save(saved, tmp_path / "ck")
    loaded, found = load(tmp_path / "ck")
    assert found == content and loaded.about == ABOUT and loaded.health_ppm == 7
    assert loaded.model.architecture == profile(name)
    assert torch.equal(loaded.model.flat, saved.model.flat) and torch.equal(loaded.bus, saved.bus)
    assert loaded.normaliser is not None and loaded.normaliser.fingerprint == NORMALISER.fingerprint
    assert loaded.normaliser.label == NORMALISER.label
    assert save(loaded, tmp_path / "again") == content


def test_a_checkpoint_without_a_normaliser_says_so(tmp_path):
    save(fresh(), tmp_path / "ck")
    assert load(tmp_path / "ck")[0].normaliser is None
    assert json.loads((tmp_path / "ck" / "manifest.json").read_text())["normaliser"] is None


def test_a_loaded_model_shares_nothing_with_the_file_or_with_another_load(checkpoint):
    first, second = load(checkpoint)[0], load(checkpoint)[0]
    first.model.flat.zero_()
    first.bus.zero_()
    assert torch.equal(second.model.flat, load(checkpoint)[0].model.flat) and bool(second.bus.any())


def test_every_part_of_a_checkpoint_is_in_its_content_hash(tmp_path):
    other = Normaliser(NORMALISER.mean, NORMALISER.std * 2, NORMALISER.label)
    variants = [
        fresh(),
        fresh(seed=8),
        fresh(health_ppm=1),
        fresh(normaliser=NORMALISER),
        fresh(normaliser=other),
        fresh(about=ABOUT),
        Checkpoint(fresh().model, torch.zeros(127), 0),
    ]
    assert len({save(variant, tmp_path / str(i)) for i, variant in enumerate(variants)}) == len(variants)


@pytest.mark.parametrize("about", [{"x": float("nan")}, {"x": {1, 2}}, {1: 2}, {"x": (1, 2)}, {"x": "y" * 70_000}, ["x"]])
def test_what_json_cannot_hold_of_how_it_was_trained_is_refused_before_anything_is_written(tmp_path, about):
    with pytest.raises(BadInput, match="about"):
        save(fresh(about=about), tmp_path / "ck")
    assert not list(tmp_path.iterdir())


def test_a_number_in_about_that_json_reads_as_infinite_is_refused(checkpoint):
    edit(checkpoint, about={"x": 12345.5})
    path = checkpoint / "manifest.json"
    text = path.read_text().replace("12345.5", "1e999")
    stated = {key: value for key, value in json.loads(text).items() if key != "content_hash"}
    fitting = hashlib.sha256(json.dumps(stated, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    path.write_text(text.replace(json.loads(text)["content_hash"], fitting))
    assert "about is no plain JSON" in refusal(checkpoint)


def test_of_the_first_format_nothing_is_read(checkpoint):
    edit(checkpoint, format=1)
    assert "format 1 where this version reads 2" in refusal(checkpoint)


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


@pytest.mark.parametrize("name", list(PROFILES))
def test_a_lanes_pick_does_not_depend_on_the_lanes_beside_it(tmp_path, name):
    save(fresh(sizes=profile(name)), tmp_path / "ck")
    lanes = 2 * BATCH + 9
    policy = loaded_policy(tmp_path / "ck", lanes)
    observation, history = seen(policy, lanes, 2)
    whole = picks(policy, observation, history)
    for few in (1, BATCH - 1, BATCH, BATCH + 1):
        past = None if history is None else history[:few]
        for a, b in zip(picks(loaded_policy(tmp_path / "ck", few), observation[:few], past), whole, strict=True):
            assert torch.equal(a, b[:few])


def test_a_pick_does_not_depend_on_torchs_threads(checkpoint):
    observation = torch.randn(BATCH, 128, generator=torch.Generator().manual_seed(3))
    threads = torch.get_num_threads()
    try:
        results = []
        for count in (1, 2):
            torch.set_num_threads(count)
            results.append(picks(loaded_policy(checkpoint, BATCH), observation))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_pick_is_greedy_per_branch_and_the_gate_inputs_follow_their_formulas(checkpoint):
    lanes = 20
    observation = torch.randn(lanes, 128, generator=torch.Generator().manual_seed(4)) * 3
    policy = loaded_policy(checkpoint, lanes)
    action, conviction, health, variance_scale = picks(policy, observation)
    z = np.linspace(-10, 10, 51)
    weights = {name: tensor.double().numpy() for name, tensor in policy.model.state_dict().items()}
    x, bus = observation.double().numpy(), control_state().bus.double().numpy()
    x = np.maximum(x @ weights["trunk.0.weight"].T + weights["trunk.0.bias"] + weights["bus.weight"] @ np.arcsinh(bus), 0)
    x = np.maximum(x @ weights["trunk.1.weight"].T + weights["trunk.1.bias"], 0)
    codes, first, direction = [], 0, None
    for choices in (4, 3, 3, 3):
        raw = np.einsum("bi,sai->bsa", x, weights["heads.weight"][first : first + choices + 1])
        raw += weights["heads.bias"][first : first + choices + 1]
        first += choices + 1
        said = raw[:, :1] + raw[:, 1:] - raw[:, 1:].mean(axis=1, keepdims=True)
        logits, quantiles = said[..., :51], said[..., 51:]
        p = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
        value = (p @ z + quantiles.mean(axis=2)) / 2
        codes.append(value.argmax(axis=1))
        direction = (p, value, quantiles) if direction is None else direction
    p, expected, said_of_directions = direction
    assert action.tolist() == [a * 27 + b * 9 + c * 3 + d for a, b, c, d in zip(*codes, strict=True)]
    assert np.abs(conviction.numpy() / 1e6 - np.clip(expected.max(1) - expected.mean(1), 0, 1)).max() < 2e-6
    rows = np.arange(lanes)
    picked, of_iqn = p[rows, codes[0]], said_of_directions[rows, codes[0]]
    quartiles = [np.array([np.interp(share, (0.1, 0.3, 0.5, 0.7, 0.9), row) for row in of_iqn]) for share in (0.25, 0.75)]
    sigma = (np.sqrt(picked @ z**2 - (picked @ z) ** 2) + np.abs(quartiles[1] - quartiles[0]) / 1.349) / 2
    assert np.abs(variance_scale.numpy() / 1e6 - 1 / (1 + sigma)).max() < 2e-6
    assert health.tolist() == [250_000] * lanes
    diagnostics = policy.diagnostics()
    assert abs(diagnostics["policy.q_range_ppm_sum"] / 1e6 - (expected.max(1) - expected.min(1)).sum()) < lanes * 2e-5
    assert abs(diagnostics["policy.q_sigma_ppm_sum"] / 1e6 - sigma.sum()) < lanes * 2e-5


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
        ({"observation": "0" * 64}, "observation layout 000000000000"),
        ({"bus": "0" * 64}, "bus layout 000000000000"),
        ({"network": "0" * 64}, "network layout 000000000000"),
        ({"format": 3}, "format 3"),
        ({"normaliser": None}, "unknown key 'normaliser.mean'"),
        ({"normaliser": 3}, "normaliser is 3"),
        ({"about": []}, "about does not come back"),
        ({"about": {"x": "y" * 70_000}}, "about measures"),
        ({"about": ...}, "lacks the key 'about'"),
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
        ({"architecture": Architecture().document() | {"value_max": -11.0}}, "values' range"),
        ({"architecture": Architecture().document() | {"value_max": None}}, "values' range"),
        ({"architecture": Architecture().document() | {"hidden": [128, 65]}}, "network layout"),
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
    damaged = fresh()
    damaged.model.flat[3] = float("nan")
    save(damaged, tmp_path / "ck")
    assert "not finite" in refusal(tmp_path / "ck")


def test_values_that_overflow_stop_the_run_instead_of_being_picked_from():
    overflowing = fresh()
    overflowing.model.flat.fill_(1e30)
    policy = policy_of(overflowing, "", 4)
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
    whole, good = path.read_bytes(), loaded_policy(checkpoint).identity()
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
            assert loaded_policy(checkpoint).identity() == good
        except TapeproofError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused >= 20


def test_a_checkpoint_appears_whole_and_is_never_overwritten(checkpoint, tmp_path, monkeypatch):
    with pytest.raises(BadInput, match="exists already"):
        save(fresh(seed=9), checkpoint)
    assert load(checkpoint)[0].health_ppm == 250_000

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
    assert loaded_policy(tmp_path / "moved").identity() == loaded_policy(checkpoint).identity()


def test_an_architecture_that_fits_its_fingerprint_but_not_the_tensors_is_refused(checkpoint):
    sizes = Architecture(hidden=(128, 65))
    edit(checkpoint, architecture=sizes.document(), network=fingerprint(layout(sizes)))
    assert "tensor trunk.1.weight is torch.float32 [64, 128]" in refusal(checkpoint)


def test_a_normaliser_that_cannot_divide_is_refused(tmp_path):
    std = NORMALISER.std.copy()
    std[5] = 0.0
    save(fresh(normaliser=Normaliser(NORMALISER.mean, std, "broken")), tmp_path / "ck")
    assert "not above zero" in refusal(tmp_path / "ck")


def test_a_policy_that_samples_says_so_and_repeats_itself(checkpoint):
    observation = torch.randn(70, 128, generator=torch.Generator().manual_seed(1))
    greedy, *sampled = (policy_of(*load(checkpoint), 70, selector, 9) for selector in ("greedy", "boltzmann", "thompson"))
    assert greedy.identity()["selector"] == "greedy"
    for policy in sampled:
        assert policy.identity() != greedy.identity()
        first, again, later = (picks(policy, observation, step=step)[0] for step in (0, 0, 1))
        assert torch.equal(first, again) and not torch.equal(first, later)
