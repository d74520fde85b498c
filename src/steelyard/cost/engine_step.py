"""Time of a step of this package's own engine on a CPU, part by part, from measured rates."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.engine_rates import KERNEL_PARTS, EngineRates, PartRate
from steelyard.cost.operators import operators
from steelyard.cost.step_time import FEATURES, step_features
from steelyard.cost.weights import StoredWidth, engine_bytes_per_weight, kv_element_bytes
from steelyard.cost.windows import windowed

__all__ = ["EngineStepTime", "PartTime", "PartWork", "decode_features", "part_works"]

_PRODUCTS = {
    "qkv": "qkv",
    "output": "out",
    "mlp_up": "up",
    "mlp_down": "down",
    "head": "head",
}
"""Parts of the engine's step by the operators of the list that they are."""
_ACTIVATION_BYTES = 4.0
"""Activations are float32 whatever type the weights have."""
TYPICAL_RELATIVE = 0.15
"""Half-width of the interval of a step's time on a machine that was quiet while it was calibrated.
Assumed: speeds of shared hosts drift by as much between a calibration and a run."""

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class PartWork:
    """What a part of a step has to do.

    Attributes:
        calls: calls of its kernel.
        rows: rows over all calls: sequences or tokens.
        units: what `EngineRates` counts for the part: elements, bytes, FLOPs or logits.
        num_bytes: bytes of weights, keys and values it reads, and of activations it moves.
        flops: operations of its products.
    """

    calls: float
    rows: float = 0.0
    units: float = 0.0
    num_bytes: float = 0.0
    flops: float = 0.0

    def seconds(self, rate: PartRate, coldness: float) -> float:
        """Return the time of the work at a rate; see `EngineRates.coldness`."""
        warm, cold = (
            time.per_call_s * self.calls + time.per_row_s * self.rows + time.per_unit_s * self.units
            for time in (rate.warm, rate.cold)
        )
        return warm + coldness * (cold - warm)


@dataclass(frozen=True, kw_only=True, slots=True)
class PartTime:
    """A part of a step with its time.

    Attributes:
        name: one of `KERNEL_PARTS`, "sampling", or "python" for planning and the rest.
        seconds: time in the step.
        num_bytes: bytes it reads and writes.
        flops: operations of its products.
        bound_s: least time that memory and multipliers allow: the larger of its bytes of weights,
            keys and values over the rate at which memory is read, and its operations over the rate
            of products; 0 where there are neither.
        is_memory: whether bytes make the bound, and not operations.
    """

    name: str
    seconds: float
    num_bytes: float = 0.0
    flops: float = 0.0
    bound_s: float = 0.0
    is_memory: bool = True


def decode_features(batch: float, context: float) -> Array:
    """Return the features of a step in which `batch` sequences of `context` tokens decode."""
    return step_features(
        sequences=batch,
        prefill_tokens=0,
        prefill_kv=0,
        decode_tokens=batch,
        decode_kv=batch * context,
    )


def part_works(arch: Architecture, features: ArrayLike, kv: str = "fp32") -> dict[str, PartWork]:
    """Count what every part of a step has to do, but for the matrix products.

    Args:
        arch: dense decoder.
        features: what the step holds, in the order of `FEATURES`, [7]. Every prompt in it is taken
            to end, so that each sequence samples a token.
        kv: type of keys and values, "fp32", "bf16" or "int8".

    Returns:
        By part; attention as "decode" and "prefill". Windows of sliding layers are counted off.
    """
    step = dict(zip(FEATURES, np.asarray(features, dtype=float).tolist(), strict=True))
    layers, sampled = arch.num_layers, step["sequences"]
    tokens = step["prefill_tokens"] + step["decode_tokens"]
    heads, kv_heads = arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    inner = arch.intermediate_size * (2 if arch.is_gated else 1)

    def elements(calls: float, count: float) -> PartWork:
        return PartWork(calls=calls, units=count, num_bytes=2 * _ACTIVATION_BYTES * count)

    each = 2 * kv_heads * kv_element_bytes(kv, arch.head_dim)
    decoded = layers * windowed(arch, step["decode_tokens"], step["decode_kv"])
    pairs = layers * windowed(arch, step["prefill_tokens"], step["prefill_kv"])
    return {
        "embedding": elements(1, tokens * arch.hidden_size),
        "norms": elements(2 * layers + 1, (2 * layers * tokens + sampled) * arch.hidden_size),
        "rope": elements(layers, layers * tokens * (heads + 2 * kv_heads)),
        "activation": elements(layers, layers * tokens * inner),
        "decode": PartWork(
            calls=layers,
            rows=layers * step["decode_tokens"],
            units=each * decoded,
            num_bytes=each * decoded,
            flops=4.0 * heads * decoded,
        ),
        "prefill": PartWork(
            calls=layers,
            rows=layers * (sampled - step["decode_tokens"]),
            units=4.0 * heads * pairs,
            # A prompt's keys and values are read once per block of its rows, mostly from caches.
            num_bytes=each * layers * (sampled > step["decode_tokens"]) * step["prefill_tokens"],
            flops=4.0 * heads * pairs,
        ),
        "sampling": PartWork(
            calls=1,
            rows=sampled,
            units=sampled * arch.vocab_size,
            num_bytes=_ACTIVATION_BYTES * sampled * arch.vocab_size,
        ),
        "python": PartWork(calls=1, rows=sampled),
    }


