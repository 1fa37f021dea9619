"""Laws of a run of several windows: each is what it would be alone, nothing between them is read, and a fit is the same whoever asks."""

import numpy as np
import pytest

from lob.actions import EndReason
from lob.errors import BadInput
from lob.instruments import resolve
from lob.layout import OFFSET
from lob.windows import TAPE_ROWS
from sim.run_data import joint_hash
from sim.tape import load, sessions_of
from tests.window_days import DATES, HOUR, config_of, day_bounds, store_of_days

MONDAY, TUESDAY, WEDNESDAY, THURSDAY = (day_bounds(date) for date in DATES)
MORNING = (TUESDAY[0] + 2 * HOUR, TUESDAY[0] + 4 * HOUR)
EVENING = (TUESDAY[0] + 6 * HOUR, TUESDAY[0] + 8 * HOUR)
PER_DECISION = ("low_held_mid2", "high_held_mid2", "low_after_mid2", "high_after_mid2", "closes_session")
PER_ROW = ("ts_decided_ns", "ts_observed_ns", "ts_arrived_ns", "ts_filled_ns", "session")
EVENTS = ("observed_event", "mark_event", "fill_event")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return store_of_days(tmp_path_factory.mktemp("market"))


def alone(store, window, **tape):
    return load(store, config_of([window], tape={"windows": None} | tape))


def assert_window_equals(joined, i, one):
    """Times, prices and features of the i-th window are those of a run of that window alone."""
    first, drain, reason = joined.schedule.windows[i]
    assert reason == one.schedule.final_reason
    for name in PER_ROW:
        assert getattr(joined.schedule, name)[first : drain + 1].tolist() == getattr(one.schedule, name).tolist(), name
    for name in PER_DECISION:
        assert getattr(joined.schedule, name)[first:drain].tolist() == getattr(one.schedule, name).tolist(), name
    for name in EVENTS:
        here, there = getattr(joined.schedule, name)[first : drain + 1], getattr(one.schedule, name)
        for column in TAPE_ROWS:
            a, b = getattr(joined.tape, column)[here], getattr(one.tape, column)[there]
            if column == "source":
                a, b = np.array(joined.tape.sources)[a], np.array(one.tape.sources)[b]
            assert a.tolist() == b.tolist(), (name, column)
    assert joined.features[first : drain + 1].tobytes() == one.features.tobytes()


def test_each_window_is_what_it_is_alone(store):
    windows = [MONDAY, MORNING, EVENING, THURSDAY]
    joined = load(store, config_of(windows))
    assert len(joined.schedule.windows) == 4 and joined.features.shape == (joined.schedule.rows, 128)
    for i, window in enumerate(windows):
        assert_window_equals(joined, i, alone(store, window))
    sources = [joined.tape.source[joined.schedule.fill_event[window.first]] for window in joined.schedule.windows]
    assert sources == [0, 1, 1, 2] and len(joined.tape.sources) == 3


def test_one_window_of_a_list_is_joined_too_and_drains_by_itself(store):
    joined = load(store, config_of([MORNING]))
    assert_window_equals(joined, 0, alone(store, MORNING))
    assert joined.schedule.joined and not alone(store, MORNING).schedule.joined


def test_a_step_limit_holds_for_each_window(store):
    joined = load(store, config_of([MONDAY, MORNING], tape={"step_limit": 7}))
    assert [window.drain - window.first for window in joined.schedule.windows] == [7, 7]
    assert {window.final_reason for window in joined.schedule.windows} == {EndReason.STEP_LIMIT}
    for i, window in enumerate((MONDAY, MORNING)):
        assert_window_equals(joined, i, alone(store, window, step_limit=7))


