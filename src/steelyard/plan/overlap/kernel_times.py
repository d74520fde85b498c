"""Times of kernels on an accelerator: measured tables, or a roofline where nothing was measured."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from steelyard.cost.collectives import all_gather_s, all_reduce_s
from steelyard.cost.roofline import Machine
from steelyard.errors import CatalogError, DataError

__all__ = ["KernelTimes", "MeasuredKernels", "RooflineKernels"]

_Curve = list[tuple[float, float]]


class KernelTimes(Protocol):
    """Seconds of the kernels of a layer on one device."""

    @property
    def source(self) -> str:
        """Where the times come from."""
        ...

    def product_s(self, rows: int, columns: int, inner: int) -> float:
        """Return the seconds of a matrix product [rows, inner] x [inner, columns]."""
        ...

    def decode_s(self, sequences: int, context: float, heads: int, kv_heads: int) -> float:
        """Return the seconds of one token's attention of some sequences over their contexts."""
        ...

    def prefill_s(self, prompts: float, length: int, heads: int, kv_heads: int) -> float:
        """Return the seconds of causal attention within some prompts of a length."""
        ...

    def collective_s(self, name: str, elements: int, devices: int) -> float:
        """Return the seconds of "all_reduce" or "all_gather" over elements in all of 2 bytes."""
        ...


@dataclass(frozen=True, kw_only=True)
class RooflineKernels:
    """Kernels by a machine's rates.

    Attributes:
        machine: accelerator with its links.
        head_dim: width of a head.
    """

    machine: Machine
    head_dim: int = 128

    @property
    def source(self) -> str:
        """Where the times come from."""
        return f"roofline of {self.machine.name}"

    def product_s(self, rows: int, columns: int, inner: int) -> float:
        """Return the slower of the product's compute and traffic, with a launch."""
        machine = self.machine
        moved = machine.dtype_bytes * (rows * inner + inner * columns + rows * columns)
        compute = 2.0 * rows * columns * inner / float(machine.matmul_rate(rows, columns, inner))
        return self._with_launch(max(compute, moved / float(machine.bandwidth(moved))))

    def decode_s(self, sequences: int, context: float, heads: int, kv_heads: int) -> float:
        """Return the time to read keys and values once."""
        size = 2.0 * sequences * context * kv_heads * self.head_dim * self.machine.dtype_bytes
        return self._with_launch(size / float(self.machine.bandwidth(size)))

    def prefill_s(self, prompts: float, length: int, heads: int, kv_heads: int) -> float:
        """Return the time of the pairs at the rate of attention."""
        flops = 4.0 * prompts * length * (length + 1) / 2 * heads * self.head_dim
        rate = self.machine.peak_flops_per_s * self.machine.efficiencies.attention
        return self._with_launch(flops / rate)

    def collective_s(self, name: str, elements: int, devices: int) -> float:
        """Return the time over the links of a node."""
        if not self.machine.scale_up_bytes_per_s:
            raise CatalogError(
                f"{self.machine.name} lacks scale_up_bytes_per_s",
                hint="add it to a record in the user catalog",
            )
        timed = all_reduce_s if name == "all_reduce" else all_gather_s
        return float(timed(self.machine, elements * self.machine.dtype_bytes, devices))

    def _with_launch(self, seconds: float) -> float:
        return seconds + self.machine.efficiencies.launch_s


