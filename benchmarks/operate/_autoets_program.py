"""Forecast with pip `statsforecast` AutoETS in the peer's own Python: a JSON line in, one out.

It is given contexts, horizon and season, and answers with the quantiles .1 to .9 and the seconds of
processor time of fitting and forecasting, compilation left out.
"""

import json
import sys
import time
import warnings

import numpy as np
import statsforecast  # pyright: ignore[reportMissingImports]
from statsforecast.models import AutoETS  # pyright: ignore[reportMissingImports]

_LEVELS = (20, 40, 60, 80)


def main() -> None:
    """Answer each line of stdin."""
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        case = json.loads(line)
        _forecast(case["contexts"][0], case)  # compiles
        begin = time.process_time()
        made = [_forecast(context, case) for context in case["contexts"]]
        took_s = time.process_time() - begin
        answer = {"quantiles": made, "seconds": took_s, "version": statsforecast.__version__}
        print(json.dumps(answer), flush=True)


def _forecast(context: list[float], case: dict) -> list[list[float]]:
    """Return the quantiles [9][horizon] of one context."""
    model = AutoETS(season_length=case["season"])
    values = np.asarray(context, dtype=np.float64)
    found = model.forecast(values, h=case["horizon"], level=list(_LEVELS))
    low = [found[f"lo-{level}"] for level in reversed(_LEVELS)]
    high = [found[f"hi-{level}"] for level in _LEVELS]
    return [np.asarray(row, float).tolist() for row in (*low, found["mean"], *high)]


if __name__ == "__main__":
    main()
