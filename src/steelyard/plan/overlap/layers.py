"""The operations of a transformer layer while an engine serves, and of how many tokens."""

from collections.abc import Callable
from dataclasses import dataclass

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError
from steelyard.plan.overlap.kernel_times import KernelTimes
from steelyard.plan.overlap.operations import Operation, OperationGraph, Rewrite, TokenTimes

__all__ = ["ServedBatch", "serving_layer"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedBatch:
    """One iteration of a steadily loaded engine.

    Attributes:
        tokens: prompt and decoding tokens.
        prompt_tokens: mean prompt length, 0 or more.
        output_tokens: mean output length, at least 1.
    """

    tokens: int
    prompt_tokens: int
    output_tokens: int

    def __post_init__(self) -> None:
        """Refuse sizes out of range."""
        if self.tokens < 1 or self.prompt_tokens < 0 or self.output_tokens < 1:
            raise ConfigError(
                f"a batch of {self.tokens} tokens with prompts of {self.prompt_tokens} and outputs "
                f"of {self.output_tokens}: need at least 1, 0 and 1"
            )

    @property
    def decoding(self) -> int:
        """Tokens that decode: prompt and output tokens keep the ratio of their lengths."""
        share = self.output_tokens / (self.output_tokens + self.prompt_tokens)
        return max(1, round(self.tokens * share))

    @property
    def context(self) -> float:
        """Mean tokens that a decoding one attends: its prompt, and half of the output."""
        return self.prompt_tokens + self.output_tokens / 2


def serving_layer(
    arch: Architecture,
    kernels: KernelTimes,
    batch: ServedBatch,
    *,
    tensor_parallel: int = 1,
    unit: int = 128,
) -> OperationGraph:
    """List the operations of one layer on one device, with their times alone.

    Any piece of the batch has the batch's share of decoding tokens. Norms, activations and the head
    are left out, as in the source. With several devices the result of both halves is summed by an
    all-reduce; the first one may be replaced by a gather before a product of split columns, and one
    after it.

    Args:
        arch: dense model.
        kernels: times on the device.
        batch: tokens of an iteration.
        tensor_parallel: devices that share each layer.
        unit: pieces are multiples of so many tokens.

    Returns:
        The layer, as often as the model has layers.

    Raises:
        ConfigError: the model has experts or latent attention, or heads do not divide.

    Source: Zhu et al. 2024 (NanoFlow, arXiv 2408.12757), section 2 and figure 2.
    """
    if arch.num_experts or arch.kv_lora_rank:
        raise ConfigError(
            f"{arch.name} has experts or latent attention; overlap is planned for dense models"
        )
    if tensor_parallel < 1 or arch.num_heads % tensor_parallel:
        raise ConfigError(f"{arch.num_heads} heads do not divide by {tensor_parallel} devices")
    made = _DeviceLayer(arch, kernels, batch, tensor_parallel, unit)
    return OperationGraph(
        tokens=batch.tokens,
        operations=(*made.attention(), *made.rest()),
        rewrites=(made.gathered(),) if tensor_parallel > 1 else (),
        unit=unit,
        num_layers=arch.num_layers,
    )


@dataclass(frozen=True, slots=True)
class _DeviceLayer:
    """Makes the operations of one device."""

    arch: Architecture
    kernels: KernelTimes
    batch: ServedBatch
    devices: int
    unit: int

    @property
    def heads(self) -> int:
        """Query heads of a device."""
        return self.arch.num_heads // self.devices

    @property
    def kv_heads(self) -> int:
        """Key heads of a device; beyond their number devices hold copies."""
        return max(1, self.arch.num_kv_heads // self.devices)

    @property
    def width(self) -> int:
        """Width of a device's query heads."""
        return self.heads * self.arch.head_dim

    @property
    def decoding(self) -> int:
        """Decoding tokens of the batch."""
        return min(self.batch.decoding, self.batch.tokens)

    @property
    def attended(self) -> tuple[str, ...]:
        """Names of the operations of attention."""
        names = ("decode_attention", "prefill_attention")
        return names if self.decoding < self.batch.tokens else names[:1]

    def times(self, tokens: int, seconds: Callable[[int], float]) -> TokenTimes:
        """Time an operation at every multiple of the unit up to some tokens, these included."""
        counts = sorted({*range(self.unit, tokens, self.unit), tokens})
        return TokenTimes(tokens=tuple(counts), seconds=tuple(map(seconds, counts)))

    def product(
        self, name: str, after: tuple[str, ...], columns: int, inner: int, after_layer: str = ""
    ) -> Operation:
        """Make a matrix product."""
        return Operation(
            name=name,
            kind="gemm",
            resource="compute",
            times=self.times(
                self.batch.tokens, lambda m: self.kernels.product_s(m, columns, inner)
            ),
            after=after,
            after_layer=(after_layer,) if after_layer else (),
        )

    def collective(self, name: str, kind: str, after: tuple[str, ...]) -> Operation:
        """Make a collective over the residual stream."""
        width = self.arch.hidden_size
        return Operation(
            name=name,
            kind="collective",
            resource="network",
            times=self.times(
                self.batch.tokens,
                lambda m: self.kernels.collective_s(kind, m * width, self.devices),
            ),
            after=after,
        )

    def attention(self) -> list[Operation]:
        """Make the projection of queries, keys and values, and attention."""
        last = "down_all_reduce" if self.devices > 1 else "down"
        columns = self.width + 2 * self.kv_heads * self.arch.head_dim
        context, length = self.batch.context, self.batch.prompt_tokens
        share = self.decoding / self.batch.tokens
        found = [
            self.product("qkv", (), columns, self.arch.hidden_size, after_layer=last),
            Operation(
                name="decode_attention",
                kind="decode_attention",
                resource="memory",
                times=self.times(
                    self.batch.tokens,
                    lambda m: self.kernels.decode_s(
                        max(1, round(m * share)), context, self.heads, self.kv_heads
                    ),
                ),
                after=("qkv",),
            ),
        ]
        if len(self.attended) > 1:
            times = self.times(
                self.batch.tokens,
                lambda m: self.kernels.prefill_s(
                    m * (1 - share) / length, length, self.heads, self.kv_heads
                ),
            )
            found.append(
                Operation(
                    name="prefill_attention",
                    kind="prefill_attention",
                    resource="compute",
                    times=times,
                    after=("qkv",),
                )
            )
        return found

    def rest(self) -> list[Operation]:
        """Make the output projection and the MLP, with a sum over devices after each."""
        hidden = self.arch.hidden_size
        inner = self.arch.intermediate_size // self.devices
        inputs = 2 if self.arch.mlp in ("swiglu", "geglu") else 1
        several = self.devices > 1
        found = [self.product("out", self.attended, hidden, self.width)]
        if several:
            found.append(self.collective("out_all_reduce", "all_reduce", ("out",)))
        found.append(self.product("up", (found[-1].name,), inputs * inner, hidden))
        found.append(self.product("down", ("up",), hidden, inner))
        if several:
            found.append(self.collective("down_all_reduce", "all_reduce", ("down",)))
        return found

    def gathered(self) -> Rewrite:
        """Gather heads before a product of split columns, and the columns after it."""
        columns, inner = self.arch.hidden_size // self.devices, self.width * self.devices
        return Rewrite(
            replaces=("out", "out_all_reduce"),
            by=(
                self.collective("heads_all_gather", "all_gather", self.attended),
                self.product("out_columns", ("heads_all_gather",), columns, inner),
                self.collective("out_all_gather", "all_gather", ("out_columns",)),
            ),
        )
