"""Joules of a run by power, average draw and facility overhead."""

from steelyard.catalog.hardware import Accelerator
from steelyard.catalog.market import family_of
from steelyard.cost.assumptions import Assumptions
from steelyard.cost.power.rating import rated_w, server_share, usual_draw

__all__ = ["J_PER_KWH", "accelerator_power_w", "average_power_w", "run_energy_j"]

J_PER_KWH = 3.6e6


def average_power_w(
    chip_w: float,
    kind: str,
    family: str,
    assumptions: Assumptions | None = None,
    draw: float | None = None,
) -> float:
    """Return the average power of one accelerator, with its share of the server.

    Args:
        chip_w: rated power of the accelerator alone.
        kind: "gpu", "tpu" and others; a "cpu" is its own server.
        family: word that decides the server's power, as `catalog.market.family_of` returns it.
        assumptions: servers and draws.
        draw: average over rated power, such as an `EnergyModel`'s; that of training when not given.

    Returns:
        Watts, facility overhead left out.

    Source: Cottier et al. 2024 (arXiv 2405.21015), appendix A.
    """
    usual = usual_draw(kind, assumptions) if draw is None else draw
    return chip_w * server_share(kind, family, assumptions) * usual


def accelerator_power_w(accelerator: Accelerator, *, draw: float | None = None) -> float:
    """Return the average power of one accelerator with its share of the server.

    Facility overhead is left out.

    Args:
        accelerator: record whose `tdp_w` counts; a typical power of its kind when unknown.
        draw: average over rated power; the published average of its kind when not given.

    Returns:
        Watts.
    """
    family = family_of(accelerator.name)
    return average_power_w(rated_w(accelerator), accelerator.kind, family, draw=draw)


def run_energy_j(
    accelerator: Accelerator,
    *,
    num_accelerators: float,
    duration_s: float,
    pue: float,
    draw: float | None = None,
) -> float:
    """Return the electric energy of a run, facility overhead included.

    Args:
        accelerator: record of the accelerators that run.
        num_accelerators: accelerators that run.
        duration_s: time they run.
        pue: power usage effectiveness, at least 1.
        draw: average over rated power; the published average when not given.

    Returns:
        Joules.
    """
    return accelerator_power_w(accelerator, draw=draw) * num_accelerators * duration_s * pue
