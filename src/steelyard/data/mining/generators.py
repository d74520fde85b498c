"""Baskets that are drawn: Heaton's planted sets among filler, and IBM Quest's patterns."""

import numpy as np

from steelyard.data.mining.baskets import Baskets
from steelyard.errors import ConfigError
from steelyard.jit import njit

__all__ = ["heaton_baskets", "quest_baskets"]


def heaton_baskets(
    rows: int,
    *,
    most_items: int = 50,
    planted_fraction: float = 0.5,
    num_items: int = 50_000,
    num_sets: int = 100,
    seed: int = 0,
) -> Baskets:
    """Draw baskets of filler items, some with one of a few planted sets.

    Args:
        rows: baskets.
        most_items: most items of a basket, and items that planted sets are drawn from; a basket
            is longer where its planted set is.
        planted_fraction: share of the baskets that hold a planted set.
        num_items: items; those from `most_items` on are filler.
        num_sets: planted sets, each of 1 to `most_items` items.
        seed: seed of the draw.

    Returns:
        The baskets; items are labelled by their number.

    Raises:
        ConfigError: an argument is not allowed.

    Source: Heaton 2016, arXiv 1701.09042, section III, and the script that the author published.
    """
    if rows < 0 or not 0 < most_items < num_items // 2 or not 0 <= planted_fraction <= 1:
        raise ConfigError(
            f"{rows} baskets of at most {most_items} of {num_items} items, {planted_fraction} of "
            "them planted, cannot be drawn",
            hint="at least twice as many items as a basket has at most, and a share in [0, 1]",
        )
    rng = np.random.default_rng(seed)
    sets = [
        np.sort(rng.choice(most_items, rng.integers(1, most_items + 1), replace=False))
        for _ in range(num_sets)
    ]
    begins = np.cumsum([0, *map(len, sets)])
    counts = rng.integers(1, most_items + 1, rows)
    chosen = np.where(rng.random(rows) < planted_fraction, rng.integers(0, num_sets, rows), -1)
    rows_begins, items = _heaton(
        begins,
        np.concatenate([np.zeros(0, np.int64), *sets]),
        counts,
        chosen,
        (most_items, num_items),
        int(rng.integers(1 << 31)),
    )
    return Baskets(begins=rows_begins, items=items, labels=np.arange(num_items))


@njit()
def _heaton(set_begins, set_items, counts, chosen, span, seed):
    """Fill each basket up with distinct filler items."""
    np.random.seed(seed)
    rows = len(counts)
    begins = np.zeros(rows + 1, np.int64)
    for row in range(rows):
        planted = chosen[row]
        size = set_begins[planted + 1] - set_begins[planted] if planted >= 0 else 0
        begins[row + 1] = begins[row] + max(counts[row], size)
    items = np.empty(begins[rows], np.int32)
    last = np.full(span[1], -1, np.int64)
    for row in range(rows):
        at, planted = begins[row], chosen[row]
        if planted >= 0:
            for place in range(set_begins[planted], set_begins[planted + 1]):
                items[at] = set_items[place]
                at += 1
        while at < begins[row + 1]:
            item = np.random.randint(span[0], span[1])
            if last[item] != row:
                last[item] = row
                items[at] = item
                at += 1
    return begins, items


def quest_baskets(
    rows: int,
    *,
    mean_items: float = 10.0,
    mean_pattern: float = 4.0,
    num_items: int = 1000,
    num_patterns: int = 2000,
    correlation: float = 0.5,
    seed: int = 0,
) -> Baskets:
    """Draw baskets of weighted patterns that overlap and are broken off.

    Args:
        rows: baskets.
        mean_items: mean items of a basket.
        mean_pattern: mean items of a pattern.
        num_items: items.
        num_patterns: patterns.
        correlation: mean share of a pattern that it takes over from the one before.
        seed: seed of the draw.

    Returns:
        The baskets; items are labelled by their number. A basket may be empty.

    Raises:
        ConfigError: an argument is not allowed.

    Source: Agrawal and Srikant 1994, section 4.1 (T10.I4.D100K is the default).
    """
    if rows < 0 or mean_items <= 0 or not 1 <= mean_pattern < num_items or num_patterns < 1:
        raise ConfigError(
            f"{rows} baskets of {mean_items} items and {num_patterns} patterns of {mean_pattern} "
            f"of {num_items} items cannot be drawn",
            hint="sizes are positive, and a pattern has fewer items than there are",
        )
    rng = np.random.default_rng(seed)
    patterns = _patterns(rng, num_patterns, mean_pattern, num_items, correlation)
    weights = rng.exponential(1.0, num_patterns)
    corruption = np.clip(rng.normal(0.5, 0.1, num_patterns), 0.0, 1.0)
    sizes = np.maximum(rng.poisson(mean_items, rows), 1)
    begins, items = _quest(
        np.cumsum([0, *map(len, patterns)]),
        np.concatenate(patterns),
        np.cumsum(weights / weights.sum()),
        corruption,
        sizes,
        num_items,
        int(rng.integers(1 << 31)),
    )
    return Baskets(begins=begins, items=items, labels=np.arange(num_items))


def _patterns(
    rng: np.random.Generator, count: int, mean: float, num_items: int, correlation: float
) -> list[np.ndarray]:
    """Draw patterns, each with some items of the one before."""
    found: list[np.ndarray] = []
    before = np.zeros(0, np.int64)
    for _ in range(count):
        size = min(max(1, rng.poisson(mean - 1) + 1), num_items)
        shared = min(round(size * min(1.0, rng.exponential(correlation))), len(before))
        kept = rng.choice(before, shared, replace=False) if shared else before[:0]
        drawn = rng.permutation(np.setdiff1d(rng.integers(0, num_items, 4 * size), kept))
        before = np.sort(np.concatenate([kept, drawn[: size - shared]]))
        found.append(before)
    return found


@njit()
def _quest(begins, patterns, cumulative, corruption, sizes, num_items, seed):
    """Fill baskets with patterns; one that does not fit goes in anyway or to the next basket."""
    np.random.seed(seed)
    rows, used = len(sizes), 0
    row_begins = np.zeros(rows + 1, np.int64)
    items = np.empty(int(sizes.sum() * 2) + 4 * num_items, np.int32)
    last = np.full(num_items, -1, np.int64)
    waiting = -1
    for row in range(rows):
        held = 0
        while held < sizes[row]:
            pattern = waiting
            waiting = -1
            if pattern < 0:
                pattern = min(np.searchsorted(cumulative, np.random.random()), len(corruption) - 1)
            size = begins[pattern + 1] - begins[pattern]
            # Items go while draws stay below the pattern's corruption level.
            while size > 0 and np.random.random() < corruption[pattern]:
                size -= 1
            if held + size > sizes[row] and held > 0 and np.random.random() < 0.5:
                waiting = pattern
                break
            order = np.random.permutation(begins[pattern + 1] - begins[pattern])
            for place in range(size):
                item = patterns[begins[pattern] + order[place]]
                if last[item] != row:
                    last[item] = row
                    if used == len(items):
                        grown = np.empty(2 * used, np.int32)
                        grown[:used] = items
                        items = grown
                    items[used] = item
                    used += 1
            # A pattern of which nothing is left takes its place nevertheless, so that it ends.
            held += max(size, 1)
        row_begins[row + 1] = used
    return row_begins, items[:used].copy()