# Without slots: the shapes of the products are kept beside the fields.
@dataclass(frozen=True, kw_only=True)
class EngineStepTime:
    """Times of steps of one model in one type of weights, as `ServeStepTime` predicts them.

    Attributes:
        arch: dense decoder.
        rates: what the kernels reach on the machine.
        weights: type in which the layers are computed.
        kv: type of keys and values.
        stored: how the matrices of a part are kept, one for each layer, where that is not by their
            type: float16 that products of float32 read, or codes in blocks.
        factor: number that multiplies every time.
        relative_spread: relative error that is expected of a step.
        source: where the rates are from.
    """

    arch: Architecture
    rates: EngineRates
    weights: str
    kv: str = "fp32"
    stored: Mapping[str, tuple[StoredWidth, ...]] = field(default_factory=dict)
    factor: float = 1.0
    relative_spread: float = TYPICAL_RELATIVE
    source: str = "rates of the engine's kernels, calibrated"

    def predict(self, features: ArrayLike) -> Array:
        """Return the seconds [...] of steps with features [..., 7] in the order of `FEATURES`."""
        rows = np.asarray(features, dtype=float)
        flat = rows.reshape(-1, len(FEATURES))
        times = [sum(part.seconds for part in self.parts(row)) for row in flat]
        return np.array(times).reshape(rows.shape[:-1])

    def disturbed(self, relative: float) -> "EngineStepTime":
        """Return the same model with the error that other work left in its rates."""
        return replace(self, relative_spread=math.hypot(TYPICAL_RELATIVE, relative))

    def scaled(self, factor: float) -> "EngineStepTime":
        """Return the same model with every step `factor` times as long."""
        return replace(self, factor=self.factor * factor)

    def parts(self, features: ArrayLike) -> list[PartTime]:
        """Return the parts of one step, in the order in which they run.

        Args:
            features: what the step holds, in the order of `FEATURES`, [7].

        Returns:
            Their times, work and bounds.

        Raises:
            KeyError: the type of weights, keys or values was not measured.
        """
        works = part_works(self.arch, features, self.kv)
        step = dict(zip(FEATURES, np.asarray(features, dtype=float).tolist(), strict=True))
        tokens = step["prefill_tokens"] + step["decode_tokens"]
        read = self.read_bytes_per_s(works["decode"].num_bytes)
        walked = self.weight_bytes + works["decode"].num_bytes
        coldness = self.rates.coldness(walked)
        parts = {
            name: self._timed(name, works[name], coldness)
            for name in ("embedding", "norms", "rope", "activation", "sampling", "python")
        }
        parts["attention"] = self._attention(works["decode"], works["prefill"], coldness, read)
        for name, (count, n, k) in self._matrices.items():
            # The last layer drops, after its attention, the rows of which no token is sampled.
            last = step["sequences"] if name in ("out", "up", "down", "head") else tokens
            rows = [tokens] * (count - 1) + [last]
            parts[name] = self._product(name, rows, n, k, walked, read)
        return [parts[name] for name in (*KERNEL_PARTS, "sampling", "python")]

    @property
    def weight_bytes(self) -> float:
        """Bytes of all packed weights, which a step reads once."""
        return sum(
            n * k * sum(width.bytes_per_weight for width in self._widths(name))
            for name, (_, n, k) in self._matrices.items()
        )

    def read_bytes_per_s(self, kv_bytes: float = 0.0) -> float:
        """Return the rate at which a step's weights, keys and values can be read, at best.

        Args:
            kv_bytes: bytes of keys and values that the step reads.

        Returns:
            Bytes per second.
        """
        sizes = {kind: engine_bytes_per_weight(kind, 1024) for kind in self.rates.types}
        return self.rates.read_bytes_per_s(self.weight_bytes + kv_bytes, sizes)

    def attention_flops_per_s(self) -> float:
        """Return the best rate of attention's products: by bfloat16 unless all is kept in float32.

        Where processors do not multiply bfloat16, its products run slower than those of float32.
        """
        kinds = {"fp32"} if self.kv == "fp32" else {"fp32", "bf16"} & set(self.rates.types)
        return max(map(self.rates.flops_per_s, kinds))

    def _widths(self, name: str) -> tuple[StoredWidth, ...]:
        """Return how a part's matrices are kept: the head in eight bits where layers have four."""
        if name in self.stored:
            return self.stored[name]
        count, _, k = self._matrices[name]
        kind = "int8" if name == "head" and self.weights == "int4" else self.weights
        return (StoredWidth(kind, engine_bytes_per_weight(kind, k)),) * count

    @cached_property
    def _matrices(self) -> dict[str, tuple[int, float, float]]:
        """Return how often each product runs in a step, its outputs and its inputs."""
        table = operators(self.arch, phase="decode", tokens=1, context=1, dtype_bytes=4.0)
        return {
            _PRODUCTS[name]: (round(float(count)), float(n), float(k))
            for name, count, n, k in zip(table.names, table.count, table.n, table.k, strict=True)
            if name in _PRODUCTS
        }

    def _timed(self, name: str, work: PartWork, coldness: float) -> PartTime:
        """Time a part that has no bound worth the name."""
        seconds = self.factor * work.seconds(self.rates.parts[name], coldness)
        return PartTime(name=name, seconds=seconds, num_bytes=work.num_bytes, flops=work.flops)

    def _attention(
        self, decode: PartWork, prefill: PartWork, coldness: float, read: float
    ) -> PartTime:
        """Time attention of decoding sequences and of prompts."""
        shares = ((decode, self.rates.decode), (prefill, self.rates.prefill))
        seconds = sum(work.seconds(rate[self.kv], coldness) for work, rate in shares if work.units)
        flops, num_bytes = decode.flops + prefill.flops, decode.num_bytes + prefill.num_bytes
        memory_s, compute_s = num_bytes / read, flops / self.attention_flops_per_s()
        return PartTime(
            name="attention",
            seconds=self.factor * seconds,
            num_bytes=num_bytes,
            flops=flops,
            bound_s=max(memory_s, compute_s),
            is_memory=memory_s >= compute_s,
        )

    def _product(
        self, name: str, rows: list[float], n: float, k: float, walked: float, read: float
    ) -> PartTime:
        """Time a product that runs once per entry of `rows`."""
        widths = self._widths(name)
        weights = n * k * sum(width.bytes_per_weight for width in widths)
        moved = sum(rows) * (n + k) * _ACTIVATION_BYTES
        flops = 2.0 * sum(rows) * n * k
        runs = [run for run in zip(rows, widths, strict=True) if run[0]]
        times = {
            (count, width): self._run_s(width, count, n, k, walked) for count, width in set(runs)
        }
        memory_s = weights / read
        compute_s = sum(
            2.0 * count * n * k / self.rates.flops_per_s(width.products) for count, width in runs
        )
        return PartTime(
            name=name,
            seconds=self.factor * sum(times[run] for run in runs),
            num_bytes=weights + moved,
            flops=flops,
            bound_s=max(memory_s, compute_s),
            is_memory=memory_s >= compute_s,
        )

    def _run_s(self, width: StoredWidth, rows: float, n: float, k: float, walked: float) -> float:
        """Time one product; what is measured of its type is for the bytes that the type has."""
        seconds = self.rates.product_s(width.products, rows, n, k, walked)
        share = width.bytes_per_weight / engine_bytes_per_weight(width.products, k)
        if share == 1.0:
            return seconds
        # Reading takes time by the bytes, and multiplying takes no less than with full caches.
        return max(share * seconds, self.rates.product_s(width.products, rows, n, k, 1.0))
