"""`steelyard data govern budget` and `ask`: answers with noise, paid from a budget."""

from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.cli.data.scanned import Sources, kinds_of, scanned
from steelyard.cli.output import Switch, print_report
from steelyard.errors import ConfigError
from steelyard.runs.report import Cell, Column, Facts, Report, Section, Table

if TYPE_CHECKING:
    from steelyard.data.table import DataTable

__all__ = ["ask", "budget"]


def budget(ledger: Path, *, epsilon: float = 0.0, delta: float = 0.0, json: Switch = False) -> None:
    """Set the privacy budget of a ledger, once; or show what is left of it.

    Example: steelyard data govern budget people.ledger --epsilon 1

    Args:
        ledger: folder of the ledger.
        epsilon: most privacy loss in all; leave it out to show what is left.
        delta: most chance of a larger loss in all, for Gaussian noise.
        json: print JSON instead of tables.
    """
    from steelyard.data.governance import PrivacyLedger

    kept = PrivacyLedger(ledger)
    if epsilon or delta:
        kept.begin(epsilon, delta)
    (whole, chance), (left, left_chance), entries = kept.budget, kept.left, kept.entries
    facts = [
        ("epsilon left", f"{left:.4g}", f"of {whole:g}"),
        ("delta left", f"{left_chance:.3g}", f"of {chance:g}"),
    ]
    rows: list[list[Cell]] = [
        [item["what"], f"{item['epsilon']:g}", f"{item['delta']:g}"] for item in entries
    ]
    sections = [Section("Budget", [Facts(facts)])]
    if rows:
        heads = [
            Column("question"),
            *(Column(name, align="right") for name in ("epsilon", "delta")),
        ]
        sections.append(Section("Paid", [Table(heads, rows)]))
    values = {"epsilon": whole, "delta": chance, "left": [left, left_chance], "entries": entries}
    print_report(
        Report("Privacy budget", str(ledger), sections), json=json, html=None, values=values
    )


def ask(
    *sources: Sources,
    ledger: Path,
    epsilon: float,
    delta: float = 0.0,
    total: str = "",
    low: float = 0.0,
    high: float = 0.0,
    where: str = "",
    rows_each: int = 1,
    types: str = "",
    json: Switch = False,
) -> None:
    """Count rows or add up a column with noise that hides every person, paid from a budget.

    Example: steelyard data govern ask people.csv --ledger people.ledger --epsilon 0.1
    --where city=Paris

    Args:
        *sources: files, patterns such as 'sales/*.csv', folders, and addresses.
        ledger: folder of the ledger that pays; see `steelyard data govern budget`.
        epsilon: privacy loss of the question.
        delta: chance of a larger one, for Gaussian noise in place of Laplace's.
        total: column of numbers to add up; rows are counted when it is left out.
        low: smallest value of a row that counts; it must not come from the table.
        high: largest.
        where: rows that are asked about, as COLUMN=VALUE.
        rows_each: most rows of one person.
        types: kinds of columns of text files, such as "id=text, price=number".
        json: print JSON instead of a table.
    """
    from dataclasses import asdict

    from steelyard.data.governance import PrivacyLedger, noisy_aggregate

    table = _chosen(scanned(sources, kinds_of(types)), where)
    found = noisy_aggregate(
        table,
        PrivacyLedger(ledger),
        epsilon,
        column=total,
        bounds=(low, high) if total else None,
        delta=delta,
        rows_each=rows_each,
    )
    facts = [
        (found.what, f"{found.value:,.6g}", f"noise within {found.low:,.6g} and {found.high:,.6g}"),
        ("paid", f"epsilon {epsilon:g}", f"{PrivacyLedger(ledger).left[0]:.4g} left"),
    ]
    page = Report("Answer with noise", where or "all rows", [Section("Answer", [Facts(facts)])])
    print_report(page, json=json, html=None, values=asdict(found))


def _chosen(table: "DataTable", where: str) -> "DataTable":
    """Return the rows that a question is about."""
    if not where:
        return table
    import pyarrow as pa

    from steelyard.data.arrow import compute

    name, is_given, value = where.partition("=")
    if not is_given or name.strip() not in table.schema.names:
        names = ", ".join(table.schema.names)
        raise ConfigError(f"--where is {where!r}", hint=f"give COLUMN=VALUE; columns are {names}")
    kind = table.schema.field(name.strip()).type
    try:
        wanted = pa.scalar(value.strip()).cast(kind)
    except pa.ArrowInvalid as error:
        raise ConfigError(f"--where: {value.strip()!r} is no {kind}") from error
    return table.filter(compute().field(name.strip()) == wanted)