def test_sessions_between_the_windows_are_not_read(store):
    windows = [MONDAY, MORNING, EVENING, THURSDAY]
    joined = load(store, config_of(windows))
    assert [tuple(span[:2]) for span in joined.provenance["reads"]] == [MONDAY, (TUESDAY[0], EVENING[1]), THURSDAY]
    assert not ((joined.tape.ts_recv_ns >= WEDNESDAY[0]) & (joined.tape.ts_recv_ns < WEDNESDAY[1])).any()
    assert (
        joined.provenance["events"]
        == joined.tape.events
        == sum(
            int(((whole.ts_recv_ns >= begin) & (whole.ts_recv_ns < end)).sum())
            for whole in [alone(store, (MONDAY[0], THURSDAY[1])).tape]
            for begin, end, _ in joined.provenance["reads"]
        )
    )
    assert joined.provenance["data_hash"] == joint_hash(joined.provenance["reads"])
    assert joined.provenance["reads"][0][2] == alone(store, MONDAY).provenance["data_hash"]


def test_the_cache_gives_the_bytes_that_computing_gives(store):
    config = config_of([MONDAY, MORNING])
    computed, cached = load(store, config, rebuild=True), load(store, config)
    assert computed.features.tobytes() == cached.features.tobytes()
    assert computed.provenance == cached.provenance


def test_training_and_evaluation_fit_the_same_statistics_on_the_training_days(store):
    fit = {"fit_start_ns": MONDAY[0], "fit_end_ns": TUESDAY[1]}
    train = load(store, config_of([MONDAY, TUESDAY], "train", tape=fit))
    judged = load(store, config_of([THURSDAY], "eval", tape=fit))
    assert train.normaliser.fingerprint == judged.normaliser.fingerprint
    assert train.normaliser.label == judged.normaliser.label and train.normaliser.label.startswith(
        "fitted on 2 sessions of 2024-03-03T23:00"
    )
    other = load(store, config_of([MONDAY, TUESDAY], "train", tape=fit | {"fit_end_ns": MONDAY[1]}))
    assert other.normaliser.fingerprint != train.normaliser.fingerprint
    plain = load(store, config_of([MONDAY, TUESDAY], "train"))
    decisions = np.concatenate([np.arange(window.first, window.drain) for window in plain.schedule.windows])
    raw = plain.features.astype(np.float64) * plain.normaliser.std + plain.normaliser.mean
    slot = OFFSET["log_depth_bid"]  # never clipped here
    column = raw[decisions, slot]
    assert train.normaliser.mean[slot] == pytest.approx(column.mean(), rel=1e-5)
    assert train.normaliser.std[slot] == pytest.approx(column.std(), rel=1e-4)


def test_a_normaliser_that_the_policy_brings_is_used_and_stands_beside_no_fit_range(store):
    fit = {"fit_start_ns": MONDAY[0], "fit_end_ns": MONDAY[1]}
    train = load(store, config_of([MONDAY], "train", tape=fit))
    brought = load(store, config_of([THURSDAY]), normaliser=train.normaliser)
    assert brought.normaliser is train.normaliser
    assert brought.features.tobytes() == load(store, config_of([THURSDAY], tape=fit)).features.tobytes()
    with pytest.raises(BadInput, match="brings its own normalisation"):
        load(store, config_of([THURSDAY], tape=fit), normaliser=train.normaliser)


def test_sessions_are_the_trade_dates_that_hold_rows_cut_to_the_range(store):
    def dates(start, end):
        return [(str(date), first, last) for date, first, last in sessions_of(store, "ESH4", "mbp-10", resolve("ESH4"), start, end)]

    bounds = [day_bounds(date) for date in DATES]
    before, after = MONDAY[0] - 72 * HOUR, THURSDAY[1] + 96 * HOUR
    assert dates(before, after) == [(date, *bound) for date, bound in zip(DATES, bounds, strict=True)]
    assert dates(MORNING[0], WEDNESDAY[0] + HOUR) == [
        ("2024-03-05", MORNING[0], TUESDAY[1]),
        ("2024-03-06", WEDNESDAY[0], WEDNESDAY[0] + HOUR),
    ]
    assert dates(THURSDAY[1], after) == []
