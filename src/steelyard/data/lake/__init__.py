"""Lakes: which tables lie in which, which of them can go, and how those are rebuilt."""

from steelyard.data.lake.applying import (
    Applied,
    DeletedTable,
    apply_plan,
    deleted_tables,
    rebuild_table,
)
from steelyard.data.lake.costs import StorageCosts
from steelyard.data.lake.deletion import (
    Deletion,
    DeletionPlan,
    PlanRequest,
    TableRewrite,
    plan_deletion,
)
from steelyard.data.lake.encodings import Encoding, find_encodings
from steelyard.data.lake.graph import ContainmentEdge, ContainmentGraph, GraphSettings
from steelyard.data.lake.lake import Lake
from steelyard.data.lake.rewriting import plan_rewrites
from steelyard.data.lake.rewritten import RewrittenTable, rewritten_tables
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
    "Encoding",
    "GraphSettings",
    "Lake",
    "LakeTable",
    "PlanRequest",
    "RewrittenTable",
    "StorageCosts",
    "SyntheticLake",
    "TableRewrite",
    "apply_plan",
    "deleted_tables",
    "find_encodings",
    "plan_deletion",
    "plan_rewrites",
    "rebuild_table",
    "rewritten_tables",
    "synthesize",
    "write_sketches",
]
