"""Operations cut into pieces of the batch, with the dependencies that follow."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from steelyard.plan.overlap.operations import Operation, OperationGraph

__all__ = ["Cuts", "NanoOperation", "cut"]

Cuts = Mapping[str, tuple[int, ...]]
"""Tokens at which each operation is cut, by its name; operations without an entry stay whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NanoOperation:
    """One operation over a piece of the batch.

    Attributes:
        operation: what it is a piece of.
        layer: layer from 0.
        first: first token.
        last: token after the last.
        alone_s: seconds when nothing runs beside it.
        after: places of the pieces it waits for.
    """

    operation: Operation
    layer: int
    first: int
    last: int
    alone_s: float
    after: tuple[int, ...]

    @property
    def words(self) -> str:
        """Name and tokens, such as "qkv 0-1024"."""
        return f"{self.operation.name} {self.first}-{self.last}"


def cut(graph: OperationGraph, cuts: Cuts, layers: int) -> list[NanoOperation]:
    """Cut every operation, for several layers.

    Two pieces depend on each other where their operations do and their tokens intersect.

    Args:
        graph: the layer.
        cuts: tokens at which operations are cut.
        layers: how often the layer is repeated.

    Returns:
        Pieces, layer by layer, the same number of each; every one comes after those it waits for.

    Raises:
        ConfigError: the graph is not sound.

    Source: Zhu et al. 2024 (NanoFlow, arXiv 2408.12757), section 4.1.2.
    """
    ordered = graph.ordered()
    found: list[NanoOperation] = []
    places: dict[tuple[str, int], list[int]] = {}
    for layer in range(layers):
        for operation in ordered:
            here: list[int] = []
            for first, last in _pieces(graph, operation, cuts):
                before = [(name, layer) for name in operation.after]
                before += [(name, layer - 1) for name in operation.after_layer if layer]
                after = tuple(
                    place
                    for key in before
                    for place in places[key]
                    if found[place].first < last and first < found[place].last
                )
                here.append(len(found))
                found.append(
                    NanoOperation(
                        operation=operation,
                        layer=layer,
                        first=first,
                        last=last,
                        alone_s=operation.times.at(last - first),
                        after=after,
                    )
                )
            places[operation.name, layer] = here
    return found


def _pieces(graph: OperationGraph, operation: Operation, cuts: Cuts) -> list[tuple[int, int]]:
    """Return first and end tokens of an operation's pieces."""
    first, last = graph.extent(operation)
    inner = sorted({item for item in cuts.get(operation.name, ()) if first < item < last})
    edges = [first, *inner, last]
    return list(itertools.pairwise(edges))
