"""A step's account by operator: what each takes, moves and computes, and what this machine can."""

from dataclasses import dataclass

import torch

from steelyard.catalog.engine_rates import EngineRates
from steelyard.cost.engine_step import EngineStepTime, PartTime
from steelyard.errors import BackendError
from steelyard.serve.engine import LLM
from steelyard.serve.running.runner import TorchRunner
from steelyard.serve.step_parts import StepParts, time_chunks, time_decoding, typical_step

__all__ = [
    "OperatorAccount",
    "StepAccount",
    "account_decoding",
    "account_prompt",
    "step_time_of",
]

_KV_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.int8: "int8"}
_STEPS, _PROMPTS = 16, 3
"""Decoding steps and prompts that are timed; medians of them are shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OperatorAccount:
    """One operator of a step.

    Attributes:
        name: name that `cost.PartTime` uses.
        seconds: measured time.
        forecast_s: time that was forecast from the calibration.
        bound_s: least time that memory and multipliers allow; 0 where it has no such bound.
        num_bytes: bytes it reads and writes.
        flops: operations of its products.
        stream_share: bytes per second over the rate at which the machine reads as much memory;
            activations stay in caches, so that it can exceed 1.
        product_share: operations per second over the best rate of products in its type.
        bound: "memory" or "products", whichever makes the bound; empty where there is none.
    """

    name: str
    seconds: float
    forecast_s: float
    bound_s: float
    num_bytes: float
    flops: float
    stream_share: float
    product_share: float
    bound: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StepAccount:
    """One kind of step.

    Attributes:
        kind: "decode" or "prefill".
        sequences: sequences in the step.
        context: tokens that each attends.
        tokens: tokens that the step makes, or takes of a prompt.
        operators: its parts, in the order in which they run.
    """

    kind: str
    sequences: int
    context: float
    tokens: int
    operators: tuple[OperatorAccount, ...]

    @property
    def seconds(self) -> float:
        """Measured time of the step."""
        return sum(item.seconds for item in self.operators)

    @property
    def bound_s(self) -> float:
        """Least time of the step: of each operator the larger of its two bounds."""
        return sum(item.bound_s for item in self.operators)

    @property
    def forecast_s(self) -> float:
        """Time of the step as it was forecast."""
        return sum(item.forecast_s for item in self.operators)

    @property
    def tokens_per_s(self) -> float:
        """Measured rate."""
        return self.tokens / self.seconds

    @property
    def ceiling_tokens_per_s(self) -> float:
        """Rate at the bounds."""
        return self.tokens / self.bound_s


def step_time_of(llm: LLM, rates: EngineRates) -> EngineStepTime:
    """Forecast the steps of an engine from the rates of its kernels.

    Args:
        llm: engine; it is not run.
        rates: measured rates of this machine.

    Returns:
        The times of its steps.

    Raises:
        BackendError: it does not run in native kernels, or one of its types was not measured.
    """
    weights = llm.runner.weights or ""
    kv = _KV_NAMES.get(llm.runner.kv.dtype, str(llm.runner.kv.dtype))
    native = llm.runner.native_steps if isinstance(llm.runner, TorchRunner) else None
    if native is None or weights not in rates.types or kv not in rates.decode:
        raise BackendError(
            f"no rates of steps in {llm.runner.kernel} kernels with {weights or 'its own'} weights "
            f"and {kv} keys and values",
            hint="`steelyard calibrate` measures the native kernels, and needs g++ for them",
        )
    return EngineStepTime(
        arch=llm.model.architecture, rates=rates, weights=weights, kv=kv, stored=native.stored
    )


def account_decoding(
    llm: LLM, rates: EngineRates, *, batch: int = 1, context: int = 512
) -> StepAccount:
    """Run decoding steps and account for the time of one.

    Args:
        llm: an idle engine in native kernels that runs one step at a time; its cached prefixes are
            forgotten.
        rates: measured rates of this machine.
        batch: sequences.
        context: tokens that each of them attends.

    Returns:
        The account, of the median of each part.

    Raises:
        BackendError: the engine does not run in native kernels, or was not calibrated.
        ConfigError: the engine is busy, or the shape is beyond its limits.
    """
    model = step_time_of(llm, rates)
    steps = time_decoding(llm, batch=batch, context=context, steps=_STEPS)
    return _account(model, "decode", batch, batch, context, typical_step(steps))


def account_prompt(llm: LLM, rates: EngineRates) -> StepAccount:
    """Run prompts of as many tokens as a step takes at most, and account for the time of one.

    Args:
        llm: model that `account_decoding` takes.
        rates: measured rates of this machine.

    Returns:
        The account, of the median of each part.

    Raises:
        BackendError: the engine does not run in native kernels, or was not calibrated.
        ConfigError: the engine is busy.
    """
    model = step_time_of(llm, rates)
    # One token of the longest sequence is left for the answer.
    chunk = min(llm.config.token_budget, llm.config.max_model_len - 1)
    steps = [step for _ in range(_PROMPTS) for step in time_chunks(llm, context=chunk)]
    return _account(model, "prefill", 1, chunk, chunk, typical_step(steps))


def _account(
    model: EngineStepTime, kind: str, sequences: int, tokens: int, context: float, step: StepParts
) -> StepAccount:
    """Put measured times beside forecasts and bounds."""
    parts = model.parts(step.features)
    kept = next(part.num_bytes for part in parts if part.name == "attention")
    rows = tuple(_operator(model, part, step.seconds[part.name], kept) for part in parts)
    return StepAccount(
        kind=kind, sequences=sequences, context=context, tokens=tokens, operators=rows
    )


def _operator(
    model: EngineStepTime, part: PartTime, seconds: float, kv_bytes: float
) -> OperatorAccount:
    """Put one operator's measured time beside what the machine can."""
    read = model.read_bytes_per_s(kv_bytes)
    # Attention multiplies in the type of keys and values, whatever that of the weights.
    is_attention = part.name == "attention"
    rates = model.rates
    peak = model.attention_flops_per_s() if is_attention else rates.flops_per_s(model.weights)
    bound = "memory" if part.is_memory else "products"
    return OperatorAccount(
        name=part.name,
        seconds=seconds,
        forecast_s=part.seconds,
        bound_s=part.bound_s,
        num_bytes=part.num_bytes,
        flops=part.flops,
        stream_share=part.num_bytes / max(seconds, 1e-9) / read,
        product_share=part.flops / max(seconds, 1e-9) / peak,
        bound=bound if part.bound_s else "",
    )
