"""Laws of the training state on disk: it comes back bit for bit into the tensors that a run holds, and what does not fit is refused."""

import hashlib
import json
import pickle
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from lob.errors import BadInput, ForeignCheckpoint, NotFound, TapeproofError
from policy.tensor_file import describe, form_of, write_folder, write_tensors
from policy.training_state import Standing, load_state, made_by, read_standing, restore, write_state

REPO = Path(__file__).resolve().parent.parent
HEAD = "ab" * 32
STANDING = Standing(1000, 1001, HEAD, -12_500_000, {"best_step": 500, "streaks": {"pnl": [1, 2]}, "rate": 0.1, "note": None})


def tensors():
    """One of every dtype, and the values that a comparison by value would miss."""
    draw = torch.Generator().manual_seed(3)
    odd = torch.tensor([float("nan"), -0.0, 0.0, float("inf"), 1e-45, 0.1])
    odd[5:6].view(torch.int32).fill_(0x7FC01234)  # a NaN with a payload
    return {
        "network.float32": torch.randn(7, 3, generator=draw),
        "moments.float64": torch.randn(2, 2, 2, generator=draw, dtype=torch.float64),
        "bfloat16": torch.randn(5, generator=draw).bfloat16(),
        "half": torch.randn(5, generator=draw).half(),
        "memory.priority": torch.tensor([2**63 - 1, -(2**63), 0, 1]),
        "memory.row": torch.arange(-6, 6, dtype=torch.int32).reshape(3, 4),
        "memory.action": torch.arange(256, dtype=torch.uint8),
        "small": torch.tensor([-128, 127], dtype=torch.int8),
        "valid": torch.tensor([True, False, True]),
        "clock": torch.tensor(41),
        "none": torch.zeros(0, 4),
        "odd": odd,
    }


def forms(of):
    return {name: form_of(tensor) for name, tensor in of.items()}


def save(folder, of=None, standing=STANDING, made=None):
    write_folder(folder, lambda aside: write_state(aside, standing, tensors() if of is None else of, made or made_by()), "move")
    return folder


@pytest.fixture
def state(tmp_path):
    return save(tmp_path / "state")


def refusal(folder, expected=None, made=None):
    with pytest.raises(ForeignCheckpoint) as refused:
        load_state(folder, expected or forms(tensors()), made or made_by())
    assert "\n" not in str(refused.value) and str(refused.value).startswith(f"{folder}: ")
    assert "resume with the build that saved it, or start a new run" in str(refused.value)
    return str(refused.value)


