"""Generated series of machines: a mixture of archetypes with parameters drawn wide.

None of it is fitted to real series. Each series tells in its provenance of which archetypes, seed
and number it was made.

Source: archetypes after Woo et al. 2023 (arXiv 2310.05063), section 3, and the load patterns that
    Cortez et al. 2017 (Resource Central) describe.
"""

from collections.abc import Callable

import numpy as np
from scipy.signal import lfilter

from steelyard.errors import ConfigError
from steelyard.operate.series import SeriesSet

__all__ = ["ARCHETYPES", "generate_corpus"]

_STEPS_S = (60.0, 300.0, 600.0, 900.0, 3600.0)
_SHARES = (0.08, 0.6, 0.1, 0.1, 0.12)

Draw = Callable[[np.random.Generator, int, int], np.ndarray]


def _noise(rng: np.random.Generator, length: int) -> np.ndarray:
    """Draw correlated noise of unit size; its tails are heavy in one half of the draws."""
    memory = rng.choice([0.0, rng.uniform(0.3, 0.99)])
    kind = rng.uniform()
    raw = rng.standard_t(rng.uniform(2.2, 6), length) if kind < 0.5 else rng.normal(size=length)
    return np.asarray(lfilter([np.sqrt(1 - memory**2)], [1, -memory], raw))


