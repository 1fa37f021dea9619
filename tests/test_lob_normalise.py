"""Normalisation: statistics of a stated range or declared ones, never of what is still to come; finite whatever comes in."""

import numpy as np
import pytest

from lob.errors import BadInput
from lob.features import FEATURES, STAGE
from lob.layout import OFFSET, STATE_DIM
from lob.normalise import CLIP, apply, fit, fixed

SCALED = [f.slot for f in FEATURES if f.stage not in ("bounded",)]
PASSED = [i for i in range(STATE_DIM) if i not in SCALED]


def raw(rows=500, seed=1):
    """Columns with the declared centers and scales, three of them constant."""
    rng = np.random.default_rng(seed)
    base = fixed()
    x = (rng.standard_normal((rows, STATE_DIM)) * base.std + base.mean).astype(np.float32)
    x[:, [i for i in range(STATE_DIM) if STAGE[i] in ("lane", "unused")]] = 0
    x[:, OFFSET["spread_ticks"]] = 1.1
    return x


def test_fitted_columns_have_mean_0_and_std_1_on_their_own_range():
    x = raw()
    normaliser = fit(x, "here", fixed())
    z = apply(x, normaliser)
    live = [i for i in SCALED if i != OFFSET["spread_ticks"]]
    assert np.abs(z[:, live].mean(axis=0)).max() < 1e-4
    assert np.abs(z[:, live].std(axis=0) - 1).max() < 1e-3
    assert z.dtype == np.float32 and normaliser.label == "here" and normaliser.fell_back == ()


def test_statistics_are_those_of_exact_arithmetic():
    """Fractions are the oracle, on prices far from zero, where a one-pass sum of squares fails."""
    from fractions import Fraction
    from math import isclose

    x = raw(rows=60)
    slot = OFFSET["atr_ticks"]
    x[:, slot] += 30_000
    values = [Fraction(float(v)) for v in x[:, slot]]
    mean = sum(values) / len(values)
    variance = sum((v - mean) ** 2 for v in values) / len(values)
    normaliser = fit(x, "far", fixed())
    assert isclose(normaliser.mean[slot], float(mean), rel_tol=1e-12)
    assert isclose(normaliser.std[slot] ** 2, float(variance), rel_tol=1e-9)


def test_bounded_lane_and_unused_slots_pass_unchanged():
    x = raw()
    x[:, OFFSET["imbalance_10"]] = np.linspace(-1, 1, len(x))
    for normaliser in (fixed(), fit(x, "here", fixed())):
        assert apply(x, normaliser)[:, PASSED].tobytes() == x[:, PASSED].tobytes()
        assert (normaliser.mean[PASSED] == 0).all() and (normaliser.std[PASSED] == 1).all()


def test_a_constant_column_becomes_zero_with_std_1():
    x = raw()
    normaliser = fit(x, "here", fixed())
    slot = OFFSET["spread_ticks"]
    assert normaliser.std[slot] == 1 and not apply(x, normaliser)[:, slot].any()


@pytest.mark.parametrize("scale", [0.541, 1e-9])
def test_a_scale_of_returns_that_no_market_has_falls_back_to_the_declared_one_and_is_named(scale):
    x = raw()
    slot = OFFSET["log_return_1"]
    x[:, slot] *= scale / x[:, slot].std()
    normaliser = fit(x, "odd", fixed())
    assert normaliser.fell_back == ("log_return_1",) and normaliser.std[slot] == fixed().std[slot]


def test_what_is_normalised_is_finite_and_clipped():
    x = raw()
    x[3, SCALED] = np.finfo(np.float32).max
    z = apply(x, fixed())
    assert np.isfinite(z).all() and (z[3, SCALED] == CLIP).all() and np.abs(z[:, SCALED]).max() == CLIP


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_refused_by_name(value):
    x = raw()
    x[7, OFFSET["adx"]] = value
    with pytest.raises(BadInput, match="feature adx of decision 7"):
        apply(x, fixed())
    with pytest.raises(BadInput, match="feature adx of decision 7"):
        fit(x, "here", fixed())
    with pytest.raises(BadInput, match="1 decisions"):
        fit(raw(rows=1), "short", fixed())


def test_the_fingerprint_tells_statistics_apart_bit_by_bit():
    a, b = fit(raw(), "a", fixed()), fit(raw(), "b", fixed())
    assert a.fingerprint == b.fingerprint != fixed().fingerprint
    b.std[0] = np.nextafter(b.std[0], 2)
    assert a.fingerprint != b.fingerprint


def test_declared_scales_of_what_diffuses_grow_with_the_root_of_the_period():
    second, minute = fixed(), fixed(60.0)
    ratio = minute.std / second.std
    for feature in FEATURES:
        assert ratio[feature.slot] == pytest.approx(60**0.5 if feature.diffuses and feature.stage != "bounded" else 1)
    assert fixed(0.001).fingerprint == second.fingerprint
