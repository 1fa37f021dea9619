"""Both heads' targets, losses and gradients of one row, as scalar functions in float32, and their loop on the CPU.

C51 (Bellemare, Dabney, Munos 2017) and quantile regression (Dabney, Rowland, Bellemare, Munos 2018) on double Q's choice (van Hasselt,
Guez, Silver 2016), in every branch on its own (Tavakoli, Pardo, Kormushev 2018), CQL (Kumar et al. 2020) on the blended values, the
auxiliary head. The losses end at the network's outputs, so their gradients there are closed forms; autograd takes over below. In torch
the same is three hundred operations over numbers that are read once or twice each.

Three passes over a row, each of independent parts: what the online network thinks of each choice, the target of each branch, the gradient
of each choice. Sums run in a fixed order within one part, so results depend neither on the batch nor on the grid.
"""

import math

import numpy as np

from lob.jit import kernel_cpu, scalar
from policy.distributions import BLEND
from policy.heads import BRANCH_FIRST, BRANCH_SIZES, CHOICES

BRANCHES = len(BRANCH_SIZES)

KAPPA = 1.0
"""Where the quantile loss turns from square to linear (seed F2; Dabney et al. 2018), in units of value."""

SARSA_RATIO_LIMIT = 0.1
"""Expected SARSA's greatest temperature over the state's value range: at a ratio of 1 the greedy policy went flat (measured)."""

SCALE_FLOOR = 1e-6
"""Least divisor of labels (seed F11): a batch of zeros must not divide by zero."""

# Places of `dials`, float32.
SHARE_C51, SHARE_IQN, SHARE_CQL, SHARE_AUX, LABEL_SCALE, SARSA_RATIO, CQL_WEIGHT, DIALS = range(8)

# Columns of `facts`: for each branch nine, then one for each choice, then those of the row. Losses and squares of gradients are weighted by
# the row's importance over the batch, so that their sums over rows are the batch's.
LOSS_C51, LOSS_IQN, LOSS_CQL, SQUARE_C51, SQUARE_IQN, ERROR, RANGE, SIGMA, AIM, PER_BRANCH = range(10)
SQUARE_CQL = BRANCHES * PER_BRANCH
LOSS_AUX = SQUARE_CQL + CHOICES
SQUARE_AUX, DIRECTION_SIZE, FACTS = range(LOSS_AUX + 1, LOSS_AUX + 4)

LOOKED_AT = ("observation", "next observation", "return", "label", "next value", "target", "value", "auxiliary value", "loss")
"""What is looked at in every row, in the order of its making: a row's `bad` is the place here of the first that is not finite."""
SEEN, NEXT_SEEN, RETURN, LABEL, NEXT_VALUE, TARGET, VALUE, AUX_VALUE, LOSS, NONE_BAD = range(len(LOOKED_AT) + 1)

_FIRST_1, _FIRST_2, _FIRST_3 = map(int, BRANCH_FIRST[1:])
_DIRECTIONS = int(BRANCH_SIZES[0])

# Bare names: a compiled function must not meet a 64-bit literal in float32 arithmetic, or it computes in 64 bits.
_f32 = np.float32
_ZERO, _HALF, _ONE = _f32(0), _f32(0.5), _f32(1)
_BLEND, _REST = _f32(BLEND), _f32(1 - BLEND)
_KAPPA, _RATIO_LIMIT, _SCALE_FLOOR = _f32(KAPPA), _f32(SARSA_RATIO_LIMIT), _f32(SCALE_FLOOR)
_TINY = _f32(np.finfo(np.float32).tiny)
_PER_BRANCH = _f32(BRANCHES)
_LOG2_E, _LEAST = _f32(math.log2(math.e)), _f32(-87.3)
_LN_2_HIGH, _LN_2_LOW = _f32(0.693359375), _f32(math.log(2) - 0.693359375)  # ten bits, so that k times it is exact, and the rest
_C2, _C3, _C4, _C5, _C6 = (_f32(1 / math.factorial(n)) for n in range(2, 7))


@scalar
def first_of(branch):
    """The first choice of a branch. (By comparisons: CUDA keeps a tuple that is indexed in slow memory.)"""
    if branch == 0:
        return 0
    if branch == 1:
        return _FIRST_1
    if branch == 2:
        return _FIRST_2
    return _FIRST_3 if branch == 3 else CHOICES


