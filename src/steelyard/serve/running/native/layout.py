"""The C structures of a model and a step, filled from a transformer."""

import ctypes
from ctypes import POINTER, Structure, c_float, c_int64, c_void_p, pointer

import numpy as np
import torch
from torch import Tensor, nn

from steelyard.catalog.architecture import Architecture
from steelyard.nn.layer import DecoderLayer
from steelyard.nn.parts.norm import UnitOffsetNorm
from steelyard.nn.stored import StoredTable
from steelyard.nn.traits import beyond_kernels
from steelyard.nn.transformer import Transformer
from steelyard.parallel import torch_threads
from steelyard.serve.running.native.maps import LINEARS, PackedMaps
from steelyard.serve.running.native.packing import LinearMap
from steelyard.serve.running.pages import trim
from steelyard.serve.running.pool import KVPool
from steelyard.serve.running.weights import ComputedIn

__all__ = ["KV_KINDS", "ModelLayout", "StepLayout", "fits"]

KV_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}
"""Numbers of pool.h by type of keys and values."""


def fits(model: Transformer) -> bool:
    """Whether the kernels take a model: of dense layers, with widths in multiples of 8 to 65,536.

    Sums of products of bytes stay within 32 bits up to there.
    """
    arch = model.architecture
    attention = arch.num_heads * arch.head_dim
    widths = (arch.hidden_size, arch.head_dim, arch.intermediate_size, attention)
    return not beyond_kernels(arch) and all(width % 8 == 0 and width <= 1 << 16 for width in widths)


class _Norm(Structure):
    """`Norm` of norms.h."""

    _fields_ = (("gain", c_void_p), ("bias", c_void_p))


_NORMS = (
    "attention_norm",
    "query_norm",
    "key_norm",
    "attention_post_norm",
    "mlp_norm",
    "mlp_post_norm",
)


class _Layer(Structure):
    """`Layer` of step.cpp."""

    _fields_ = (
        *((name, _Norm) for name in _NORMS),
        *((name, LinearMap) for name in LINEARS),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("window", c_int64),
    )


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
    "turned",
    "across_heads",
    "form",
    "kv_kind",
    "narrow_table",
)
_MODEL_FACTORS = (
    "epsilon",
    "query_scale",
    "softcap",
    "embedding_scale",
    "residual_scale",
    "logit_divisor",
    "logit_softcap",
)
_FORMS = {"gelu": 0, "relu": 1, "swiglu": 2, "geglu": 3}


class _Model(Structure):
    """`Model` of step.cpp."""

    _fields_ = (
        *((name, c_int64) for name in _MODEL_SIZES),
        *((name, c_float) for name in _MODEL_FACTORS),
        ("layers", POINTER(_Layer)),
        ("norm", _Norm),
        ("head", LinearMap),
        *((name, c_void_p) for name in ("embedding", "positions", "kv")),
    )


_STEP_SIZES = ("rows", "decodes", "sequences", "table_row", "picked")
_STEP_INDICES = ("tokens", "positions", "slots", "starts", "contexts", "tables", "picks")
_STEP_BUFFERS = (
    *("hidden", "normed", "qkv", "attended", "up", "logits"),
    *("peaks", "likeliest", "tiles"),
)


class StepLayout(Structure):
    """`Step` of step.cpp."""

    _fields_ = (
        *((name, c_int64) for name in _STEP_SIZES),
        *((name, c_void_p) for name in (*_STEP_INDICES, *_STEP_BUFFERS, "seconds")),
    )


