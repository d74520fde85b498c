"""The peer AutoETS as a forecaster, run in its own environment."""

import json
import subprocess
from pathlib import Path

import numpy as np
from benchmarks import peers

from steelyard.operate.forecast import CRPS_LEVELS, SampleForecast
from steelyard.operate.series import SeriesSet

__all__ = ["AutoETSPeer"]

_CONTEXT = 480
"""Steps of context that it is given: those of the paper's task."""
_HUGE = 1e300


class AutoETSPeer:
    """AutoETS of `statsforecast`, not seasonal: a season of 288 steps is beyond what it fits.

    Attributes:
        name: with its version, after the first forecast.
        seconds: processor seconds of the last `predict`, compilation and transfer left out.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self.name = "AutoETS"
        self.seconds = float("nan")

    def fit(self, series: SeriesSet) -> None:
        """Learn nothing: it is fitted to every context."""

    def predict(self, context: SeriesSet, horizon: int) -> list[SampleForecast]:
        """Forecast as `Forecaster.predict` does; what is not finite becomes a huge number."""
        rows = []
        for values in context:
            known = values[np.isfinite(values)][-_CONTEXT:]
            rows.append(known.astype(float).tolist())
        case = {"contexts": rows, "horizon": horizon, "season": 1}
        program = Path(__file__).with_name("_autoets_program.py")
        command = [str(peers.python("statsforecast")), str(program)]
        done = subprocess.run(
            command, input=json.dumps(case) + "\n", capture_output=True, text=True, check=True
        )
        answer = json.loads(done.stdout.splitlines()[-1])
        self.seconds = float(answer["seconds"])
        self.name = f"AutoETS {answer['version']}"
        levels = np.array(CRPS_LEVELS)
        return [
            SampleForecast(
                np.clip(np.nan_to_num(np.sort(np.array(item), axis=0), nan=_HUGE), -_HUGE, _HUGE),
                levels,
                self.name,
                name,
            )
            for item, name in zip(answer["quantiles"], context.ids, strict=True)
        ]