@scalar
def branch_of(choice):
    """The branch of a choice."""
    if choice < _FIRST_1:
        return 0
    if choice < _FIRST_2:
        return 1
    return 2 if choice < _FIRST_3 else 3


@scalar
def exp32(x):
    """e^x of a float32 x <= 0 to 3e-7 of it, never below e^-87.3; what is no number stays none. Without a call, so that a loop of it is
    vectorised: 2^k by its exponent bits, the rest by Taylor's series on +-ln 2 / 2."""
    if x < _LEAST:
        x = _LEAST
    power = np.int32(x * _LOG2_E - _HALF)  # cut towards zero: the nearest whole number to what is not above zero
    k = _f32(power)
    f = (x - k * _LN_2_HIGH) - k * _LN_2_LOW
    series = _ONE + f * (_ONE + f * (_C2 + f * (_C3 + f * (_C4 + f * (_C5 + f * _C6)))))
    return np.int32((power + np.int32(127)) << np.int32(23)).view(np.float32) * series


@scalar
def greatest(cells):
    """Greatest of float32 cells; what is no number may be passed over, except in the first."""
    # Four chains, here and below: one alone would wait for each comparison or sum before the next.
    a = b = c = d = cells[0]
    whole = cells.size // 4 * 4
    i = 0
    while i < whole:
        if cells[i] > a:
            a = cells[i]
        if cells[i + 1] > b:
            b = cells[i + 1]
        if cells[i + 2] > c:
            c = cells[i + 2]
        if cells[i + 3] > d:
            d = cells[i + 3]
        i += 4
    while i < cells.size:
        if cells[i] > a:
            a = cells[i]
        i += 1
    return max(max(a, b), max(c, d))


@scalar
def summed(cells):
    """Sum of float32 cells."""
    a = b = c = d = _ZERO
    whole = cells.size // 4 * 4
    i = 0
    while i < whole:
        a += cells[i]
        b += cells[i + 1]
        c += cells[i + 2]
        d += cells[i + 3]
        i += 4
    while i < cells.size:
        a += cells[i]
        i += 1
    return (a + b) + (c + d)


@scalar
def dot(cells, others):
    """Sum of products of float32 cells."""
    a = b = c = d = _ZERO
    whole = cells.size // 4 * 4
    i = 0
    while i < whole:
        a += cells[i] * others[i]
        b += cells[i + 1] * others[i + 1]
        c += cells[i + 2] * others[i + 2]
        d += cells[i + 3] * others[i + 3]
        i += 4
    while i < cells.size:
        a += cells[i] * others[i]
        i += 1
    return (a + b) + (c + d)


@scalar
def soften(logits, out):
    """(greatest logit, sum of weights); the atoms' weights e^(logit - greatest) go to `out`: other cells, or the loop is not vectorised."""
    top = greatest(logits)
    k = 0
    while k < logits.size:
        out[k] = exp32(logits[k] - top)
        k += 1
    return top, summed(out)


@scalar
def quantiles_mean(said, first, count):
    """Mean of IQN's values at said[first..]."""
    return summed(said[first : first + count]) / _f32(count)


@scalar
def think(online, now, soft, row, choice, b):
    """The first pass: what the online network says of one choice at the next observation (`values`), and here (`here`, `top`, ...).

    `online` and `now` are what it says there and here, a row each. The weights of the atoms here are left in `soft`.
    """
    atoms, quantiles = b.support.size, b.slope.shape[2]
    first = choice * (atoms + quantiles)
    weights = soft[choice * atoms : (choice + 1) * atoms]
    _, total = soften(online[first : first + atoms], weights)
    b.values[row, choice] = _BLEND * (dot(weights, b.support) / total) + _REST * quantiles_mean(online, first + atoms, quantiles)
    top, total = soften(now[first : first + atoms], weights)
    mean = dot(weights, b.support) / total
    b.top[row, choice], b.total[row, choice], b.mean[row, choice] = top, total, mean
    b.here[row, choice] = _BLEND * mean + _REST * quantiles_mean(now, first + atoms, quantiles)


