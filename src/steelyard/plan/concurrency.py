"""Choose the layout of replicas that serves a number of concurrent requests best."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.cost.collectives import all_reduce_s
from steelyard.cost.roofline import Machine
from steelyard.cost.step_time import FEATURES, ServeStepTime, step_features
from steelyard.errors import ConfigError

if TYPE_CHECKING:
    from steelyard.cost.phase_time import PhaseStepTime

__all__ = ["ConcurrencyMap", "ServingLayout", "concurrency_map", "tensor_parallel_step_time"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServingLayout:
    """One way to spread a model over the machines at hand.

    Attributes:
        name: such as "2 replicas x 1 thread" or "TP 8".
        replicas: engines side by side, at least 1.
        step_time: model of one replica's step time while the others work.
        max_sequences: sequences one replica runs at once; further ones wait.
    """

    name: str
    replicas: int
    step_time: "ServeStepTime | PhaseStepTime"
    max_sequences: int = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class ConcurrencyMap:
    """Predicted output rates of layouts over concurrency.

    With a fixed number of requests in flight, the layout of the highest rate is also the one of the
    lowest mean latency, as their product is that number (Little's law).

    Attributes:
        layouts: layouts compared, in the order given.
        concurrency: requests in flight, int64 [C], rising.
        output_tokens: mean output length of a request.
        tokens_per_s: output tokens per second of all replicas, float64 [L, C].
    """

    layouts: tuple[ServingLayout, ...]
    concurrency: NDArray[np.int64]
    output_tokens: float
    tokens_per_s: NDArray[np.float64]

    @property
    def latency_s(self) -> NDArray[np.float64]:
        """Mean seconds from a request's start to its end, [L, C]."""
        return self.concurrency * self.output_tokens / self.tokens_per_s

    @property
    def best(self) -> list[str]:
        """Name of the best layout at each concurrency, [C]."""
        return [self.layouts[row].name for row in self.tokens_per_s.argmax(axis=0)]

    @property
    def break_points(self) -> list[tuple[int, str]]:
        """Each concurrency from which another layout is best, with its name; the smallest first."""
        names = self.best
        return [
            (int(count), name)
            for count, name, before in zip(self.concurrency, names, ["", *names], strict=False)
            if name != before
        ]


def concurrency_map(
    layouts: Sequence[ServingLayout],
    concurrency: Sequence[int],
    *,
    prompt_tokens: float,
    output_tokens: float,
) -> ConcurrencyMap:
    """Predict the output rate of each layout at each number of requests in flight.

    Requests are spread evenly. In the steady state of continuous batching a replica with b
    sequences decodes b tokens a step and prefills b prompts every `output_tokens` steps, at a mean
    context of the prompt and half the output.

    Args:
        layouts: layouts to compare, at least one.
        concurrency: requests in flight, each at least 1.
        prompt_tokens: mean prompt length, at least 1.
        output_tokens: mean output length, at least 1.

    Returns:
        The map, with the concurrency sorted.

    Raises:
        ConfigError: there is nothing to choose from, or a number is below 1.

    Source: the break-point between few wide and many narrow replicas of Yao et al. 2024 (arXiv
        2408.00008), section 4, predicted instead of fixed at 64.
    """
    counts = np.unique(np.asarray(concurrency, dtype=np.int64))
    if not layouts or not len(counts) or counts[0] < 1 or min(prompt_tokens, output_tokens) < 1:
        raise ConfigError(
            f"{len(layouts)} layouts at concurrency {list(concurrency)}, {prompt_tokens} and "
            f"{output_tokens} tokens",
            hint="give at least one layout and concurrency, and lengths of at least 1",
        )
    if wrong := [item.name for item in layouts if item.replicas < 1 or item.max_sequences < 1]:
        raise ConfigError(
            f"layouts without replicas or sequences: {', '.join(wrong)}",
            hint="replicas and max_sequences are at least 1",
        )
    rates = np.array(
        [
            [_rate(item, int(count), prompt_tokens, output_tokens) for count in counts]
            for item in layouts
        ]
    )
    return ConcurrencyMap(
        layouts=tuple(layouts), concurrency=counts, output_tokens=output_tokens, tokens_per_s=rates
    )


def tensor_parallel_step_time(
    step_time: ServeStepTime, arch: Architecture, machine: Machine, degree: int
) -> ServeStepTime:
    """Spread the work of a step over a tensor-parallel group.

    Two all-reduces of the activations per layer are added.

    Args:
        step_time: step time of one accelerator.
        arch: model that is served.
        machine: accelerator with its links.
        degree: accelerators in the group, at least 1.

    Returns:
        Step time of the group.

    Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3 (two all-reduces per layer in the
    forward pass).
    """
    if degree == 1:
        return step_time
    calls = 2 * arch.num_layers
    # An all-reduce has a latency per step and a time per token; each belongs to its own feature.
    fixed_s = float(all_reduce_s(machine, 0.0, degree))
    token_s = float(all_reduce_s(machine, arch.hidden_size * machine.dtype_bytes, degree)) - fixed_s
    added = {
        "steps": calls * fixed_s,
        "prefill_tokens": calls * token_s,
        "decode_tokens": calls * token_s,
    }
    shares = [
        value / degree + added.get(name, 0.0)
        for name, value in zip(FEATURES, step_time.coefficients, strict=True)
    ]
    return replace(
        step_time,
        coefficients=tuple(shares),
        source=f"{step_time.source}, tensor parallel {degree}",
    )


def _rate(layout: ServingLayout, count: int, prompt: float, output: float) -> float:
    """Return output tokens per second of all replicas with `count` requests spread evenly."""
    low, more = divmod(count, layout.replicas)
    rate = more * _replica_rate(layout, low + 1, prompt, output)
    return rate + (layout.replicas - more) * _replica_rate(layout, low, prompt, output)


def _replica_rate(layout: ServingLayout, sequences: int, prompt: float, output: float) -> float:
    """Return output tokens per second of one replica; 0 when it is idle."""
    running = min(sequences, layout.max_sequences)
    if running == 0:
        return 0.0
    # Every sequence is replaced after `output` steps, so this many prompts arrive per step.
    prompts = running / output
    features = step_features(
        sequences=running + prompts,
        prefill_tokens=prompts * prompt,
        prefill_kv=prompts * prompt * (prompt + 1) / 2,
        decode_tokens=running,
        decode_kv=running * (prompt + output / 2),
    )
    return running / float(layout.step_time.predict(features))
