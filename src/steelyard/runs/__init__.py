"""What was run, and how it is shown: the run store, the ledger of forecasters, reports and charts.

`Report` and its blocks load nothing heavy; `RunStore` and `Ledger` bring SQLAlchemy and Polars in when first used.
"""

from steelyard.runs.report import Chart, Checks, Column, Facts, Report, Section, Table, Text

__all__ = ["Chart", "Checks", "Column", "Facts", "Report", "Section", "Table", "Text"]
