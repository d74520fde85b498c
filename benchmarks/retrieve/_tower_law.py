"""The law of tower sizes: entropy of the right document by parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from benchmarks.common import Check

from steelyard.laws import fit, power_law

__all__ = ["Rung", "law_checks"]


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A tower size.

    Attributes:
        parameters: parameters of a tower without its token table.
        entropy: contrastive entropy in nats.
    """

    parameters: int
    entropy: float


def law_checks(rungs: Sequence[Rung], *, is_full: bool) -> list[Check]:
    """Fit the law to all sizes, and without the largest, which it then predicts.

    Args:
        rungs: sizes, the largest last.
        is_full: whether there are sizes enough for a law.

    Returns:
        Checks; of too few sizes only their order.
    """
    sizes = np.array([item.parameters for item in rungs], np.float64)
    nats = np.array([item.entropy for item in rungs])
    order = [Check("2 sizes out of order", float((np.diff(nats) >= 0).sum()), 0.0, "lower")]
    if not is_full:
        return order
    law = power_law("parameters")
    whole = fit(law, {"parameters": sizes}, nats, prior=None)
    made = whole.predict({"parameters": sizes}).value
    explained = 1 - float(((nats - made) ** 2).sum() / ((nats - nats.mean()) ** 2).sum())
    few = fit(law, {"parameters": sizes[:-1]}, nats[:-1], prior=None)
    ahead = few.predict({"parameters": sizes[-1:]}).first
    error = abs(ahead.value / nats[-1] - 1)
    for size, found, fitted in zip(sizes, nats, made, strict=True):
        print(f"{size:10,.0f} parameters: entropy {found:.4f}, law {fitted:.4f}")
    params = whole.params
    print(
        f"law {law.formula}: alpha {params['alpha']:.3f}, floor {params['E']:.3f}; largest "
        f"predicted {ahead.value:.4f} ({ahead.low:.4f} to {ahead.high:.4f})"
    )
    return [
        Check("2 R2 of the law of sizes", explained, 0.97, "higher"),
        Check("2 largest size, error of its entropy", error, 0.03, "lower"),
        *order,
    ]