@scalar
def chosen(action, branch):
    """Which of the thirteen choices a branch of an action code (direction * 27 + magnitude * 9 + order * 3 + urgency) is."""
    if branch == 0:
        return action // 27
    if branch == 1:
        return _FIRST_1 + action // 9 % 3
    if branch == 2:
        return _FIRST_2 + action // 3 % 3
    return _FIRST_3 + action % 3


@scalar
def extremes(values, row, branch):
    """(first best choice, best value, worst value) of a branch."""
    best, worst = first_of(branch), values[row, first_of(branch)]
    for choice in range(first_of(branch) + 1, first_of(branch + 1)):
        if values[row, choice] > values[row, best]:
            best = choice
        if values[row, choice] < worst:
            worst = values[row, choice]
    return best, values[row, best], worst


@scalar
def share_of(values, row, branch, choice, best, top, worst, ratio):
    """Probability of a choice under the target's policy: all on the best one for a negative ratio, else Boltzmann at `ratio` (at most
    SARSA_RATIO_LIMIT) times the branch's value range; equal values share alike."""
    if ratio < _ZERO:
        return _ONE if choice == best else _ZERO
    tau = max((top - worst) * min(ratio, _RATIO_LIMIT), _TINY)
    total = _ZERO
    for other in range(first_of(branch), first_of(branch + 1)):
        total += exp32((values[row, other] - top) / tau)
    return exp32((values[row, choice] - top) / tau) / total


@scalar
def project(weights, scale, reward, discount, support, out):
    """Add a distribution, scale * weights[A], to out[A], each atom's value z moved to clip(reward + discount * z).

    The mass of an atom goes to the two around its new place in proportion to nearness: m_j = sum of p_i max(0, 1 - |z - z_j| / dz). Both
    parts come from one fraction, so an atom that lands exactly on another loses nothing.
    """
    atoms = support.size
    low, high = float(support[0]), float(support[atoms - 1])
    per_width = (atoms - 1) / (high - low)
    shift, slope = float(reward), float(discount)
    k = 0
    while k < atoms:
        # By comparisons, which NaN fails: min and max would turn it into an end of the support, unseen.
        moved = shift + slope * float(support[k])
        if moved > high:
            moved = high
        if moved < low:
            moved = low
        place = (moved - low) * per_width
        lower = min(atoms - 2, int(place)) if place == place else 0
        upper_share = _f32(place - lower)
        mass = scale * weights[k]
        out[lower] += mass * (_ONE - upper_share)
        out[lower + 1] += mass * upper_share
        k += 1


@scalar
def regress(lagged, row, branch, i, quantile, best, top, worst, reward, discount, b):
    """(loss, slope) of one quantile against the target: sum of weights * |tau_i - (u < 0)| * huber(u), u = target - quantile."""
    atoms, quantiles = b.support.size, b.slope.shape[2]
    tau = (_f32(i) + _HALF) / _f32(quantiles)
    loss, slope = _ZERO, _ZERO
    for choice in range(first_of(branch), first_of(branch + 1)):
        share = share_of(b.values, row, branch, choice, best, top, worst, b.dials[SARSA_RATIO]) / _f32(quantiles)
        if share > _ZERO:
            first = choice * (atoms + quantiles) + atoms
            for j in range(quantiles):
                u = reward + discount * lagged[first + j] - quantile
                clipped = u
                if u > _KAPPA:
                    clipped = _KAPPA
                if u < -_KAPPA:
                    clipped = -_KAPPA
                tilt = share * ((_ONE - tau) if u < _ZERO else tau) / _KAPPA
                # huber(u) = c * (u - c / 2) with c = clip(u): u^2 / 2 within kappa, kappa (|u| - kappa / 2) beyond.
                loss += tilt * clipped * (u - clipped * _HALF)
                slope -= tilt * clipped
    return loss, slope


