"""A deployment at the size of this machine: one replica of a small model, as busy as planned."""

import math
from dataclasses import replace

import numpy as np

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.stored import THIS_MACHINE
from steelyard.cost.memory import kv_bytes_per_token
from steelyard.cost.phase_time import PhaseStepTime
from steelyard.errors import CapacityError, InfeasibleError
from steelyard.plan.service.deployed import deployed_instance
from steelyard.plan.service.expected import DRIFT, expected
from steelyard.plan.service.goodput import goodput, unloaded
from steelyard.plan.service.load import ServiceLoad
from steelyard.serve.client.summary import Slo
from steelyard.serve.deployment import DeployedGroup, DeployedMachine, Deployment
from steelyard.serve.traces import TraceRow
from steelyard.units import pretty

__all__ = ["reduced"]

_MOST_SEQUENCES = 64
_LEAST_BUDGET = 16
_BLOCK = 16
_WIDEST = 4.0
"""Bytes of an element of keys and values in the widest type that the engine keeps them in."""
_SAMPLE = 200
"""Requests whose limits and rates are searched; a replay sends those of about a minute."""
_REPLAY_S = 60.0
_LEAST_REQUESTS = 20


def reduced(
    deployment: Deployment, arch: Architecture, times: PhaseStepTime, *, memory_bytes: float
) -> Deployment:
    """Return what one engine of a model runs here in place of a deployment.

    Lengths and budgets shrink by one whole factor to the model's longest request. The limits are as
    many times the latencies without load as planned, and the rate is the same share of what the
    engine carries within them.

    Args:
        deployment: what was planned.
        arch: model that is served in place of the planned one.
        times: step times of its engine here.
        memory_bytes: most that keys and values may take.

    Returns:
        The deployment with forecasts for this machine and what was reduced.

    Raises:
        CapacityError: the memory does not hold the longest request.
        InfeasibleError: the engine keeps the limits at no rate.
    """
    factor = _divisor(deployment.max_model_len, arch.max_positions)
    longest = deployment.max_model_len // factor + 2
    group = _own_group(deployment, factor, longest, _tokens_here(arch, longest, memory_bytes))
    made = replace(
        deployment,
        model=arch.name,
        machine=DeployedMachine(accelerator=THIS_MACHINE, dtype="as stored"),
        instances=1,
        groups=(group,),
        max_model_len=longest,
        load=replace(
            deployment.load,
            length_scale=deployment.load.length_scale / factor,
            requests=max(deployment.load.requests, _LEAST_REQUESTS),
        ),
        forecasts=(),
        reduced=(),
    )
    busy = _as_busy(deployment, made, times)
    return replace(busy, reduced=tuple(_words(deployment, busy, factor)))


def _divisor(longest: int, positions: int) -> int:
    """Return the smallest factor by which lengths have to shrink."""
    # Rounding may give a request two tokens more than its share.
    return max(math.ceil(longest / max(positions - 2, 1)), 1)


def _tokens_here(arch: Architecture, longest: int, memory_bytes: float) -> int:
    """Return the tokens whose keys and values the memory holds."""
    tokens = int(memory_bytes / kv_bytes_per_token(arch, _WIDEST))
    if tokens < longest:
        raise CapacityError(
            f"{pretty(memory_bytes, 'byte')} hold keys and values of {tokens} tokens, but the "
            f"longest request has {longest}",
            hint="free memory, or take a smaller model",
        )
    return tokens


