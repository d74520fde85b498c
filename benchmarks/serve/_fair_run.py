"""Service of two clients of one engine, one of which sends four times as much, step by step."""

import numpy as np
from benchmarks.common import Check
from benchmarks.serve._service_record import ServiceRecord, service_bound

from steelyard.nn.transformer import Transformer
from steelyard.serve import Request, SamplingParams, SchedulerConfig
from steelyard.serve.engine import LLM
from steelyard.serve.scheduling.fairness import FCFS, VTC, OrderPolicy
from steelyard.serve.traces import TraceRow

__all__ = ["fairness_checks"]

_W_IN, _W_OUT = 1.0, 2.0
_CLIENTS: tuple[str, str] = ("heavy", "light")


class _Watched:
    """An order that counts what each client is served."""

    def __init__(self, policy: OrderPolicy) -> None:
        """Watch a policy."""
        self.policy = policy
        self.service = dict.fromkeys(_CLIENTS, 0.0)
        self.arrive, self.leave, self.update, self.key = (
            policy.arrive,
            policy.leave,
            policy.update,
            policy.key,
        )

    def served(self, request: Request, prefill_tokens: int, decode_tokens: int) -> None:
        """Count and pass on."""
        self.service[request.client] += _W_IN * prefill_tokens + _W_OUT * decode_tokens
        self.policy.served(request, prefill_tokens, decode_tokens)

    def take(self) -> dict[str, float]:
        """Return what was served since the last call."""
        service, self.service = self.service, dict.fromkeys(_CLIENTS, 0.0)
        return service


def fairness_checks(
    model: Transformer, lengths: list[TraceRow], count: int, changed: int
) -> list[Check]:
    """Serve the light client's requests and four times as many of the heavy one's.

    Args:
        model: model to run.
        lengths: rows to take lengths from, scaled to 1/8 here.
        count: requests of the light client.
        changed: outputs that other preemptions changed.

    Returns:
        How evenly both were served under virtual token counters and under first come, first served.
    """
    requests = _requests(lengths, count)
    fair, fair_outputs, config = _serve(model, requests, VTC(w_in=_W_IN, w_out=_W_OUT), swaps=True)
    plain, plain_outputs, _ = _serve(model, requests, FCFS(), swaps=False)
    longest = max(len(prompt) for _, prompt, _ in requests)
    bound = service_bound(
        w_in=_W_IN,
        w_out=_W_OUT,
        longest_prompt=longest,
        pool_tokens=config.num_blocks * config.block_size,
    )
    worst = fair.largest_difference()
    print(
        f"VTC: largest service difference {worst:.0f} of {bound:.0f} allowed, Jain "
        f"{fair.jain():.4f}; FCFS: Jain {plain.jain():.4f}"
    )
    changed += sum(fair_outputs[name] != tokens for name, tokens in plain_outputs.items())
    return [
        Check("5 difference of service under VTC over its bound", worst / bound, 1.0, "lower"),
        Check("5 Jain index of VTC while both clients wait", fair.jain(), 0.99, "higher"),
        Check("5 Jain index of FCFS while both clients wait", plain.jain(), 0.75, "lower"),
        Check("5 outputs changed by preemption", float(changed), 0.0, "lower"),
    ]


def _requests(lengths: list[TraceRow], count: int) -> list[tuple[str, list[int], int]]:
    """Draw (client, prompt, output tokens): four of the heavy client's, then one of the other's."""
    generator = np.random.default_rng(2)
    picks = [lengths[index] for index in generator.integers(0, len(lengths), 5 * count)]
    return [
        (
            _CLIENTS[row % 5 == 4],
            generator.integers(0, 4096, int(np.clip(item.input_tokens // 8, 1, 256))).tolist(),
            int(np.clip(item.output_tokens // 8, 1, 96)),
        )
        for row, item in enumerate(picks)
    ]


def _serve(
    model: Transformer,
    requests: list[tuple[str, list[int], int]],
    policy: OrderPolicy,
    *,
    swaps: bool,
) -> tuple[ServiceRecord, dict[str, list[int]], SchedulerConfig]:
    """Run all requests, sent at once, and record the service of each step."""
    config = SchedulerConfig(
        num_blocks=64,
        max_model_len=384,
        token_budget=256,
        max_num_seqs=16,
        prefix_caching=False,
        update_every=25 if swaps else 0,
        preemption="swap" if swaps else "recompute",
        host_blocks=1024,
        allocator="block-group",
    )
    watched = _Watched(policy)
    llm = LLM(model, config, make_policy=lambda: watched)
    for row, (client, prompt, output) in enumerate(requests):
        params = SamplingParams(max_tokens=output, ignore_end=True)
        llm.add(Request(id=str(row), prompt=prompt, params=params, client=client), 0.0)
    record, outputs = ServiceRecord(_CLIENTS), {}
    while llm.scheduler.has_work:
        result = llm.step()
        outputs.update({request.id: list(request.output) for request in result.finished})
        record.add(
            watched.take(),
            {item.client for item in (*llm.scheduler.waiting, *llm.scheduler.swapped)},
        )
    print(
        f"{type(policy).__name__}: {len(requests)} requests, {llm.stats().swaps} swaps, "
        f"{llm.stats().preemptions} preemptions"
    )
    llm.close()
    return record, outputs, config