def _spikes(rng: np.random.Generator, length: int, season: int) -> np.ndarray:
    """Draw peaks at a fixed period, at random, or both; heights vary from peak to peak."""
    made = np.zeros(length)
    periods = np.array([season // 24, season // 4, season, rng.integers(5, 400)])
    period = int(rng.choice(periods)) or 1
    places = [np.arange(rng.integers(period), length, period)] if rng.uniform() < 0.6 else []
    if not places or rng.uniform() < 0.5:
        places.append(
            rng.integers(length, size=rng.poisson(length * 10 ** rng.uniform(-3.3, -1.3)))
        )
    where = np.concatenate(places)
    where = where + rng.integers(0, rng.integers(1, 4), len(where))
    heights = rng.lognormal(0, rng.uniform(0.05, 0.8), len(where))
    np.add.at(made, where[where < length], heights[where < length])
    width = int(rng.integers(1, 8))
    decay = rng.choice([0.0, rng.uniform(0.3, 0.9)])
    shaped = np.convolve(made, np.ones(width))[:length]
    return np.asarray(lfilter([1], [1, -decay], shaped)) if decay else shaped


def _idle(rng: np.random.Generator, length: int, season: int) -> np.ndarray:
    """Draw an idle machine: a low level with small noise, and jobs that a clock starts."""
    base = 1 + 10 ** rng.uniform(-3, -0.7) * _noise(rng, length)
    return base + 10 ** rng.uniform(-0.7, 2) * _spikes(rng, length, season)


def _diurnal(rng: np.random.Generator, length: int, season: int) -> np.ndarray:
    """Draw the load of people: days with harmonics, weekends, and noise that grows with it."""
    phase = 2 * np.pi * (np.arange(length) / season + rng.uniform())
    wave = sum(
        rng.normal() / order**1.3 * np.cos(order * phase + rng.uniform(0, 6.3))
        for order in range(1, int(rng.integers(2, 8)))
    )
    day = (np.arange(length) // season + rng.integers(7)) % 7
    weekend = np.where(day >= 5, rng.uniform(0.3, 1.1), 1.0)
    log = rng.uniform(0.1, 1.0) * np.asarray(wave) + rng.uniform(0.02, 0.4) * _noise(rng, length)
    return np.exp(np.clip(log, -8, 8)) * weekend


def _batch(rng: np.random.Generator, length: int, season: int) -> np.ndarray:
    """Draw work that is on or off, or at one of a few levels, for random spells."""
    mean = 10 ** rng.uniform(0.5, 2.3)
    spells = np.maximum(rng.lognormal(np.log(mean), rng.uniform(0.1, 1.2), length), 1).astype(int)
    levels = np.abs(rng.normal(size=int(rng.integers(2, 5))) * rng.uniform(0.2, 3)) + 0.02
    state = np.repeat(rng.integers(len(levels), size=length), spells)[:length]
    return levels[state] * (1 + 10 ** rng.uniform(-2.5, -0.5) * _noise(rng, length))


def _saturating(rng: np.random.Generator, length: int, season: int) -> np.ndarray:
    """Draw use that is cut off at full: demand through a soft or a hard limit."""
    demand = rng.uniform(0.3, 2.5) + rng.uniform(0.05, 1) * _noise(rng, length)
    if rng.uniform() < 0.5:
        demand = demand * _diurnal(rng, length, season)
    return np.clip(demand, 0, 1) if rng.uniform() < 0.6 else 1 - np.exp(-np.maximum(demand, 0))


def _memory(rng: np.random.Generator, length: int, season: int) -> np.ndarray:
    """Draw memory: a walk that is drawn back or not, or a leak that restarts free."""
    if rng.uniform() < 0.5:
        pull = 10 ** rng.uniform(-3.5, -0.7)
        steps = rng.normal(size=length) * 10 ** rng.uniform(-2.5, -0.7)
        walk = np.asarray(lfilter([1], [1, -(1 - pull)], steps))
    else:
        spells = rng.lognormal(np.log(10 ** rng.uniform(1, 3)), rng.uniform(0, 0.7), length)
        begins = np.concatenate([[0], np.cumsum(np.maximum(spells, 2).astype(int))])
        steps = np.arange(length)
        walk = (steps - begins[np.searchsorted(begins, steps, "right") - 1]) / spells.mean()
    noise = 10 ** rng.uniform(-3.5, -1) * _noise(rng, length)
    return np.maximum(rng.uniform(1, 4) + walk + noise, 0)


def _bursts(rng: np.random.Generator, length: int, season: int) -> np.ndarray:
    """Draw counts that excite themselves (a discrete Hawkes process), or their random sizes."""
    rate, excite, fade = 10 ** rng.uniform(-1.5, 1.5), rng.uniform(0, 0.9), rng.uniform(0.1, 0.95)
    counts, intensity = np.zeros(length), 0.0
    uniform = rng.uniform(size=length)
    normal = rng.normal(size=length)
    for step in range(length):
        mean = rate + intensity
        # Few events by inversion of the first two terms, many by their normal limit.
        if mean > 2:
            count = max(round(mean + np.sqrt(mean) * normal[step]), 0)
        else:
            zero = np.exp(-mean)
            count = int(uniform[step] > zero) + int(uniform[step] > zero * (1 + mean))
        counts[step] = count
        intensity = fade * intensity + excite * (1 - fade) * count
    if rng.uniform() < 0.5:
        counts = counts * rng.lognormal(0, rng.uniform(0.1, 1.2), length)
    return counts + rng.choice([0.0, rng.uniform(0, 1)])


def _level(rng: np.random.Generator, length: int, season: int) -> np.ndarray:
    """Draw a level with noise, the plainest of series."""
    return np.maximum(1 + 10 ** rng.uniform(-2.5, -0.2) * _noise(rng, length), 0)


ARCHETYPES: dict[str, Draw] = {
    "idle": _idle,
    "diurnal": _diurnal,
    "batch": _batch,
    "saturating": _saturating,
    "memory": _memory,
    "bursts": _bursts,
    "level": _level,
}
"""How a series of each archetype is drawn: generator, length, steps of a day to values."""


def _disturbed(rng: np.random.Generator, values: np.ndarray, season: int) -> np.ndarray:
    """Lay over what real series have: shifts of level, peaks, coarse digits, another unit."""
    length = len(values)
    size = np.std(values) + 1e-3 * np.abs(np.mean(values)) + 1e-9
    if rng.uniform() < 0.35:
        for place in rng.integers(length, size=int(rng.integers(1, 5))):
            values = values.copy()
            values[place:] = values[place:] * rng.lognormal(0, 0.5) + size * rng.normal() * 0.5
    if rng.uniform() < 0.25:
        values = values + size * 10 ** rng.uniform(-0.5, 1) * _spikes(rng, length, season)
    if rng.uniform() < 0.8:
        values = np.maximum(values, 0)
    if rng.uniform() < 0.5:
        grain = size * 10 ** rng.uniform(-2, 0.3)
        values = np.round(values / grain) * grain
    return values * 10 ** rng.uniform(-2, 8)


def generate_corpus(
    count: int, *, length: int = 5000, seed: int = 0, archetypes: tuple[str, ...] = ()
) -> SeriesSet:
    """Generate series.

    Args:
        count: series.
        length: steps of each.
        seed: seed of all draws; series `i` depends on nothing but it and `i`.
        archetypes: names from `ARCHETYPES` to draw from; empty for all.

    Returns:
        float32 series named "archetype-i", 2 % of them with up to 5 % of holes.

    Raises:
        ConfigError: a name is not an archetype's.
    """
    wrong = set(archetypes) - set(ARCHETYPES)
    if wrong:
        raise ConfigError(
            f"unknown archetypes {', '.join(sorted(wrong))}", hint=f"one of {', '.join(ARCHETYPES)}"
        )
    names = list(archetypes or ARCHETYPES)
    arrays, ids, steps, notes = [], [], [], []
    for index in range(count):
        rng = np.random.default_rng((seed, index))
        step_s = float(rng.choice(_STEPS_S, p=_SHARES))
        season = round(86_400 / step_s)
        chosen = [str(rng.choice(names))]
        values = ARCHETYPES[chosen[0]](rng, length, season)
        if rng.uniform() < 0.25:
            chosen.append(str(rng.choice(names)))
            share = rng.uniform(0.1, 1) * np.std(values)
            other = ARCHETYPES[chosen[1]](rng, length, season)
            values = values + share * other / (np.std(other) + 1e-9)
        values = _disturbed(rng, values, season)
        if rng.uniform() < 0.02:
            values[rng.uniform(size=length) < rng.uniform(0, 0.05)] = np.nan
        arrays.append(values)
        ids.append(f"{chosen[0]}-{index}")
        steps.append(step_s)
        notes.append(f"generated: {' + '.join(chosen)}, seed {seed}, number {index}")
    return SeriesSet.from_arrays(arrays, step_s=steps, ids=ids, provenance=notes, dtype=np.float32)
