"""The learner's targets and losses for one decision, in plain Python from the papers: lists in, lists out, nothing of the learner's own.

A network's say is (logits[13][A], quantiles[13][T]); a decision is a dictionary of plain values.
"""

import math

FIRST, SIZES = (0, 4, 7, 10), (4, 3, 3, 3)


def softmax(row):
    top = max(row)
    weights = [math.exp(x - top) for x in row]
    return [w / sum(weights) for w in weights]


def mean_of(say, choice, support):
    logits, quantiles = say
    categorical = sum(p * z for p, z in zip(softmax(logits[choice]), support, strict=True))
    return 0.5 * categorical + 0.5 * sum(quantiles[choice]) / len(quantiles[choice])


def next_policy(say, branch, support, ratio):
    """{choice: probability}: the best one, or, with a ratio, Boltzmann over the branch's values."""
    values = {c: mean_of(say, c, support) for c in range(FIRST[branch], FIRST[branch] + SIZES[branch])}
    if ratio is None:
        return {max(values, key=lambda c: (values[c], -c)): 1.0}
    tau = ratio * (max(values.values()) - min(values.values()))
    return dict(zip(values, softmax([v / tau for v in values.values()]), strict=True))


def project(p, reward, discount, support):
    m, width = [0.0] * len(support), support[1] - support[0]
    for share, atom in zip(p, support, strict=True):
        place = (min(support[-1], max(support[0], reward + discount * atom)) - support[0]) / width
        below = min(len(support) - 2, math.floor(place))
        m[below] += share * (1 - (place - below))
        m[below + 1] += share * (place - below)
    return m


def window(decisions, n, gamma):
    """(reward, discount, last decision) of the n-step window at the head of a lane's later decisions, in order."""
    reward, discount = 0.0, 1.0
    for last in decisions[:n]:
        reward += discount * last["reward"]
        discount *= gamma
        if last["terminated"]:
            return reward, 0.0, last
        if last["truncated"]:
            return reward, discount, last
    return reward, discount, last


def target_of(branch, reward, discount, online_next, target_next, support, ratio=None):
    """(probabilities[A], [(value, weight)]): the categorical and the quantile target of one branch."""
    policy = next_policy(online_next, branch, support, ratio)
    mixed = [0.0] * len(support)
    values = []
    for choice, share in policy.items():
        mixed = [a + share * b for a, b in zip(mixed, softmax(target_next[0][choice]), strict=True)]
        quantiles = target_next[1][choice]
        values += [(reward + discount * q, share / len(quantiles)) for q in quantiles]
    return project(mixed, reward, discount, support), values


def losses_of(say, choice, atoms, values, support):
    """(cross-entropy, quantile Huber loss, |error of the blended value|) of the chosen choice of one branch."""
    logits, quantiles = say[0][choice], say[1][choice]
    normal = math.log(sum(math.exp(x) for x in logits))
    categorical = -sum(m * (x - normal) for m, x in zip(atoms, logits, strict=True))
    regression = 0.0
    for i, q in enumerate(quantiles):
        tau = (2 * i + 1) / (2 * len(quantiles))
        for value, weight in values:
            u = value - q
            regression += weight * abs(tau - (u < 0)) * (0.5 * u * u if abs(u) <= 1 else abs(u) - 0.5)
    wanted = 0.5 * sum(m * z for m, z in zip(atoms, support, strict=True)) + 0.5 * sum(v * w for v, w in values)
    return categorical, regression, abs(wanted - mean_of(say, choice, support))


def columns_of(action):
    """The choice of each branch of an action code."""
    return [action // 27, 4 + action // 9 % 3, 7 + action // 3 % 3, 10 + action % 3]


def conservative_of(say, branch, choice, support):
    """CQL's loss of one branch: logsumexp of its blended values less the chosen one's."""
    values = [mean_of(say, c, support) for c in range(FIRST[branch], FIRST[branch] + SIZES[branch])]
    return math.log(sum(math.exp(v) for v in values)) - mean_of(say, choice, support)


def row_loss(say, action, targets, support, shares):
    """The weighted loss of a row, mean over branches; targets: (atoms, values) of each branch; shares: of c51, iqn, cql."""
    total = 0.0
    for branch, choice in enumerate(columns_of(action)):
        categorical, regression, _ = losses_of(say, choice, *targets[branch], support)
        parts = (categorical, regression, conservative_of(say, branch, choice, support))
        total += sum(share * part for share, part in zip(shares, parts, strict=True)) / 4
    return total
