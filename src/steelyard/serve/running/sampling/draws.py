"""Draws from cut distributions, compiled with numba.

They need no sort of the vocabulary and no temporary of the batch's size.

Weights are exp((logit - largest) / temperature) in float32, so the likeliest token has weight 1.
What the cuts keep is a prefix of the tokens in descending order (equal ones by rising id). A
histogram of the weights by the leading bits of their float says in which bin that prefix ends;
histograms of the next bits, over this bin's tokens only, say where in the bin. The draw finds its
bin in the first histogram.
"""

import numpy as np

from steelyard.jit import njit

__all__ = ["draw_tokens", "find_peaks", "likeliest", "philox", "weigh"]

_BINS = 1024
"""Bins of a histogram: ten bits of a float32 in [0, 1] at a time, first the exponent and three
leading bits of the fraction."""
_SHIFT = np.uint32(20)
_BLOCK = 1024
_LOOSE = {"reassoc", "nsz", "contract"}
"""Float rules that let sums and products run in vector registers, with infinities as they are."""


@njit()
def philox(seed: np.uint64, position: np.uint64) -> float:
    """Return the draw in [0, 1) of a seed at an output position: Philox4x32 with ten rounds.

    Being a pure function of both, it makes a request's tokens independent of its batch.

    Args:
        seed: seed of the request.
        position: output tokens that the request already has.

    Returns:
        The draw.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (SC11), section 3.
    """
    mask = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    k0, k1 = seed & mask, seed >> half
    c0, c1, c2, c3 = position & mask, position >> half, np.uint64(0), np.uint64(0)
    for _ in range(10):
        low, high = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (high >> half) ^ c1 ^ k0, high & mask, (low >> half) ^ c3 ^ k1, low & mask
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & mask, (k1 + np.uint64(0xBB67AE85)) & mask
    # The 53 leading bits, as many as a double holds: all draws are below 1.
    return float(((c0 << half) | c1) >> np.uint64(11)) * 2.0**-53


@njit(fastmath=_LOOSE)
def weigh(
    logits: np.ndarray, peak: np.number | np.ndarray, temperature: float, weights: np.ndarray
) -> float:
    """Fill `weights` with exp((logits - peak) / temperature), 0 below e**-87, and add them up.

    The exponential is 2**n times a polynomial of degree 6, off by at most 1e-6 of its value where
    it matters; written out, it runs in vector registers.

    Args:
        logits: float32 [V].
        peak: largest of them.
        temperature: temperature, above 0.
        weights: float32 [V], overwritten.

    Returns:
        Their sum.
    """
    scale = np.float32(1.4426950408889634 / temperature)  # 1 / ln 2: powers of two from here on
    top = np.float32(peak)
    powers = np.empty(_BLOCK, np.int32)
    scales = powers.view(np.float32)
    total = 0.0
    for first in range(0, len(logits), _BLOCK):
        given, made = logits[first : first + _BLOCK], weights[first : first + _BLOCK]
        for at in range(len(given)):
            exponent = (given[at] - top) * scale
            # At -127 the bits of the power of two below are 0, and so is the weight.
            exponent = exponent if exponent > np.float32(-127.0) else np.float32(-127.0)
            whole = np.floor(exponent + np.float32(0.5))
            x = exponent - whole
            value = np.float32(1.5403530e-4)
            value = value * x + np.float32(1.3333558e-3)
            value = value * x + np.float32(9.6181291e-3)
            value = value * x + np.float32(5.5504109e-2)
            value = value * x + np.float32(2.4022651e-1)
            value = value * x + np.float32(6.9314718e-1)
            made[at] = value * x + np.float32(1.0)
            powers[at] = (np.int32(whole) + np.int32(127)) << np.int32(23)
        # In a loop of its own, so that both loops run in vector registers.
        for at in range(len(given)):
            made[at] *= scales[at]
        total += _sum(made)
    return total


@njit(fastmath=_LOOSE)
def _sum(values: np.ndarray) -> float:
    """Add up float32 values."""
    total = np.float32(0.0)
    for at in range(len(values)):
        total += values[at]
    return float(total)


@njit(fastmath={"nnan", "nsz"})
def find_peaks(logits: np.ndarray, peaks: np.ndarray) -> None:
    """Find the largest logit of each row, NaN where a row has a NaN.

    Args:
        logits: float32 [R, V].
        peaks: float32 [R], overwritten.
    """
    for row in range(len(logits)):
        values = logits[row]
        bits = values.view(np.uint32)
        peak = np.float32(-np.inf)
        broken = False
        for start in range(0, len(values), _BLOCK):
            stop = min(start + _BLOCK, len(values))
            for at in range(start, stop):
                peak = values[at] if values[at] > peak else peak
            # By its bits: a comparison with a NaN is false, and the "nnan" rule may drop it.
            for at in range(start, stop):
                broken |= bits[at] & np.uint32(0x7FFFFFFF) > np.uint32(0x7F800000)
        peaks[row] = np.nan if broken else peak


