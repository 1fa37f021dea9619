"""Blocks of the log: the rows of many steps at once are the rows that the environment gives a step at a time."""

import numpy as np
import pytest
import torch

from cuda_env.blocks import NULL, BlockLog
from cuda_env.env import EMIT
from lob.errors import BadInput
from lob.tables import Column
from tests.env_builds import CASES, EVERY, Njit, make_env, random_inputs

LEVELS = {"full": EMIT, "fills": ("fills", "trades"), "trades": ("trades",), "diag": ()}
EXTRA = (
    Column("policy.range_ppm_sum", "int64", "ppm", "a sum that a step may lack", nullable=True),
    Column("learn.loss", "float32", "1", "a float that a step may lack", nullable=True),
    Column("learn.updates", "int64", "1", "a count that every step has"),
    Column("learn.norm", "float64", "1", "a float that every step has"),
)


def one_by_one(env) -> dict[str, dict[str, np.ndarray]]:
    """The last step's rows of every table as `env.diag` and `env.rows` give them."""
    diag = {name: np.array([value]) for name, value in env.diag().items()}
    return {"diag": diag} | {table: env.rows(table) for table in env.emit}


def joined(parts: list[dict[str, dict[str, np.ndarray]]]) -> dict[str, dict[str, np.ndarray]]:
    return {
        table: {name: np.ma.concatenate([part[table][name] for part in parts]) for name in columns} for table, columns in parts[0].items()
    }


def assert_same_rows(found, wanted):
    assert found.keys() == wanted.keys()
    for table in found:
        assert list(found[table]) == list(wanted[table])
        for name, values in found[table].items():
            other = wanted[table][name]
            if table != "diag":
                assert values.dtype == other.dtype, name
            assert values.shape == other.shape, (table, name)
            assert np.array_equal(np.ma.getmaskarray(values), np.ma.getmaskarray(other)), name
            assert np.ma.filled(values, 0).tobytes() == np.ma.filled(other, 0).astype(values.dtype).tobytes(), name


def play_blocks(env, steps: int) -> tuple[list, list, list[int]]:
    """(drained blocks, single steps, steps of each block) over all decisions and the drain."""
    played = env.case.steps or env.schedule.decisions
    case_inputs = random_inputs(env.case, played)
    block, player = BlockLog(env, steps), Njit(env)
    blocks, singles, sizes = [], [], []
    for step in range(played + 1):
        player.observe()
        if step < played:
            player.step(case_inputs[step])
        elif env.case.steps:
            player.close_all()
        else:
            player.drain()
        block.capture()
        singles.append(one_by_one(env))
        if (step + 1) % steps == 0 or step == played:
            blocks.append(block.drain())
            sizes.append(len(blocks[-1]["diag"]["step"]))
    return blocks, singles, sizes


def cased(case, **options):
    env = make_env(case, **options)
    env.case = case
    return env


