"""Replays one function's requests in SimFaaS; runs in that peer's interpreter.

A line {"trace": PATH of an .npz file} is answered by {"seconds", "requests", "cold_probability",
"mean_pods"}. The file has gaps_s and duration_s of the requests, start_s, keep_s and horizon_s.
Each arrival, cold or warm, takes the next duration, so that both simulators see the same requests.
"""

import json
import os
import sys
import time

os.environ["MPLBACKEND"] = "Agg"
channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

import numpy as np  # noqa: E402
from simfaas.ServerlessSimulator import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    ServerlessSimulator,
)
from simfaas.SimProcess import SimProcess  # noqa: E402  # pyright: ignore[reportMissingImports]


class Replayed(SimProcess):
    """Hands out recorded times, a constant added."""

    def __init__(self, times, added_s=0.0):
        super().__init__()
        self.times, self.added_s = times, added_s

    def generate_trace(self):
        """Return the next time; far away once all are gone."""
        return next(self.times, 1e18) + self.added_s


def run(path):
    """Simulate a file's requests."""
    data = np.load(path)
    durations = iter(data["duration_s"].tolist())
    simulator = ServerlessSimulator(
        arrival_process=Replayed(iter(data["gaps_s"].tolist())),
        warm_service_process=Replayed(durations),
        cold_service_process=Replayed(durations, float(data["start_s"])),
        expiration_threshold=float(data["keep_s"]),
        max_time=float(data["horizon_s"]),
    )
    begin = time.perf_counter()
    simulator.generate_trace()
    return {
        "seconds": time.perf_counter() - begin,
        "requests": simulator.total_req_count,
        "cold_probability": simulator.get_cold_start_prob(),
        "mean_pods": simulator.get_average_server_count(),
    }


print(json.dumps({"name": "SimFaaS 0.2.2"}), file=channel, flush=True)
for line in sys.stdin:
    print(json.dumps(run(json.loads(line)["trace"])), file=channel, flush=True)
