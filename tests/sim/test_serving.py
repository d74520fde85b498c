from dataclasses import dataclass, field

import numpy as np
import pytest

from steelyard.errors import CapacityError, TraceError
from steelyard.sim import simulate


@dataclass
class Job:
    id: str
    arrival_s: float
    length: int
    output: list[int] = field(default_factory=list)
    first_token_s: float = float("nan")
    last_token_s: float = float("nan")
    finish_reason: str | None = None


@dataclass
class Plan:
    sampled_ids: list[str]
    num_tokens: int = 1
    transfers: list[str] = field(default_factory=list)

    def blank_output(self):
        return dict.fromkeys(self.sampled_ids, 0)

    def features(self):
        return np.array([1.0, len(self.sampled_ids)])


class OneAtATime:
    def __init__(self):
        self.queue = []

    def add(self, request, now_s):
        self.queue.append(request)

    def schedule(self, now_s):
        return Plan([self.queue[0].id]) if self.queue else None

    def complete(self, plan, tokens, now_s):
        job = self.queue[0]
        job.output.append(tokens[job.id])
        job.first_token_s = min(now_s, job.first_token_s) if len(job.output) > 1 else now_s
        job.last_token_s = now_s
        if len(job.output) == job.length:
            job.finish_reason = "length"
            self.queue.pop(0)
            return [job]
        return []

    def kv_utilization(self):
        return 1.0


def run(jobs, seconds=1.0):
    return simulate(OneAtATime(), jobs, lambda plan: seconds, lambda item, row: item)


def test_a_queue_of_two_takes_the_times_worked_out_by_hand():
    result = run([Job("a", 0.0, 2), Job("b", 0.5, 3)])
    assert result.timeline.first_token_s.tolist() == [1.0, 3.0]
    assert result.timeline.last_token_s.tolist() == [2.0, 5.0]
    assert result.summary()["serve.makespan"] == 5.0


def test_an_arrival_at_a_steps_end_joins_the_next_step():
    result = run([Job("a", 0.0, 1), Job("b", 1.0, 1)])
    assert result.timeline.last_token_s.tolist() == [1.0, 2.0]


def test_an_idle_engine_waits_for_the_next_arrival():
    result = run([Job("a", 0.0, 1), Job("b", 10.0, 1)], seconds=0.25)
    assert result.timeline.ttft_s.tolist() == [0.25, 0.25]


def test_an_empty_trace_and_a_stuck_scheduler_are_refused():
    with pytest.raises(TraceError, match="no request"):
        run([])
    stuck = OneAtATime()
    stuck.schedule = lambda now_s: None
    with pytest.raises(CapacityError, match="1 of 1"):
        simulate(stuck, [Job("a", 0.0, 1)], lambda plan: 1.0, lambda item, row: item)
