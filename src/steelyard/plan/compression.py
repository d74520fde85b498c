"""Compressions of the key/value cache that make a long context as cheap as a short one."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Accelerator
from steelyard.cost.longcontext import KVSpec, ServePoint, serve_point
from steelyard.cost.memory import kv_bytes_per_token
from steelyard.errors import ConfigError, InfeasibleError

__all__ = ["KV_AXES", "CompressedPoint", "compress_kv"]

KV_AXES: dict[str, tuple[float, ...]] = {
    "layers": (1.0, 1 / 2, 1 / 4, 1 / 8),
    "heads": (1.0, 1 / 2, 1 / 4),
    "tokens": (1.0, 1 / 2, 1 / 4, 1 / 8),
    "hidden": (1.0, 1 / 2, 1 / 4),
}
"""Shares of the cache that pass needle-in-a-haystack tests in publications, each axis on its own.
That combinations pass as well is assumed; none was tested here."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedPoint:
    """One combination and what serving costs with it.

    Attributes:
        kv: shares kept along the four axes.
        factor: how many times smaller the cache is.
        axes: number of axes that are compressed.
        point: four numbers of serving with the combination.
        plain: four numbers of serving without it.
    """

    kv: KVSpec
    factor: float
    axes: int
    point: ServePoint
    plain: ServePoint


def compress_kv(
    arch: Architecture,
    accelerator: Accelerator,
    *,
    context: int,
    target_context: int = 4000,
    axes: Mapping[str, Sequence[float]] | None = None,
    **options: Any,
) -> list[CompressedPoint]:
    """Find the combinations that bring a context's cache to the size of a short one's.

    The axes multiply, which holds as far as they are independent. Of combinations on the same axes
    only the mildest are kept: none that would still reach the target with one share enlarged.
    Prefill stays as it is.

    Args:
        arch: model that is served.
        accelerator: record of the accelerator, as for `serve_point`.
        context: tokens of one user.
        target_context: tokens of plain cache that one user may occupy.
        axes: shares that may be kept of "layers", "heads", "tokens" and "hidden"; `KV_AXES` by
            default, 1 is always allowed.
        **options: further arguments of `serve_point`.

    Returns:
        Combinations, fewest axes first, then the smallest factor.

    Raises:
        ConfigError: an axis is unknown, a share outside (0, 1], or the context below the target.
        InfeasibleError: no combination reaches the target; the strongest is named.

    Source: Fu 2024 (arXiv 2405.08944), section 4.
    """
    allowed = KV_AXES if axes is None else axes
    if unknown := sorted(set(allowed) - set(KV_AXES)):
        raise ConfigError(
            f"unknown axes {', '.join(unknown)}",
            hint=f"axes: {', '.join(KV_AXES)}",
        )
    if not 1 <= target_context <= context:
        raise ConfigError(f"target_context {target_context} must lie in [1, context = {context}]")
    needed = context / target_context
    levels = {name: sorted({1.0, *shares}, reverse=True) for name, shares in allowed.items()}
    found = [
        KVSpec(**dict(zip(levels, shares, strict=True)))
        for shares in itertools.product(*levels.values())
    ]
    # The small tolerance lets shares such as 1/3 reach a target that they meet exactly.
    reaching = [kv for kv in found if 1 / kv.kept >= needed * (1 - 1e-9)]
    if not reaching:
        kept = min(kv.kept for kv in found)
        remaining = context * kv_bytes_per_token(arch) * kept
        raise InfeasibleError(
            f"{arch.name}: the strongest combination is {1 / kept:.3g} times, but {needed:.3g} are "
            f"needed ({remaining / 2**30:.3g} GiB per user remain)",
            hint="allow stronger shares or a larger target",
        )
    plain = serve_point(arch, accelerator, context=context, **options)
    points = [
        CompressedPoint(
            kv=kv,
            factor=1 / kv.kept,
            axes=sum(getattr(kv, name) < 1 for name in KV_AXES),
            point=serve_point(arch, accelerator, context=context, kv=kv, **options),
            plain=plain,
        )
        for kv in reaching
        if _is_mild(kv, levels, needed)
    ]
    return sorted(points, key=lambda item: (item.axes, item.factor))


def _is_mild(kv: KVSpec, levels: Mapping[str, Sequence[float]], needed: float) -> bool:
    """Return whether enlarging any one share would miss the target."""
    for name, shares in levels.items():
        larger = [share for share in shares if share > getattr(kv, name)]
        if larger and min(larger) / getattr(kv, name) * kv.kept <= (1 + 1e-9) / needed:
            return False
    return True
