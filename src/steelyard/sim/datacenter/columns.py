"""Columns of what is metered in a step: one row per scenario, so that compiled code fills them."""

__all__ = ["COLUMNS", "PLANT_COLUMNS"]

PLANT_COLUMNS: tuple[str, ...] = (
    "it_w",
    "server_fans_w",
    "crac_w",
    "chiller_w",
    "tower_w",
    "pumps_w",
    "heat_w",
    "rejected_w",
    "inlet_c",
    "outlet_c",
    "return_c",
    "liquid_c",
    "water_l_per_s",
    "chiller_share",
    "gap",
)
"""What a plant meters."""
COLUMNS: tuple[str, ...] = (
    *PLANT_COLUMNS,
    "facility_w",
    "executed",
    "waiting",
    "overdue",
    "charge_w",
    "discharge_w",
    "stored_j",
    "grid_w",
    "carbon_g",
)
"""What a site meters: its plant, its queue of work, its battery and the grid."""
