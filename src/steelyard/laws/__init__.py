"""Scaling laws.

Measured points in, a fitted law with honest intervals out, and a decision from it. The nouns and
verbs of every question stand here; the laws and answers of one question in a module of its own,
such as `laws.batches`. Nothing is imported before it is used; `dir(laws)` lists all.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steelyard.laws import (
        batches,
        curves,
        data,
        finetuning,
        growth,
        images,
        rates,
        rl,
        routed,
        studies,
        terms,
        theory,
    )
    from steelyard.laws.decisions.allocate import Limits, allocate
    from steelyard.laws.decisions.compare import compare
    from steelyard.laws.decisions.forecasting.forecast import ensemble, forecast
    from steelyard.laws.decisions.next_cell import next_cell
    from steelyard.laws.decisions.optima.isoflop import isoflop
    from steelyard.laws.decisions.optima.optimum import optima, optimum
    from steelyard.laws.fitting.bootstrap import Bootstrap
    from steelyard.laws.fitting.censored import fit_censored
    from steelyard.laws.fitting.estimate import Estimate, Prediction
    from steelyard.laws.fitting.fit import fit, fit_each, hold_out, without
    from steelyard.laws.fitting.fitted import Fit
    from steelyard.laws.fitting.law import Law, Parameter, Prior
    from steelyard.laws.forms.chinchilla import (
        chinchilla,
        downstream_error,
        kaplan,
        overtraining,
        predict_error,
    )
    from steelyard.laws.forms.named import law_named
    from steelyard.laws.forms.powers import power_law
    from steelyard.laws.registry import published
    from steelyard.laws.tables.table import RunTable

__all__ = [
    "Bootstrap",
    "Estimate",
    "Fit",
    "Law",
    "Limits",
    "Parameter",
    "Prediction",
    "Prior",
    "RunTable",
    "allocate",
    "batches",
    "chinchilla",
    "compare",
    "curves",
    "data",
    "downstream_error",
    "ensemble",
    "finetuning",
    "fit",
    "fit_censored",
    "fit_each",
    "forecast",
    "growth",
    "hold_out",
    "images",
    "isoflop",
    "kaplan",
    "law_named",
    "next_cell",
    "optima",
    "optimum",
    "overtraining",
    "power_law",
    "predict_error",
    "published",
    "rates",
    "rl",
    "routed",
    "studies",
    "terms",
    "theory",
    "without",
]

QUESTIONS = (
    "batches",
    "curves",
    "data",
    "finetuning",
    "growth",
    "images",
    "rates",
    "rl",
    "routed",
    "studies",
    "terms",
    "theory",
)
_HOME = {
    "Bootstrap": "fitting.bootstrap",
    "Estimate": "fitting.estimate",
    "Fit": "fitting.fitted",
    "Law": "fitting.law",
    "Limits": "decisions.allocate",
    "Parameter": "fitting.law",
    "Prediction": "fitting.estimate",
    "Prior": "fitting.law",
    "RunTable": "tables.table",
    "allocate": "decisions.allocate",
    "chinchilla": "forms.chinchilla",
    "compare": "decisions.compare",
    "downstream_error": "forms.chinchilla",
    "ensemble": "decisions.forecasting.forecast",
    "fit": "fitting.fit",
    "fit_censored": "fitting.censored",
    "fit_each": "fitting.fit",
    "forecast": "decisions.forecasting.forecast",
    "hold_out": "fitting.fit",
    "isoflop": "decisions.optima.isoflop",
    "kaplan": "forms.chinchilla",
    "law_named": "forms.named",
    "next_cell": "decisions.next_cell",
    "optima": "decisions.optima.optimum",
    "optimum": "decisions.optima.optimum",
    "overtraining": "forms.chinchilla",
    "power_law": "forms.powers",
    "predict_error": "forms.chinchilla",
    "published": "registry",
    "without": "fitting.fit",
}


def __getattr__(name: str) -> Any:
    """Import what a name stands for when it is first used."""
    if name in QUESTIONS:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    """List the names, and the modules of the questions."""
    return sorted(__all__)
