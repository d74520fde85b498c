"""Measured settings of serving, half of them fitted and the other half predicted."""

from steelyard import catalog
from steelyard.cost.power import (
    EnergyModel,
    PowerRow,
    fit_curve,
    fit_times,
    measured_rows,
)

CHIP = "A100-SXM4-80GB"


def held_out(parity: int) -> list[tuple[PowerRow, EnergyModel]]:
    """Return the rows of every second setting with the model fitted to the others.

    Repeats of a setting stay together: their power is the same.
    """
    chip = catalog.accelerator(CHIP)
    settings = sorted({row.setting for row in measured_rows()})
    chosen = set(settings[parity::2])
    fitted = [row for row in measured_rows() if row.setting in chosen]
    curve = fit_curve(fitted, chip)
    models = {
        kind: EnergyModel(
            arch=catalog.architecture_by_name(kind[0]),
            accelerator=chip,
            tensor_parallel=kind[1],
            step_time=fit_times([row for row in fitted if row.setting[:2] == kind]),
            curve=curve,
        )
        for kind in sorted({setting[:2] for setting in settings})
    }
    return [(row, models[row.setting[:2]]) for row in measured_rows() if row.setting not in chosen]
