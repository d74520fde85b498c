"""What was run, and how it is shown: the run store, the ledger of forecasters, reports and charts.

`Report` and its blocks load nothing heavy; `RunStore` and `Ledger` bring SQLAlchemy and Polars in
when first used.
"""

from typing import TYPE_CHECKING, Any

from steelyard.runs.report import Chart, Checks, Column, Facts, Report, Section, Table, Text

if TYPE_CHECKING:
    from steelyard.runs.ledger import Ledger, LedgerRow
    from steelyard.runs.record import Artifact, RunRecord
    from steelyard.runs.store import RunStore
    from steelyard.runs.writer import RunWriter

__all__ = [
    "Artifact",
    "Chart",
    "Checks",
    "Column",
    "Facts",
    "Ledger",
    "LedgerRow",
    "Report",
    "RunRecord",
    "RunStore",
    "RunWriter",
    "Section",
    "Table",
    "Text",
]

_LAZY = {
    "Artifact": "record",
    "Ledger": "ledger",
    "LedgerRow": "ledger",
    "RunRecord": "record",
    "RunStore": "store",
    "RunWriter": "writer",
}


def __getattr__(name: str) -> Any:
    """Import the store's modules when one of their names is first used."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
