"""The laws by name, for the command line, stored fits and published sets."""

from collections.abc import Callable
from functools import partial

from steelyard.errors import FitError
from steelyard.laws.fitting.law import Law
from steelyard.laws.forms.batch_size import time_compute
from steelyard.laws.forms.chinchilla import (
    chinchilla,
    chinchilla_tied,
    downstream_error,
    kaplan,
    overtraining,
)
from steelyard.laws.forms.contrastive import contrastive
from steelyard.laws.forms.growth import growth
from steelyard.laws.forms.learning_curves.curve_laws import smooth_transition
from steelyard.laws.forms.learning_rate import learning_rate
from steelyard.laws.forms.pools.pool_utility import effective_pool, pool_utility
from steelyard.laws.forms.powers import (
    POWER_FORMS,
    PRODUCT_FORMS,
    monomial,
    power_law,
    powers,
)
from steelyard.laws.forms.rectified import rectified
from steelyard.laws.forms.repetition import data_constrained, overfitting_penalty
from steelyard.laws.forms.retrieval import dense_retrieval
from steelyard.laws.forms.routed import routed
from steelyard.laws.forms.shapes import broken, coupled, saturating, shifted
from steelyard.laws.forms.updates.updates_to_data import updates_to_data

__all__ = ["FORMS", "law_named"]

FORMS: dict[str, Callable[..., Law]] = {
    "broken": broken,
    "chinchilla": chinchilla,
    "chinchilla_tied": chinchilla_tied,
    "contrastive": contrastive,
    "coupled": coupled,
    "data_constrained": data_constrained,
    "dense_retrieval": dense_retrieval,
    "downstream_error": downstream_error,
    "effective_pool": effective_pool,
    "growth": growth,
    "kaplan": kaplan,
    "learning_rate": learning_rate,
    "overfitting_penalty": overfitting_penalty,
    "overtraining": overtraining,
    "pool_utility": pool_utility,
    "powers": powers,
    "rectified": rectified,
    "routed": routed,
    "saturating": saturating,
    "shifted": shifted,
    "smooth_transition": smooth_transition,
    "time_compute": time_compute,
    "updates_to_data": updates_to_data,
    **{name: partial(power_law, letters=name) for name in POWER_FORMS},
    **{name: partial(monomial, letters=name) for name in PRODUCT_FORMS},
}
"""What makes each law, by name, for the command line and for reading a fit's JSON.

One power and one product of powers go by the names of several papers.
"""


def law_named(name: str) -> Law:
    """Make the law that a stored fit or a user names.

    Args:
        name: name of a form, with its arguments after colons, such as "chinchilla" or
            "power_law:tokens".

    Returns:
        The law.

    Raises:
        FitError: no form has this name.
    """
    head, *arguments = name.split(":")
    if head not in FORMS:
        raise FitError(
            f"unknown law {name!r}",
            hint=f"known: {', '.join(FORMS)}; for a law of your own pass law=",
        )
    return FORMS[head](*arguments)
