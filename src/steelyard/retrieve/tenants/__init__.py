"""Indexes that tenants share: each sees what it was granted, and nothing else."""

from steelyard.retrieve.tenants.audit import Audited, audit
from steelyard.retrieve.tenants.generating import MadeTenants, MadeTenantsOptions
from steelyard.retrieve.tenants.predicates import parse_condition
from steelyard.retrieve.tenants.recipe import TenantsRecipe
from steelyard.retrieve.tenants.sharded import TenantShards
from steelyard.retrieve.tenants.store import (
    TenantStore,
    create_store,
    open_tenant_index,
    writing_store,
)
from steelyard.retrieve.tenants.tree import ClusterTree, train_tree
from steelyard.retrieve.tenants.tree_index import ClusterTreeIndex
from steelyard.retrieve.tenants.tuning import TunedProbes, tune_probes

__all__ = [
    "Audited",
    "ClusterTree",
    "ClusterTreeIndex",
    "MadeTenants",
    "MadeTenantsOptions",
    "TenantShards",
    "TenantStore",
    "TenantsRecipe",
    "TunedProbes",
    "audit",
    "create_store",
    "open_tenant_index",
    "parse_condition",
    "train_tree",
    "tune_probes",
    "writing_store",
]
