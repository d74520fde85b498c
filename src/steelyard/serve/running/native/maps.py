"""All linear maps of a model as the native products read them: packed once, or mapped."""

import ctypes
import mmap
import threading
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_void_p
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from steelyard.cost.weights import StoredWidth
from steelyard.nn.layer import DecoderLayer
from steelyard.nn.stored import StoredLinear
from steelyard.nn.transformer import Transformer
from steelyard.serve.running.native.packed_cache import (
    LEAST_BYTES,
    PackedFile,
    Places,
    cache_path,
    read_packed,
    write_packed,
)
from steelyard.serve.running.native.packing import (
    MAP_SIZES,
    Arena,
    LinearMap,
    PackedWeight,
    arena_bytes,
    padded_bias,
    stored_width,
)
from steelyard.serve.running.sources import LinearTypes, head_of, release, shape_of
from steelyard.serve.running.weights import ComputedIn

__all__ = ["LINEARS", "PackedMaps"]

LINEARS = ("qkv", "out", "up", "down")
"""Linear maps of a layer, in the order of step.cpp."""
_PLACES = ("packed", "scales", "zeros")


class PackedMaps:
    """Linear maps with the memory they point to.

    Attributes:
        maps: those of each layer in the order of `LINEARS`, then the head.
        num_bytes: bytes of codes, scales and zero points.
        is_mapped: whether they came from the cache.
    """

    def __init__(self, model: Transformer, library: ctypes.CDLL, weights: ComputedIn) -> None:
        """Map what an earlier engine packed, or pack, and keep that for later ones.

        Args:
            model: a decoder; what was read of its files is let go.
            library: the kernels.
            weights: type of the products.

        Raises:
            ConfigError: a weight cannot be rounded to the type.
            CapacityError: there is no memory for the packed weights.
        """
        layers = [layer for layer in model.layers if isinstance(layer, DecoderLayer)]
        self._items: list[nn.Module] = [
            getattr(layer, name) for layer in layers for name in LINEARS
        ]
        self._items.append(head_of(model))
        self._types = LinearTypes(model, weights)
        self._library = library
        self._kept: list[Tensor | PackedWeight | PackedFile] = []  # maps hold addresses only
        path = cache_path(model.identity, weights) if model.identity else None
        found = read_packed(path, _arena_of) if path else None
        self.is_mapped = found is not None and self._fits(found)
        if found is not None and self.is_mapped:
            self._take(found)
            return
        arena = Arena(sum(self._bytes(item) for item in self._items))
        self._pack(arena)
        places = self._places(arena)
        if path and places and self.num_bytes >= LEAST_BYTES:
            # Beside the first requests, not before them; a process that ends leaves no file.
            arguments = (path, arena.used.numpy(), places, self.num_bytes)
            threading.Thread(
                target=write_packed, args=arguments, name="keep-packed", daemon=True
            ).start()

    def stored(self) -> dict[str, tuple[StoredWidth, ...]]:
        """Return how the maps of each of `LINEARS` and the "head" are kept, one for each layer."""
        widths = tuple(stored_width(item) for item in self.maps)
        each = len(LINEARS)
        return {name: widths[at:-1:each] for at, name in enumerate(LINEARS)} | {"head": widths[-1:]}

    def _type(self, item: nn.Module) -> ComputedIn:
        """Return the type of a map's product."""
        return self._types.of(item, is_head=item is self._items[-1])

    def _bytes(self, item: nn.Module) -> int:
        """Return the bytes that a map takes in an arena, at most."""
        is_coded = isinstance(item, StoredLinear) and bool(item.kind)
        return arena_bytes(self._library, *_widths(item), self._type(item), is_coded=is_coded)

    def _pack(self, arena: Arena) -> None:
        """Pack all maps."""
        # Packing is held up by memory that is touched first, page by page: threads share that.
        with ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="pack") as threads:
            packed = list(threads.map(lambda item: self._packed(item, arena), self._items))
        self._kept += packed
        self.maps = [item.map for item in packed]
        self.num_bytes = sum(item.num_bytes for item in packed)

    def _packed(self, item: nn.Module, arena: Arena) -> PackedWeight:
        """Pack one map, and let go of what it was read from."""
        source, bias = self._types.source(item), getattr(item, "bias", None)
        packed = PackedWeight(self._library, source, bias, self._type(item), arena=arena)
        release(item)
        return packed

    def _places(self, arena: Arena) -> list[Places]:
        """Return where the maps stand in an arena; none where one stands elsewhere."""
        start, used = arena.used.data_ptr(), arena.used.nbytes
        found = []
        for item in self.maps:
            values = [getattr(item, name) for name in _PLACES]
            packed, scales, zeros = (-1 if value is None else value - start for value in values)
            if not all(-1 <= offset < used for offset in (packed, scales, zeros)):
                return []
            sizes = [getattr(item, name) for name in MAP_SIZES]
            found.append(Places(packed, scales, zeros, *sizes))
        return found

    def _fits(self, found: PackedFile) -> bool:
        """Whether a file has the maps of this model."""
        shapes = [(place.outputs, place.inputs) for place in found.places]
        return shapes == [tuple(_widths(item)) for item in self._items]

    def _take(self, found: PackedFile) -> None:
        """Point the maps to a file's memory."""
        self._kept.append(found)
        self.num_bytes = found.weight_bytes
        start = found.memory.ctypes.data
        self.maps = [
            self._map(start, place, item)
            for place, item in zip(found.places, self._items, strict=True)
        ]

    def _map(self, start: int, place: Places, item: nn.Module) -> LinearMap:
        """Describe a map of a file."""
        wide = padded_bias(getattr(item, "bias", None))
        if wide is not None:
            self._kept.append(wide)
        offsets = [getattr(place, name) for name in _PLACES]
        found = [None if offset < 0 else c_void_p(start + offset) for offset in offsets]
        bias = None if wide is None else wide.data_ptr()
        return LinearMap(*found, bias, *[getattr(place, name) for name in MAP_SIZES])


def _arena_of(num_bytes: int) -> np.ndarray:
    """Return memory in huge pages."""
    return Arena(num_bytes + mmap.PAGESIZE).take(num_bytes).numpy()


def _widths(item: nn.Module) -> tuple[int, int]:
    """Return outputs and inputs of a linear map or a table."""
    return shape_of(item if isinstance(item, StoredLinear) else cast(Tensor, item.weight))