@scalar
def aim(lagged, now, soft, target, spare, row, branch, b):
    """The second pass: a branch's target, and the losses of the choice that was made against it.

    `lagged` is what the target network says of the next observation. `target`[A] gets the target's probabilities, `spare`[A] is scratch.
    """
    atoms, quantiles = b.support.size, b.slope.shape[2]
    each = atoms + quantiles
    reward, discount = b.returns[row], b.discount[row]
    best, top, worst = extremes(b.values, row, branch)
    k = 0
    while k < atoms:
        target[k] = _ZERO
        k += 1
    level = _ZERO
    for choice in range(first_of(branch), first_of(branch + 1)):
        share = share_of(b.values, row, branch, choice, best, top, worst, b.dials[SARSA_RATIO])
        if share > _ZERO:
            _, total = soften(lagged[choice * each : choice * each + atoms], spare)
            project(spare, share / total, reward, discount, b.support, target)
            level += share * (reward + discount * quantiles_mean(lagged, choice * each + atoms, quantiles))
    choice = chosen(b.action[row], branch)
    weight = b.weights[row] / (_f32(b.weights.size) * _PER_BRANCH)
    own, logits = soft[choice * atoms : (choice + 1) * atoms], now[choice * each : choice * each + atoms]
    scale, mean, mass = _ONE / b.total[row, choice], b.mean[row, choice], summed(target)
    # -sum m log p, with log p = logit - greatest - log total.
    loss = mass * (b.top[row, choice] + _f32(math.log(b.total[row, choice]))) - dot(target, logits)
    square, variance = _ZERO, _ZERO
    k = 0
    while k < atoms:
        p, away = own[k] * scale, b.support[k] - mean
        gap = p * mass - target[k]
        square += gap * gap
        variance += p * away * away
        k += 1
    regression, slopes = _ZERO, _ZERO
    i = 0
    while i < quantiles:
        part, slope = regress(lagged, row, branch, i, now[choice * each + atoms + i], best, top, worst, reward, discount, b)
        b.slope[row, branch, i] = slope
        regression += part
        slopes += slope * slope
        i += 1
    b.mass[row, branch] = mass
    at = branch * PER_BRANCH
    aimed, held = _BLEND * dot(target, b.support) + _REST * level, b.here[row, choice]
    b.facts[row, at + LOSS_C51] = weight * loss
    b.facts[row, at + LOSS_IQN] = weight * regression
    b.facts[row, at + LOSS_CQL] = _ZERO
    b.facts[row, at + SQUARE_C51] = weight * weight * square
    b.facts[row, at + SQUARE_IQN] = weight * weight * slopes
    b.facts[row, at + ERROR] = abs(aimed - held)
    b.facts[row, at + RANGE] = top - worst
    b.facts[row, at + SIGMA] = _f32(math.sqrt(variance))
    b.facts[row, at + AIM] = aimed


@scalar
def conserve(row, branch, choice, made, weight, b):
    """(CQL's loss in a branch, its gradient at a choice's blended value): logsumexp - chosen, and softmax - (choice is the chosen one)."""
    _, top, _ = extremes(b.here, row, branch)
    total = _ZERO
    for other in range(first_of(branch), first_of(branch + 1)):
        total += exp32(b.here[row, other] - top)
    loss = weight * (top + _f32(math.log(total)) - b.here[row, made])
    return loss, weight * (exp32(b.here[row, choice] - top) / total - (_ONE if choice == made else _ZERO))


@scalar
def turn(pull, soft, target, row, choice, b):
    """The last pass: the gradient of the weighted sum of all losses at one choice's logits and quantiles, into its part of the row `pull`.

    `target`[A] is that of the choice's branch.
    """
    atoms, quantiles = b.support.size, b.slope.shape[2]
    first, branch = choice * (atoms + quantiles), branch_of(choice)
    made = chosen(b.action[row], branch)
    weight = b.weights[row] / (_f32(b.weights.size) * _PER_BRANCH)
    total, mean = b.total[row, choice], b.mean[row, choice]
    gradient = _ZERO
    if b.dials[CQL_WEIGHT] > _ZERO:
        loss, gradient = conserve(row, branch, choice, made, weight * b.dials[CQL_WEIGHT], b)
        if choice == first_of(branch):
            b.facts[row, branch * PER_BRANCH + LOSS_CQL] = loss
    at_mean, at_level = _BLEND * gradient, _REST * gradient / _f32(quantiles)
    own = _ONE if choice == made else _ZERO
    of_c51, of_iqn, of_cql = b.dials[SHARE_C51] * own * weight, b.dials[SHARE_IQN] * own * weight, b.dials[SHARE_CQL]
    scale, mass = _ONE / total, b.mass[row, branch]
    weights, of_logits = soft[choice * atoms : (choice + 1) * atoms], pull[first : first + atoms]
    # Each loop alone: sums keep their order and cannot be vectorised, what is beside them can.
    k = 0
    while k < atoms:
        of_logits[k] = at_mean * (weights[k] * scale) * (b.support[k] - mean)
        k += 1
    square = dot(of_logits, of_logits)
    k = 0
    while k < atoms:
        of_logits[k] = of_cql * of_logits[k] + of_c51 * (weights[k] * scale * mass - target[k])
        k += 1
    i = 0
    while i < quantiles:
        pull[first + atoms + i] = of_cql * at_level + of_iqn * b.slope[row, branch, i]
        i += 1
    b.facts[row, SQUARE_CQL + choice] = square + _f32(quantiles) * at_level * at_level


