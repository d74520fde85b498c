"""Options that several verbs share: columns and rows of a file, and the law to ask."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts

from steelyard.cli.flags import flag_name
from steelyard.errors import ConfigError, DataError
from steelyard.runs.save import CHART_ENDINGS
from steelyard.units import parse, pretty

if TYPE_CHECKING:
    from steelyard.laws.fitting.fitted import Fit
    from steelyard.laws.fitting.law import Law
    from steelyard.laws.tables.table import RunTable
    from steelyard.laws.tables.trouble import Trouble
    from steelyard.runs.track import FormPast

__all__ = [
    "FLAG",
    "MANY",
    "LawOptions",
    "TableOptions",
    "asked_run",
    "chart_file",
    "dump",
    "forms_past",
    "input_words",
    "known_inputs",
    "named_laws",
    "numbers",
    "pairs",
    "run_words",
    "source_fit",
]

FLAG = cyclopts.Parameter(negative=())
MANY = cyclopts.Parameter(consume_multiple=True, negative=())

_UNITS = {
    "parameters": "parameter",
    "tokens": "token",
    "unique_tokens": "token",
    "flops": "FLOP",
}


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Which columns and rows of a table to read, and what they mean.

    Args:
        loss: column with the loss.
        parameters: column with the model sizes; the one called parameters unless given.
        tokens: column with the training tokens; the one called tokens unless given.
        column: further inputs as NAME=COLUMN, such as unique_tokens=unique.
        where: rows to keep as COLUMN=VALUE or COLUMN=LOW..HIGH.
        counts: which parameters are counted: total, non-embedding, non-embedding+head; or a column
            that says it per row.
        loss_unit: nat/token, bit/token, bit/byte, nat/byte or "error fraction"; or a column.
        tokenizer: name of the tokenizer, or a column.
        schedule: finished or unfinished learning-rate schedules, or a column.
        kind: kind of the runs to take when the table is a run store; empty for all.
        drop_invalid: leave out rows whose loss or size is not a positive number.
    """

    loss: str = ""
    parameters: str = ""
    tokens: str = ""
    column: Annotated[tuple[str, ...], MANY] = ()
    where: Annotated[tuple[str, ...], MANY] = ()
    counts: str = ""
    loss_unit: str = ""
    tokenizer: str = ""
    schedule: str = ""
    kind: str = "train"
    drop_invalid: Annotated[bool, FLAG] = False

    def words(self) -> list[str]:
        """Return the options as they are typed, those that differ from their defaults."""
        found: list[str] = []
        for item in fields(self):
            value = getattr(self, item.name)
            if value != item.default:
                values = [] if value is True else value if isinstance(value, tuple) else [value]
                found += [f"--{flag_name(item.name)}", *values]
        return found

    def read(self, file: Path) -> "RunTable":
        """Read the table.

        Args:
            file: CSV, Parquet or JSON lines; a folder is a run store.

        Returns:
            The rows that meet all conditions.

        Raises:
            DataError: the file, a column or a condition is wrong.
            FitError: rows that cannot be fitted together.
        """
        from steelyard.laws.tables.table import RunTable

        named = {
            "loss": self.loss,
            "parameters": self.parameters,
            "tokens": self.tokens,
            **pairs(self.column, "--column", "NAME=COLUMN"),
        }
        columns: dict[str, Any] = {role: name for role, name in named.items() if name}
        stated: dict[str, Any] = {
            name: getattr(self, name) for name in ("counts", "loss_unit", "tokenizer", "schedule")
        }
        stated = {name: word for name, word in stated.items() if word}
        if file.is_dir():
            from steelyard.runs import RunStore

            # A store states parameters and units itself; only what it does not know is taken.
            own = {name: word for name, word in stated.items() if name in ("tokenizer", "schedule")}
            table = RunTable.from_store(
                RunStore.existing(file),
                kind=self.kind,
                drop_invalid=self.drop_invalid,
                **own,
                **columns,
            )
        else:
            table = RunTable.read(file, drop_invalid=self.drop_invalid, **stated, **columns)
        called = {name: role for role, name in columns.items()}
        conditions = pairs(self.where, "--where", "COLUMN=VALUE")
        return table.where(
            **{called.get(name, name): _condition(text) for name, text in conditions.items()}
        )


