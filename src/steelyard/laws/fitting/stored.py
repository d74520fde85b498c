"""The exact JSON form of a fit."""

import json
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.law import Law, Parameter, Prior
from steelyard.laws.fitting.terms import Grouped

if TYPE_CHECKING:
    from steelyard.laws.fitting.fitted import Fit

__all__ = ["read", "write"]

_PLAIN = (
    "delta",
    "objective",
    "noise",
    "drift",
    "drift_source",
    "resampling",
    "prior_scale",
    "seed",
    "provenance",
    "source",
)


def write(fit: "Fit") -> str:
    """Write everything as JSON, from which `read` makes an equal fit, bit for bit."""
    term = fit.law.term
    return json.dumps(
        {
            "law": fit.law.name,
            "groups": {"vary": term.vary, "names": term.groups}
            if isinstance(term, Grouped)
            else None,
            "fixed": dict(fit.law.fixed),
            "parameters": [
                asdict(item) | {"prior": item.prior and [item.prior.center, item.prior.sd]}
                for item in fit.law.parameters
            ],
            "theta": fit.theta.tolist(),
            "samples": fit.samples.tolist(),
            "inputs": {name: column.tolist() for name, column in fit.inputs.items()},
            "target": fit.target.tolist(),
            "weights": fit.weights.tolist(),
            "clusters": fit.clusters.tolist(),
            "prior": {name: [item.center, item.sd] for name, item in fit.prior.items()},
            **{name: getattr(fit, name) for name in _PLAIN},
            "delta": fit.delta if np.isfinite(fit.delta) else "inf",  # JSON has no infinity
        },
        indent=1,
        allow_nan=False,
    )


def read(kind: type["Fit"], text: str, law: Law | None) -> "Fit":
    """Read what `write` wrote.

    Args:
        kind: class of fits; naming it here would import it in a circle.
        text: the JSON.
        law: needed only for a law that is not one of `steelyard.laws.FORMS`, as it was before
            groups and fixed parameters.

    Returns:
        An equal fit.

    Raises:
        FitError: the text is not a fit, or its law is not known here.
    """
    try:
        data = json.loads(text)
        declared = tuple(_parameter_from_plain(item) for item in data["parameters"])
        values: dict[str, Any] = {
            **{name: data[name] for name in _PLAIN},
            **{name: np.array(data[name], dtype=float) for name in ("theta", "target", "weights")},
            "law": replace(_law(data, law), parameters=declared),
            "delta": float(data["delta"]),
            "prior": {name: Prior(*pair) for name, pair in data["prior"].items()},
            "inputs": {
                name: np.array(column, dtype=np.float64) for name, column in data["inputs"].items()
            },
            "clusters": np.array(data["clusters"], dtype=np.int64),
            "samples": np.array(data["samples"], dtype=np.float64).reshape(-1, len(declared)),
        }
        return kind(**{item.name: values[item.name] for item in fields(kind)})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FitError(
            f"this is not a stored fit: {error}",
            hint="pass the JSON that `laws fit --json` or Fit.to_json wrote",
        ) from error


def _law(data: dict[str, Any], law: Law | None) -> Law:
    """Make the law a JSON names, with its groups and fixed parameters."""
    from steelyard.laws.forms.named import law_named

    law = law or law_named(data["law"])
    if data["groups"]:
        law = law.grouped(tuple(data["groups"]["vary"]), tuple(data["groups"]["names"]))
    more = {name: value for name, value in data["fixed"].items() if name not in law.fixed}
    return law.fix(**more) if more else law


def _parameter_from_plain(data: dict[str, Any]) -> Parameter:
    prior = data["prior"] and Prior(*data["prior"])
    return Parameter(**{**data, "starts": tuple(data["starts"]), "prior": prior})