@scalar
def is_bad(x):
    """Whether a number is not finite."""
    return x - x != _ZERO


@scalar
def any_bad(values, row):
    """Whether any choice's value is not finite."""
    found = False
    for choice in range(CHOICES):
        if is_bad(values[row, choice]):
            found = True
    return found


@scalar
def first_bad(row, b):
    """Place in LOOKED_AT of the first thing of a row that is not finite, NONE_BAD if all is."""
    aim, loss = _ZERO, _ZERO
    for branch in range(BRANCHES):
        at = branch * PER_BRANCH
        aim += b.facts[row, at + AIM]
        loss += b.facts[row, at + LOSS_C51] + b.facts[row, at + LOSS_IQN] + b.facts[row, at + ERROR]
    bad = NONE_BAD
    if is_bad(loss + b.facts[row, LOSS_AUX]):
        bad = LOSS
    if is_bad(b.aux[row]):
        bad = AUX_VALUE
    if any_bad(b.here, row):
        bad = VALUE
    if is_bad(aim):
        bad = TARGET
    if any_bad(b.values, row):
        bad = NEXT_VALUE
    if is_bad(b.label[row]):
        bad = LABEL
    if is_bad(b.returns[row]):
        bad = RETURN
    if is_bad(b.next_seen[row]):
        bad = NEXT_SEEN
    if is_bad(b.seen[row]):
        bad = SEEN
    return bad


@scalar
def settle(row, b):
    """What concerns a row as a whole: the auxiliary head, the row's error, what is looked at, the padding of its gradient."""
    weight = b.weights[row] / _f32(b.weights.size)
    residual = b.aux[row] - b.label[row] / max(b.dials[LABEL_SCALE], _SCALE_FLOOR)
    gradient = weight * (residual + residual)
    b.pull_aux[row] = b.dials[SHARE_AUX] * gradient
    error, size = _ZERO, _ZERO
    for branch in range(BRANCHES):
        error += b.facts[row, branch * PER_BRANCH + ERROR]
    for choice in range(_DIRECTIONS):
        size += abs(b.values[row, choice])
    b.errors[row] = error / _PER_BRANCH
    b.facts[row, LOSS_AUX] = weight * residual * residual
    b.facts[row, SQUARE_AUX] = gradient * gradient
    b.facts[row, DIRECTION_SIZE] = size / _f32(_DIRECTIONS)
    b.bad[row] = first_bad(row, b)
    for column in range(CHOICES * (b.support.size + b.slope.shape[2]), b.pull.shape[1]):
        b.pull[row, column] = _ZERO


@kernel_cpu
def measure(online, lagged, now, soft, b):
    """Every row; `soft`[13 A] is scratch."""
    for row in range(b.weights.size):
        for choice in range(CHOICES):
            think(online[row], now[row], soft, row, choice, b)
        for branch in range(BRANCHES):
            spare = b.pull[row, : b.support.size]  # free until the last pass
            aim(lagged[row], now[row], soft, b.target[row, branch], spare, row, branch, b)
        for choice in range(CHOICES):
            turn(b.pull[row], soft, b.target[row, branch_of(choice)], row, choice, b)
        settle(row, b)
