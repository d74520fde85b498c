"""Parameter sets as published, in full precision, with source, units and counting."""

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from steelyard.errors import CatalogError, FitError
from steelyard.laws.fitting.fitted import Fit, Prediction
from steelyard.laws.fitting.law import Law
from steelyard.laws.forms.named import law_named
from steelyard.laws.tables.columns import RunColumns
from steelyard.laws.tables.conventions import COLUMN_OF, UNSTATED
from steelyard.laws.tables.conversions import EmbeddingParts, convert_counts

__all__ = ["PublishedLaw", "published", "require_same_conventions"]

Counts = Literal[
    "total", "non-embedding", "non-embedding+head", "active", "active-non-embedding", ""
]

_EXAMPLE_SCHEDULE = (24_000, 3e-4, 2160)
"""Steps, peak and warm-up of the constant schedule that stands in a multi-power law until another
one is predicted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PublishedLaw:
    """A law with the numbers of a paper.

    Attributes:
        name: key in `published`.
        title: what it was fitted on.
        form: name of the law, see `law_named`.
        params: values by parameter, natural units, as printed or in the fullest precision of the
            source.
        counts: parameters that "parameters" counts, as input or as target; empty when the law has
            nothing to do with them.
        target: what the law predicts, such as "loss", "error" or "batch".
        unit: unit of the target.
        tokenizer: tokenizer of losses per token; empty where it does not matter or is not known.
        source: paper and place in it.
        standard_errors: errors by parameter, natural units, where the paper prints them; empty
            otherwise.
    """

    name: str
    title: str
    form: str
    params: dict[str, float]
    counts: Counts = ""
    target: str = "loss"
    unit: str
    tokenizer: str = ""
    source: str
    standard_errors: dict[str, float] = field(default_factory=dict)

    @property
    def law(self) -> Law:
        """The form."""
        if self.form != "multi_power":
            return law_named(self.form)
        # A multi-power law holds schedules. This one stands in until `predict_curve` replaces it.
        from steelyard.laws.forms.schedules.schedule import multi_power
        from steelyard.laws.forms.schedules.schedule_rates import LearningRates

        return multi_power((LearningRates.constant(*_EXAMPLE_SCHEDULE),))

    @property
    def loss_unit(self) -> str:
        """Unit of the loss that the law predicts or reads; empty for laws without one."""
        if self.target in ("loss", "error"):
            return self.unit
        return "nat/token" if "loss" in self.law.inputs else ""

    @property
    def missing(self) -> tuple[str, ...]:
        """Parameters of the form that the source does not print."""
        return tuple(name for name in self.law.names if name not in self.params)

    def fit(self) -> Fit:
        """Return a fit that predicts and allocates.

        Its intervals have no width, because no joint uncertainty was published.

        Returns:
            The law at the published numbers.

        Raises:
            FitError: the source prints only some of the parameters.
        """
        if self.missing:
            own = f"published[{self.name!r}]"
            raise FitError(
                f"{self.source} does not print {', '.join(self.missing)} of {self.name}",
                hint=f"fit the rest to points of your own: fit({own}.law.fix(**{own}.params), ...)",
            )
        law = self.law
        theta = law.coordinates(self.params)
        return Fit(
            law=law,
            theta=theta,
            samples=np.zeros((0, len(theta))),
            provenance="published",
            source=self.source,
        )

    def predict(
        self,
        inputs: Mapping[str, ArrayLike],
        *,
        counts: Counts = "",
        parts: EmbeddingParts | float | None = None,
    ) -> Prediction:
        """Predict, after checking or converting what the given parameters count.

        Args:
            inputs: values by input of the law in natural units, [n]; a table of runs knows its
                conventions.
            counts: parameters that `inputs["parameters"]` counts; needed when the law reads them
                and `inputs` is no table.
            parts: embedding and head of each model, or the scale of their estimate, to convert
                counts that differ; see `steelyard.laws.tables.conversions.convert_counts`.

        Returns:
            Values in `unit`, without interval, [n].

        Raises:
            FitError: the counts are not stated or differ and cannot be converted, or an input is
                missing.
        """
        fitted = self.fit()
        columns: dict[str, Any] = {
            name: inputs[name] for name in fitted.law.inputs if name in inputs
        }
        if self.counts and "parameters" in columns:
            stated = counts or _counts_of_table(inputs)
            if stated != self.counts:
                columns["parameters"] = self._converted(columns["parameters"], stated, parts)
        return fitted.predict(columns)

    def check_table(self, table: RunColumns) -> None:
        """Refuse a table of runs that does not compare with the law.

        Parameters counted, unit of loss and, per token, tokenizer must be the same.

        Args:
            table: table of runs; only conventions of columns that it has count.

        Raises:
            FitError: a convention differs, or the table does not state it.
        """
        tokenizer = self.tokenizer if self.loss_unit.endswith("/token") else ""
        other = "losses per token of two tokenizers do not compare; fit a law of your own"
        for name, wanted, hint in (
            ("counts", self.counts, f"convert with table.to_counts({self.counts!r}, ...)"),
            (
                "loss_unit",
                self.loss_unit,
                f"convert with table.to_loss_unit({self.loss_unit!r}, ...)",
            ),
            ("tokenizer", tokenizer, other),
        ):
            known = wanted and COLUMN_OF[name] in table
            word = table.conventions.one(name, table.rows) if known else wanted
            if word != wanted:
                hint = f"state {name}= when reading" if word == UNSTATED else hint
                raise FitError(
                    f"{self.name} has {name} {wanted}, {table.origin} has {word}", hint=hint
                )

    def _converted(
        self, parameters: ArrayLike, counts: str, parts: EmbeddingParts | float | None
    ) -> ArrayLike:
        """Count parameters as the law does, or say why that cannot be done."""
        if not counts:
            raise FitError(
                f"{self.name} counts {self.counts} parameters; say what yours count",
                hint=f"counts={self.counts!r}, or another",
            )
        if parts is None:
            raise FitError(
                f"{self.name} counts {self.counts} parameters, these are {counts}: the loss would "
                f"be wrong by percents",
                hint="convert them: parts=embedding_parts(architectures), or a scale such as "
                "CHINCHILLA_EMBEDDING_SCALE",
            )
        return convert_counts(
            np.atleast_1d(np.asarray(parameters, dtype=np.float64)), counts, self.counts, parts
        )


def require_same_conventions(*laws: PublishedLaw) -> None:
    """Refuse published laws whose numbers do not compare.

    Other parameter counts, units or tokenizers.

    Args:
        *laws: entries of `published`.

    Raises:
        FitError: a convention differs; it is named with each law's.
    """
    # A law that counts no parameters at all compares with any that does; an unknown unit or
    # tokenizer compares with none.
    for name in ("counts", "target", "unit", "tokenizer"):
        said = {
            law.name: getattr(law, name) for law in laws if getattr(law, name) or name != "counts"
        }
        if len(set(said.values())) > 1:
            shown = ", ".join(f"{law} {value or 'unknown'}" for law, value in said.items())
            raise FitError(
                f"published laws of different {name}: {shown}",
                hint="compare laws of one convention, or convert with predict()",
            )


def _counts_of_table(inputs: Mapping[str, ArrayLike]) -> str:
    """Return what a table of runs counts; empty for a plain mapping and where none is stated."""
    if not isinstance(inputs, RunColumns):
        return ""
    word = inputs.conventions.one("counts", inputs.rows)
    return "" if word == UNSTATED else word


class _Sets(dict[str, PublishedLaw]):
    """Sets by name; a wrong one is answered with near names."""

    def __missing__(self, name: str) -> PublishedLaw:
        """Refuse a name that is not there."""
        near = difflib.get_close_matches(name, self, n=3, cutoff=0.3)
        raise CatalogError(
            f"no published law {name!r}", hint=f"near names: {', '.join(near or self)}"
        )


def _read(name: str, entry: Mapping[str, Any]) -> PublishedLaw:
    """Make one set of its entry."""
    values = {key: _value(text) for key, text in entry["params"].items()}
    plain = {key: value for key, value in entry.items() if key != "params"}
    item = PublishedLaw(name=name, params=values, **plain)
    if item.counts not in get_args(Counts):
        raise CatalogError(
            f"published.toml: {name} counts {item.counts!r} parameters",
            hint=f"known: {', '.join(get_args(Counts))}",
        )
    return item


def _value(text: str | float) -> float:
    """Read a number, or a product of numbers and powers such as "93.2*1e6^-0.47" or "e^6.25"."""
    if not isinstance(text, str):
        return float(text)
    total = 1.0
    for factor in text.split("*"):
        base, _, power = factor.partition("^")
        exponent = float(power) if power else 1.0
        total *= math.exp(exponent) if base == "e" else float(base) ** exponent
    return total


published: Mapping[str, PublishedLaw] = _Sets(
    (name, _read(name, entry))
    for name, entry in tomllib.loads(
        Path(__file__).with_name("published.toml").read_text(encoding="utf-8")
    ).items()
)
"""Published parameter sets by name. Losses of different tokenizers and contexts do not compare."""