@pytest.mark.parametrize("steps", [1, 3, 64])
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("number", [0, 1, 2, 7, *range(len(CASES), len(EVERY))])
def test_a_blocks_rows_are_those_of_its_steps(number, level, steps):
    env = cased(EVERY[number], emit=LEVELS[level])
    blocks, singles, sizes = play_blocks(env, steps)
    played = (env.case.steps or env.schedule.decisions) + 1
    assert sizes == [steps] * (played // steps) + [played % steps] * (played % steps > 0)
    assert_same_rows(joined(blocks), joined(singles))
    if "trades" in env.emit:
        assert len(joined(blocks)["trades"]["lane"]) > 10


@pytest.mark.parametrize("lanes", [1, 300])
def test_few_and_many_lanes_make_no_difference(lanes):
    env = cased(CASES[3]._replace(lanes=lanes))
    blocks, singles, _ = play_blocks(env, 16)
    assert_same_rows(joined(blocks), joined(singles))


def test_rows_stand_in_key_order():
    from cuda_env.tables import TABLES

    blocks, _, _ = play_blocks(cased(CASES[2]), 32)
    for table in TABLES:
        columns = joined(blocks)[table.name]
        keys = list(zip(*(columns[name].tolist() for name in table.key), strict=True))
        assert keys == sorted(keys)
        assert len(set(keys)) == len(keys)


def test_what_was_drained_does_not_change_with_later_steps():
    env = cased(CASES[0])
    inputs = random_inputs(env.case, env.schedule.decisions)
    block, player = BlockLog(env, 4, EXTRA), Njit(env)

    def four(first):
        for row in inputs[first : first + 4]:
            player.step(row)
            block.put(torch.tensor([first, first]))
            block.put(torch.tensor([first, first], dtype=torch.float64))
            block.capture()
        return block.drain()

    given = four(0)
    kept = joined([given])
    four(4)
    assert_same_rows(given, kept)


def test_values_that_are_put_stand_in_the_row_of_their_step_and_others_are_null():
    env = cased(CASES[0], emit=())
    inputs = random_inputs(env.case, env.schedule.decisions)
    block, player = BlockLog(env, 8, EXTRA), Njit(env)
    for turn in range(2):
        for step in range(4):
            player.step(inputs[4 * turn + step])
            if step != 2:
                block.put(torch.tensor([NULL if step == 1 else 10 * turn + step, step]))
                block.put(torch.tensor([torch.nan if step == 1 else turn + step / 3, -step], dtype=torch.float64))
            block.capture()
        diag = block.drain()["diag"]
        assert diag["step"].tolist() == [4 * turn + step for step in range(4)]
        assert diag["policy.range_ppm_sum"].tolist() == [10 * turn, None, None, 10 * turn + 3]
        assert diag["learn.loss"].tolist() == [turn, None, None, float(np.float32(turn + 1))]
        assert diag["learn.updates"].tolist() == [0, 1, None, 3], "null shows, so that the log refuses it"
        assert diag["learn.norm"].tolist() == [0, -1, None, -3]
        assert [diag[column.name].dtype for column in EXTRA] == [np.dtype(column.dtype) for column in EXTRA]


def test_a_column_that_is_put_every_step_and_never_null_has_no_mask():
    env = cased(CASES[0], emit=())
    block = BlockLog(env, 2, EXTRA)
    Njit(env).step(random_inputs(env.case, 1)[0])
    block.put(torch.tensor([1, 2]))
    block.put(torch.tensor([1.0, 2.0], dtype=torch.float64))
    block.capture()
    diag = block.drain()["diag"]
    assert type(diag["learn.updates"]) is type(diag["learn.norm"]) is np.ndarray
    assert type(diag["learn.loss"]) is type(diag["policy.range_ppm_sum"]) is np.ma.MaskedArray


def test_a_block_without_steps_gives_tables_without_rows():
    tables = BlockLog(cased(CASES[0]), 4).drain()
    assert set(tables) == {"diag", *EMIT}
    assert not any(len(values) for columns in tables.values() for values in columns.values())


def test_a_step_too_many_is_refused_and_loses_nothing():
    env = cased(CASES[0])
    inputs = random_inputs(env.case, 4)
    block, player = BlockLog(env, 2), Njit(env)
    singles = []
    for row in inputs[:2]:
        player.step(row)
        block.capture()
        singles.append(one_by_one(env))
    player.step(inputs[2])
    with pytest.raises(ValueError, match="a block of 2 steps is full"):
        block.capture()
    assert_same_rows(block.drain(), joined(singles))


def test_a_block_over_its_budget_is_refused_with_the_steps_that_fit():
    env = cased(CASES[0])
    assert BlockLog(env, 64, budget_bytes=10**6).bytes < 10**6
    with pytest.raises(
        BadInput, match=r"^a block of 64 steps x 6 lanes takes .* over the budget of .*: use fewer block steps \(\d+ fit\)$"
    ) as e:
        BlockLog(env, 64, budget_bytes=10**5)
    fit = int(str(e.value).split("(")[1].split()[0])
    assert BlockLog(env, fit, budget_bytes=10**5).bytes <= 10**5
    with pytest.raises(BadInput):
        BlockLog(env, fit + 1, budget_bytes=10**5)
    with pytest.raises(BadInput, match="not one step fits"):
        BlockLog(env, 64, budget_bytes=10**3)
    with pytest.raises(BadInput, match="at least one"):
        BlockLog(env, 0)


def test_a_block_of_an_environment_without_diag_holds_the_emitted_tables_alone():
    env = cased(CASES[0], diag=False, emit=("trades",))
    with pytest.raises(ValueError, match="diag is off"):
        BlockLog(env, 2, EXTRA)
    block = BlockLog(env, 64)
    wanted = []
    for row in random_inputs(env.case, 30):
        Njit(env).step(row)
        block.capture()
        wanted.append({"trades": env.rows("trades")})
    assert_same_rows(block.drain(), joined(wanted))
