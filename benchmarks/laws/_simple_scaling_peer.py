"""Forecast with pip `simple-scaling-laws` in the peer's own Python: a JSON line in, one out."""

import json
import sys
import time
import warnings

import numpy as np
import polars as pl  # pyright: ignore[reportMissingImports]
from simple_scaling_laws import fit  # pyright: ignore[reportMissingImports]

_LOSS = "test_loss__loss"


def main() -> None:
    """Answer each case of stdin; a case that the package refuses gets an error."""
    # It warns at each point outside the runs; here every point is.
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        try:
            answer = _forecast(json.loads(line))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


def _forecast(case: dict) -> dict:
    """Fit its default law with 1,000 draws of its bootstrap, and take the quantiles of its draws.

    The mean curve is its default answer; a new run adds the noise of training to it.
    """
    begin = time.process_time()
    columns = {_column(name): values for name, values in case["inputs"].items()}
    runs = pl.DataFrame({"training_run_id": case["runs"], **columns, _LOSS: case["loss"]})
    model = fit(runs, seed=0)
    points = {_column(name): values for name, values in case["at"].items()}
    tail = (1 - case["level"]) / 2
    quantiles = (tail, 0.5, 1 - tail)
    low, value, high = _quantiles(model.predict(points, quantiles=quantiles))
    run_low, _, run_high = _quantiles(model.predict(points, kind="new-run", quantiles=quantiles))
    answer = {"value": value, "low": low, "high": high, "run_low": run_low, "run_high": run_high}
    if not np.isfinite(list(answer.values())).all():
        return {"error": "its forecast is not finite"}
    return {**answer, "seconds": time.process_time() - begin}


def _column(name: str) -> str:
    """Name an axis as the package reads it: a model size, or else a size of the data."""
    return f"{'model' if name == 'parameters' else 'dataset'}_size__{name}"


def _quantiles(predicted: pl.DataFrame) -> list[list[float]]:
    """Return the columns of the quantiles, in the order asked for."""
    return [predicted[name].to_list() for name in predicted.columns if name.startswith(_LOSS)]


if __name__ == "__main__":
    main()
