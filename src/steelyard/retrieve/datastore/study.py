"""Every size, seed and filter of a datastore from one search."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steelyard.errors import ConfigError
from steelyard.retrieve.datastore.candidates import Candidates
from steelyard.retrieve.datastore.sampling import mean_failure

__all__ = ["StudyCell", "study_grid"]


@dataclass(frozen=True, kw_only=True)
class StudyCell:
    """One store of a study.

    Attributes:
        filters: name of what was left out.
        share: share of the passages in the store.
        seed: seed of the draw.
        passages: expected passages in the store before filters.
        value: mean of what `measure` returned for the queries.
        short: share of queries for which the store may have had more to offer than is known.
        failure: share of such queries that is expected from the number of candidates.
    """

    filters: str
    share: float
    seed: int
    passages: float
    value: float
    short: float
    failure: float


def study_grid(
    candidates: Candidates,
    measure: Callable[[Candidates], np.ndarray],
    *,
    k: int = 3,
    shares: Sequence[float] = (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0),
    seeds: Sequence[int] = (0, 1, 2),
    filters: Mapping[str, Callable[[Candidates], Candidates]] | None = None,
) -> list[StudyCell]:
    """Measure what stores of several sizes are worth.

    Args:
        candidates: what one search of the whole store returned.
        measure: returns a number per query for the k best passages of each.
        k: passages that are looked at.
        shares: sizes of stores, as shares of the whole one.
        seeds: draws of each size; the whole store is measured once.
        filters: what is left out, by name; nothing by default. Each is done once, for all sizes.

    Returns:
        A cell for each filter, share and seed.

    Raises:
        ConfigError: a measure returns not one number per query, or a step is out of order.

    Source: Shao et al. 2024 (arXiv 2407.12854), section 3: seven sizes, three seeds.
    """
    cells = []
    for name, change in (filters or {"none": lambda found: found}).items():
        cleaned = change(candidates)
        counts = cleaned.counts()
        for share in shares:
            for seed in seeds if share < 1 else seeds[:1]:
                sampled = cleaned.subsample(share, seed)
                values = np.asarray(measure(sampled.top(k)), np.float64)
                if values.shape != (len(candidates),):
                    raise ConfigError(
                        f"a measure of {values.shape} for {len(candidates)} queries",
                        hint="return one number per query",
                    )
                cells.append(
                    StudyCell(
                        filters=name,
                        share=share,
                        seed=seed,
                        passages=share * len(candidates.store),
                        value=float(values.mean()),
                        short=float(sampled.is_short(k).mean()),
                        failure=0.0 if candidates.is_all else mean_failure(counts, k, share),
                    )
                )
    return cells