@cyclopts.Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class LawOptions:
    """Which law to ask.

    Args:
        fit: file made by `laws fit --out`.
        published: name of a published law; see `laws registry`.
        extrapolate: allow runs more than two decades beyond the fitted points.
    """

    fit: Path | None = None
    published: str = ""
    extrapolate: Annotated[bool, FLAG] = False

    def words(self) -> list[str]:
        """Return the options as they are typed."""
        law = ["--published", self.published] if self.published else ["--fit", str(self.fit)]
        return [*law, *(["--extrapolate"] if self.extrapolate else [])]

    def law(self) -> "Fit":
        """Take the law from exactly one of the two options.

        Returns:
            The fit, with intervals when it has points.

        Raises:
            ConfigError: both or neither were given.
        """
        if bool(self.published) == (self.fit is not None):
            raise ConfigError(
                "give either --published NAME or --fit FILE", hint="names: steelyard laws registry"
            )
        return source_fit(self.published or str(self.fit), is_file=self.fit is not None)

    def trouble(self) -> "tuple[Trouble, ...]":
        """Return what was found in the table when the law was fitted, or is found in the fit.

        Returns:
            The findings that `laws fit` kept with the fit, else those its points and residuals
            show; none for a published law.
        """
        from steelyard.laws.decisions.fit_trouble import fit_trouble
        from steelyard.laws.tables.trouble import stored_trouble

        if self.fit is None:
            return ()
        kept = stored_trouble(self.fit.read_text(encoding="utf-8", errors="replace"))
        return fit_trouble(self.law()) if kept is None else kept


def source_fit(name: str, *, is_file: bool | None = None) -> "Fit":
    """Read a stored fit, or take a published law.

    Args:
        name: name of a file or a published law.
        is_file: which of the two; None to look.

    Returns:
        The fit.

    Raises:
        DataError: no such file.
        CatalogError: no such published law; near names are given.
        FitError: the file is not a stored fit.
    """
    from steelyard import laws

    path = Path(name)
    # A name that ends on .json is meant as a file even where there is none: the message then says
    # so.
    if is_file or (is_file is None and (path.is_file() or path.suffix == ".json")):
        if not path.is_file():
            raise DataError(
                f"no such file: {path}", hint="make one with: steelyard laws fit ... --out FILE"
            )
        return laws.Fit.from_json(
            path.read_text(encoding="utf-8", errors="replace"), laws.law_named
        )
    return laws.published[name].fit()


def pairs(texts: tuple[str, ...], option: str, form: str) -> dict[str, str]:
    """Split NAME=VALUE texts; one text may hold several, separated by commas.

    Args:
        texts: words after the option.
        option: option they were given with, for the message.
        form: form they should have, for the message.

    Returns:
        Value by name.

    Raises:
        ConfigError: a text has no equals sign, or a name stands twice.
    """
    found = {}
    for text in (part for item in texts for part in item.split(",")):
        name, sign, value = text.partition("=")
        if not (sign and name.strip() and value.strip()):
            raise ConfigError(
                f"{option} {text!r} is not of the form {form}", hint=f"write {option} {form}"
            )
        if name.strip() in found:
            raise ConfigError(
                f"{option} names {name.strip()} twice", hint="leave one of the two values out"
            )
        found[name.strip()] = value.strip()
    return found


def forms_past(target: str) -> "dict[str, FormPast]":
    """Return how each form has done in the user's store, which keeps forecasts of the loss.

    Args:
        target: column that is asked about.

    Returns:
        Counts by form; none for another column than the loss.
    """
    from steelyard.runs.track import replay_forms

    return replay_forms()[-1].past if target == "loss" else {}


