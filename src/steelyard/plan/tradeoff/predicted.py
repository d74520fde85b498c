"""What cost says of a configuration on a device, and which configurations may reach a context."""

import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator
from steelyard.cost.longcontext import KVSpec, ServePoint, serve_point
from steelyard.cost.memory import kv_bytes_per_token
from steelyard.cost.roofline import Machine
from steelyard.cost.weights import WEIGHT_TYPES, kv_element_bytes, stored_bytes
from steelyard.errors import ConfigError, require
from steelyard.plan.tradeoff.configuration import Configuration

__all__ = ["Goals", "Predicted", "candidates", "predict"]

_MOST_SEQUENCES = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Goals:
    """What a service has to reach.

    Attributes:
        context: tokens of the longest context.
        accuracy_drop: largest share of right answers that may be lost, in [0, 1].
        ttft_s: longest time to the first token of such a context, one user alone.
        tpot_s: longest time of a further token.
        output_tokens: tokens of an answer, for rates.
        shared: share of prompts that stands in the cache of an engine with prefix caching.
    """

    context: int
    accuracy_drop: float = 0.01
    ttft_s: float = math.inf
    tpot_s: float = math.inf
    output_tokens: int = 256
    shared: float = 0.0

    def __post_init__(self) -> None:
        """Refuse values out of range.

        Raises:
            ConfigError: names the field, the value and the range.
        """
        require(
            self,
            context=(self.context >= 1, "at least 1"),
            accuracy_drop=(0 <= self.accuracy_drop <= 1, "in [0, 1]"),
            ttft_s=(self.ttft_s > 0, "above 0"),
            tpot_s=(self.tpot_s > 0, "above 0"),
            output_tokens=(self.output_tokens >= 1, "at least 1"),
            shared=(0 <= self.shared < 1, "in [0, 1)"),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """What cost says of a configuration on a device.

    Attributes:
        context_tokens: longest context by memory and positions.
        ttft_s: time to the first token of the goals' context, alone.
        tpot_s: time of a further token at `sequences`.
        sequences: users that decode together; 0 where it was measured and not predicted.
        tokens_per_s: output tokens per second, prompts included.
    """

    context_tokens: float
    ttft_s: float
    tpot_s: float
    sequences: int
    tokens_per_s: float


def candidates(goals: Goals, arch: Architecture) -> list[Configuration]:
    """Return configurations that may reach a context: all techniques that run here, and pairs.

    Args:
        goals: says how far positions have to reach.
        arch: model.

    Returns:
        Configurations of techniques that go together, the fewest techniques first.
    """

    def reaches(kept: float) -> list[tuple[str, float]]:
        stretch = math.ceil(goals.context * kept / arch.max_positions)
        return [("yarn", stretch), ("ntk", stretch)] if stretch > 1 else [("trained", 1.0)]

    prompts = [("whole", 1.0), ("selective", 0.5), ("retrieved", 0.5), ("retrieved", 0.25)]
    found = []
    for weights in ("fp32", "int8", "int4"):
        for kv in ("float32", "int8"):
            for prompt, kept in prompts:
                for positions, far in reaches(kept):
                    for caches in (False, True) if goals.shared else (False,):
                        found.append((weights, kv, positions, far, prompt, kept, caches, "full", 0))
    for cache in ("window", "sinks", "h2o"):
        for positions, far in reaches(1.0):
            found.append(("fp32", "float32", positions, far, "whole", 1.0, False, cache, 256))
    made = []
    for fields in found:
        try:
            made.append(_named(*fields))
        except ConfigError:  # two techniques that exclude each other
            continue
    return sorted(made, key=lambda item: len(item.techniques))


def predict(
    chosen: Configuration,
    goals: Goals,
    arch: Architecture,
    device: Accelerator,
    *,
    dtype: str = "bf16",
    memory_bytes: float = 0.0,
) -> Predicted:
    """Predict context and performance of a configuration from cost.

    Args:
        chosen: the configuration; "fp32" weights and cache mean `dtype`.
        goals: context and output lengths, and what prompts share.
        arch: model.
        device: accelerator.
        dtype: number format of weights and cache where nothing is quantized.
        memory_bytes: memory for weights, keys and values; 0 for the device's.

    Returns:
        The prediction. What speculation and chunks gain depends on the text and the load, so they
        are predicted as without.

    Raises:
        ConfigError: the device has no rate for the dtype.

    Source: Fu 2024 (arXiv 2405.08944), section 2, with bytes by type.
    """
    held = replace(device, memory_bytes=memory_bytes or device.memory_bytes)
    element = Machine.from_accelerator(held, dtype=dtype).dtype_bytes
    kept = chosen.prompt_kept
    read = max(1, round(goals.context * kept))
    kv = _kv(chosen, arch, element, read)
    weights = min(
        stored_bytes(arch, WEIGHT_TYPES[chosen.weights]),
        stored_bytes(arch, WEIGHT_TYPES[dtype]),
    )
    # Fewer bits of weights are fewer bytes to hold and to read, and as many operations.
    plain = partial(serve_point, arch, held, context=read, dtype=dtype, kv=kv)
    light = partial(plain, parameters=weights / element)
    room = light().concurrency
    sequences, tpot_s = _together(plain, light, min(room, _MOST_SEQUENCES), goals.tpot_s)
    prefill_s = plain().prefill_s
    if chosen.prompt == "selective":
        # The served model scores the whole context before it reads what is left.
        prefill_s += plain(context=goals.context).prefill_s
    if chosen.prefix_caching:
        prefill_s *= 1 - goals.shared
    fits = (held.memory_bytes - weights) / (kv_bytes_per_token(arch, element) * kv.kept)
    if chosen.is_bounded:
        fits = math.inf if room else 0.0
    each_s = prefill_s + goals.output_tokens * tpot_s / sequences
    return Predicted(
        context_tokens=min(fits, arch.max_positions * chosen.stretch) / kept,
        ttft_s=prefill_s,
        tpot_s=tpot_s,
        sequences=sequences,
        tokens_per_s=goals.output_tokens / each_s if room else 0.0,
    )


def _together(
    plain: Callable[..., ServePoint], light: Callable[..., ServePoint], most: int, limit_s: float
) -> tuple[int, float]:
    """Return how many sequences decode together within a limit, at least 1, and their time."""

    def tpot(sequences: int) -> float:
        full = plain(batch=sequences)
        busy_s = full.decode_s_per_token if full.bounds["decode"] == "compute" else 0.0
        return max(light(batch=sequences).decode_s_per_token, busy_s)

    # The more decode together, the longer each waits.
    found = bisect_right(range(2, most + 1), limit_s, key=tpot) + 1
    return found, tpot(found)


def _kv(chosen: Configuration, arch: Architecture, element: float, read: int) -> KVSpec:
    """Return what a configuration keeps of the plain cache."""
    name = {"float32": "fp32", "bfloat16": "bf16", "int8": "int8"}[chosen.kv_dtype]
    hidden = min(1.0, kv_element_bytes(name, arch.head_dim) / element)
    tokens = min(1.0, (chosen.cache_tokens or 256) / read) if chosen.is_bounded else 1.0
    return KVSpec(hidden=hidden, tokens=tokens)


def _named(
    weights: str,
    kv: str,
    positions: str,
    stretch: float,
    prompt: str,
    kept: float,
    caches: bool,
    cache: str,
    cache_tokens: int,
) -> Configuration:
    """Make a configuration named after its techniques."""
    made = Configuration(
        name="",
        weights=weights,  # pyright: ignore[reportArgumentType]
        kv_dtype=kv,  # pyright: ignore[reportArgumentType]
        positions=positions,  # pyright: ignore[reportArgumentType]
        stretch=stretch,
        prompt=prompt,  # pyright: ignore[reportArgumentType]
        prompt_kept=kept,
        prefix_caching=caches,
        cache=cache,  # pyright: ignore[reportArgumentType]
        cache_tokens=cache_tokens,
    )
    words = list(made.techniques)
    if kept < 1:
        words.append(f"{kept:.0%} of the prompt")
    return replace(made, name=", ".join(words) or "dense")
