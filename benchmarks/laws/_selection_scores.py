"""How good a choice of a model was, as the paper scores it."""

import math
from collections.abc import Mapping

import numpy as np

__all__ = ["relative_accuracy", "score_correlation"]


def relative_accuracy(chosen: str, measured: Mapping[str, float]) -> float:
    """Return (worst - chosen) / (worst - best) of the true losses; 1 is the best choice.

    Source: Lin et al. 2024 (arXiv 2402.02314), section 5.1 (RelAcc).
    """
    worst, best = max(measured.values()), min(measured.values())
    return (worst - measured[chosen]) / (worst - best) if worst > best else 1.0


def score_correlation(scores: Mapping[str, float], measured: Mapping[str, float]) -> float:
    """Return the Pearson correlation of scores and true losses; NaN for fewer than three models.

    Source: Lin et al. 2024 (arXiv 2402.02314), section 5.1 (PearCorr); its row of model size has
        the opposite sign, because it correlates the size itself.
    """
    names = [name for name in scores if name in measured]
    if len(names) < 3:
        return math.nan
    return float(
        np.corrcoef([scores[name] for name in names], [measured[name] for name in names])[0, 1]
    )
