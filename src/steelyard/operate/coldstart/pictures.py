"""Pictures of cold starts: what a start is made of, part after part."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.runs import charts
from steelyard.sim.serverless import ServerlessResult, Workload

__all__ = ["mean_parts", "waterfall"]

_LABELS = {
    "pod_allocation": "allocation",
    "deploy_code": "code",
    "deploy_dependency": "dependencies",
    "scheduling": "scheduling",
    "warm_up": "warm-up",
}


def mean_parts(result: ServerlessResult, workload: Workload) -> dict[str, dict[str, float]]:
    """Return the mean seconds of each part by runtime, over all starts of a run."""
    runtimes = [workload.functions[at].runtime for at in range(len(workload.functions))]
    names = sorted(set(runtimes))
    of = np.array([names.index(item) for item in runtimes], dtype=np.int64)[result.function]
    found: dict[str, dict[str, float]] = {}
    for at, name in enumerate(names):
        if (of == at).any():
            means: NDArray[np.float64] = result.parts_s[of == at].mean(axis=0)
            found[name] = dict(zip(result.part_names, means.tolist(), strict=True))
    return found


def waterfall(
    parts_s: Mapping[str, Mapping[str, float]],
    *,
    order: Sequence[str] = (),
    title: str = "Mean cold start, part after part",
) -> dict[str, Any]:
    """Draw starts as bars that begin where the part before them ends, longest start first.

    Args:
        parts_s: mean seconds by group, such as the runtime, and by part.
        order: parts in the order of drawing; as given when empty.
        title: heading of the chart.

    Returns:
        Vega-Lite spec.
    """
    lanes, begins, ends, groups = [], [], [], []
    for name in sorted(parts_s, key=lambda key: -sum(parts_s[key].values())):
        at_s = 0.0
        for part in order or parts_s[name]:
            seconds = parts_s[name].get(part, 0.0)
            lanes.append(name)
            begins.append(at_s)
            ends.append(at_s + seconds)
            groups.append(_LABELS.get(part, part))
            at_s += seconds
    return charts.lanes(lanes, begins, ends, groups=groups, title=title)