def rewrite(folder, **changes):
    """Another state, with the hash that fits it."""
    document = json.loads((folder / "state.json").read_text()) | changes
    stated = {name: value for name, value in document.items() if name != "content_hash"}
    fitting = hashlib.sha256(json.dumps(stated, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
    (folder / "state.json").write_text(json.dumps(document | {"content_hash": fitting} | changes))


def test_a_state_comes_back_bit_for_bit_in_every_dtype(state):
    standing, loaded = load_state(state, forms(tensors()), made_by())
    assert standing == STANDING == read_standing(state)
    assert {name: describe(tensor) for name, tensor in loaded.items()} == {name: describe(tensor) for name, tensor in tensors().items()}
    assert loaded["odd"].view(torch.int32).tolist() == tensors()["odd"].view(torch.int32).tolist()


def test_equal_states_have_equal_bytes_whatever_the_order_of_their_tensors_and_their_strides(tmp_path, state):
    turned = {name: tensors()[name] for name in reversed(tensors())}
    turned["network.float32"] = turned["network.float32"].t().contiguous().t()
    turned["memory.row"] = torch.stack([turned["memory.row"], turned["memory.row"]], dim=2)[..., 0]
    other = save(tmp_path / "other", turned)
    for name in ("state.json", "state.pt"):
        assert (other / name).read_bytes() == (state / name).read_bytes()


def test_restoring_fills_the_tensors_in_place_and_shares_nothing(state):
    targets = {name: torch.zeros_like(tensor) for name, tensor in tensors().items()}
    places = {name: tensor.data_ptr() for name, tensor in targets.items()}
    leaf = torch.nn.Parameter(targets["network.float32"])
    targets["network.float32"] = leaf
    _, loaded = load_state(state, forms(targets), made_by())
    restore(targets, loaded)
    for tensor in loaded.values():
        tensor.zero_()
    assert leaf.requires_grad and {name: tensor.data_ptr() for name, tensor in targets.items()} == places
    assert {name: describe(tensor) for name, tensor in targets.items()} == {name: describe(tensor) for name, tensor in tensors().items()}


def test_what_is_saved_does_not_change_with_the_run_that_goes_on(tmp_path, state):
    live = tensors()

    def write(aside):
        write_state(aside, STANDING, live, made_by())
        for tensor in live.values():
            tensor.zero_()

    write_folder(tmp_path / "live", write, "move")
    assert (tmp_path / "live" / "state.pt").read_bytes() == (state / "state.pt").read_bytes()


def test_restoring_what_does_not_fit_changes_nothing():
    for wrong in ({"a": torch.ones(2)}, {"a": torch.ones(2), "b": torch.ones(3)}, {"a": torch.ones(2), "b": torch.ones(2).double()}):
        targets = {"a": torch.zeros(2), "b": torch.zeros(2)}
        with pytest.raises(ValueError, match=r"alone|copied into"):
            restore(targets, wrong)
        assert not targets["a"].any() and not targets["b"].any()


def test_a_state_of_other_tensors_is_refused_and_the_first_named(state):
    expected = forms(tensors())
    lacking = {name: form for name, form in expected.items() if name != "clock"}
    assert "state.json has the unknown key 'clock'" in refusal(state, lacking)
    assert "state.json lacks the key 'epsilon'" in refusal(state, expected | {"epsilon": ((1,), torch.float32)})
    for form in [((7, 4), torch.float32), ((21,), torch.float32), ((7, 3), torch.int32)]:
        name = str(form[1]).removeprefix("torch.")
        words = f"tensor network.float32 is torch.float32 [7, 3] where the architecture has {name} {list(form[0])}"
        assert words in refusal(state, expected | {"network.float32": form})


def test_a_state_of_another_build_is_refused_and_what_differs_named(tmp_path, state):
    assert "observation_layout was 0123 when it was saved" in refusal(
        save(tmp_path / "layout", made=made_by() | {"observation_layout": "0123"})
    )
    assert f"torch was 1.0 when it was saved and is {torch.__version__} now" in refusal(
        save(tmp_path / "torch", made=made_by() | {"torch": "1.0"})
    )
    assert "memory_layout was nothing when it was saved and is 77 now" in refusal(state, made=made_by() | {"memory_layout": "77"})
    rewrite(state, format=1)
    assert "format 1 where this version reads 2" in refusal(state)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"step": -1}, "step is -1, no count of steps"),
        ({"step": True}, "step is True, no count"),
        ({"log_steps": 1.0}, "log_steps is 1.0, no count"),
        ({"log_steps": 2**80}, "no count of steps"),
        ({"log_head": "xyz"}, "log_head is xyz, no head"),
        ({"log_head": None}, "log_head is None, no head"),
        ({"score": "high"}, "score is high, no number"),
        ({"score": True}, "score is True, no number"),
        ({"counters": []}, "counters is no JSON object"),
        ({"tensors": 3}, "tensors is no JSON object"),
        ({"more": 1}, "has the unknown key 'more'"),
        ({"score": float("nan")}, "state.json is not JSON"),
        ({"content_hash": "0" * 64}, "state.json is not the one that its content_hash describes (damaged)"),
    ],
)
def test_a_standing_that_is_none_is_refused(state, change, words):
    rewrite(state, **change)
    assert words in refusal(state)
    with pytest.raises(ForeignCheckpoint):
        read_standing(state)


