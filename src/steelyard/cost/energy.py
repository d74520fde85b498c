"""Joules of a run from power, how much of it is drawn, and what the building adds."""

from steelyard.catalog.hardware import Accelerator

__all__ = ["AVERAGE_DRAW", "accelerator_power_w", "run_energy_j", "server_multiplier"]

AVERAGE_DRAW = {"gpu": 0.75, "tpu": 0.43}
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
_FALLBACK_W = {"gpu": 400.0, "tpu": 300.0, "npu": 400.0, "rdu": 400.0, "cpu": 60.0}


def server_multiplier(accelerator: Accelerator) -> float:
    """Return rated server power over the rated power of its accelerators; 1 for a processor, whose record is the machine.

    Source: Cottier et al. 2024, appendix A (H100 1.82, A100 2.03, V100 1.67, other GPU 1.8, TPU
    1.56).
    """
    if accelerator.kind == "cpu":
        return 1.0
    if accelerator.kind == "tpu":
        return 1.56
    return next((factor for name, factor in _SERVER if name in accelerator.name.upper()), 1.8)


def accelerator_power_w(accelerator: Accelerator, *, draw: float | None = None) -> float:
    """Return the average power of one accelerator with its share of the server, facility overhead left out.

    Args:
        accelerator: its `tdp_w`; a typical one of its kind when unknown.
        draw: average over rated power; the published average of its kind when not given.

    Returns:
        Watts.
    """
    rated = accelerator.tdp_w or _FALLBACK_W.get(accelerator.kind, 300.0)
    return (
        rated
        * server_multiplier(accelerator)
        * (AVERAGE_DRAW.get(accelerator.kind, 0.75) if draw is None else draw)
    )


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
        accelerator: what runs.
        num_accelerators: how many.
        duration_s: for how long.
        pue: power usage effectiveness, at least 1.
        draw: average over rated power; the published average when not given.

    Returns:
        Joules.
    """
    return accelerator_power_w(accelerator, draw=draw) * num_accelerators * duration_s * pue