@dataclass(frozen=True, kw_only=True)
class MeasuredKernels:
    """Kernels from tables of measured times, interpolated between the sizes that were measured.

    Attributes:
        source: where the times come from.
        products: for each number of columns and inner size, seconds by rows.
        decodes: for each number of heads and key heads, then sequences, seconds by context.
        prefills: for each number of heads and key heads and length, seconds by prompts.
        collectives: for each name and number of devices, seconds by elements.
    """

    source: str
    products: dict[tuple[int, int], _Curve] = field(repr=False)
    decodes: dict[tuple[int, int], dict[int, _Curve]] = field(repr=False)
    prefills: dict[tuple[int, int, int], _Curve] = field(repr=False)
    collectives: dict[tuple[str, int], _Curve] = field(repr=False)

    @classmethod
    def load(cls, folder: Path, prefix: str, *, dtype: str = "bfloat16") -> "MeasuredKernels":
        """Read the four tables of one accelerator.

        Args:
            folder: folder with `{prefix}_gemm.csv.gz`, `_decode_attention`, `_prefill_attention`
                and `_nccl`; columns as in aiconfigurator's collected tables, latencies in
                milliseconds.
            prefix: start of the files' names, such as "a100_sxm".
            dtype: number format of the products.

        Returns:
            The kernels.

        Raises:
            DataError: a file or column is missing, or a value is no number.
        """
        sizes = ["num_heads", "num_key_value_heads"]
        gemm = _rows(folder, f"{prefix}_gemm", ["n", "k", "m"], ("dtype", dtype))
        decode = _rows(
            folder,
            f"{prefix}_decode_attention",
            [*sizes, "batch_size", "context_len"],
            ("head_dim", "128"),
        )
        prefill = _rows(
            folder,
            f"{prefix}_prefill_attention",
            [*sizes, "prompt_len", "batch_size"],
            ("head_dim", "128"),
        )
        products: defaultdict[tuple[int, int], _Curve] = defaultdict(list)
        for (n, k, m), seconds in gemm:
            products[n, k].append((m, seconds))
        decodes: defaultdict[tuple[int, int], dict[int, _Curve]] = defaultdict(dict)
        for (heads, kv, batch, context), seconds in decode:
            decodes[heads, kv].setdefault(batch, []).append((context, seconds))
        prefills: defaultdict[tuple[int, int, int], _Curve] = defaultdict(list)
        for (heads, kv, length, batch), seconds in prefill:
            prefills[heads, kv, length].append((batch, seconds))
        collectives: dict[tuple[str, int], _Curve] = {}
        for name in ("all_reduce", "all_gather"):
            rows = _rows(folder, f"{prefix}_nccl", ["num_gpus", "elements"], ("collective", name))
            for (devices, elements), seconds in rows:
                collectives.setdefault((name, devices), []).append((elements, seconds))
        return cls(
            source=f"measured kernels of {prefix}",
            products=dict(products),
            decodes=dict(decodes),
            prefills=dict(prefills),
            collectives=collectives,
        )

    def product_s(self, rows: int, columns: int, inner: int) -> float:
        """Return the product's seconds, interpolated in the logarithms of its sizes."""
        widths = sorted({n for n, _ in self.products})
        depths = sorted({k for _, k in self.products})
        total = weights = 0.0
        for n, near in _around(widths, columns):
            for k, close in _around(depths, inner):
                curve = self.products.get((n, k))
                if curve is None:
                    continue
                seconds = _along(curve, rows) * (columns / n) * (inner / k)
                total += near * close * np.log(seconds)
                weights += near * close
        if not weights:
            raise DataError(f"{self.source}: no product near {columns} columns, {inner} inner")
        return float(np.exp(total / weights))

    def decode_s(self, sequences: int, context: float, heads: int, kv_heads: int) -> float:
        """Return the attention's seconds, interpolated in sequences and context."""
        by_batch = self.decodes.get((heads, kv_heads))
        if by_batch is None:
            raise DataError(f"{self.source}: no decode attention of {heads} heads on {kv_heads}")
        curve = [(float(batch), _along(item, context)) for batch, item in by_batch.items()]
        return _along(curve, sequences)

    def prefill_s(self, prompts: float, length: int, heads: int, kv_heads: int) -> float:
        """Return the attention's seconds, interpolated in prompts and length."""
        curves = {
            size: item
            for (h, kv, size), item in self.prefills.items()
            if (h, kv) == (heads, kv_heads)
        }
        if not curves:
            raise DataError(f"{self.source}: no prefill attention of {heads} heads on {kv_heads}")
        by_length = [(float(size), _along(item, prompts)) for size, item in curves.items()]
        return _along(by_length, length)

    def collective_s(self, name: str, elements: int, devices: int) -> float:
        """Return the collective's seconds, interpolated in its size."""
        curve = self.collectives.get((name, devices))
        if curve is None:
            known = sorted({count for _, count in self.collectives})
            raise DataError(
                f"{self.source}: no {name} of {devices} devices", hint=f"measured: {known}"
            )
        return _along(curve, elements)


def _along(curve: _Curve, at: float) -> float:
    """Interpolate; below the first point times do not shrink, beyond the last they grow along."""
    places, seconds = zip(*sorted(curve), strict=True)
    return float(np.interp(at, places, seconds)) * max(1.0, at / places[-1])


def _around(known: Sequence[int], wanted: int) -> list[tuple[int, float]]:
    """Return the sizes measured below and above one, with weights by the logarithm."""
    place = bisect_right(known, wanted)
    if place == 0 or known[place - 1] == wanted or place == len(known):
        return [(known[max(place - 1, 0)], 1.0)]
    low, high = known[place - 1], known[place]
    near = float(np.log(wanted / low) / np.log(high / low))
    return [(low, 1 - near), (high, near)]


def _rows(
    folder: Path, name: str, columns: list[str], only: tuple[str, str]
) -> list[tuple[tuple[int, ...], float]]:
    """Read sizes and seconds of the rows of which one column has a value."""
    import polars

    path = folder / f"{name}.csv.gz"
    try:
        frame = polars.read_csv(path, infer_schema_length=None)
        frame = frame.filter(frame[only[0]].cast(polars.String) == only[1])
        chosen = frame.select([*columns, "latency_ms"]).drop_nulls()
        return [(tuple(map(int, row[:-1])), float(row[-1]) / 1e3) for row in chosen.iter_rows()]
    except (OSError, polars.exceptions.PolarsError, ValueError) as error:
        raise DataError(
            f"{path}: {error}", hint="give the folder of the kernels' tables"
        ) from error