def known_inputs(run: dict[str, float], asked: "Fit", option: str) -> None:
    """Refuse a run with a name that the law does not read.

    Args:
        run: value by name.
        asked: fit of the law.
        option: option the run was given with.

    Raises:
        ConfigError: a name is not one of the law's inputs.
    """
    strange = [name for name in run if name not in asked.law.inputs]
    if strange:
        raise ConfigError(
            f"{option} names {strange[0]}, which law {asked.law.name} does not read",
            hint=f"its inputs: {', '.join(asked.law.inputs)}",
        )


def asked_run(at: tuple[str, ...], points: "RunTable", file: Path) -> dict[str, float]:
    """Read the run of --at, which a table's own forms are asked about.

    Args:
        at: words after --at, NAME=NUMBER.
        points: the table.
        file: where it was read, for the message.

    Returns:
        Number by name.

    Raises:
        ConfigError: a name is no column of the table.
    """
    strange = [name for name in pairs(at, "--at", "NAME=NUMBER") if name not in points]
    if strange:
        raise ConfigError(
            f"--at names {strange[0]}, which is no column of {file.name}",
            hint=f"columns: {', '.join(points)}",
        )
    return numbers(at, "--at")


def numbers(texts: tuple[str, ...], option: str) -> dict[str, float]:
    """Read NAME=NUMBER texts; counts may have a suffix, such as parameters=7B.

    Args:
        texts: words after the option.
        option: option they were given with, for the message.

    Returns:
        Number by name.

    Raises:
        ConfigError: a value is not a number.
    """
    return {
        name: parse(value, _UNITS.get(name, ""), where=f"{option} {name}")
        for name, value in pairs(texts, option, "NAME=NUMBER").items()
    }


def named_laws(texts: tuple[str, ...]) -> "list[Law]":
    """Look up the laws of --law; one text may hold several, separated by commas.

    Args:
        texts: words after --law.

    Returns:
        The laws in the order given; none for no words.

    Raises:
        FitError: a name is not known; near ones are given.
    """
    from steelyard.laws.forms.named import law_named

    return [law_named(name) for item in texts for name in item.split(",")]


def run_words(run: Mapping[str, float]) -> str:
    """Name a run by its inputs, as in `parameters 7e+09, tokens 1.4e+11`."""
    return ", ".join(f"{name} {number:.4g}" for name, number in run.items())


def input_words(name: str, number: float) -> str:
    """Write an input of a run: a count with its suffix, such as 7B, other numbers plainly."""
    # The unit is left out: the column or the input's name says it.
    return pretty(number, _UNITS[name]).partition(" ")[0] if name in _UNITS else f"{number:.4g}"


def _condition(text: str) -> Any:
    """Read a condition of `RunTable.where`: a value, or LOW..HIGH with open ends."""

    def value(part: str) -> Any:
        try:
            return float(part)
        except ValueError:
            return part

    low, dots, high = text.partition("..")
    return (value(low) if low else None, value(high) if high else None) if dots else value(text)


def chart_file(path: Path | None) -> None:
    """Refuse a chart's path before any work is done.

    Args:
        path: file of the chart; None for no chart.

    Raises:
        ConfigError: its ending is not one of .html, .svg, .png and .json.
    """
    if path is not None and path.suffix.lower() not in CHART_ENDINGS:
        raise ConfigError(
            f"--chart {path.name}: unknown ending {path.suffix!r}",
            hint=f"end it on {', '.join(CHART_ENDINGS)}",
        )


def dump(value: Any) -> str:
    """Write JSON for a machine to read; numbers that are not finite become null."""

    def plain(item: Any) -> Any:
        if hasattr(item, "tolist"):
            item = item.tolist()
        if isinstance(item, dict):
            return {str(key): plain(part) for key, part in item.items()}
        if isinstance(item, list | tuple):
            return [plain(part) for part in item]
        return None if isinstance(item, float) and not math.isfinite(item) else item

    return json.dumps(plain(value), indent=1, allow_nan=False)
