"""The bus: 127 named slots, each declared once; controls are views of it; resetting misses nothing."""

import math

import pytest
import torch

from lob.layout import BUS_SLOTS, STATE_DIM
from policy import signals as b
from policy.architecture import Architecture
from policy.bus import control_state, controls_of, label_scale, observe_labels, reset_controls
from policy.controls import LearnControls, SelectControls
from policy.heads import BRANCHES
from policy.model import HISTORY_SLOTS, initialise
from policy.signals import IN_USE, INDEX, MEMBERS, NAMES, SLOTS, bus_fingerprint


def test_the_bus_has_127_slots_with_127_names():
    assert len(SLOTS) == len(set(NAMES)) == BUS_SLOTS == 127


def test_slots_that_the_seeds_place_are_where_they_place_them():
    placed = {21: "q_dir_abs_ref", 71: "trade_attempt_rate_ema", 72: "trade_target_rate", 117: "aux_label_scale", 126: "gate_entropy"}
    placed |= {118 + i: f"expert_use.{i}" for i in range(8)}
    assert {place: NAMES[place] for place in placed} == placed


def test_every_slot_says_what_it_holds_who_reads_it_and_why_and_resets_to_a_finite_number():
    for slot in SLOTS:
        assert slot.holds and slot.read_by and slot.reason and math.isfinite(slot.reset) and 0 <= slot.weight <= 1, slot


def test_slots_without_a_use_are_named_so_and_are_zero():
    for place in set(range(BUS_SLOTS)) - set(IN_USE):
        assert NAMES[place] == f"unused_{place:03d}" and SLOTS[place].reset == 0


@pytest.mark.parametrize("place", range(BUS_SLOTS), ids=NAMES)
def test_a_fold_reset_puts_a_slot_back_to_its_declared_value(place):
    """I14: one entry, one test."""
    state = control_state()
    state.bus[place] = 1234.5
    reset_controls(state)
    assert state.bus[place].item() == pytest.approx(SLOTS[place].reset)


def test_a_fold_reset_leaves_nothing_that_a_fresh_state_does_not_hold():
    state = control_state()
    for part in state:
        part.add_(7)
    addresses = [part.data_ptr() for part in state]
    reset_controls(state)
    assert all(torch.equal(part, fresh) for part, fresh in zip(state, control_state(), strict=True))
    assert addresses == [part.data_ptr() for part in state], "captured graphs read these addresses"


def test_nothing_that_is_divided_by_resets_to_zero():
    """Lesson 29."""
    assert SLOTS[INDEX["aux_label_scale"]].reset == 1.0
    assert label_scale(control_state().bus).item() == 1.0


def test_two_controls_never_share_storage():
    """Lesson 14: one scalar under two names was a CVaR level of 0."""
    state = control_state()
    select, learn = controls_of(state.bus)
    places = [part.data_ptr() + 4 * i for part in (*select, *learn) for i in range(part.numel())]
    assert len(set(places)) == len(places) == 23 + len(LearnControls._fields)
    start = state.bus.data_ptr()
    assert all(start <= place < start + 4 * BUS_SLOTS for place in places)


def test_controls_are_views_of_the_slots_of_their_names():
    state = control_state()
    state.bus.copy_(torch.arange(BUS_SLOTS, dtype=torch.float32))
    select, learn = controls_of(state.bus)
    assert {name: int(value) for name, value in learn._asdict().items()} == {name: INDEX[name] for name in LearnControls._fields}
    names = {name: [NAMES[int(value)] for value in getattr(select, name).flatten()] for name in SelectControls._fields}
    branches = ["direction", "magnitude", "order", "urgency"]
    assert names["epsilon"] == [f"epsilon.{branch}" for branch in branches]
    assert names["tau_floor"] == [f"tau_floor.{branch}" for branch in branches]
    assert names["contrarian"] == ["contrarian"] and names["conviction_scale"] == ["conviction_scale"]
    assert {branch: len(members) for branch, members in MEMBERS.items()} == BRANCHES
    choices = [
        "direction.short",
        "direction.hold",
        "direction.long",
        "direction.flat",
        "magnitude.quarter",
        "magnitude.half",
        "magnitude.full",
    ]
    choices += ["order.market", "order.join", "order.improve", "urgency.normal", "urgency.patient", "urgency.aggressive"]
    assert names["bonus"] == [f"bonus.{choice}" for choice in choices]


def test_the_fingerprint_changes_with_a_name_a_place_and_a_reset_value(monkeypatch):
    found = {bus_fingerprint()}
    for change in (SLOTS[0]._replace(name="other"), SLOTS[0]._replace(reset=0.5)):
        monkeypatch.setattr(b, "SLOTS", (change, *SLOTS[1:]))
        found.add(bus_fingerprint())
    monkeypatch.setattr(b, "SLOTS", (SLOTS[1], SLOTS[0], *SLOTS[2:]))
    found.add(bus_fingerprint())
    assert len(found) == 4
    monkeypatch.setattr(b, "SLOTS", SLOTS)
    assert bus_fingerprint() in found


def test_the_label_scale_follows_its_closed_form():
    """T23: weight 0.05 from 1.0, after n batches of mean absolute label m: m + 0.95^n (1 - m)."""
    bus = control_state().bus
    label = torch.tensor([0.5, -1.5, 3.0, -3.0])
    for _ in range(37):
        observe_labels(bus, label, torch.ones(4, dtype=torch.bool))
    assert bus[INDEX["aux_label_scale"]].item() == pytest.approx(2 + 0.95**37 * (1 - 2), rel=1e-6)


def test_labels_that_are_invalid_or_not_finite_do_not_move_the_scale():
    bus = control_state().bus
    observe_labels(bus, torch.tensor([float("nan"), float("inf"), 5.0]), torch.tensor([True, True, False]))
    assert bus[INDEX["aux_label_scale"]].item() == 1.0
    observe_labels(bus, torch.tensor([3.0, 3.0, 5.0]), torch.tensor([False, False, False]))
    assert bus[INDEX["aux_label_scale"]].item() == 1.0
    observe_labels(bus, torch.tensor([float("nan"), 3.0, 5.0]), torch.tensor([False, True, False]))
    assert bus[INDEX["aux_label_scale"]].item() == pytest.approx(1.0 + 0.05 * 2)


def test_labels_of_zero_for_ever_never_make_the_divisor_zero():
    bus = control_state().bus
    for _ in range(2_000):
        observe_labels(bus, torch.zeros(8), torch.ones(8, dtype=torch.bool))
    assert label_scale(bus).item() == pytest.approx(1e-6)


def test_a_raw_price_as_label_is_met_within_sixty_batches():
    """T24: a label of 5,180 instead of a log return is divided back to the order of one, before the loss can drown the rest."""
    bus, label = control_state().bus, torch.full((64,), 5_180.0)
    for _ in range(60):
        observe_labels(bus, label, torch.ones(64, dtype=torch.bool))
    assert (label / label_scale(bus)).max().item() < 1.1


def test_a_signal_that_runs_away_moves_the_network_by_its_logarithm():
    model = initialise(Architecture(), 1)
    observation, history = torch.zeros(1, STATE_DIM), torch.zeros(1, model.window, HISTORY_SLOTS)
    said = []
    for norm in (0.0, 1.0, 1e10, 1e30):
        bus = control_state().bus
        bus[INDEX["grad_norm"]] = norm
        said.append(model.body(observation, history, bus)[0].detach())
    moved = [(each - said[0]).abs().max().item() for each in said[1:]]
    assert 0 < moved[0] < moved[1] < moved[2] < 200 * moved[0], "1e30 counts as seventy-eight units"
