"""A pick in plain Python, lane by lane, in 64-bit floats and unbounded integers, written from the definitions; and how near each lane came
to a tie, for a float32 build may fall on the other side of one."""

import math
from typing import Any, NamedTuple

from tests.oracle_philox import philox4x32_10

SIZES = (4, 3, 3, 3)


class Pick(NamedTuple):
    """What one lane picks. `margin`: the least distance of what decided it from deciding otherwise, relative to its scale."""

    action: int
    codes: tuple[int, ...]
    conviction: float
    variance_scale: float
    q_range: float
    q_sigma: float
    explored: bool
    p_best: float
    tau: float
    margin: float


def uniforms(seed: int, lane: int, step: int, purpose: int) -> list[float]:
    """The four draws in [0, 1) of a stream."""
    words = philox4x32_10((lane, step, purpose, 0), (seed % 2**32, seed >> 32))
    return [(word >> 8) / 2**24 for word in words]


def softmax(values: list[float], tau: float = 1.0) -> list[float]:
    top = max(values)
    weights = [math.exp((value - top) / tau) for value in values]
    return [weight / sum(weights) for weight in weights]


def inverse_cdf(probabilities: list[float], u: float) -> tuple[int, float]:
    """(the first index whose cumulated probability exceeds u, distance of u from the nearest boundary)."""
    edges = [sum(probabilities[: i + 1]) for i in range(len(probabilities))]
    inner = [abs(u - edge) for edge, p in zip(edges, probabilities, strict=True) if p > 0 and edge < 1 - 1e-12]
    index = next((i for i, edge in enumerate(edges) if edge > u), len(edges) - 1)
    return index, min(inner, default=1.0)


def at_fraction(quantiles: list[float], u: float) -> float:
    """Linear between the quantiles at (2i + 1) / 2T, constant beyond them."""
    count = len(quantiles)
    place = min(max(u * count - 0.5, 0.0), count - 1.0)
    low = min(int(place), count - 1)
    high = min(low + 1, count - 1)
    return quantiles[low] + (quantiles[high] - quantiles[low]) * (place - low)


def argmax(values: list[float]) -> tuple[int, float]:
    """(the first of the greatest, its lead over the second relative to the largest magnitude)."""
    first = max(range(len(values)), key=lambda i: (values[i], -i))
    lead = values[first] - max(value for i, value in enumerate(values) if i != first)
    return first, lead / (max(map(abs, values)) or 1.0)


def pick(
    logits: Any, quantiles: Any, support: Any, controls: dict[str, Any], selector: str, explore: bool, seed: int, lane: int, step: int
) -> Pick:
    """One lane: logits [13][A], quantiles [13][T], support [A]; the controls by name, as floats and lists of floats."""
    probabilities = [softmax(list(row)) for row in logits]
    means51 = [sum(p * z for p, z in zip(row, support, strict=True)) for row in probabilities]
    means = [(m + sum(row) / len(row)) / 2 for m, row in zip(means51, quantiles, strict=True)]
    signed = [value * controls["contrarian"] for value in means[:4]]
    bonus = controls["bonus"] if explore else [0.0] * 13
    scores = [value + extra for value, extra in zip(signed + means[4:], bonus, strict=True)]
    codes, explored, margins = [], False, []
    p_best, tau, first = 1.0, 0.0, 0
    for branch, size in enumerate(SIZES):
        mine = scores[first : first + size]
        coin, _, level, _ = uniforms(seed, lane, step, 0x73656C30 + branch)
        if selector == "greedy":
            code, margin = argmax(mine)
        elif selector == "thompson" and branch == 0:
            atoms_at, fractions = (uniforms(seed, lane, step, 0x73656C34 + i) for i in (0, 1))
            drawn = [inverse_cdf(probabilities[d], atoms_at[d]) for d in range(4)]
            samples = [(support[drawn[d][0]] + at_fraction(quantiles[d], fractions[d])) / 2 for d in range(4)]
            code, margin = argmax([s * controls["contrarian"] + extra for s, extra in zip(samples, bonus[:4], strict=True)])
            best, lead = argmax(mine)
            p_best, margin = float(code == best), min(margin, lead, *(near for _, near in drawn))
        else:
            temperature = max(max(mine) - min(mine), controls["tau_floor"][branch])
            chances = softmax(mine, temperature)
            code, margin = inverse_cdf(chances, level)
            if branch == 0:
                p_best, tau = max(chances), temperature
        if explore and coin < controls["epsilon"][branch]:
            word = philox4x32_10((lane, step, 0x73656C30 + branch, 0), (seed % 2**32, seed >> 32))[1]
            code, margin, explored = word * size // 2**32, 1.0, True
        codes.append(code)
        margins.append(margin)
        first += size
    picked = codes[0]
    sd51 = math.sqrt(sum(p * (z - means51[picked]) ** 2 for p, z in zip(probabilities[picked], support, strict=True)))
    sd_iqn = abs(at_fraction(quantiles[picked], 0.75) - at_fraction(quantiles[picked], 0.25)) / 1.349
    sigma = (sd51 + sd_iqn) / 2
    conviction = min(max((max(signed) - sum(signed) / 4) / controls["conviction_scale"], 0.0), 1.0)
    action = ((codes[0] * 3 + codes[1]) * 3 + codes[2]) * 3 + codes[3]
    spread = max(means[:4]) - min(means[:4])
    return Pick(action, tuple(codes), conviction, 1 / (1 + sigma), spread, sigma, explored, p_best, tau, min(margins))
