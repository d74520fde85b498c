"""`steelyard retrieve tenants grant` and `revoke`: change what a tenant sees."""

from pathlib import Path

from steelyard.cli.output import Switch, print_report
from steelyard.cli.retrieve.tenants.ids import read_ids
from steelyard.retrieve.tenants import writing_store
from steelyard.runs.report import Facts, Report, Section

__all__ = ["grant", "revoke"]


def grant(folder: Path, tenant: str, *, ids: str, json: Switch = False) -> None:
    """Let a tenant see vectors.

    Example: steelyard retrieve tenants grant shared acme --ids 3,5,8

    Args:
        folder: folder that `steelyard retrieve tenants build` wrote.
        tenant: name of the tenant; a new name is a new tenant.
        ids: numbers of vectors separated by commas, or @ and a file with a number per line.
        json: print JSON instead of a table.
    """
    with writing_store(folder) as store:
        changed = store.grant(read_ids(ids), tenant)
        seen = store.index.granted(tenant).size
    _show("granted", tenant, changed, seen, json)


def revoke(folder: Path, tenant: str, *, ids: str, json: Switch = False) -> None:
    """Hide vectors from a tenant.

    Example: steelyard retrieve tenants revoke shared acme --ids 5

    Args:
        folder: folder that `steelyard retrieve tenants build` wrote.
        tenant: name of the tenant.
        ids: numbers of vectors separated by commas, or @ and a file with a number per line.
        json: print JSON instead of a table.
    """
    with writing_store(folder) as store:
        changed = store.revoke(read_ids(ids), tenant)
        seen = store.index.granted(tenant).size
    _show("revoked", tenant, changed, seen, json)


def _show(what: str, tenant: str, changed: int, seen: int, json: bool) -> None:
    """Print what changed."""
    facts = Facts([(what, f"{changed:,}", "vectors"), ("seen now", f"{seen:,}", "vectors")])
    page = Report(f"Tenant {tenant}", what, [Section("Change", [facts])])
    print_report(page, json=json, values={"tenant": tenant, what: changed, "seen": int(seen)})