@njit()
def likeliest(logits: np.ndarray, peaks: np.ndarray, rows: np.ndarray, tokens: np.ndarray) -> None:
    """Find the first token that has its row's largest logit.

    Args:
        logits: float32 [R, V].
        peaks: float32 [R], largest logit of each row.
        rows: int64 [N] rows to look at.
        tokens: int64 [N], overwritten.
    """
    for at in range(len(rows)):
        row = rows[at]
        for start in range(0, logits.shape[1], _BLOCK):
            stop = min(start + _BLOCK, logits.shape[1])
            # Without a branch per token the search runs in vector registers.
            hit = False
            for token in range(start, stop):
                hit |= logits[row, token] == peaks[row]
            if hit:
                while logits[row, start] != peaks[row]:
                    start += 1
                tokens[at] = start
                break


@njit()
def draw_tokens(
    logits: np.ndarray,
    peaks: np.ndarray,
    rows: np.ndarray,
    temperature: np.ndarray,
    min_p: np.ndarray,
    top_k: np.ndarray,
    top_p: np.ndarray,
    seeds: np.ndarray,
    positions: np.ndarray,
    tokens: np.ndarray,
) -> None:
    """Draw one token per row: temperature, then min_p, then top_k, then top_p.

    Args:
        logits: float32 [R, V].
        peaks: float32 [R], largest logit of each row.
        rows: int64 [N] rows to draw from.
        temperature: float64 [N], above 0.
        min_p: float64 [N], in [0, 1]; 0 for no cut.
        top_k: int64 [N]; V or more for no cut.
        top_p: float64 [N], in (0, 1]; 1 for no cut.
        seeds: uint64 [N].
        positions: uint64 [N].
        tokens: int64 [N], overwritten.
    """
    size = logits.shape[1]
    weights, found = np.empty(size, np.float32), np.empty(size, np.uint32)
    counts, masses = np.empty(_BINS, np.int64), np.empty(_BINS, np.float64)
    for at in range(len(rows)):
        draw = philox(seeds[at], positions[at])
        total = weigh(logits[rows[at]], peaks[rows[at]], temperature[at], weights)
        if min_p[at] > 0:
            # The likeliest token has weight 1, so its share is the bound itself.
            total = _drop_light(weights, min_p[at])
        if top_k[at] >= size and top_p[at] >= 1.0:
            tokens[at] = _draw_uncut(weights, total, draw)
            continue
        _histogram(weights, counts, masses)
        value, ties = 0.0, size
        if top_k[at] < size:
            value, ties = _cut(weights, top_k[at], np.inf, counts, masses, found)
        # After the first cut `masses` holds what is kept, so that top_p counts among that.
        if top_p[at] < 1.0:
            value, ties = _cut(
                weights, min(top_k[at], size), top_p[at] * masses.sum(), counts, masses, found
            )
        tokens[at] = _draw(weights, value, ties, draw, masses)


@njit(fastmath=_LOOSE)
def _drop_light(weights: np.ndarray, least: float) -> float:
    """Set weights below `least` to 0 and return the sum of the rest."""
    bound, total = np.float32(least), np.float32(0.0)
    for at in range(len(weights)):
        weights[at] = weights[at] if weights[at] >= bound else np.float32(0.0)
        total += weights[at]
    return float(total)


@njit()
def _draw_uncut(weights: np.ndarray, total: float, draw: float) -> int:
    """Draw from all tokens, in order of their ids."""
    target, before, chosen = draw * total, 0.0, 0
    for first in range(0, len(weights), _BLOCK):
        part = weights[first : first + _BLOCK]
        mass = _sum(part)
        if before + mass <= target and first + _BLOCK < len(weights):
            before += mass
            continue
        for at in range(len(part)):
            if part[at] > 0:
                chosen = first + at
                before += part[at]
                if before > target:
                    return chosen
    # Rounding let the target reach the sum of all: the last token of weight, or, when every block
    # before the last was passed over as a whole and the last holds none, the first.
    while weights[chosen] == 0:
        chosen += 1
    return chosen


