"""Rated power of an accelerator and of its share of a server."""

from steelyard.catalog.hardware import Accelerator
from steelyard.cost.assumptions import Assumptions

__all__ = ["rated_w", "server_share", "usual_draw"]

_FALLBACK_W = {"gpu": 400.0, "tpu": 300.0, "npu": 400.0, "rdu": 400.0, "cpu": 60.0}
"""Typical rated power by kind, where a record has none: energy is then marked as assumed."""


def rated_w(accelerator: Accelerator) -> float:
    """Return the rated power of an accelerator, a typical one of its kind when unknown."""
    return accelerator.tdp_w or _FALLBACK_W.get(accelerator.kind, 300.0)


def server_share(kind: str, family: str, assumptions: Assumptions | None = None) -> float:
    """Return the rated power of a server over that of its accelerators.

    Args:
        kind: "gpu", "tpu" and others; a "cpu" is its own server.
        family: word that decides the server's power, as `catalog.market.family_of` returns it.
        assumptions: table of servers.

    Returns:
        Ratio, 1 or more.

    Source: Cottier et al. 2024 (arXiv 2405.21015), appendix A.
    """
    chosen = assumptions or Assumptions()
    table = chosen.tpu_power if kind == "tpu" else chosen.server_power
    return 1.0 if kind == "cpu" else table.get(family, table[""])


def usual_draw(kind: str, assumptions: Assumptions | None = None) -> float:
    """Return the average over the rated power in training, by kind of accelerator.

    Serving has no such constant: an `EnergyModel` says what a load draws.

    Args:
        kind: "gpu", "tpu" and others.
        assumptions: draws.

    Returns:
        Share of the rating.

    Source: Cottier et al. 2024 (arXiv 2405.21015), appendix A.
    """
    chosen = assumptions or Assumptions()
    return chosen.tpu_draw if kind == "tpu" else chosen.gpu_draw
