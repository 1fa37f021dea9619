"""It learns, and only what is there to be learnt: `sim train` on synthetic markets whose right answer is known.

The unit is the day: one greedy account plays each test day, so copies of a lane add no evidence. `make test` trains one seed on few days;
`make prove` is the whole: 30 training, 5 validation, 20 test days, five training seeds, with and without an edge.
"""

import datetime as dt
import json
import math
from pathlib import Path

import numpy as np
import pytest

from lob.instruments import REGISTRY
from sim.ingest import ingest
from sim.synth import synth
from sim.train import train
from sim.train_config import plan_train
from store.run_read import read_run, read_table

CONTRACT = "ESH4"
EVENTS = 50_000
MARKET_SEED = 7
BASELINES = ("flat", "long", "short", "random", "momentum")


def market(folder: Path, days: int, edge: float, events: int = EVENTS) -> tuple[Path, int, int]:
    """(store, start_ns, end_ns) of so many synthetic sessions from 2024-01-02 on."""
    date, made = dt.date(2024, 1, 2), 0
    while made < days:
        if date.weekday() < 5:
            path = folder / f"{date}.dbn"
            synth(CONTRACT, date.isoformat(), events, MARKET_SEED, edge, path)
            ingest(path, folder / "store")
            path.unlink()
            made += 1
        date += dt.timedelta(days=1)
    at = lambda day: int(dt.datetime(day.year, day.month, day.day, tzinfo=dt.UTC).timestamp()) * 10**9  # noqa: E731
    return folder / "store", at(dt.date(2024, 1, 1)), at(date)


def trained(folder: Path, where: tuple[Path, int, int], seed: int, test: int, validation: int, steps: int, device: str = "cpu"):
    """(greedy evaluation, lots traded a day, its run) of a training with the small profile at the ten-second clock."""
    store, start, end = where
    stated = {"split": {"test_days": test, "validation_days": validation}, "loop": {"steps": steps, "device": device}}
    tape = {"clock": "10s", "start_ns": start, "end_ns": end}
    config = plan_train(store, CONTRACT, REGISTRY, tape, stated, seed=seed, lanes=128)
    result = train(config, store, folder / f"runs-{seed}")
    (greedy,) = (one for one in result.evaluations if one["selector"] == "greedy")
    run = Path(greedy["run"])
    lots = int(np.abs(read_table(read_run(run), "fills")["lots"].to_numpy()).sum())
    return json.loads((run / "eval_summary.json").read_bytes())["evaluation"], lots / test, result


def days_of(evaluation: dict) -> np.ndarray:
    """float64[days]: USD of each test day, net of fees."""
    return np.array([day["mean_pnl_usd_micros"] for day in evaluation["days"]]) / 1e6


def one_sided_p(values: np.ndarray) -> float:
    """P(mean this high or higher) were the true mean 0: Student's t, its tail by numerical integration of the density."""
    spread = values.std(ddof=1)
    if spread == 0:
        return 0.5 if values.mean() == 0 else float(values.mean() < 0)
    t, nu = values.mean() / spread * math.sqrt(len(values)), len(values) - 1
    grid = np.linspace(0, 1 - 1e-9, 200_001)
    x = abs(t) + grid / (1 - grid)
    scale = math.exp(math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2)) / math.sqrt(nu * math.pi)
    density = scale * (1 + x**2 / nu) ** (-(nu + 1) / 2) / (1 - grid) ** 2
    tail = float(np.trapezoid(density, grid))
    return tail if t >= 0 else 1 - tail


def test_the_tail_probability_is_student_s():
    assert one_sided_p(np.array([1.0, 2.0, 3.0])) == pytest.approx(0.0370899, abs=1e-6)  # t = 2 sqrt(3), 2 degrees: closed form
    assert one_sided_p(np.array([-1.0, 1.0])) == pytest.approx(0.5, abs=1e-6)


def earns(evaluation: dict) -> bool:
    """Positive with p < 0.001, above every trivial rule day by day, and at least 30 % of what the imbalance rule earns."""
    days = days_of(evaluation)
    rules = {name: np.array(rule["days_usd_micros"]) / 1e6 for name, rule in evaluation["baselines"].items()}
    beaten = all(one_sided_p(days - rules[name]) < 0.001 for name in BASELINES)
    return one_sided_p(days) < 0.001 and beaten and days.mean() >= 0.3 * rules["imbalance"].mean()


def test_one_seed_learns_a_planted_edge_from_few_days(tmp_path):
    where = market(tmp_path, 12, 1.0, events=20_000)
    evaluation, _, result = trained(tmp_path, where, seed=1, test=4, validation=1, steps=1_000)
    days = days_of(evaluation)
    assert one_sided_p(days) < 0.01 and (days > 0).all(), days
    # Half of what is asked of the whole acceptance: a thousand steps on seven days of fewer events.
    assert days.mean() > 0.15 * np.mean(evaluation["baselines"]["imbalance"]["days_usd_micros"]) / 1e6, days
    assert result.summary["training"]["best_score_usd_micros"] > 0


@pytest.mark.prove
@pytest.mark.parametrize("edge", [1.0, 0.0])
def test_five_seeds_earn_where_there_is_an_edge_and_stay_out_where_there_is_none(tmp_path, edge):
    where = market(tmp_path, 55, edge)
    found = [trained(tmp_path, where, seed, test=20, validation=5, steps=2_000)[:2] for seed in range(1, 6)]
    for evaluation, lots in found:
        days = days_of(evaluation)
        print(f"K = {edge}: ${days.mean():,.0f} a day, p {one_sided_p(days):.2g}, {lots:.1f} lots a day")
    if edge:
        assert sum(earns(evaluation) for evaluation, _ in found) >= 4
    else:
        assert all(one_sided_p(days_of(evaluation)) >= 0.01 and lots <= 20 for evaluation, lots in found)
