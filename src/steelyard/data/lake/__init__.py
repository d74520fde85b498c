"""Lakes: which tables lie in which, which of them can go, and how those are rebuilt."""

from steelyard.data.lake.applying import (
    Applied,
    DeletedTable,
    apply_plan,
    deleted_tables,
    rebuild_table,
)
from steelyard.data.lake.costs import StorageCosts
from steelyard.data.lake.deletion import Deletion, DeletionPlan, PlanRequest, plan_deletion
from steelyard.data.lake.graph import ContainmentEdge, ContainmentGraph, GraphSettings
from steelyard.data.lake.lake import Lake
from steelyard.data.lake.sketches import write_sketches
from steelyard.data.lake.synthesis import SyntheticLake, synthesize
from steelyard.data.lake.tables import LakeTable

__all__ = [
    "Applied",
    "ContainmentEdge",
    "ContainmentGraph",
    "DeletedTable",
    "Deletion",
    "DeletionPlan",
    "GraphSettings",
    "Lake",
    "LakeTable",
    "PlanRequest",
    "StorageCosts",
    "SyntheticLake",
    "apply_plan",
    "deleted_tables",
    "plan_deletion",
    "rebuild_table",
    "synthesize",
    "write_sketches",
]
