"""Serves JSON lines of requests with one engine and answers with the seconds of each request.

Usage: python _race_program.py '{"engine": "vllm", "model": FOLDER, ...}', in the engine's own
interpreter. Other engines' programs import nothing of this project.
"""

import collections
import ctypes
import importlib
import json
import os
import signal
import sys
import time

PARENT_DEATH_SIGNAL = 1  # of prctl(2)


def drive(engine, prompts, lengths, arrivals, at_once):
    """Run requests to forced lengths; return when each got its first and its last token.

    A request waits until it has arrived and fewer than `at_once` others are in flight.
    """
    waiting = collections.deque(sorted(range(len(prompts)), key=lambda index: arrivals[index]))
    missing, first = list(lengths), [0.0] * len(prompts)
    last, running = list(first), 0
    start = time.perf_counter()
    while waiting or running:
        now = time.perf_counter() - start
        while waiting and running < at_once and arrivals[waiting[0]] <= now:
            index = waiting.popleft()
            engine.add(index, prompts[index], lengths[index])
            running += 1
        if not running:
            time.sleep(min(arrivals[waiting[0]] - now, 0.001))
            continue
        for index, count in engine.step():
            now = time.perf_counter() - start
            if missing[index] == lengths[index]:
                first[index] = now
            missing[index] -= count
            last[index] = now
            running -= missing[index] == 0
    if any(missing):
        raise SystemExit(f"outputs miss {missing} tokens")
    return first, last


def main():
    """Answer lines of requests until the input ends."""
    # A stopped process would outlive a race that is killed.
    ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, signal.SIGKILL)
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    options = json.loads(sys.argv[1])
    engine = importlib.import_module(f"_race_{options['engine']}").Engine(options)
    print(json.dumps({"name": engine.name}), file=channel, flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        first, last = drive(engine, **work)
        print(json.dumps({"first": first, "last": last}), file=channel, flush=True)


if __name__ == "__main__":
    main()
