"""Quantized modules of a model folder, readable as if they were plain weights."""

import contextlib
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from steelyard.errors import ConfigError, DataError
from steelyard.nn.mapped import DTYPES, Entry, MappedFile, Weights
from steelyard.nn.quantized.awq import read_awq
from steelyard.nn.quantized.compressed import read_compressed
from steelyard.nn.quantized.gptq import read_gptq
from steelyard.nn.quantized.words import BITS, Read, WholeNumbers, takes_groups
from steelyard.nn.stored import ROWS, Codes, StoredMatrix
from steelyard.parallel import torch_threads

__all__ = ["PackedModules", "replace_packed"]

_WHOLE = {"I8": torch.int8, "I32": torch.int32, "I64": torch.int64}
_METHODS: dict[str, tuple[Callable[[Read, dict[str, Any]], WholeNumbers], tuple[str, ...]]] = {
    "gptq": (read_gptq, ("qweight", "qzeros", "scales", "g_idx")),
    "awq": (read_awq, ("qweight", "qzeros", "scales")),
    "compressed-tensors": (
        read_compressed,
        (
            "weight_packed",
            "weight",
            "weight_scale",
            "weight_zero_point",
            "weight_shape",
            "weight_g_idx",
            # Scales of activations, which stay in floating point here.
            "input_scale",
            "input_zero_point",
        ),
    ),
}
"""Reader of each method, and the ends of the names of a module's tensors."""
_FORMATS = ("pack-quantized", "int-quantized", "naive-quantized", "dense")


def replace_packed(weights: Weights, settings: Any, directory: Path) -> None:
    """Let quantized modules of a folder read as plain weights.

    Args:
        weights: files of the folder; tensors of quantized modules are replaced by one named
            "weight" each.
        settings: `quantization_config` of its `config.json`.
        directory: the folder, for messages.

    Raises:
        ConfigError: the method or the width of its codes is not supported.
        DataError: a module's tensors do not fit each other; it is named.
    """
    method = _method(settings, directory)
    packed = PackedModules(weights, method, settings, directory)
    for name in packed.entries:
        module = name.removesuffix("weight")
        for end in _METHODS[method][1]:
            weights.files.pop(module + end, None)
    # `PackedModules` has what the loader uses of a mapped file.
    weights.files |= dict.fromkeys(packed.entries, cast(MappedFile, packed))


def _method(settings: Any, directory: Path) -> str:
    """Return the method, refusing what is not read."""
    given = settings if isinstance(settings, dict) else {}
    method = given.get("quant_method")
    if method not in _METHODS:
        raise ConfigError(
            f"{directory}: weights quantized by {method!r} cannot be loaded",
            hint=f"methods that can: {', '.join(_METHODS)}; or take plain weights",
        )
    if method != "compressed-tensors" and given.get("bits") not in BITS:
        raise ConfigError(
            f"{directory}: codes of {given.get('bits')!r} bits cannot be loaded",
            hint=f"bits that can: {', '.join(map(str, BITS))}",
        )
    if method == "compressed-tensors" and given.get("format") not in _FORMATS:
        raise ConfigError(
            f"{directory}: compressed-tensors of format {given.get('format')!r} cannot be loaded",
            hint=f"formats that can: {', '.join(_FORMATS)}",
        )
    return method


