"""Traces drawn from a model against the part of the source that the model has not seen.

A model is fitted to the first 70 % of the time of a public trace (`steelyard trace fit` does the
same with its own hold-out inside), and five traces as long as the whole are drawn from it. What
`steelyard trace show` says of their last 30 % is compared with the last 30 % of the source. Beside
each error stands how far the source's own first part is from its last: what no model of the first
part can know. Arrivals that were rounded are spread over the step before gaps are compared.

The third group compares the draws with the part that the model was fitted to, from 20 % of the time
on, when the cache of prompts is warm: what the form of the model loses.

The two traces of chat are of a service in steady use; the synthetic mix of long contexts drifts:
conversations grow over the whole trace, so it is shown as a group of its own under the same bounds.
Bounds were set by hand at what a planner would not notice; choices within the fit (kind of
arrivals, pairing of lengths) are made on the first part only.
"""

from pathlib import Path

import numpy as np
from benchmarks.common import Check

from steelyard.serve.traces import read_rows
from steelyard.serve.traces.columns import TraceColumns
from steelyard.serve.traces.models import fit_trace
from steelyard.serve.traces.statistics import burstiness, length_quantiles
from steelyard.serve.traces.statistics.rounding import spread_ties
from steelyard.serve.traces.statistics.sharing import prefix_hits

PAPER: list[str] = []
_DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "llm-traces"
_STEADY = ("azure2023_conv.csv.gz", "mooncake_conversation.jsonl.gz")
_DRIFTING = ("mooncake_synthetic.jsonl.gz",)
_SEEN = 0.7
_LEVELS = ("mean", "p50", "p90", "p95")
_CACHES = (3e6, 1e7, np.inf)
_BOUNDS = {
    "rate, relative": 0.25,
    "CV of gaps": 0.10,
    "length quantiles, median relative": 0.15,
    "length quantiles, worst relative": 0.40,
    "prefix sharing, worst": 0.06,
}
"""Largest error of each kind, against held-out time."""
_FITTED = (0.05, 0.05, 0.05, 0.15, 0.03)
"""The same against the part that was fitted."""


def run(quick: bool) -> list[Check]:
    """Compare drawn traces with what was held out."""
    draws = 1 if quick else 5
    checks = []
    fitted: list[dict[str, float]] = []
    for group, names in ((1, _STEADY), (2, _DRIFTING)):
        errors = [_errors(name, draws) for name in names]
        fitted += [each[1] for each in errors]
        label = "steady" if group == 1 else "drifting"
        checks += _checks(f"{group} {label}", [each[0] for each in errors], list(_BOUNDS.values()))
    return checks + _checks("3 fitted part", fitted, list(_FITTED))


def _checks(label: str, errors: list[dict[str, float]], bounds: list[float]) -> list[Check]:
    """Return a check of the largest error of each kind."""
    checks = []
    for kind, bound in zip(_BOUNDS, bounds, strict=True):
        found = [each[kind] for each in errors if kind in each]
        checks.append(Check(f"{label}: {kind}", max(found), bound, "lower"))
    return checks


def _errors(name: str, draws: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return the mean error of each kind over draws, on held-out time and on what was fitted."""
    columns = TraceColumns.of(read_rows(_DATA / name))
    cut_s = _SEEN * columns.span_s
    place = int(np.searchsorted(columns.arrival_s, cut_s))
    first = columns.part(0, place)
    model = fit_trace(first, source=name)
    held = _facts(columns, place)
    drift = _apart(_facts(first, 0, len(first.client)), held)
    warm = int(np.searchsorted(columns.arrival_s, 0.2 * columns.span_s))
    known = _facts(columns, warm, place)
    found: list[dict[str, float]] = []
    own: list[dict[str, float]] = []
    for seed in range(draws):
        rows = model.draw(np.random.default_rng(seed), duration_s=columns.span_s)
        made = TraceColumns.of(rows)
        edges = np.searchsorted(made.arrival_s, [0.2 * columns.span_s, cut_s]).tolist()
        found.append(_apart(_facts(made, edges[1]), held))
        own.append(_apart(_facts(made, edges[0], edges[1]), known))
    mean, fitted = (
        {kind: float(np.mean([item[kind] for item in part])) for kind in part[0]}
        for part in (found, own)
    )
    print(f"{name}: {model.parts[0].arrivals.words}")
    for kind, value in mean.items():
        print(
            f"  {kind}: {value:.3f} (source's own first part: {drift[kind]:.3f}); "
            f"against the fitted part {fitted[kind]:.3f}"
        )
    return mean, fitted


def _facts(columns: TraceColumns, first: int, last: int | None = None) -> dict[str, np.ndarray]:
    """Return what is compared of some rows; prompts meet a cache that earlier rows filled."""
    last = len(columns.client) if last is None else last
    own = columns.part(first, last)
    times = spread_ties(own.arrival_s, np.random.default_rng(0))
    arrivals = burstiness(times - times[0])
    facts = {
        "rate": np.array([arrivals.rate_per_s]),
        "cv": np.array([arrivals.cv]),
        "lengths": np.array(
            [
                length_quantiles(tokens)[level]
                for tokens in (own.input_tokens, own.output_tokens)
                for level in _LEVELS
            ]
        ),
    }
    if columns.has_hashes:
        hits = prefix_hits(columns)
        assert hits is not None
        total = own.input_tokens.sum()
        facts["sharing"] = np.array(
            [hits.hit_tokens(size, slice(first, last)) / total for size in _CACHES]
        )
    return facts


def _apart(made: dict[str, np.ndarray], held: dict[str, np.ndarray]) -> dict[str, float]:
    """Return how far facts are apart, by kind of `_BOUNDS`."""
    kinds = list(_BOUNDS)
    lengths = np.abs(made["lengths"] / held["lengths"] - 1)
    found = [
        float(np.abs(made["rate"] / held["rate"] - 1)[0]),
        float(np.abs(made["cv"] - held["cv"])[0]),
        float(np.median(lengths)),
        float(lengths.max()),
    ]
    if "sharing" in held:
        found.append(float(np.abs(made["sharing"] - held["sharing"]).max()))
    return dict(zip(kinds, found, strict=False))
