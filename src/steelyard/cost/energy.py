"""Joules of a run by power, average draw and facility overhead, and the grams they emit."""

from steelyard.catalog.hardware import Accelerator, Site
from steelyard.errors import CatalogError

__all__ = ["J_PER_KWH", "accelerator_power_w", "run_carbon_g", "run_energy_j"]

J_PER_KWH = 3.6e6
_AVERAGE_DRAW = {"gpu": 0.75, "tpu": 0.43}
"""Average draw over rated power in training. Source: Cottier et al. 2024 (arXiv 2405.21015),
appendix A."""

_SERVER = (
    ("GH200", 1.3),
    ("H100", 10.2 / 8 / 0.7),
    ("H800", 10.2 / 8 / 0.7),
    ("A100", 6.5 / 8 / 0.4),
    ("A800", 6.5 / 8 / 0.4),
    ("V100", 1.67),
)
"""Rated server power over that of its accelerators, by a part of the accelerator's name."""

_FALLBACK_W = {"gpu": 400.0, "tpu": 300.0, "npu": 400.0, "rdu": 400.0, "cpu": 60.0}
"""Typical rated power by kind, where a record has none: energy is then marked as assumed."""


def _server_multiplier(accelerator: Accelerator) -> float:
    """Return rated server power over the rated power of its accelerators.

    It is 1 for a processor, whose record is the machine.

    Args:
        accelerator: record whose name and kind decide.

    Returns:
        A factor of at least 1.

    Source: Cottier et al. 2024, appendix A (H100 1.82, A100 2.03, V100 1.67, other GPU 1.8, TPU
    1.56).
    """
    if accelerator.kind == "cpu":
        return 1.0
    if accelerator.kind == "tpu":
        return 1.56
    return next((factor for name, factor in _SERVER if name in accelerator.name.upper()), 1.8)


def accelerator_power_w(accelerator: Accelerator, *, draw: float | None = None) -> float:
    """Return the average power of one accelerator with its share of the server.

    Facility overhead is left out.

    Args:
        accelerator: record whose `tdp_w` counts; a typical power of its kind when unknown.
        draw: average over rated power; the published average of its kind when not given.

    Returns:
        Watts.
    """
    rated = accelerator.tdp_w or _FALLBACK_W.get(accelerator.kind, 300.0)
    average = _AVERAGE_DRAW.get(accelerator.kind, 0.75) if draw is None else draw
    return rated * _server_multiplier(accelerator) * average


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


def run_carbon_g(energy_j: float, site: Site) -> float:
    """Return the operational emissions: energy times the grid's average intensity.

    What making the hardware emitted is left out.

    Args:
        energy_j: electric energy, facility overhead included.
        site: place whose grid supplies it.

    Returns:
        Grams of carbon dioxide equivalent.

    Raises:
        CatalogError: the site's carbon intensity is unknown.
    """
    if not site.carbon_g_per_kwh:
        raise CatalogError(
            f"no carbon intensity is known for {site.name}",
            hint="add carbon_g_per_kwh to a record in the user catalog",
        )
    return energy_j / J_PER_KWH * site.carbon_g_per_kwh
