"""Operations fused into kernels: what still crosses memory, and the intensity that is left."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from steelyard.errors import ConfigError

__all__ = ["FusedKernel", "FusionGraph", "FusionStep", "fuse", "fuse_best", "intensity", "monarch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class FusionStep:
    """One operation of a graph.

    Attributes:
        name: unique in the graph.
        kind: "matmul", "elementwise" or "transpose".
        flops: operations it takes.
        reads: tensors it reads.
        writes: tensor it makes.
        makes: constants that a kernel of several operations computes where they are used, so that
            only a kernel of this operation alone reads them.
    """

    name: str
    kind: str
    flops: float
    reads: tuple[str, ...]
    writes: str
    makes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FusionGraph:
    """Operations in the order they run, with the bytes of every tensor.

    Attributes:
        steps: operations; each reads what was given or written before.
        tensor_bytes: bytes of each tensor.
    """

    steps: tuple[FusionStep, ...]
    tensor_bytes: Mapping[str, float]


@dataclass(frozen=True, kw_only=True, slots=True)
class FusedKernel:
    """Operations that run as one kernel.

    Attributes:
        names: the operations.
        flops: their operations.
        moved_bytes: bytes that it reads and writes in memory.
        inner_bytes: bytes of tensors that live and end within it, written once and read once each.
    """

    names: tuple[str, ...]
    flops: float
    moved_bytes: float
    inner_bytes: float

    @property
    def intensity(self) -> float:
        """Operations per byte of memory traffic."""
        return self.flops / self.moved_bytes


def fuse(graph: FusionGraph, groups: Sequence[Sequence[str]]) -> list[FusedKernel]:
    """Run neighbouring operations as kernels.

    A kernel reads each tensor from outside once, writes what is used after it, and keeps the rest
    to itself.

    Args:
        graph: operations in order.
        groups: names of each kernel's operations; together all operations in their order.

    Returns:
        A kernel per group.

    Raises:
        ConfigError: the groups are not the operations in their order, or a tensor has no size.

    Source: Prabhakar et al. 2024 (SN40L, arXiv 2405.07518), section 3 (operational intensity of
        fusion).
    """
    names = [step.name for step in graph.steps]
    if [name for group in groups for name in group] != names or not all(groups):
        raise ConfigError(f"groups {groups} are not the operations in their order: {names}")
    missing = {
        tensor
        for step in graph.steps
        for tensor in (*step.reads, *step.makes, step.writes)
        if tensor not in graph.tensor_bytes
    }
    if missing:
        raise ConfigError(f"tensors without a size: {', '.join(sorted(missing))}")
    found, place = [], 0
    for group in groups:
        own = graph.steps[place : place + len(group)]
        place += len(group)
        found.append(_kernel(graph, own, graph.steps[place:]))
    return found


def _kernel(
    graph: FusionGraph, own: Sequence[FusionStep], later: Sequence[FusionStep]
) -> FusedKernel:
    """Count the traffic of a kernel."""
    written = {step.writes for step in own}
    read = {tensor for step in own for tensor in step.reads} - written
    if len(own) == 1:
        read |= set(own[0].makes)
    needed = {tensor for step in later for tensor in step.reads}
    inside = {tensor for step in own for tensor in step.reads}
    # What nobody reads is a result of the graph.
    kept = {tensor for tensor in written if tensor in needed or tensor not in inside}
    size = graph.tensor_bytes
    return FusedKernel(
        names=tuple(step.name for step in own),
        flops=sum(step.flops for step in own),
        moved_bytes=sum(size[name] for name in read | kept),
        inner_bytes=2 * sum(size[name] for name in written - kept),
    )


def intensity(kernels: Sequence[FusedKernel]) -> float:
    """Return operations per byte of memory traffic of several kernels together."""
    return sum(item.flops for item in kernels) / sum(item.moved_bytes for item in kernels)


def fuse_best(
    graph: FusionGraph, *, sram_bytes: float, across_transposes: bool = True, tiles: int = 1
) -> list[FusedKernel]:
    """Find the kernels that move the fewest bytes.

    Args:
        graph: operations in order, at most 20.
        sram_bytes: what a kernel may hold of its tensors within.
        across_transposes: whether a kernel may go on after a transpose, as a dataflow chip's can;
            a GPU's threads cannot read what others of the kernel wrote.
        tiles: parts in which tensors stream through a kernel; each holds two.

    Returns:
        The kernels; of equal traffic the fewest.

    Raises:
        ConfigError: the graph has more than 20 operations.
    """
    if len(graph.steps) > 20:
        raise ConfigError(f"{len(graph.steps)} operations, but at most 20 can be searched")
    held = min(1.0, 2 / tiles) / 2

    def fits(kernels: list[FusedKernel]) -> bool:
        return all(len(one.names) == 1 or held * one.inner_bytes <= sram_bytes for one in kernels)

    tried = (fuse(graph, groups) for groups in _groups(graph, across_transposes=across_transposes))
    found = [kernels for kernels in tried if fits(kernels)]
    return min(found, key=lambda one: (sum(item.moved_bytes for item in one), len(one)))


def _groups(graph: FusionGraph, *, across_transposes: bool) -> Iterator[list[list[str]]]:
    """Yield every way to cut the operations into runs."""
    steps = graph.steps
    for ends in itertools.product((False, True), repeat=max(len(steps) - 1, 0)):
        groups = [[steps[0].name]]
        allowed = True
        for before, step, cut in zip(steps, steps[1:], ends, strict=False):
            if cut:
                groups.append([step.name])
            else:
                groups[-1].append(step.name)
                allowed = allowed and (across_transposes or before.kind != "transpose")
        if allowed:
            yield groups


def monarch(
    batch: int, rows: int, first: int, columns: int, second: int, *, element_bytes: float = 2
) -> FusionGraph:
    """Return a Monarch block: product, twiddle factors, transpose, product.

    Args:
        batch: blocks.
        rows: rows of each.
        first: inner size of the first product: its input is [rows, first].
        columns: columns of its result [rows, columns].
        second: columns of the second product, over the rows: the result is [columns, second].
        element_bytes: bytes of an element.

    Returns:
        The graph. A kernel of several operations makes the twiddle factors itself.

    Source: Prabhakar et al. 2024 (SN40L, arXiv 2405.07518), figure 3; Dao et al. 2022 (Monarch,
        arXiv 2204.00595).
    """
    middle = float(batch * rows * columns)
    tensors = {
        "input": batch * rows * first,
        "factor0": first * columns,
        "product0": middle,
        "twiddle": rows * columns,
        "scaled": middle,
        "turned": middle,
        "factor1": rows * second,
        "output": batch * columns * second,
    }
    return FusionGraph(
        tensor_bytes={name: element_bytes * size for name, size in tensors.items()},
        steps=(
            FusionStep(
                name="gemm0",
                kind="matmul",
                flops=2 * middle * first,
                reads=("input", "factor0"),
                writes="product0",
            ),
            FusionStep(
                name="mul",
                kind="elementwise",
                flops=middle,
                reads=("product0",),
                makes=("twiddle",),
                writes="scaled",
            ),
            FusionStep(
                name="transpose", kind="transpose", flops=0, reads=("scaled",), writes="turned"
            ),
            FusionStep(
                name="gemm1",
                kind="matmul",
                flops=2 * middle * second,
                reads=("turned", "factor1"),
                writes="output",
            ),
        ),
    )
