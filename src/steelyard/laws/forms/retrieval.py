"""Dense retrieval: contrastive entropy by the size of a tower and the pairs it was trained on."""

from collections.abc import Mapping

import numpy as np

from steelyard.laws.fitting.law import Law
from steelyard.laws.fitting.terms import Array, Derivatives
from steelyard.laws.forms.terms import formula_law, positive, real

__all__ = ["dense_retrieval"]


def dense_retrieval() -> Law:
    """Entropy = [(A / parameters)^(alpha / beta) + B / pairs]^beta + delta.

    The target is how surprising the right document is among it and 256 others, in nats
    (`retrieve.towers.contrastive_entropy`), which is smooth where ranks jump.

    Returns:
        The law with inputs "parameters" (non-embedding, of one tower) and "pairs" (labelled pairs
        that differ), 5 parameters.

    Source: Fang et al. 2024 (Scaling Laws For Dense Retrieval, arXiv 2403.18684), equation 5.
    """
    parameters = (
        positive("A", -20.0, 60.0, 5.0, 10.0, 15.0),
        positive("B", -20.0, 60.0, 3.0, 8.0),
        real("alpha", 0.01, 2.0, 0.15, 0.5),
        real("beta", 0.01, 2.0, 0.2, 0.6),
        positive("delta", -9.0, 3.0, -4.0, -1.0),
    )
    formula = "[(A / N)^(alpha / beta) + B / D]^beta + delta"
    inputs = ("parameters", "pairs")
    return formula_law("dense_retrieval", _entropy, inputs, parameters, formula)


def _entropy(
    theta: Mapping[str, Array], parameters: Array, pairs: Array
) -> tuple[Array, Derivatives]:
    """Return the log entropy, [S, n]; see `Term.evaluate`."""
    size, data = theta["A"] - np.log(parameters), theta["B"] - np.log(pairs)
    power = theta["beta"]
    ratio = theta["alpha"] / power
    total = np.logaddexp(ratio * size, data)
    of_size = np.exp(ratio * size - total)
    above = power * total
    log = np.logaddexp(above, theta["delta"])
    share = np.exp(above - log)
    return log, {
        "A": share * theta["alpha"] * of_size,
        "B": share * power * (1 - of_size),
        "alpha": share * of_size * size,
        "beta": share * (total - ratio * of_size * size),
        "delta": 1 - share,
    }
