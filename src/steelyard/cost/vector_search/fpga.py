"""Stages of a vector search on an FPGA: cycles and resources of every way to build them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steelyard.catalog.fpga import Fpga
from steelyard.cost.vector_search.options import SearchPoint, StageOptions
from steelyard.cost.vector_search.queues import queue_cycles, queue_levels
from steelyard.errors import CapacityError, ConfigError

__all__ = ["FpgaStages"]

Vector = NDArray[np.float64]
Option = tuple[Mapping[str, float], Vector, Mapping[str, Any]]
"""Cycles of each part, what all take, and what they are."""
_ROTATION, _CELLS, _NEAREST = "rotation", "cell distances", "cell selection"
_TABLES, _SCAN, _SELECTION = "lookup tables", "scan", "selection"
RESOURCES = ("lut", "ff", "bram18k", "dsp", "uram", "banks")


def _take(
    lut: float = 0, ff: float = 0, bram: float = 0, dsp: float = 0, uram: float = 0, banks: int = 0
) -> Vector:
    return np.array([lut, ff, bram, dsp, uram, banks], dtype=np.float64)


_DEEP, _SHALLOW, _BYTE, _WIDE = _take(54, 95, 1), _take(30, 6), _take(20, 6), _take(484, 964)
"""FIFOs: 512 words of 32 bits; a few words of 32, of 8 and of 512 bits."""
_DEEP_WIDE = 16 * _DEEP
_LOAD, _SLOT = 128, _take(215.5, 196.1)
"""Cycles to bring one vector in; one slot of a queue."""
_MOST_UNITS = {True: 60, False: 36}
"""Most scanning units for one neighbour, and for more."""
_SORTED, _SORT_QUEUES = 16, 20
"""Values that a sorting network takes at once; queues behind the networks."""


class FpgaStages:
    """Six stages on one card, each with a share of what is left beside the shell.

    Source: Jiang et al. 2023 (arXiv 2306.11182), performance and resource models; constants from
        the designs published with it.
    """

    resources = RESOURCES
    is_pipelined = True

    def __init__(self, card: Fpga, *, utilization: float = 0.6) -> None:
        """Set the share that may be used.

        Args:
            card: the FPGA with its shell.
            utilization: share of each resource that may be taken, shell included; above 0 to 1.
                Designs above .6 often do not route.

        Raises:
            ConfigError: the share is out of range.
            CapacityError: the shell alone takes more.
        """
        if not 0 < utilization <= 1:
            raise ConfigError(f"a share of {utilization:g} of the card", hint="above 0 to 1")
        self.card = card
        whole = _take(card.lut, card.ff, card.bram18k, card.dsp, card.uram)
        self.capacity = utilization * whole
        # Banks of memory do not route worse when all are used.
        self.capacity[RESOURCES.index("banks")] = card.banks
        self.used = _take(card.shell_lut, card.shell_ff, card.shell_bram18k)
        for name, used, most in zip(RESOURCES, self.used, self.capacity, strict=True):
            if used > most:
                raise CapacityError(
                    f"the shell of {card.name} takes {used:,.0f} {name}, {most:,.0f} are allowed",
                    hint=f"allow a share of more than {used / (most / utilization):.2f}",
                )

    def stages(self, point: SearchPoint) -> list[StageOptions]:
        """List the ways to build each stage.

        Args:
            point: index and query; vectors of 128 numbers, codes of 16 bytes.

        Returns:
            Options by stage, in the order in which a query goes through them. Scanning and
            selection are one: how many units scan says how many values come to be selected.

        Raises:
            ConfigError: another width of vectors or codes: the constants are for these alone.
        """
        if (point.dim, point.code_bytes) != (128, 16):
            raise ConfigError(
                f"vectors of {point.dim} numbers in {point.code_bytes} bytes",
                hint="the constants were measured for 128 numbers in 16 bytes",
            )
        if point.kind != "ivfpq" or point.rerank:
            raise ConfigError(
                f"an index of kind {point.kind}, {point.rerank} candidates compared again",
                hint="the stages scan codes of bytes and compare nothing again",
            )
        made = [
            (_CELLS, self._cells(point)),
            (_NEAREST, _cell_selection(point)),
            (_TABLES, _tables(point)),
            (f"{_SCAN} and {_SELECTION}", self._scan(point)),
        ]
        if point.opq:
            made.insert(0, (_ROTATION, _rotations()))
        return [self._options(name, list(options)) for name, options in made]

    def _options(self, name: str, options: Sequence[Option]) -> StageOptions:
        parts = [{part: n / self.card.hz for part, n in cycles.items()} for cycles, _, _ in options]
        times = np.array([max(item.values()) for item in parts])
        takes = np.array([taken for _, taken, _ in options]).reshape(len(options), len(RESOURCES))
        return StageOptions(name, times, takes, parts, [config for _, _, config in options])

    def _cells(self, point: SearchPoint) -> Iterator[Option]:
        """Distances to the centers of all cells, held on the chip or in banks of memory."""
        for units in range(1, 17):
            cycles = _LOAD + 10 + 2 * math.ceil(8 * point.nlist / units)
            takes = units * _take(8946, 11505, 0, 58) + _DEEP + 4 * _SHALLOW
            uram = 8 * units * math.ceil(math.ceil(point.nlist / units) / 512)
            if uram < self.capacity[RESOURCES.index("uram")]:
                told = {"cell_units": units, "centers_on_chip": True}
                yield {_CELLS: cycles}, takes + _take(uram=uram), told
            banks = math.ceil(units / 2)
            yield {_CELLS: cycles}, takes + _take(banks=banks), {"cell_units": units}

    def _scan(self, point: SearchPoint) -> Iterator[Option]:
        """Scanning of codes with the selection of the best, over banks and units."""
        least = math.ceil(1.05 * point.num_vectors * 20 * 64 / 60 / self.card.bank_bytes)
        for banks in range(least, 21):
            for units in sorted({3 * banks} | {banks // n for n in range(1, 11) if banks % n == 0}):
                if units <= _MOST_UNITS[point.k == 1]:
                    yield from _scan_options(point, banks, units)


def _rotations() -> Iterator[Option]:
    for unroll, depth, takes in (
        (4, 21, _take(2152, 2659, 37, 20)),
        (8, 37, _take(3660, 5134, 33, 40)),
    ):
        cycles = _LOAD + depth + 128 * 128 / unroll + _LOAD
        yield {_ROTATION: cycles}, takes, {"rotation_unroll": unroll}


def _cell_selection(point: SearchPoint) -> Iterator[Option]:
    """The nearest cells by one queue, or by several that feed one."""
    nlist, nprobe = point.nlist, point.nprobe
    alone = {_NEAREST: queue_cycles(nprobe, nlist)}
    yield alone, nprobe * _SLOT + _DEEP, {"cell_queues": 1}
    for queues in range(2, 17, 2):
        cycles = max(queue_cycles(nprobe, nlist / queues), queue_cycles(nprobe, queues * nprobe))
        takes = (queues + 1) * nprobe * _SLOT + 2 * (queues + 1) * _DEEP
        yield {_NEAREST: cycles}, takes, {"cell_queues": queues}


def _tables(point: SearchPoint) -> Iterator[Option]:
    """Tables of distances between parts of the query and the quantizer's centers."""
    for units in range(1, 128):
        rounds = math.ceil(point.nprobe / units)
        cycles = _LOAD + rounds * (132 + 36 + 4096)
        # More units would wait for the cells of the query.
        if cycles <= 256 * point.nprobe:
            return
        takes = units * (_take(6403, 7825, 17, 54, 8) + _SHALLOW + 2 * _DEEP) + _DEEP_WIDE
        takes = takes + units * (rounds // 2) * _DEEP_WIDE
        if point.nlist <= 32768:
            uram = 16 * 2 ** max(0, math.ceil(math.log2(point.nlist / 1024)))
            told = {"table_units": units, "table_centers_on_chip": True}
            yield {_TABLES: cycles}, takes + _take(uram=uram), told
        yield {_TABLES: cycles}, takes + _take(banks=1), {"table_units": units}


def _scan_options(point: SearchPoint, banks: int, units: int) -> Iterator[Option]:
    """One number of units with each way to select among what they find."""
    codes = point.cell_codes(units)
    found, k = point.nprobe * codes, point.k
    scan = point.nprobe * ((2 + 256 + units - 1) + (63 + codes))
    takes = units * (_take(3937, 3954, 16, 30) + 16 * _BYTE + 19 * _SHALLOW)
    # Three codes of 20 bytes lie in one word of 64 bytes.
    takes = takes + units / 3 * (_WIDE + _take(1449, 4187, 15)) + _take(banks=banks)
    told = {"banks": banks, "scan_units": units}
    levels = queue_levels(k, found / 2, 2 * units)
    if levels:
        queues = sum(levels)
        selection = queues * (k * _SLOT + 2 * _DEEP)
        cycles = {_SCAN: scan, _SELECTION: queue_cycles(k, found / 2)}
        yield cycles, takes + selection, {**told, "selection_queues": levels}
    if units > k:
        networks = math.ceil(units / _SORTED)
        selection = networks * _take(10223, 15561) + (networks - 1) * _take(5588, 9374)
        selection = selection + _SORT_QUEUES * k * _SLOT + 2 * (_SORT_QUEUES + 1) * _DEEP
        selection = selection + (152 + 64 * (networks - 1)) * _SHALLOW
        cycles = {_SCAN: scan, _SELECTION: found}
        yield cycles, takes + selection, {**told, "sorting_networks": networks}
