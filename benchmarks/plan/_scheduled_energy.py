"""A setting of the planner run by the engine's own scheduler in virtual time, step by step."""

from dataclasses import dataclass

import numpy as np

from steelyard.cost.power import EnergyModel
from steelyard.plan.energy import EnergyGoal, KnobSetting
from steelyard.serve import Scheduler, SchedulerConfig
from steelyard.serve.simulate import simulate
from steelyard.serve.traces import TraceRow, with_prompts
from steelyard.sim.timeline import Timeline

_BLOCK = 16
_HOST_SHARE = 0.356 / 0.60


@dataclass(frozen=True)
class Scheduled:
    """Energy over the tokens generated, and the share of requests that missed a goal."""

    energy_per_token_j: float
    violations: float


def scheduled(
    model: EnergyModel, setting: KnobSetting, rows: list[TraceRow], goal: EnergyGoal
) -> Scheduled:
    """Run every copy of a setting over the requests that a router of least work gives it."""
    idle_w = model.curve.idle_w * model.tensor_parallel
    host_w = _HOST_SHARE * model.curve.rated_w * model.tensor_parallel
    span_s = rows[-1].arrival_s
    joules, missed = setting.replicas * host_w * span_s, 0
    for own in _routed(model, setting.replicas, rows):
        done = _one_copy(model, setting, own)
        held = done.step_features
        watts, busy_s = model.power_w(held, setting.clock), model.time_s(held, setting.clock)
        joules += float(watts @ busy_s) + idle_w * max(span_s - float(busy_s.sum()), 0.0)
        ttft = done.first_token_s - done.arrival_s
        further = np.maximum(done.output_tokens - 1, 1)
        tpot = (done.last_token_s - done.first_token_s) / further
        missed += int(((ttft > goal.ttft_s) | (tpot > goal.tpot_s)).sum())
    tokens = sum(row.output_tokens for row in rows)
    return Scheduled(joules / tokens, missed / len(rows))


def _routed(model: EnergyModel, copies: int, rows: list[TraceRow]) -> list[list[TraceRow]]:
    """Give each request to the copy with the least work left by the model's own estimate."""
    free_s = np.zeros(copies)
    found: list[list[TraceRow]] = [[] for _ in range(copies)]
    for row in rows:
        copy = int(np.argmin(free_s))
        found[copy].append(row)
        work_s = model.request(row.input_tokens, row.output_tokens).time_s
        free_s[copy] = max(free_s[copy], row.arrival_s) + work_s
    return [own for own in found if own]


def _one_copy(model: EnergyModel, setting: KnobSetting, rows: list[TraceRow]) -> Timeline:
    """Run one copy; prompts are processed whole, as those that were measured."""
    longest = max(row.input_tokens + row.output_tokens for row in rows)
    blocks = setting.batch * (longest // _BLOCK + 2)
    config = SchedulerConfig(
        num_blocks=blocks,
        block_size=_BLOCK,
        token_budget=longest + setting.batch,
        max_num_seqs=setting.batch,
        max_model_len=longest + 1,
        prefix_caching=False,
    )
    trace = with_prompts(rows, np.random.default_rng(0), vocab_size=32_000)
    done = simulate(
        Scheduler(config), trace, lambda plan: float(model.time_s(plan.features(), setting.clock))
    )
    return done.timeline
