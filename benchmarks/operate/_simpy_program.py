"""The serverless platform written with SimPy generators; runs in that peer's interpreter.

A line {"trace": PATH of an .npz file} is answered by {"seconds": time of the run, "cold_starts": n,
"pod_s": s}. The file has time_s, function, duration_s, runtime (of each function), curves
[runtimes, parts, 201], keep_s and horizon_s. The model is that of the package without pools and
pre-warming: slots of 1, newest ready pod first, additive parts, a fixed keep-alive.
"""

import json
import os
import random
import sys
import time

import numpy as np
import simpy  # pyright: ignore[reportMissingImports]

channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


class Platform:
    """Pods of all functions."""

    def __init__(self, env, curves, runtime, keep_s, rng):
        self.env, self.curves, self.runtime = env, curves, runtime
        self.keep_s, self.rng = keep_s, rng
        self.idle = [[] for _ in runtime]
        self.cold_starts, self.pod_s = 0, 0.0

    def start_s(self, function):
        """Draw the parts of a start."""
        total = 0.0
        for curve in self.curves[self.runtime[function]]:
            place = self.rng.random() * 200
            left = int(place)
            total += curve[left] + (place - left) * (curve[left + 1] - curve[left])
        return total

    def pod(self, function, first_s):
        """Live: start, serve, wait for the next request, and end when none comes in time."""
        env, begin_s = self.env, self.env.now
        yield env.timeout(self.start_s(function))
        duration_s = first_s
        while True:
            yield env.timeout(duration_s)
            wake = env.event()
            mine = (begin_s, wake)
            self.idle[function].append(mine)
            found = yield wake | env.timeout(self.keep_s)
            if wake not in found:
                self.idle[function].remove(mine)
                self.pod_s += env.now - begin_s
                return
            duration_s = wake.value

    def request(self, function, duration_s):
        """Hand a request to the newest idle pod, or start one."""
        waiting = self.idle[function]
        if waiting:
            newest = max(range(len(waiting)), key=lambda at: waiting[at][0])
            waiting.pop(newest)[1].succeed(duration_s)
        else:
            self.cold_starts += 1
            self.env.process(self.pod(function, duration_s))


def arrivals(env, platform, times, functions, durations):
    """Bring in the requests."""
    for at_s, function, duration_s in zip(times, functions, durations, strict=True):
        yield env.timeout(at_s - env.now)
        platform.request(function, duration_s)


def run(path):
    """Simulate a file's requests."""
    data = np.load(path)
    curves, runtime = data["curves"].tolist(), data["runtime"].tolist()
    columns = [data[name].tolist() for name in ("time_s", "function", "duration_s")]
    begin = time.perf_counter()
    env = simpy.Environment()
    platform = Platform(env, curves, runtime, float(data["keep_s"]), random.Random(0))
    env.process(arrivals(env, platform, *columns))
    env.run(until=float(data["horizon_s"]))
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "cold_starts": platform.cold_starts, "pod_s": platform.pod_s}


print(json.dumps({"name": f"SimPy {simpy.__version__}"}), file=channel, flush=True)
for line in sys.stdin:
    print(json.dumps(run(json.loads(line)["trace"])), file=channel, flush=True)