class PackedModules:
    """Quantized modules, each with the one tensor it stands for.

    Attributes:
        path: the folder.
        entries: shape and type of each weight, by its plain name.
    """

    def __init__(
        self, weights: Weights, method: str, settings: dict[str, Any], directory: Path
    ) -> None:
        """Find the modules.

        Args:
            weights: files of the folder.
            method: a key of the methods that are read.
            settings: `quantization_config`.
            directory: the folder.

        Raises:
            DataError: a module's tensors do not fit each other.
        """
        self.path = directory
        self._files = dict(weights.files)
        self._read, self._ends = _METHODS[method]
        self._settings = settings
        mark = "weight_scale" if method == "compressed-tensors" else "qweight"
        found = [name.removesuffix(mark) for name in self._files if name.endswith(mark)]
        with self._named("a quantized module"):
            self.entries = {module + "weight": self._entry(module) for module in found}

    def view(self, names: Any) -> None:
        """Return None: weights are made anew from their codes."""

    def read(self, name: str) -> Tensor:
        """Return one weight, float32 [outputs, inputs]."""
        # The steps are short: several threads would wait for each other.
        with torch_threads(1), self._named(name):
            return self._whole(name).grouped().dequantize()

    def matrix(self, name: str, *, transposed: bool = False) -> StoredMatrix:
        """Return one weight, to be read later as the codes that it is.

        Args:
            name: plain name, ending in "weight".
            transposed: whether its rows are columns here; they never are.

        Returns:
            A matrix whose functions raise DataError where the module's tensors do not fit each
            other.

        Raises:
            DataError: its groups do not fit the weight, or it is transposed.
        """
        if transposed:
            raise DataError(
                f"{self.path}: {name} is quantized in a model that stores inputs as rows",
                hint="take its plain weights",
            )
        rows, columns = self.entries[name].shape
        with self._named(name):
            is_int4 = self._is_int4(name.removesuffix("weight"), rows, columns)
        return StoredMatrix(
            shape=(rows, columns),
            kind="int4" if is_int4 else "int8",
            numbers=lambda: self._numbers(name),
            release=lambda: self.release(name),
            codes=lambda: self._codes(name),
        )

    def _is_int4(self, module: str, rows: int, columns: int) -> bool:
        """Whether a weight is of nibbles in groups that products take."""
        words = next(module + end for end in self._ends if module + end in self._files)
        entry = self._stored(words)
        if (entry.stop - entry.start) * 2 != rows * columns:
            return False
        scales = "weight_scale" if "weight_scale" in self._ends else "scales"
        groups = self._stored(module + scales)
        count = math.prod(groups.shape) // rows
        order = self._tensor(module + ("g_idx" if "g_idx" in self._ends else "weight_g_idx"))
        return takes_groups(columns, max(1, count), order)

    def _numbers(self, name: str) -> Iterator[Tensor]:
        """Return rows of a weight in order, some at a time."""
        with self._named(name):
            found = self._whole(name).grouped()
        for first in range(0, len(found.codes), ROWS):
            yield found.rows(first, first + ROWS).dequantize()

    def _codes(self, name: str) -> Codes | None:
        """Return a weight as products read it, None where they cannot."""
        with self._named(name):
            return self._whole(name).straight()

    def _whole(self, name: str) -> WholeNumbers:
        """Read the tensors of a weight's module."""
        module = name.removesuffix("weight")
        return self._read(lambda end: self._tensor(module + end), self._settings)

    @contextlib.contextmanager
    def _named(self, what: str) -> Iterator[None]:
        """Turn what shapes that do not fit raise into an error that names the weight's module."""
        what = "module " + what.removesuffix(".weight") if what.endswith(".weight") else what
        try:
            yield
        except (ValueError, IndexError, RuntimeError) as error:
            raise DataError(
                f"{self.path}: {what}: {error}", hint="fetch or quantize the model again"
            ) from error

    def release(self, name: str) -> None:
        """Let go of the memory behind the tensors of a weight."""
        module = name.removesuffix("weight")
        for end in self._ends:
            if module + end in self._files:
                self._files[module + end].release(module + end)

    def _entry(self, module: str) -> Entry:
        """Return the shape and the type of a module's weight, from the shapes of its tensors."""
        if "qweight" in self._ends:
            rows, columns = self._stored(module + "qweight").shape
            is_gptq = "g_idx" in self._ends
            shape = (
                (columns, rows * 32 // self._settings["bits"]) if is_gptq else (columns * 8, rows)
            )
            kind = self._stored(module + "scales").dtype
        else:
            pair = self._tensor(module + "weight_shape")
            shape = self._stored(module + "weight").shape if pair is None else tuple(pair.tolist())
            kind = self._stored(module + "weight_scale").dtype
        return Entry(kind, shape, 0, DTYPES.get(kind, torch.float32).itemsize * math.prod(shape))

    def _stored(self, name: str) -> Entry:
        """Return where a stored tensor stands."""
        if name not in self._files:
            raise ValueError(f"{name} is missing")
        return self._files[name].entries[name]

    def _tensor(self, name: str) -> Tensor | None:
        """Return one stored tensor, of its own type."""
        file: MappedFile | None = self._files.get(name)
        if file is None:
            return None
        entry = file.entries[name]
        if entry.dtype in DTYPES:
            return file.read(name)
        if entry.dtype not in _WHOLE:
            raise ValueError(f"{name} is of type {entry.dtype}")
        # A copy: places of small tensors need not be multiples of their item's size.
        return file.raw(name).clone().view(_WHOLE[entry.dtype]).view(entry.shape)
