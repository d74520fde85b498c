"""What mixing experts costs: against dense models, masked loops and dispatch by masks."""

from collections.abc import Callable
from typing import Any, cast

import torch
from benchmarks.common import Check, alternate, ratio
from benchmarks.nn._tiny import tiny
from torch import Tensor
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from steelyard.nn.layer import DecoderLayer
from steelyard.nn.mixers.retention import retain_chunks, retain_parallel, retain_step
from steelyard.nn.moe.dispatch import sort_by_expert
from steelyard.nn.moe.experts import MixtureOfExperts
from steelyard.nn.moe.routers import Routing
from steelyard.nn.moe.sinkhorn import balanced_plan
from steelyard.nn.parts.activation import activate
from steelyard.nn.transformer import build

__all__ = ["cost_checks", "parity_checks"]

_WIDTH, _INNER, _EXPERTS, _TOKENS = 256, 1024, 16, 4096


def cost_checks(quick: bool) -> list[Check]:
    """Time a layer of experts forward and backward, and dispatch alone."""
    rounds = 3 if quick else 7
    layer, dense = _layer(_EXPERTS), _layer(0)
    rows = torch.randn(_TOKENS, _WIDTH, generator=torch.Generator().manual_seed(0))

    def step(compute: Callable[[Tensor], Tensor]) -> Callable[[], object]:
        def work() -> None:
            inputs = rows.clone().requires_grad_()
            compute(inputs).sum().backward()
            layer.zero_grad()
            dense.zero_grad()

        return work

    up, down = dense.up.weight, dense.down.weight
    experts = layer.experts
    assert isinstance(experts, MixtureOfExperts)
    rivals = {
        "sorted": step(experts),
        "masked": step(lambda x: _masked(experts, x)),
        "dense": step(lambda x: F.linear(activate("gelu", F.linear(x, up)), down)),
    }
    seconds = alternate(rivals, rounds=rounds)
    faster = ratio(seconds["masked"], seconds["sorted"])
    slower = ratio(seconds["sorted"], seconds["dense"])
    print(
        f"{_EXPERTS} experts, {_TOKENS} tokens, forward and backward: masked over sorted "
        f"{faster.low:.2f} to {faster.high:.2f}, sorted over dense {slower.low:.2f} to "
        f"{slower.high:.2f}"
    )
    return [
        Check("6 speed, sorted over masked experts", faster.median, 3.0, "higher"),
        Check("6 time, sorted experts over dense", slower.median, 1.6, "lower"),
        *_dispatch_checks(rounds),
    ]


def parity_checks() -> list[Check]:
    """Compare the three forms of retention, and see how even Sinkhorn's shares are."""
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(2, 256, 4, 16, generator=generator) for _ in range(3)]
    parallel, state, steps = retain_parallel(*parts), None, []
    for place in range(256):
        now = [part[:, place] for part in parts]
        step, state = retain_step(now[0], now[1], now[2], state)
        steps.append(step)
    error = max(
        float((other - parallel).abs().max() / parallel.abs().max())
        for other in (torch.stack(steps, 1), retain_chunks(parts[0], parts[1], parts[2], 48))
    )
    scores = torch.randn(4096, 32, generator=generator)
    plan = balanced_plan(scores)
    columns, rows = plan.shares.sum(0) * 32, plan.shares.sum(1) * 4096
    margins = [(part - 1).abs().max() for part in (columns, rows)]
    print(f"Sinkhorn: {plan.rounds} rounds for 4,096 tokens and 32 experts of scores with spread 1")
    return [
        Check(
            "5 retention, largest difference of its forms over the largest value",
            error,
            1e-5,
            "lower",
        ),
        Check("6 Sinkhorn, largest error of a share", float(max(margins)), 0.01, "lower"),
    ]


def _layer(experts: int) -> DecoderLayer:
    """Build one layer."""
    sizes = {"hidden_size": _WIDTH, "intermediate_size": _INNER, "mlp_bias": False, "mlp": "gelu"}
    routed = {
        "num_experts": experts,
        "experts_per_token": 1,
        "moe_intermediate_size": _INNER,
        "router": "sinkhorn",
    }
    arch = tiny(1, _WIDTH, **(sizes | (routed if experts else {})))
    return cast(DecoderLayer, build(arch, seed=0).layers[0])


def _masked(experts: MixtureOfExperts, rows: Tensor) -> Tensor:
    """Let every expert compute all rows, and keep those that were sent to it."""
    routing: Routing = experts.router(rows, None)
    total = torch.zeros_like(rows)
    for number, (up, down) in enumerate(zip(experts.up, experts.down, strict=True)):
        weights = (routing.gates * (routing.experts == number)).sum(1, keepdim=True)
        total = total + weights * F.linear(activate(experts.form, F.linear(rows, up)), down)
    return total


def _dispatch_checks(rounds: int) -> list[Check]:
    """Bring rows to 64 experts and back: sorted, and by a mask [S, E, C]."""
    count, size, width = 64, 2048, 64
    capacity = 2 * size // count
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(size, width, generator=generator)
    logits = torch.randn(size, count, generator=generator)
    gates, experts = logits.softmax(1).max(1, keepdim=True)

    def by_sorting() -> Tensor:
        found = sort_by_expert(experts, count, capacity)
        sent = rows[found.rows]
        weighted = sent * gates[found.rows]
        return torch.zeros_like(rows).index_add(0, found.rows, weighted)

    def by_mask() -> Tensor:
        chosen = F.one_hot(experts[:, 0], count).float()
        places = (chosen.cumsum(0) - 1) * chosen
        chosen = chosen * (places < capacity)
        slots = F.one_hot(places.sum(1).long().clamp(max=capacity - 1), capacity).float()
        combine = torch.einsum("s,se,sc->sec", gates[:, 0], chosen, slots)
        sent = torch.einsum("sec,sm->ecm", combine.bool().float(), rows)
        return torch.einsum("sec,ecm->sm", combine, sent)

    torch.testing.assert_close(by_sorting(), by_mask(), rtol=1e-4, atol=1e-5)
    seconds = alternate({"sorted": by_sorting, "mask": by_mask}, rounds=rounds)
    faster = ratio(seconds["mask"], seconds["sorted"])
    less = _peak_bytes(by_mask) / _peak_bytes(by_sorting)
    print(f"dispatch to {count} experts: {faster.median:.0f} times faster, {less:.0f} times less")
    return [
        Check("5 speed of dispatch, sorted over masks", faster.median, 5.0, "higher"),
        Check("5 memory of dispatch, masks over sorted", less, 5.0, "higher"),
    ]


def _peak_bytes(work: Callable[[], Tensor]) -> int:
    """Return the most bytes that tensors made by some work took at once."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    # What tensors take and give back is not among the public events of the profiler.
    events: list[Any] = list(record.profiler.kineto_results.events())  # pyright: ignore[reportOptionalMemberAccess]
    taken = sorted(
        (event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"
    )
    now = peak = 0
    for _, change in taken:
        now += change
        peak = max(peak, now)
    return peak