@njit()
def _histogram(weights: np.ndarray, counts: np.ndarray, masses: np.ndarray) -> None:
    """Count and add up the weights in each bin."""
    bits = weights.view(np.uint32)
    # Neighbours often fall into one bin; in four tables their additions do not wait for each other.
    tables = np.zeros((4, _BINS, 2), np.float64)
    even = len(weights) // 4 * 4
    for token in range(0, even, 4):
        for lane in range(4):
            place = bits[token + lane] >> _SHIFT
            tables[lane, place, 0] += 1.0
            tables[lane, place, 1] += weights[token + lane]
    for token in range(even, len(weights)):
        place = bits[token] >> _SHIFT
        tables[0, place, 0] += 1.0
        tables[0, place, 1] += weights[token]
    for place in range(_BINS):
        counts[place] = int(
            tables[0, place, 0] + tables[1, place, 0] + tables[2, place, 0] + tables[3, place, 0]
        )
        masses[place] = (
            tables[0, place, 1] + tables[1, place, 1] + tables[2, place, 1] + tables[3, place, 1]
        )


@njit()
def _walk(
    counts: np.ndarray, masses: np.ndarray, quota: int, target: float
) -> tuple[int, int, float]:
    """Go down the bins until `quota` tokens or `target` mass are reached.

    Args:
        counts: int64 [_BINS] tokens in each bin.
        masses: float64 [_BINS] their weights.
        quota: tokens to reach.
        target: mass to reach.

    Returns:
        The bin, or the last one with tokens, and the tokens and mass above it.
    """
    last, count, mass = 0, 0, 0.0
    above_count, above_mass = 0, 0.0
    for place in range(_BINS - 1, -1, -1):
        if counts[place]:
            last, above_count, above_mass = place, count, mass
            count += counts[place]
            mass += masses[place]
            if count >= quota or mass >= target:
                break
    return last, above_count, above_mass


@njit()
def _cut(
    weights: np.ndarray,
    quota: int,
    target: float,
    counts: np.ndarray,
    masses: np.ndarray,
    found: np.ndarray,
) -> tuple[float, int]:
    """Find the shortest run of heaviest tokens that has `quota` tokens or `target` mass.

    The histogram is cut to it.

    Args:
        weights: float32 [V].
        quota: tokens to reach.
        target: mass to reach.
        counts: int64 [_BINS] tokens in each bin, cut.
        masses: float64 [_BINS] their weights, cut.
        found: uint32 [V] scratch.

    Returns:
        The lightest kept weight, and how many tokens of just this weight are kept.
    """
    first, count, mass = _walk(counts, masses, quota, target)
    outside = mass
    filled = 0
    bits = weights.view(np.uint32)
    for token in range(len(weights)):
        if bits[token] >> _SHIFT == first:
            found[filled] = bits[token]
            filled += 1
    values = found.view(np.float32)
    prefix = first
    place = 0
    fine_counts, fine_masses = np.empty(_BINS, np.int64), np.empty(_BINS, np.float64)
    # Ten further bits at a time, over the tokens of one bin only: after both, all 30 bits that a
    # float in [0, 1] uses are known, and with them the weight itself.
    for shift in (10, 0):
        fine_counts[:] = 0
        fine_masses[:] = 0.0
        for at in range(filled):
            if found[at] >> (shift + 10) == prefix:
                place = (found[at] >> shift) & (_BINS - 1)
                fine_counts[place] += 1
                fine_masses[place] += values[at]
        place, above_count, above_mass = _walk(
            fine_counts, fine_masses, quota - count, target - mass
        )
        count, mass, prefix = count + above_count, mass + above_mass, prefix << 10 | place
    found[0] = prefix
    value = float(values[0])
    ties = min(fine_counts[place], quota - count)
    # Equal weights are kept one by one, by rising token, until the target is met.
    if mass + ties * value > target:
        ties = max(1, int(np.ceil((target - mass) / value)))
    counts[:first], masses[:first] = 0, 0.0
    masses[first] = mass + ties * value - outside
    return value, ties


@njit()
def _draw(weights: np.ndarray, value: float, ties: int, draw: float, masses: np.ndarray) -> int:
    """Draw among the tokens heavier than `value` and the first `ties` of just this weight.

    Args:
        weights: float32 [V].
        value: lightest kept weight.
        ties: tokens of just this weight that are kept.
        draw: number in [0, 1).
        masses: float64 [_BINS] weights of the kept tokens.

    Returns:
        The token.
    """
    target = draw * masses.sum()
    place, before, after = 0, 0.0, 0.0
    for candidate in range(_BINS - 1, -1, -1):
        if masses[candidate] > 0:
            place, before = candidate, after
            after += masses[candidate]
            if after > target:
                break
    bits = weights.view(np.uint32)
    lightest = np.float32(value)
    chosen = 0  # stays the last candidate should rounding let the target reach the sum
    for token in range(len(weights)):
        if bits[token] >> _SHIFT == place and weights[token] >= lightest:
            if weights[token] == lightest:
                ties -= 1
                if ties < 0:
                    continue
            chosen = token
            before += weights[token]
            if before > target:
                break
    return chosen