def test_numbers_that_are_none_are_never_written(tmp_path):
    for standing in (Standing(1, 1, HEAD, float("nan")), Standing(1, 1, HEAD, 0, {"loss": float("inf")})):
        with pytest.raises(ValueError, match="not JSON compliant"):
            save(tmp_path / "state", standing=standing)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", [pytest.param(seed, marks=[pytest.mark.deep] if seed >= 40 else []) for seed in range(400)])
def test_a_flipped_bit_is_refused_in_one_line_or_changes_nothing(state, seed):
    draw = random.Random(seed)
    path = state / draw.choice(["state.json", "state.pt"])
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    try:
        standing, loaded = load_state(state, forms(tensors()), made_by())
    except TapeproofError as error:
        assert "\n" not in str(error)
        return
    assert {name: describe(tensor) for name, tensor in loaded.items()} == {name: describe(tensor) for name, tensor in tensors().items()}
    assert standing == STANDING


def test_a_changed_figure_of_the_standing_is_refused_whichever_it_is(tmp_path):
    for i, (ours, other) in enumerate(
        (('"step": 1000', '"step": 1001'), ('"best_step": 500', '"best_step": 400'), ("0.1", "0.2"), ("null", "true"))
    ):
        folder = save(tmp_path / str(i))
        text = (folder / "state.json").read_text()
        assert ours in text
        (folder / "state.json").write_text(text.replace(ours, other, 1))
        assert "its content_hash describes (damaged)" in refusal(folder)
        with pytest.raises(ForeignCheckpoint, match="damaged"):
            read_standing(folder)


def test_a_state_whose_counters_json_writes_otherwise_than_python_holds_them_comes_back(tmp_path):
    """Numbers as keys and tuples: the hash is of what is read."""
    folder = save(tmp_path / "odd", standing=Standing(1, 1, HEAD, 0, {"by_step": {10: 1, 9: (2, 3)}}))
    assert read_standing(folder).counters == {"by_step": {"10": 1, "9": [2, 3]}}


def test_nothing_in_a_state_can_run_code_or_grow(tmp_path, state):
    class Boom:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "boom",))

    (state / "state.pt").write_bytes(pickle.dumps({"a": Boom()}))
    assert "damaged or holds more than tensors" in refusal(state)
    torch.save({**tensors(), "clock": Boom()}, state / "state.pt")
    assert "damaged or holds more than tensors" in refusal(state)
    assert not (tmp_path / "boom").exists()
    write_tensors(state / "state.pt", {**tensors(), "clock": torch.zeros(300_000)})
    assert "measures" in refusal(state)
    with zipfile.ZipFile(state / "state.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(10_000_000))
    assert "unpacks to more than it measures" in refusal(state)
    (state / "state.json").write_bytes(b" " * (1 << 21))
    assert "more than any manifest" in refusal(state)
    (state / "state.pt").unlink()
    save(tmp_path / "fresh")
    (tmp_path / "fresh" / "state.pt").unlink()
    assert "state.pt cannot be read (No such file or directory)" in refusal(tmp_path / "fresh")


def test_what_is_no_state_is_not_found(tmp_path):
    with pytest.raises(NotFound, match="no checkpoint directory"):
        read_standing(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    assert "state.json cannot be read" in refusal(tmp_path / "empty")


def test_a_folder_appears_whole_or_not_at_all(tmp_path, state):
    with pytest.raises(BadInput, match=r"exists already.*move or remove it"):
        save(state)

    def broken(aside):
        (aside / "state.pt").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "later", broken, "move")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]


def test_a_disk_that_fills_under_the_tensors_is_one_clear_line_and_leaves_nothing(tmp_path):
    script = f"""
import resource, sys
from pathlib import Path
import torch
from lob.errors import TapeproofError
from policy.tensor_file import write_folder, write_tensors
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
try:
    write_folder(Path({str(tmp_path / "big")!r}), lambda aside: write_tensors(aside / "state.pt", {{"a": torch.zeros(100_000)}}), "move")
except TapeproofError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=REPO, capture_output=True, text=True)
    assert done.stdout == f"{tmp_path / 'big'}: cannot be written (File too large); free space or move\n", done.stderr
    assert list(tmp_path.iterdir()) == []
