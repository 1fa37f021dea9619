"""The feature cache: gives back exactly what was put in, or refuses with one line; its schema hash covers all that shapes a value."""

import json
import multiprocessing
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import store.feature_cache as cache
from lob.errors import BadInput, StaleCache
from lob.layout import STATE_DIM

HOUSE = Path(cache.__file__).resolve().parent.parent
KEY = {"data_hash": "ab", "clock": "1s", "start_ns": 1, "step_limit": None}
COMMAND = "sim replay … --rebuild-features"


def values(rows=40, seed=1):
    x = np.zeros((rows, STATE_DIM), np.float32)
    x[:, :20] = np.random.default_rng(seed).standard_normal((rows, 20))
    x[0, 0] = -0.0
    return x


def write(folder, x, key=KEY):
    return cache.write_features(folder, key, x, np.zeros(STATE_DIM), np.ones(STATE_DIM), "fixed")


def rewrite(path, **changes):
    table = pq.read_table(path)
    head = json.loads(table.schema.metadata[b"tapeproof"]) | changes
    pq.write_table(table.replace_schema_metadata({b"tapeproof": json.dumps(head).encode()}), path)


def test_what_was_put_in_comes_back_bit_by_bit(tmp_path):
    for x in (values(), np.zeros((3, STATE_DIM), np.float32)):
        write(tmp_path, x)
        assert cache.read_features(tmp_path, KEY, COMMAND).tobytes() == x.tobytes()


def test_equal_content_gives_equal_bytes_and_leaves_nothing_beside_it(tmp_path):
    first = write(tmp_path, values()).read_bytes()
    assert write(tmp_path, values()).read_bytes() == first
    assert [path.name for path in (tmp_path / "features").iterdir()] == [cache.cache_path(tmp_path, KEY).name]


def test_nothing_there_is_none_and_other_parameters_are_another_entry(tmp_path):
    assert cache.read_features(tmp_path, KEY, COMMAND) is None
    write(tmp_path, values())
    for name, value in {"data_hash": "ac", "clock": "2s", "start_ns": 2, "step_limit": 3}.items():
        assert cache.read_features(tmp_path, KEY | {name: value}, COMMAND) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wire_version": 0}, r"found wire version 0, expected version 1"),
        ({"schema_hash": "0" * 64}, r"found schema hash 0000000000000000 .* expected [0-9a-f]{16}"),
        ({"parameters": {"data_hash": "other"}}, r"other parameters"),
        ({"content_hash": "0" * 64}, r"found damaged content of hash [0-9a-f]{16}, expected 0000000000000000"),
        ({"rows": 7}, r"damaged"),
    ],
)
def test_a_stale_entry_says_found_expected_and_the_command_that_rebuilds(tmp_path, changes, message):
    path = write(tmp_path, values())
    rewrite(path, **changes)
    with pytest.raises(StaleCache, match=message) as caught:
        cache.read_features(tmp_path, KEY, COMMAND)
    text = str(caught.value)
    assert text.startswith("Stale feature cache") and text.endswith(COMMAND) and "\n" not in text
    write(tmp_path, values())
    assert cache.read_features(tmp_path, KEY, COMMAND) is not None, "and the rebuilt one is used"


def test_a_damaged_entry_is_refused_wherever_the_damage_is(tmp_path):
    path = write(tmp_path, values())
    whole = path.read_bytes()
    rng = np.random.default_rng(4)
    refused = 0
    for at in rng.choice(len(whole), 60, replace=False):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << int(rng.integers(8)))]) + whole[at + 1 :])
        try:
            assert cache.read_features(tmp_path, KEY, COMMAND).tobytes() == values().tobytes(), "unnoticed only where it changes nothing"
        except StaleCache as error:
            assert "\n" not in str(error)
            refused += 1
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(StaleCache, match="damaged"):
            cache.read_features(tmp_path, KEY, COMMAND)
    assert refused > 30


def test_a_folder_that_cannot_be_written_is_one_line_and_leaves_nothing(tmp_path):
    (tmp_path / "features").write_text("a file where the folder should be")
    with pytest.raises(BadInput, match="feature cache cannot be written"):
        write(tmp_path, values())
    assert [path.name for path in tmp_path.iterdir()] == ["features"]


def test_what_a_killed_writer_left_goes_with_the_next_write_once_it_is_old(tmp_path):
    path = write(tmp_path, values())
    old, young = (path.with_name(f"{path.stem}.{pid}.aa.part") for pid in (1, 2))
    for left in (old, young):
        left.write_bytes(b"half")
    os.utime(old, (1, 1))
    write(tmp_path, values())
    assert not old.exists() and young.exists()


def _write_often(folder, seed):
    for _ in range(8):
        write(folder, values(rows=400, seed=seed))


def test_writers_and_readers_at_once_see_one_whole_entry_or_the_other(tmp_path):
    write(tmp_path, values(rows=400, seed=1))
    whole = {values(rows=400, seed=seed).tobytes() for seed in (1, 2)}
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_often, args=(tmp_path, seed)) for seed in (1, 2)]
    for writer in writers:
        writer.start()
    reads = 0
    while reads < 20 or any(writer.is_alive() for writer in writers):
        assert cache.read_features(tmp_path, KEY, COMMAND).tobytes() in whole
        reads += 1
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert len(list((tmp_path / "features").iterdir())) == 1


def test_the_schema_hash_covers_what_shapes_a_feature_and_nothing_that_does_not():
    sources = set(cache.schema_sources())
    needed = {
        "features",
        "features_kernel",
        "normalise",
        "layout",
        "tape_build",
        "schedule",
        "tape",
        "calendar",
        "instruments",
        "jit",
        "records",
    }
    assert {f"lob/{name}.py" for name in needed} <= sources
    assert all(name.startswith("lob/") for name in sources) and "lob/synth.py" not in sources


def test_the_sources_are_those_that_the_interpreter_loads():
    """The oracle is Python itself: what a fresh process has in `sys.modules` after importing the entry modules."""
    import subprocess
    import sys

    code = "import sys, lob.prepare, lob.normalise; print('\\n'.join(n for n in sys.modules if n.startswith('lob.')))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=HOUSE, capture_output=True, text=True, check=True).stdout.split()
    assert {f"{name.replace('.', '/')}.py" for name in loaded} <= set(cache.schema_sources())


def test_each_source_flips_the_schema_hash_and_undoing_brings_it_back(tmp_path):
    shutil.copytree(HOUSE / "lob", tmp_path / "lob", ignore=shutil.ignore_patterns("__pycache__"))
    before = cache.schema_hash(tmp_path)
    assert before == cache.schema_hash()
    for name in cache.schema_sources():
        path = tmp_path / name
        whole = path.read_bytes()
        path.write_bytes(whole + b"\n# a comment\n")
        assert cache.schema_hash(tmp_path) != before, name
        path.write_bytes(whole)
        assert cache.schema_hash(tmp_path) == before, name
    (tmp_path / "lob" / "synth.py").write_text("# shapes no feature\n")
    assert cache.schema_hash(tmp_path) == before


def test_an_import_inside_a_function_counts(tmp_path):
    (tmp_path / "lob").mkdir()
    (tmp_path / "lob" / "prepare.py").write_text("def f():\n    from lob import inner\n    import lob.other\n")
    (tmp_path / "lob" / "inner.py").write_text("import os\n")
    (tmp_path / "lob" / "other.py").write_text("from numpy import array\n")
    assert cache.schema_sources(tmp_path, ("lob.prepare",)) == ("lob/inner.py", "lob/other.py", "lob/prepare.py")
