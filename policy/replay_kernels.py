"""Replay in integers: the sum tree, exact draws from it, n-step windows, writing. Scalar functions and their loops on the CPU.

Prioritised replay: Schaul, Quan, Antonoglou, Silver (2016). The tree has 32 children a node: a node's children lie in two cache lines, and
a million slots need four levels. Every node is the int64 sum of its children, recomputed and never accumulated, so it cannot drift.

Torch alone would need some seventy small operations for Philox; here a draw, its search and its window are one launch.
"""

import math

from lob.jit import kernel_cpu, scalar
from lob.philox import draw

FAN = 32
"""Children of a node."""

PRIORITY_ONE = 1 << 20
"""The integer priority of an error of 1: a resolution of one part in a million."""
PRIORITY_LIMIT = 1 << 38
"""The greatest priority (an error to the alpha of 262,144): with CAPACITY_LIMIT, the total stays below 2^63."""
CAPACITY_LIMIT = 1 << 24
"""Slots at most: 2.7 GB of records."""

REPLAY_PURPOSE = 0x72706C79
"""Philox purpose of replay's draws ("rply")."""

# Words of a record (int32; REWARD and the two lane rows hold the bits of float32).
ROW, ACTION, REWARD, NEXT_ROW, FLAGS, EPISODE, STEP, WRITTEN = range(8)
LANE_WORDS = 16
LANE_ROW = 8
NEXT_LANE_ROW = LANE_ROW + LANE_WORDS
WORDS = NEXT_LANE_ROW + LANE_WORDS

VALID, TERMINATED, ENDS = 1, 2, 4
"""Bits of FLAGS: the lane decided; its episode ended with nothing to come; its episode ended."""

NEVER = -1
"""WRITTEN of a slot that holds nothing yet."""

# Places of the parameters (int64), then the tree's level offsets.
SEED, LANES, LENGTH, N_STEP, BATCH, LEVELS, FIRST = range(7)


@scalar
def find(sums, params, point):
    """The slot whose share of the line 0..total-1 holds `point`. A slot of weight 0 has no share, so it is never found (total > 0)."""
    node = 0
    for level in range(params[LEVELS] - 2, -1, -1):
        base = params[FIRST + level] + node * FAN
        running, before, child = 0, 0, 0
        for i in range(FAN):  # every child is read: without an early exit the loads do not wait for one another
            running += sums[base + i]
            if running <= point:
                before = running
                child = i + 1
        node = node * FAN + min(child, FAN - 1)
        point -= before
    return node


@scalar
def refresh(sums, params, level, node):
    """Recompute one node of `level` >= 1 from its children."""
    base = params[FIRST + level - 1] + node * FAN
    total = 0
    for i in range(FAN):
        total += sums[base + i]
    sums[params[FIRST + level] + node] = total


