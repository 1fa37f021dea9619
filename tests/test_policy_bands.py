"""What may end a training run: streaks that a fold forgets, escalation that noise is not, baselines that must be comparable."""

import json
import math

import pytest

from lob.errors import BadInput
from policy.bands import BANDS, TERMINAL, Band, Measured, MetricBandsRegistry, escalation, more_than_halved
from policy.diag_columns import COLUMNS

ONE = {"x": Band("a test", warn_above=1.0, error_above=2.0, warn_below=-1.0, error_below=-2.0)}
BAD, ODD, GOOD = {"x": 3.0}, {"x": 1.5}, {"x": 0.0}


def run(values, bands=ONE):
    registry = MetricBandsRegistry(bands)
    return registry, [registry.observe(value) for value in values]


def test_six_errors_in_a_row_end_the_run_and_five_do_not():
    """T25."""
    _, found = run([BAD] * 6)
    assert [watched.stop is None for watched in found] == [True] * 5 + [False]
    assert found[-1].stop == "x was in error in 6 blocks in a row, last 3: a test" and TERMINAL == 6


def test_three_errors_a_fold_and_three_more_do_not_end_the_run():
    """T25, lesson 30: no fold crossed the limit by itself."""
    registry, found = run([BAD] * 3)
    registry.reset_streaks()
    found += [registry.observe(BAD) for _ in range(3)]
    assert all(watched.stop is None for watched in found)
    assert [registry.observe(BAD).stop is None for _ in range(3)] == [True, True, False]


def test_resetting_leaves_a_registry_as_a_new_one():
    """Every attribute is looked at, so that a new one cannot be forgotten."""
    registry, _ = run([BAD | {"learn.grad_norm": 5.0}, ODD], {**ONE, **BANDS})
    fresh = MetricBandsRegistry({**ONE, **BANDS})
    assert vars(registry) != vars(fresh)
    registry.reset_streaks()
    assert vars(registry) == vars(fresh)


def test_a_good_block_ends_a_streak():
    _, found = run([BAD] * 5 + [GOOD] + [BAD] * 5)
    assert all(watched.stop is None for watched in found)


def test_a_warning_never_ends_a_run():
    _, found = run([ODD] * 50)
    assert all(watched.stop is None for watched in found)


def test_a_streak_speaks_when_it_begins_persists_and_ends_the_run_and_not_at_every_block():
    _, found = run([BAD] * 6)
    assert [len(watched.events) for watched in found] == [1, 0, 1, 0, 0, 1]
    assert {event.kind for watched in found for event in watched.events} == {"watch.error"}
    _, found = run([ODD] * 6)
    assert [[event.kind for event in watched.events] for watched in found] == [["watch.warning"], [], ["watch.warning"], [], [], []]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.1, -2.1])
def test_what_is_not_finite_or_out_of_bounds_on_either_side_is_an_error_and_is_logged_as_a_number_or_nothing(value):
    _, (watched,) = run([{"x": value}])
    assert [event.severity for event in watched.events] == [2]
    assert watched.events[0].value == (value if math.isfinite(value) else None)


def test_a_metric_that_is_not_given_neither_ends_nor_lengthens_a_streak():
    _, found = run([BAD, {}, {"x": None}, BAD, BAD, BAD, BAD, BAD])
    assert [watched.stop is None for watched in found] == [True] * 7 + [False]


def test_the_seeds_broken_auxiliary_label_trips_three_bands_at_once():
    """T24: a gradient norm of 126,769, an auxiliary loss of 2.587e7, a label scale of 5,300."""
    _, found = run([{"learn.grad_norm": 126_769.0, "learn.loss_aux": 2.587e7, "signal.aux_label_scale": 5_300.0}] * 6, BANDS)
    assert [event.severity for event in found[0].events] == [2, 2, 2] and found[-1].stop
    healthy = {"learn.grad_norm": 1.5, "learn.loss_aux": 0.5, "signal.aux_label_scale": 0.9}
    assert not run([healthy] * 6, BANDS)[1][-1].events


def test_every_banded_metric_is_a_column_of_diag_or_made_from_some():
    names = {column.name for column in COLUMNS}
    assert {name for name in BANDS if name not in names} == {"support.filled", "experts.least_used"}
    full = {"signal.q_dir_abs_ref": 9.9, "signal.v_half.direction": 10.0, **{f"signal.expert_use.{i}": 0.14 for i in range(7)}}
    _, (watched,) = run([full | {"signal.expert_use.7": 0.001}], BANDS)
    assert [(event.kind, round(event.value, 3)) for event in watched.events] == [("watch.error", 0.99), ("watch.warning", 0.001)]


def test_every_band_has_a_reason_and_its_error_lies_beyond_its_warning():
    for name, band in BANDS.items():
        assert band.reason, name
        assert band.error_above is None or band.warn_above < band.error_above
        assert band.error_below is None or band.warn_below > band.error_below


def test_a_registry_goes_on_from_its_stored_state_as_if_never_stopped():
    values = [BAD | {"learn.grad_norm": norm} for norm in (1.0, 2.0, math.inf, 3.0, 9.0)] + [ODD]
    whole, found = run([*values, *[BAD] * 6], {**ONE, **BANDS})
    first, _ = run(values, {**ONE, **BANDS})
    second = MetricBandsRegistry({**ONE, **BANDS})
    second.restore(json.loads(json.dumps(first.state(), allow_nan=False)))
    assert [second.observe(BAD) for _ in range(6)] == found[len(values) :]
    assert vars(second) == vars(whole)


@pytest.mark.parametrize(
    ("norms", "stops"),
    [
        ([1, 1, 1, 1, 2, 4, 11], True),
        ([1, 1, 1, 1, 2, 4, 8], False),  # eightfold, and not ten above what was ordinary
        ([1, 1, 1, 1, 2, 3.9, 40], False),  # two doublings
        ([1, 1, 1, 20, 1, 20, 1], False),  # noise
        ([1, 2, 4, 8, 16], False),  # a run's first blocks may grow
        ([100, 100, 100, 1, 3, 9, 27], False),  # back from a calm spell
        ([1, 1, 1, 1, 3, 9, math.inf], True),
        ([1, 1, 1, 1, 3, 9, math.nan], True),
        ([0, 0, 0, 0, 0, 0, 0], False),
    ],
)
def test_a_gradient_that_doubles_thrice_and_stands_far_above_what_was_ordinary_stops_the_run(norms, stops):
    found = escalation(norms)
    assert (found is not None) == stops
    registry = MetricBandsRegistry({})
    assert [registry.observe({"learn.grad_norm": norm}) for norm in norms][-1].stop == found


def test_a_fall_of_exactly_half_is_none_and_one_beyond_it_is():
    """P3, strictly: the seed's -50.6 % was passed as an edge of 50."""
    base = Measured(100.0, "greedy", "c")
    assert not more_than_halved(base, Measured(50.0, "greedy", "c"))
    assert more_than_halved(base, Measured(49.4, "greedy", "c"))
    assert more_than_halved(Measured(-10.0, "greedy", "c"), Measured(-15.1, "greedy", "c"))
    assert not more_than_halved(Measured(-10.0, "greedy", "c"), Measured(-15.0, "greedy", "c"))


@pytest.mark.parametrize("other", [Measured(100.0, "boltzmann", "c"), Measured(100.0, "greedy", "d")])
def test_a_baseline_of_another_selector_or_build_is_refused(other):
    """Lesson 45."""
    with pytest.raises(BadInput, match="measure the baseline anew"):
        more_than_halved(other, Measured(10.0, "greedy", "c"))
