"""`steelyard laws`: fit a scaling law to a table of runs, split a budget with it, list published laws."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts

if TYPE_CHECKING:
    from steelyard.laws import Allocation, Estimate, Fit

app = cyclopts.App(name="laws", help="Fit scaling laws to measured points and decide with them.")

_JSON = cyclopts.Parameter(negative=())


@app.command
def fit(
    file: Path,
    *,
    loss: str,
    parameters: str = "parameters",
    tokens: str = "tokens",
    law: str = "chinchilla",
    bootstraps: int = 300,
    seed: int = 0,
    out: Path | None = None,
    json: Annotated[bool, _JSON] = False,
) -> None:
    """Fit L(parameters, tokens) to the runs of a CSV or Parquet file.

    Args:
        file: one run per row.
        loss: column with the final loss; losses of one tokenizer and of finished schedules only.
        parameters: column with the model sizes, all counted the same way.
        tokens: column with the training tokens.
        law: chinchilla, chinchilla_tied or kaplan.
        bootstraps: resampled fits for the intervals.
        seed: of the resampling.
        out: file to keep the fit in, for `laws allocate --fit`.
        json: print the whole fit as JSON.
    """
    from steelyard import laws
    from steelyard.errors import FitError
    from steelyard.files import write_bytes

    if law not in laws.FORMS:
        raise FitError(f"unknown law {law!r}", hint=f"choose from {', '.join(laws.FORMS)}")
    columns = _columns(file, {"parameters": parameters, "tokens": tokens, "loss": loss})
    goal = columns.pop("loss")
    fitted = laws.fit(laws.FORMS[law](), columns, goal, bootstraps=bootstraps, seed=seed, source=f"{file.name}: {loss}")
    text = fitted.to_json()
    if out is not None:
        write_bytes(out, text.encode())
    if json:
        print(text)
    else:
        _print_fit(fitted)


@app.command
def allocate(
    *,
    flops: str,
    published: str = "",
    fit: Path | None = None,
    json: Annotated[bool, _JSON] = False,
) -> None:
    """Split a training budget between model size and tokens.

    Args:
        flops: budget, such as 1e22FLOP.
        published: name of a published law; see `laws published`.
        fit: file made by `laws fit --out` or `laws fit --json`.
        json: print JSON instead of a table.
    """
    from steelyard import config, laws, units

    chosen = laws.allocate(_law_of(published, fit), units.parse(flops, "FLOP", where="--flops"))
    if json:
        print(_dump(config.to_plain(chosen)))
    else:
        _print_allocation(chosen)


@app.command
def published(*, json: Annotated[bool, _JSON] = False) -> None:
    """List the published laws with their numbers, conventions and sources.

    Args:
        json: print JSON instead of a table.
    """
    from steelyard.laws import published as sets

    if json:
        keys = ("name", "title", "params", "standard_errors", "counts", "loss_unit", "source")
        print(_dump([{key: getattr(item, key) for key in keys} | {"law": item.law.name} for item in sets.values()]))
        return
    from steelyard.runs.report import Column, Report, Section, Table

    rows: list[list[Any]] = [
        [item.name, item.law.name, ", ".join(f"{key} {value:.6g}" for key, value in item.params.items()), item.counts, item.source]
        for item in sets.values()
    ]
    heads = [Column("name"), Column("law"), Column("numbers"), Column("parameters counted"), Column("source")]
    caption = "Loss in nats per token; losses of different tokenizers do not compare."
    Report("Published laws", "", [Section("As the papers give them", [Table(heads, rows, caption)])]).print()


def _dump(value: Any) -> str:
    """Write JSON for a machine to read."""
    import json

    return json.dumps(value, indent=1)


def _columns(file: Path, wanted: dict[str, str]) -> dict[str, Any]:
    """Read the wanted columns of a table, by their role."""
    import polars

    from steelyard.errors import DataError

    if not file.is_file():
        raise DataError(f"no such file: {file}", hint="give a CSV or Parquet file with one run per row")
    try:
        table = polars.read_parquet(file) if file.suffix == ".parquet" else polars.read_csv(file, infer_schema_length=None)
    except (polars.exceptions.PolarsError, UnicodeDecodeError, OSError) as error:
        raise DataError(f"{file} cannot be read as a table: {str(error).splitlines()[0]}", hint="give a CSV or Parquet file") from error
    missing = [name for name in wanted.values() if name not in table.columns]
    if missing:
        raise DataError(f"{file} has no column {', '.join(missing)}", hint=f"it has {', '.join(table.columns[:20])}")
    words = [name for name in wanted.values() if not table[name].dtype.is_numeric()]
    if words:
        raise DataError(f"{file}: column {words[0]} holds text, not numbers", hint="remove units and words from it")
    return {role: table[name].cast(polars.Float64).to_numpy() for role, name in wanted.items()}


def _law_of(published: str, fit: Path | None) -> "Fit":
    """Take the law from exactly one of the two options."""
    from steelyard import laws
    from steelyard.errors import CatalogError, ConfigError, DataError

    if bool(published) == (fit is not None):
        raise ConfigError("give either --published NAME or --fit FILE", hint="names: steelyard laws published")
    if fit is not None:
        if not fit.is_file():
            raise DataError(f"no such file: {fit}", hint="make one with: steelyard laws fit ... --out FILE")
        return laws.Fit.from_json(fit.read_text(encoding="utf-8", errors="replace"))
    if published not in laws.published:
        import difflib

        near = difflib.get_close_matches(published, laws.published, n=3, cutoff=0.3)
        raise CatalogError(f"no published law {published!r}", hint=f"near names: {', '.join(near or laws.published)}")
    return laws.published[published].fit()


def _print_fit(fitted: "Fit") -> None:
    """Print parameters with intervals and what the reader should know about them."""
    from steelyard.runs.report import Column, Report, Section, Table, Text

    rows: list[list[Any]] = []
    for name, value in fitted.params.items():
        low, high = fitted.interval(name)
        rows.append([name, f"{value:.5g}", f"{low:.5g}", f"{high:.5g}", "at its bound" if name in fitted.at_bounds else ""])
    heads = [Column("parameter"), *(Column(word, align="right") for word in ("fitted", "low", "high")), Column("note")]
    notes = [
        f"- {fitted.num_points} points, residual noise {100 * fitted.noise:.2g} %, sum of Huber losses {fitted.objective:.6g}",
        f"- beyond the points the error grows by {100 * fitted.drift:.2g} % per factor e ({fitted.drift_source})",
        f"- condition number {fitted.condition_number:.3g}; nearly free: {'; '.join(map(str, fitted.flat_directions)) or 'nothing'}",
        f"- weak priors on {', '.join(fitted.prior)}, because the points are few" if fitted.prior else "- no priors",
    ]
    table = Table(heads, rows, f"80 % intervals from {len(fitted.samples)} bootstraps ({fitted.resampling})")
    section = Section("Parameters", [table, Text("\n".join(notes))])
    Report(f"Law {fitted.law.name}", f"fitted to {fitted.source}", [section]).print()


def _print_allocation(chosen: "Allocation") -> None:
    """Print size, tokens and loss with intervals."""
    from steelyard import units
    from steelyard.runs.report import Column, Report, Section, Table

    def row(label: str, item: "Estimate", unit: str) -> list[Any]:
        return [label, *(units.pretty(value, unit) for value in (item.value, item.low, item.high)), chosen.provenance]

    rows = [
        row("parameters", chosen.parameters, "parameter"),
        row("tokens", chosen.tokens, "token"),
        row("loss", chosen.loss, "nat/token"),
    ]
    heads = [Column(""), *(Column(word, align="right") for word in ("best", "low", "high")), Column("provenance")]
    ratio = chosen.tokens.value / chosen.parameters.value
    caption = f"{ratio:.3g} tokens per parameter; {100 * chosen.level:.0f} % intervals"
    if chosen.provenance == "published":
        caption += " have no width, because no joint uncertainty was published"
    elif chosen.distance:
        caption += f"; {2.718281828459045**chosen.distance:.3g}x beyond the fitted points"
    Report(
        f"Best use of {units.pretty(chosen.flops, 'FLOP')}", chosen.source, [Section("Allocation", [Table(heads, rows, caption)])]
    ).print()