@scalar
def stratum(total, i, batch):
    """Lower end of the i-th of `batch` equal strata of 0..total-1: floor(i * total / batch), without overflow."""
    return i * (total // batch) + i * (total % batch) // batch


@scalar
def point_in_stratum(seed, counter, i, batch, total):
    """One point of the i-th stratum, uniform but for a bias below width / 2^63; the stratum's first point where it is empty."""
    low = stratum(total, i, batch)
    width = max(1, stratum(total, i + 1, batch) - low)
    word0, word1, _, _ = draw(seed, i, counter, REPLAY_PURPOSE)
    return low + ((word0 << 31) | (word1 >> 1)) % width


@scalar
def follows(words, last, at, written):
    """Whether the record at `at` is the decision right after the one at `last`: written then, by a living lane, in the same episode."""
    return (
        words[at, WRITTEN] == written
        and words[at, FLAGS] & VALID != 0
        and words[at, EPISODE] == words[last, EPISODE]
        and words[at, STEP] == words[last, STEP] + 1
    )


@scalar
def window(words, floats, params, slot, gamma):
    """(last slot, decisions taken, sum of gamma^k r_k, gamma^taken or 0 after a termination) of the n-step window that begins at `slot`.

    It ends with its episode, and before the write head: what lies beyond is older than `slot`, as its WRITTEN says. A truncation cuts
    the window and bootstraps from the observation stored with it.
    """
    lanes, length = params[LANES], params[LENGTH]
    time, lane = slot // lanes, slot % lanes
    last, taken, reward, discount, going = slot, 0, 0.0, 1.0, True
    for k in range(params[N_STEP]):
        at = (time + k) % length * lanes + lane
        if k > 0 and not follows(words, last, at, words[slot, WRITTEN] + k):
            going = False
        if going:
            reward += discount * floats[at, REWARD]
            discount *= gamma
            last = at
            taken = k + 1
            if words[at, FLAGS] & (TERMINATED | ENDS) != 0:
                going = False
    if words[last, FLAGS] & TERMINATED != 0:
        discount = 0.0
    return last, taken, reward, discount


@scalar
def sample_one(i, sums, words, floats, params, counter, gamma, out):
    """Draw the i-th slot of a batch and its window; the slots of a batch ascend, since its strata do."""
    total = sums[params[FIRST + params[LEVELS] - 1]]
    slot = 0  # of an empty memory; its priority of 0 says so
    if total > 0:
        slot = find(sums, params, point_in_stratum(params[SEED], counter[0], i, params[BATCH], total))
    last, taken, reward, discount = window(words, floats, params, slot, gamma[0])
    out.slots[i] = slot
    out.last[i] = last
    out.priority[i] = sums[slot]
    out.taken[i] = taken
    out.returns[i] = reward
    out.discount[i] = discount


@scalar
def priority_of(error, alpha):
    """max(1, round(error^alpha * 2^20)), at most PRIORITY_LIMIT."""
    scaled = error**alpha * PRIORITY_ONE
    return max(1, int(scaled + 0.5)) if scaled < PRIORITY_LIMIT else PRIORITY_LIMIT


@scalar
def mark_one(i, sums, words, params, alpha, slots, generation, errors, marked):
    """Write one sampled slot's new priority; `marked` gets it, 0 for a duplicate that a later entry overrides, -1 when it is dropped.

    Dropped: the slot was overwritten since it was sampled, or the error is not finite. `slots` ascend, so duplicates are neighbours
    and the last of them wins.
    """
    slot = slots[i]
    if words[slot, WRITTEN] != generation[i] or not errors[i] < math.inf or errors[i] < 0:
        marked[i] = -1
        return
    priority = priority_of(float(errors[i]), alpha[0])
    if i + 1 < params[BATCH] and slots[i + 1] == slot:
        marked[i] = 0
        return
    if sums[slot] > 0:  # a slot of weight 0 is not drawn but from an empty memory, and stays unreachable
        sums[slot] = priority
    marked[i] = priority


@scalar
def store_word(lane, word, stage, words, params, written):
    """Copy one word of a lane's staged record to its slot."""
    slot = written[0] % params[LENGTH] * params[LANES] + lane
    words[slot, word] = written[0] if word == WRITTEN else stage[lane, word]


@scalar
def store_leaf(lane, sums, stage, params, written, greatest):
    """Weight of a lane's new slot: the running maximum, so that it is drawn soon; 0 where the lane did not decide."""
    slot = written[0] % params[LENGTH] * params[LANES] + lane
    sums[slot] = greatest[0] if stage[lane, FLAGS] & VALID != 0 else 0


@scalar
def ancestor(slot, level):
    """The node of `level` above a slot."""
    for _ in range(level):
        slot //= FAN
    return slot


@kernel_cpu
def sample(sums, words, floats, params, counter, gamma, out):
    for i in range(params[BATCH]):
        sample_one(i, sums, words, floats, params, counter, gamma, out)


@kernel_cpu
def mark(sums, words, params, alpha, slots, generation, errors, marked):
    for i in range(params[BATCH]):
        mark_one(i, sums, words, params, alpha, slots, generation, errors, marked)
    for level in range(1, params[LEVELS]):
        for i in range(params[BATCH]):
            refresh(sums, params, level, ancestor(slots[i], level))


@kernel_cpu
def store(sums, words, stage, params, written, greatest):
    lanes = params[LANES]
    for lane in range(lanes):
        for word in range(WORDS):
            store_word(lane, word, stage, words, params, written)
        store_leaf(lane, sums, stage, params, written, greatest)
    first = written[0] % params[LENGTH] * lanes
    for level in range(1, params[LEVELS]):
        for node in range(ancestor(first, level), ancestor(first + lanes - 1, level) + 1):
            refresh(sums, params, level, node)


@kernel_cpu
def rebuild(sums, params):
    """Recompute every node above the leaves."""
    for level in range(1, params[LEVELS]):
        nodes = params[FIRST + level] - params[FIRST + level - 1]
        for node in range(nodes // FAN):
            refresh(sums, params, level, node)