class ModelLayout:
    """A model as the kernels see it, with the packed copies it points to.

    Attributes:
        value: `Model` of step.cpp.
        table: the embedding table, where its rows are read from a file step by step; None where
            the kernels read it.
        packed_bytes: bytes of the packed copies.
        stored: how the matrices of each part are kept, one for each layer.
    """

    def __init__(
        self, model: Transformer, pool: KVPool, library: ctypes.CDLL, weights: ComputedIn
    ) -> None:
        """Pack the weights; later changes of them do not reach the copies.

        Args:
            model: one that `fits`, in float32 or bfloat16 on the CPU; pages of mapped files that
                were packed are let go. A model of codes keeps them in its own type.
            pool: keys and values, float32, bfloat16 or int8.
            library: the kernels.
            weights: type of the products.

        Raises:
            ConfigError: a weight cannot be rounded to the type.
            CapacityError: there is no memory for the packed weights.
        """
        arch = model.architecture
        self._packed = PackedMaps(model, library, weights)
        self.packed_bytes = self._packed.num_bytes
        self.stored = self._packed.stored()
        self._kept: list[Tensor] = []  # the structures hold addresses only
        self._rotations = self._rotary_tables(model)
        layers = [layer for layer in model.layers if isinstance(layer, DecoderLayer)]
        self._layers = (_Layer * arch.num_layers)(*[self._layer(layer, arch) for layer in layers])
        sizes = (
            arch.num_layers,
            arch.hidden_size,
            arch.num_heads,
            arch.num_kv_heads,
            arch.head_dim,
            arch.intermediate_size,
            arch.vocab_size,
            pool.kv.shape[4],
            pool.kv.shape[2],
            arch.position_offset,
            arch.rotary_dim or arch.head_dim,
            arch.qk_norm_across_heads,
        )
        self.table = model.embedding if isinstance(model.embedding, StoredTable) else None
        table = None if self.table else model.embedding.weight
        is_narrow = table is not None and table.dtype == torch.bfloat16
        kinds = _FORMS[arch.mlp], KV_KINDS[pool.kv.dtype], is_narrow
        factors = (
            arch.norm_eps,
            arch.attention_scale or arch.head_dim**-0.5,
            arch.attention_softcap,
            arch.embedding_scale,
            arch.residual_scale,
            arch.logit_divisor,
            arch.logit_softcap,
        )
        learned = None if model.position_embedding is None else model.position_embedding.weight
        # Tied embeddings are packed once more for the head, which reads them by columns.
        head = self._packed.maps[-1]
        places = (self._keep(item) for item in (table, _wide(learned), pool.kv))
        self.value = _Model(
            *sizes, *kinds, *factors, self._layers, self._norm(model.norm), head, *places
        )
        trim()  # what packing needed beside the weights

    def _keep(self, tensor: Tensor | None) -> int | None:
        """Return the address of a tensor and keep it alive."""
        if tensor is None:
            return None
        kept = tensor.detach().contiguous()
        self._kept.append(kept)
        return kept.data_ptr()

    def _norm(self, norm: nn.Module | None) -> _Norm:
        """Point to a norm's parameters, in float32."""
        if norm is None:
            return _Norm(None, None)
        gain, bias = (_wide(getattr(norm, name, None)) for name in ("weight", "bias"))
        if isinstance(norm, UnitOffsetNorm) and gain is not None:
            gain = gain + 1.0
        return _Norm(self._keep(gain), self._keep(bias))

    def _rotary_tables(self, model: Transformer) -> dict[bool, tuple[int | None, int | None]]:
        """Keep cosines and sines by whether a layer has a window."""
        if model.architecture.position != "rope":
            return {False: (None, None), True: (None, None)}
        far = model.rotary_cosines, model.rotary_sines
        near = (model.local_cosines, model.local_sines) if model.local_cosines is not None else far
        return {
            is_near: (self._keep(_wide(pair[0])), self._keep(_wide(pair[1])))
            for is_near, pair in ((False, far), (True, near))
        }

    def _layer(self, layer: DecoderLayer, arch: Architecture) -> _Layer:
        """Describe a layer."""
        window = arch.window_of(layer.index)
        turn = self._rotations[window > 0] if arch.is_turned(layer.index) else (None, None)
        norms = [self._norm(getattr(layer, name)) for name in _NORMS]
        first = layer.index * len(LINEARS)
        return _Layer(*norms, *self._packed.maps[first : first + len(LINEARS)], *turn, window)

    def place_rows(self, token_ids: np.ndarray) -> tuple[np.ndarray, Tensor | None]:
        """Let the kernels find the rows of a step's tokens.

        Args:
            token_ids: int64 [T].

        Returns:
            The tokens as the kernels look them up, and the rows that must live until the step has
            run; None where the kernels read the table.
        """
        if self.table is None:
            return token_ids, None
        # Threads of PyTorch's own go on spinning for milliseconds where those of the kernels run.
        with torch_threads(1):
            rows = self.table(torch.from_numpy(token_ids)).float()
        self.value.embedding = rows.data_ptr()
        return np.arange(len(token_ids)), rows

    @property
    def address(self) -> int:
        """Where the model stands."""
        return ctypes.addressof(pointer(self.value).contents)


def _wide(tensor: Tensor | None) -> Tensor | None:
    """Return numbers in float32."""
    return None if tensor is None else tensor.float()
