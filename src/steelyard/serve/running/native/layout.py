"""The C structures of a model and a step, filled from a transformer."""

import ctypes
from ctypes import POINTER, Structure, c_float, c_int64, c_void_p, pointer

import torch
from torch import Tensor, nn

from steelyard.nn.layer import DecoderLayer
from steelyard.nn.transformer import Transformer
from steelyard.serve.running.pool import KVPool

__all__ = ["PANEL", "LinearMap", "ModelLayout", "StepLayout", "fits", "padded"]

PANEL = 16
"""Columns of a packed panel, as in products.h; rows of buffers are padded to it."""


def padded(width: int) -> int:
    """Round up to whole panels."""
    return -(-width // PANEL) * PANEL


def fits(model: Transformer) -> bool:
    """Whether the kernels take a model: float32 on a CPU, widths in multiples of 8."""
    arch = model.architecture
    weight = model.embedding.weight
    widths = (arch.hidden_size, arch.head_dim, arch.intermediate_size)
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and all(width % 8 == 0 for width in widths)
    )


class LinearMap(Structure):
    """`Linear` of products.h."""

    _fields_ = (("packed", c_void_p), ("bias", c_void_p), ("outputs", c_int64), ("inputs", c_int64))


class _Norm(Structure):
    """`Norm` of products.h."""

    _fields_ = (("gain", c_void_p), ("bias", c_void_p))


_NORMS = ("attention_norm", "query_norm", "key_norm", "mlp_norm")
_LINEARS = ("qkv", "out", "up", "down")


class _Layer(Structure):
    """`Layer` of step.cpp."""

    _fields_ = (*((name, _Norm) for name in _NORMS), *((name, LinearMap) for name in _LINEARS))


_MODEL_SIZES = (
    "num_layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "inner",
    "vocab",
    "block_size",
    "num_blocks",
    "position_offset",
)


class _Model(Structure):
    """`Model` of step.cpp."""

    _fields_ = (
        *((name, c_int64) for name in (*_MODEL_SIZES, "gated", "rectified", "narrow")),
        ("epsilon", c_float),
        ("head_epsilon", c_float),
        ("layers", POINTER(_Layer)),
        ("norm", _Norm),
        ("head", LinearMap),
        *((name, c_void_p) for name in ("embedding", "positions", "cosines", "sines", "kv")),
    )


_STEP_SIZES = ("rows", "decodes", "sequences", "table_row", "picked")
_STEP_INDICES = ("tokens", "positions", "slots", "starts", "contexts", "tables", "picks")
_STEP_BUFFERS = ("hidden", "normed", "qkv", "attended", "up", "logits")


class StepLayout(Structure):
    """`Step` of step.cpp."""

    _fields_ = (
        *((name, c_int64) for name in _STEP_SIZES),
        *((name, c_void_p) for name in (*_STEP_INDICES, *_STEP_BUFFERS)),
    )


class ModelLayout:
    """A model as the kernels see it, with the packed copies it points to.

    Attributes:
        value: `Model` of step.cpp.
        packed_bytes: bytes of the packed copies.
    """

    def __init__(self, model: Transformer, pool: KVPool, library: ctypes.CDLL) -> None:
        """Pack the weights; later changes of them do not reach the copies.

        Args:
            model: one that `fits`.
            pool: keys and values, float32 or bfloat16.
            library: the kernels.
        """
        arch = model.architecture
        self.packed_bytes = 0
        self._library = library
        self._kept: list[Tensor] = []  # the structures hold addresses only
        self._layers = (_Layer * arch.num_layers)(
            *[self._layer(layer) for layer in model.layers if isinstance(layer, DecoderLayer)]
        )
        sizes = (
            arch.num_layers,
            arch.hidden_size,
            arch.num_heads,
            arch.num_kv_heads,
            arch.head_dim,
            arch.intermediate_size,
            arch.vocab_size,
        )
        counts = *sizes, pool.kv.shape[4], pool.kv.shape[2], arch.position_offset
        forms = arch.mlp == "swiglu", arch.mlp == "relu", pool.kv.dtype == torch.bfloat16
        epsilon = arch.norm_eps
        learned = None if model.position_embedding is None else model.position_embedding.weight
        tables = (None, None) if learned is not None else (model.rotary_cosines, model.rotary_sines)
        # Tied embeddings are packed once more for the head, which reads them by columns.
        head = self._linear(
            (model.embedding if model.output is None else model.output).weight, None
        )
        places = (self._keep(item) for item in (model.embedding.weight, learned, *tables, pool.kv))
        self.value = _Model(
            *counts, *forms, epsilon, epsilon, self._layers, self._norm(model.norm), head, *places
        )

    def _keep(self, tensor: Tensor | None) -> int | None:
        """Return the address of a tensor and keep it alive."""
        if tensor is None:
            return None
        self._kept.append(tensor.detach().contiguous())
        return self._kept[-1].data_ptr()

    def _norm(self, norm: nn.Module | None) -> _Norm:
        """Point to a norm's parameters."""
        if norm is None:
            return _Norm(None, None)
        return _Norm(self._keep(norm.weight), self._keep(getattr(norm, "bias", None)))  # pyright: ignore[reportArgumentType]

    def _linear(self, weight: Tensor, bias: Tensor | None) -> LinearMap:
        """Pack a weight [N, K] and pad its bias."""
        outputs, inputs = weight.shape
        source = weight.detach().contiguous()
        packed = torch.empty(padded(outputs) * inputs)
        self._library.steelyard_pack(source.data_ptr(), outputs, inputs, packed.data_ptr())
        self.packed_bytes += packed.nbytes
        wide = (
            None
            if bias is None
            else nn.functional.pad(bias.detach(), (0, padded(outputs) - outputs))
        )
        return LinearMap(self._keep(packed), self._keep(wide), outputs, inputs)

    def _layer(self, layer: DecoderLayer) -> _Layer:
        """Describe a layer."""
        norms = [self._norm(getattr(layer, name)) for name in _NORMS]
        maps = [getattr(layer, name) for name in _LINEARS]
        return _Layer(*norms, *[self._linear(item.weight, item.bias) for item in maps])

    @property
    def address(self) -> int:
        """Where the model stands."""
        return ctypes.addressof(pointer(self.value).contents)
