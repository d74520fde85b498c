"""Grams of carbon dioxide equivalent of a run's electricity."""

from steelyard.catalog.hardware import Site

__all__ = ["run_carbon_g"]

J_PER_KWH = 3.6e6


def run_carbon_g(energy_j: float, site: Site) -> float:
    """Return operational emissions: energy times the grid's average intensity; making the hardware is left out."""
    return energy_j / J_PER_KWH * site.carbon_g_per_kwh
