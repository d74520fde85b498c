"""Squared gradient norms of single examples, without computing their gradients one by one.

A linear map's gradient of one example is the sum over its tokens of outer products of what comes
back from the output and what went in; its norm follows from two small products, whichever route is
shorter. Functions are caught where they are called, so that a table that serves as embedding and
as head is seen in both places.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from steelyard.errors import ConfigError
from steelyard.nn.parts.token_loss import share_errors, token_losses
from steelyard.nn.parts.token_table import lend
from steelyard.train.measure.outer_products import Factors, squared_norms

__all__ = ["NORMS", "ExampleNorms"]

NORMS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)


@dataclass(slots=True)
class _Uses:
    """What a parameter did in one forward pass.

    Attributes:
        open: uses whose gradient has not come back yet.
        factors: those of a matrix.
        vectors: gradients by example [B, P] of a vector.
    """

    open: int = 0
    factors: list[Factors] = field(default_factory=list)
    vectors: list[Tensor] = field(default_factory=list)

    def squared(self) -> Tensor:
        """Return the squared norms [B] of all uses together."""
        if self.factors:
            return squared_norms(self.factors)
        return sum(self.vectors[1:], self.vectors[0]).square().sum(1)


class ExampleNorms(TorchFunctionMode):
    """Watches forward passes inside its `with` block and the backward passes that follow.

    Linear maps, embeddings, convolutions, and layer, root and group norms are known. The first axis
    of what they are given must be the examples. What a parameter does outside of these functions is
    not seen.
    """

    def __init__(self, parameters: dict[str, nn.Parameter]) -> None:
        """Watch some parameters.

        Args:
            parameters: those of which norms are wanted, by name.
        """
        super().__init__()
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._parameters = parameters
        self._uses: dict[str, _Uses] = defaultdict(_Uses)
        self._squared: dict[str, Tensor] = {}
        self._examples = 0
        self._lent: list[Tensor] = []
        self._watchers: dict[Callable[..., Any], Callable[..., None]] = {
            F.linear: self._watch_linear,
            F.embedding: self._watch_embedding,
            F.layer_norm: self._watch_layer_norm,
            F.rms_norm: self._watch_rms_norm,
            F.group_norm: self._watch_group_norm,
            F.conv1d: self._watch_convolution,
            F.conv2d: self._watch_convolution,
            token_losses: self._watch_losses,
            lend: self._watch_lent,
        }

    def start(self, examples: int) -> None:
        """Forget what was seen.

        Args:
            examples: length of the first axis of what modules are given next.
        """
        self._uses.clear()
        self._squared.clear()
        self._examples = examples
        while self._lent:
            del self._names[id(self._lent.pop())]

    def squared(self) -> dict[str, Tensor]:
        """Reduce what the backward pass left.

        Returns:
            Squared norms [B] of each example's part of the gradient, by parameter.

        Raises:
            ConfigError: a parameter has a gradient that came from something unknown.
        """
        # Uses that the loss did not depend on have no gradient to wait for.
        for name in [name for name, uses in self._uses.items() if uses.factors or uses.vectors]:
            self._squared[name] = self._uses.pop(name).squared()
        missing = [
            name
            for name, parameter in self._parameters.items()
            if parameter.grad is not None and name not in self._squared
        ]
        if missing:
            raise ConfigError(
                f"gradients by example are not known for {', '.join(missing[:5])}: only linear "
                f"maps, embeddings, convolutions and norms of layers, roots or groups are",
                hint="measure with source = 'accumulation' or 'norm-layers'",
            )
        return self._squared

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call a function of torch and watch its output if it may have a watched parameter."""
        output = func(*args, **(kwargs or {}))
        watch = self._watchers.get(func)
        if watch is not None and _first(output).requires_grad:
            watch(output, *args, **(kwargs or {}))
        return output

    def _watch_linear(
        self, output: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None = None
    ) -> None:
        """Watch a linear map."""
        entered = input.detach()
        self._expect_matrix(
            output, weight, lambda back: Factors(self._tokens(back), self._tokens(entered))
        )
        self._expect_vector(output, bias, lambda back: self._tokens(back).sum(1))

    def _watch_embedding(
        self,
        output: Tensor,
        input: Tensor,
        weight: Tensor,
        padding_idx: int | None = None,
        *_: object,
        **__: object,
    ) -> None:
        """Watch a look-up; its padding has no gradient."""
        ids = input.detach()[..., None]

        def factors(back: Tensor) -> Factors:
            if padding_idx is not None:
                back = back.masked_fill(ids == padding_idx % len(weight), 0.0)
            return Factors(self._tokens(ids)[..., 0], self._tokens(back))

        self._expect_matrix(output, weight, factors)

    def _watch_losses(
        self, output: Tensor, hidden: Tensor, weight: Tensor, targets: Tensor
    ) -> None:
        """Watch losses, which a head made of hidden states."""
        del targets
        entered = hidden.detach()

        def factors(back: Tensor) -> Factors:
            errors = self._tokens(share_errors(output)) * back[..., None]
            return Factors(errors, self._tokens(entered))

        self._expect_matrix(output, weight, factors)

    def _watch_lent(self, output: tuple[Tensor, Tensor], weight: Tensor, tokens: Tensor) -> None:
        """Watch a look-up in a table whose weight is the head's by another name."""
        rows, head = output
        name = self._names.get(id(weight))
        if name is not None:
            # Kept until the next pass, so that nothing else gets its id.
            self._lent.append(head)
            self._names[id(head)] = name
        self._watch_embedding(rows, tokens, weight)

    def _watch_convolution(
        self,
        output: Tensor,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> None:
        """Watch a convolution: a linear map of patches, whose places are its tokens."""
        entered, flat = input.detach(), weight.ndim == 3

        def both(value: Any, missing: int) -> tuple[int, ...]:
            pair = tuple(value) if isinstance(value, Iterable) else (value,) * (1 if flat else 2)
            return (missing, *pair) if flat else pair

        def factors(back: Tensor) -> Factors:
            image = entered.unsqueeze(2) if flat else entered
            patches = F.unfold(
                _full(image),
                kernel_size=(1, weight.shape[2]) if flat else tuple(weight.shape[2:]),
                dilation=both(dilation, 1),
                padding=both(padding, 0),
                stride=both(stride, 1),
            )
            shapes = [
                item.unflatten(1, (groups, -1)).flatten(0, 1).mT
                for item in (self._places(back), patches)
            ]
            return Factors(shapes[0], shapes[1], groups)

        self._expect_matrix(output, weight, factors)
        self._expect_vector(output, bias, lambda back: self._places(back).sum(2))

    def _watch_layer_norm(
        self,
        output: Tensor,
        input: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> None:
        """Watch a layer norm."""
        entered, width = input.detach(), len(normalized_shape)
        self._expect_gain(
            output,
            weight,
            bias,
            lambda back: self._features(back, width),
            lambda: F.layer_norm(_full(entered), normalized_shape, eps=eps),
        )

    def _watch_rms_norm(
        self,
        output: Tensor,
        input: Tensor,
        normalized_shape: Any,
        weight: Tensor | None = None,
        eps: float | None = None,
    ) -> None:
        """Watch a root mean square norm."""
        entered, width = input.detach(), len(normalized_shape)
        self._expect_gain(
            output,
            weight,
            None,
            lambda back: self._features(back, width),
            lambda: F.rms_norm(_full(entered), normalized_shape, eps=eps),
        )

    def _watch_group_norm(
        self,
        output: Tensor,
        input: Tensor,
        num_groups: int,
        weight: Tensor | None = None,
        bias: Tensor | None = None,
        eps: float = 1e-5,
    ) -> None:
        """Watch a group norm, whose gains belong to the second axis."""
        entered = input.detach()
        self._expect_gain(
            output,
            weight,
            bias,
            lambda back: self._places(back).sum(2),
            lambda: F.group_norm(_full(entered), num_groups, eps=eps),
        )

    def _expect_gain(
        self,
        output: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        reduce: Callable[[Tensor], Tensor],
        normed: Callable[[], Tensor],
    ) -> None:
        """Wait for the gradient of a norm's output: the gain multiplied what was normed."""
        self._expect_vector(output, weight, lambda back: reduce(back * normed()))
        self._expect_vector(output, bias, reduce)

    def _expect_matrix(
        self, output: Tensor, weight: Tensor, make: Callable[[Tensor], Factors]
    ) -> None:
        """Wait for the gradient of an output that a matrix made."""
        name = self._names.get(id(weight))
        if name is not None:
            self._wait(output, name, lambda uses, back: uses.factors.append(make(back)))

    def _expect_vector(
        self, output: Tensor, vector: Tensor | None, make: Callable[[Tensor], Tensor]
    ) -> None:
        """Wait for the gradient of an output that a vector made."""
        name = self._names.get(id(vector))
        if name is not None:
            self._wait(output, name, lambda uses, back: uses.vectors.append(make(back)))

    def _wait(self, output: Tensor, name: str, take: Callable[[_Uses, Tensor], None]) -> None:
        """Take an output's gradient when it comes; reduce a parameter's uses after the last one."""
        self._uses[name].open += 1

        def arrived(back: Tensor) -> None:
            uses = self._uses[name]
            take(uses, _full(back))
            uses.open -= 1
            if not uses.open:  # at once, so that its activations need not be kept
                self._squared[name] = self._uses.pop(name).squared()

        output.register_hook(arrived)

    def _rows(self, values: Tensor) -> Tensor:
        """Return values whose first axis is the examples, in at least float32."""
        if len(values) != self._examples:
            raise ConfigError(
                f"a micro-batch of {self._examples} examples passed through a layer as "
                f"{tuple(values.shape)}: its gradients cannot be told apart by example",
                hint="keep examples on the first axis, or measure with source = 'accumulation'",
            )
        return _full(values)

    def _tokens(self, values: Tensor) -> Tensor:
        """Return [B, T, C] of values [B, ..., C]."""
        values = self._rows(values)
        return values.reshape(len(values), -1, values.shape[-1])

    def _places(self, values: Tensor) -> Tensor:
        """Return [B, C, T] of values [B, C, ...]."""
        values = self._rows(values)
        return values.reshape(len(values), values.shape[1], -1)

    def _features(self, values: Tensor, axes: int) -> Tensor:
        """Sum values [B, ..., C] over all but the first and the last `axes` axes, [B, C]."""
        values = self._rows(values)
        return values.flatten(-axes).reshape(len(values), -1, values.shape[-axes:].numel()).sum(1)


def _first(output: Any) -> Tensor:
    """Return the output of a function, the first one where it has several."""
    return output[0] if isinstance(output, tuple) else output


def _full(values: Tensor) -> Tensor:
    """Return numbers of less than 32 bits as float32, others as they are."""
    return values.float() if values.is_floating_point() and values.itemsize < 4 else values