def _own_group(
    deployment: Deployment, factor: int, longest: int, tokens_here: int
) -> DeployedGroup:
    """Return the one replica: that which decodes, at reduced size."""
    group = deployment.groups[-1]
    planned = group.num_blocks * group.block_size * group.pipeline // factor
    tokens = max(min(planned, tokens_here), longest)
    whole = group.whole_prompts and group.role == "both"
    sequences = min(group.max_num_seqs, _MOST_SEQUENCES)
    budget = max(math.ceil(group.token_budget / factor), sequences, _LEAST_BUDGET)
    return DeployedGroup(
        num_blocks=max(tokens // _BLOCK, -(-longest // _BLOCK)),
        token_budget=budget,
        max_num_seqs=sequences,
        whole_prompts=whole,
    )


def _as_busy(planned: Deployment, made: Deployment, times: PhaseStepTime) -> Deployment:
    """Set limits, rate and forecasts by what the engine does here."""
    instance = deployed_instance(made, (times,))
    sample = replace(made, load=replace(made.load, requests=_SAMPLE, rate_per_s=1.0)).rows()
    if not sample:
        raise CapacityError(
            f"none of the first {_SAMPLE} requests fits {made.max_model_len} tokens",
            hint="take a model of longer sequences",
        )
    load = ServiceLoad.of_rows(sample, np.random.default_rng(made.load.seed), count=len(sample))
    wanted = made.load.attainment
    alone = unloaded(instance.groups, load, Slo(), wanted)
    slo = Slo(
        ttft_s=_as_tight(made.load.ttft_s, planned.load.alone_ttft_s, alone.ttft_s),
        tpot_s=_as_tight(made.load.tpot_s, planned.load.alone_tpot_s, alone.tpot_s),
    )
    carried = goodput(instance.groups, load, slo, wanted)
    if not carried.rate_per_s:
        raise InfeasibleError(
            f"the engine here keeps ttft {pretty(slo.ttft_s, 's')} and tpot "
            f"{pretty(slo.tpot_s, 's')} at no rate: without load it takes "
            f"{pretty(alone.ttft_s, 's')} and {pretty(alone.tpot_s, 's')}",
            hint="plan with looser limits",
        )
    said = {item.quantity: item.value for item in planned.forecasts}
    share = min(planned.load.rate_per_s / said.get("serve.goodput", np.inf), 1.0) or 1.0
    rate = share * carried.rate_per_s
    count = min(max(round(rate * _REPLAY_S), _LEAST_REQUESTS), made.load.requests)
    final = replace(
        made.load,
        rate_per_s=rate,
        requests=count,
        ttft_s=slo.ttft_s,
        tpot_s=slo.tpot_s,
        alone_ttft_s=alone.ttft_s,
        alone_tpot_s=alone.tpot_s,
    )
    forecasts = expected(
        instance.groups,
        _columns(replace(made, load=final).rows()),
        slo,
        spread=math.hypot(times.relative_spread, DRIFT),
        source=times.source,
    )
    return replace(made, load=final, forecasts=tuple(forecasts))


def _as_tight(limit_s: float, planned_s: float, here_s: float) -> float:
    """Return a limit that is as many times the latency without load; as it is where unknown."""
    return limit_s / planned_s * here_s if planned_s else limit_s


def _columns(rows: list[TraceRow]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return arrivals, prompt lengths and output lengths."""
    start_s = rows[0].arrival_s
    return (
        np.array([row.arrival_s - start_s for row in rows]),
        np.array([row.input_tokens for row in rows]),
        np.array([row.output_tokens for row in rows]),
    )


def _words(planned: Deployment, made: Deployment, factor: int) -> list[str]:
    """Say what was reduced."""
    was, now = planned.groups[-1], made.groups[0]
    found = [f"{phrase}: left out" for phrase in planned.beyond_one_engine(planned.model)]
    if planned.model != made.model:
        found.insert(0, f"model {made.model} in place of {planned.model}")
    if planned.machine.accelerator != THIS_MACHINE:
        found.append(f"this machine in place of {planned.machine.accelerator}")
    if factor > 1:
        found.append(f"lengths and token budget x 1/{factor}")
    for name in ("num_blocks", "token_budget", "max_num_seqs"):
        if getattr(was, name) != getattr(now, name):
            found.append(f"{name} {getattr(now, name)} in place of {getattr(was, name)}")
    load = made.load
    found.append(
        f"{pretty(load.rate_per_s, 'request/s')} in place of "
        f"{pretty(planned.load.rate_per_s, 'request/s')}, ttft {pretty(load.ttft_s, 's')} and tpot "
        f"{pretty(load.tpot_s, 's')}: as busy and as tight as planned"
    )
    return found
