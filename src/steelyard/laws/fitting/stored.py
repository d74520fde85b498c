"""The exact JSON form of a fit."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from steelyard.errors import FitError
from steelyard.laws.fitting.law import Law, Parameter, Prior
from steelyard.laws.fitting.terms import Grouped

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
_ARRAYS = {
    "theta": np.float64,
    "samples": np.float64,
    "target": np.float64,
    "weights": np.float64,
    "clusters": np.int64,
}


def write(fit: Mapping[str, Any]) -> str:
    """Write the fields of a fit as JSON, from which `read` makes equal ones, bit for bit."""
    law: Law = fit["law"]
    delta = fit["delta"]
    return json.dumps(
        {
            "law": law.name,
            "groups": {"vary": law.term.vary, "names": law.term.groups}
            if isinstance(law.term, Grouped)
            else None,
            "fixed": dict(law.fixed),
            "parameters": [
                asdict(item) | {"prior": item.prior and [item.prior.center, item.prior.sd]}
                for item in law.parameters
            ],
            **{name: fit[name].tolist() for name in _ARRAYS},
            "inputs": {name: column.tolist() for name, column in fit["inputs"].items()},
            "prior": {name: [item.center, item.sd] for name, item in fit["prior"].items()},
            **{name: fit[name] for name in _PLAIN},
            "delta": delta if np.isfinite(delta) else "inf",  # JSON has no infinity
        },
        indent=1,
        allow_nan=False,
    )


def read(text: str, law: Law | Callable[[str], Law]) -> dict[str, Any]:
    """Read what `write` wrote.

    Args:
        text: the JSON.
        law: the law as it was before groups and fixed parameters, or what makes it of the name
            that the JSON holds.

    Returns:
        The fields of an equal fit.

    Raises:
        FitError: the text is not a fit, or its law is not known here.
    """
    try:
        data = json.loads(text)
        declared = tuple(_parameter_from_plain(item) for item in data["parameters"])
        return {
            **{name: data[name] for name in _PLAIN},
            **{name: np.array(data[name], dtype=kind) for name, kind in _ARRAYS.items()},
            "law": replace(_law(data, law), parameters=declared),
            "delta": float(data["delta"]),
            "prior": {name: Prior(*pair) for name, pair in data["prior"].items()},
            "inputs": {
                name: np.array(column, dtype=np.float64) for name, column in data["inputs"].items()
            },
            "samples": np.array(data["samples"], dtype=np.float64).reshape(-1, len(declared)),
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FitError(
            f"this is not a stored fit: {error}",
            hint="pass the JSON that `laws fit --json` or Fit.to_json wrote",
        ) from error


def _law(data: dict[str, Any], law: Law | Callable[[str], Law]) -> Law:
    """Make the law a JSON names, with its groups and fixed parameters."""
    law = law if isinstance(law, Law) else law(data["law"])
    if data["groups"]:
        law = law.grouped(tuple(data["groups"]["vary"]), tuple(data["groups"]["names"]))
    more = {name: value for name, value in data["fixed"].items() if name not in law.fixed}
    return law.fix(**more) if more else law


def _parameter_from_plain(data: dict[str, Any]) -> Parameter:
    prior = data["prior"] and Prior(*data["prior"])
    return Parameter(**{**data, "starts": tuple(data["starts"]), "prior": prior})
