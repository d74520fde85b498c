"""The verbs that need no points: published laws, and an exactly solved model of learning."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from steelyard.cli.laws.options import JSON, chart_file, dump

if TYPE_CHECKING:
    from steelyard.laws.registry import PublishedLaw
    from steelyard.laws.theory.random_features import RandomFeatureModel

__all__ = ["registry", "theory"]


def registry(name: str = "", *, json: Annotated[bool, JSON] = False) -> None:
    """List the published laws, or show one.

    Args:
        name: name of one law; all unless given.
        json: print JSON instead of a table.
    """
    import difflib

    from steelyard.errors import CatalogError
    from steelyard.laws import published as sets

    if name and name not in sets:
        near = difflib.get_close_matches(name, sets, n=3, cutoff=0.3)
        raise CatalogError(
            f"no published law {name!r}", hint=f"near names: {', '.join(near or sets)}"
        )
    chosen = [sets[name]] if name else list(sets.values())
    if json:
        keys = (
            "name",
            "title",
            "form",
            "params",
            "missing",
            "standard_errors",
            "counts",
            "target",
            "unit",
            "tokenizer",
            "source",
        )
        print(
            dump(
                [
                    {key: getattr(item, key) for key in keys}
                    | {"law": item.law.name, "formula": item.law.formula}
                    for item in chosen
                ]
            )
        )
        return
    from steelyard.runs.report import Column, Report, Section, Table

    if name:
        _print_law(chosen[0])
        return
    rows: list[list[Any]] = [
        [item.name, item.law.formula or item.form, item.title] for item in chosen
    ]
    heads = [Column("name"), Column("law"), Column("about")]
    caption = "steelyard laws registry NAME shows numbers, conventions and source."
    Report(
        "Published laws", "", [Section("As the papers give them", [Table(heads, rows, caption)])]
    ).print()


def _print_law(law: "PublishedLaw") -> None:
    """Print one published law with its numbers and conventions."""
    from steelyard.runs.report import Column, Report, Section, Table, Text

    rows: list[list[Any]] = [
        [
            key,
            f"{value:.8g}",
            f"{law.standard_errors[key]:.3g}" if key in law.standard_errors else "",
        ]
        for key, value in law.params.items()
    ]
    rows += [[key, "not printed", ""] for key in law.missing]
    heads = [
        Column("parameter"),
        Column("value", align="right"),
        Column("standard error", align="right"),
    ]
    facts = [
        ("predicts", f"{law.target}, {law.unit}" if law.unit else law.target),
        ("parameters counted", law.counts),
        ("tokenizer", law.tokenizer),
        ("source", law.source),
    ]
    lines = "\n".join(f"- {label}: {words}" for label, words in facts if words)
    Report(
        law.name,
        law.title,
        [Section(law.law.formula or law.form, [Table(heads, rows, "Natural units."), Text(lines)])],
    ).print()


def theory(
    *,
    a: float = 2.0,
    b: float = 1.5,
    modes: int = 1000,
    learning_rate: float = 0.4,
    steps: int = 100,
    width: float = float("inf"),
    samples: float = float("inf"),
    budget: float = 0.0,
    chart: Path | None = None,
    json: Annotated[bool, JSON] = False,
) -> None:
    """Solve a model of learning exactly: loss over steps, width and samples, and what binds.

    Args:
        a: source exponent, power of the target along mode k ~ k^-a, above 1.
        b: capacity exponent, variance of mode k ~ k^-b.
        modes: features of the task.
        learning_rate: step size over the largest variance.
        steps: training steps.
        width: features of the student; endless unless given.
        samples: training examples; endless unless given.
        budget: width times steps to split best; none unless given.
        chart: file for the picture of the learning curve, .html, .svg, .png or .json.
        json: print JSON instead of a table.
    """
    from dataclasses import asdict

    import numpy as np

    from steelyard.laws.theory.random_features import RandomFeatureModel

    chart_file(chart)
    model = RandomFeatureModel(a=a, b=b, modes=modes, learning_rate=learning_rate)
    when = np.unique(np.geomspace(1, max(steps, 1), 25).round().astype(np.int64))
    curve = model.loss(when, width, samples)
    best = asdict(model.compute_optimal(budget, samples)) if budget else None
    binding = asdict(model.bottleneck(steps, width, samples)) if steps > 1 else None
    if chart is not None:
        from steelyard.runs.charts import loss_curves
        from steelyard.runs.save import save_chart

        lines = {
            "test": (curve.steps.tolist(), curve.test.tolist()),
            "train": (curve.steps.tolist(), curve.train.tolist()),
        }
        title = f"Random features, a = {a:g}, b = {b:g}"
        save_chart(
            loss_curves(lines, title, x_title="Steps", y_title="Mean squared error", log_x=True),
            chart,
        )
    if json:
        losses = {
            "steps": curve.steps,
            "test_loss": curve.test,
            "train_loss": curve.train,
            "truncation": curve.truncation,
        }
        print(
            dump(
                {
                    **losses,
                    "exponents": asdict(model.exponents()),
                    "slopes": binding,
                    "compute_optimal": best,
                }
            )
        )
    else:
        _print_theory(model, curve, binding, best)


def _print_theory(
    model: "RandomFeatureModel",
    curve: Any,
    binding: dict[str, Any] | None,
    best: dict[str, Any] | None,
) -> None:
    """Print the learning curve and what follows from the exponents."""
    from steelyard.runs.report import Column, Report, Section, Table, Text

    shown = range(0, len(curve.steps), max(len(curve.steps) // 8, 1))
    rows: list[list[Any]] = [
        [str(curve.steps[index]), f"{curve.test[index]:.5g}", f"{curve.train[index]:.5g}"]
        for index in shown
    ]
    heads = [Column(word, align="right") for word in ("steps", "test loss", "train loss")]
    known = model.exponents()
    lines = [
        f"- loss ~ steps^-{known.steps:.3g}, width^-{known.width:.3g}, "
        f"samples^-{known.samples:.3g} where each binds",
        f"- compute-optimal width ~ compute^{known.optimal_width:.3g}, steps ~ "
        f"compute^{known.optimal_steps:.3g}",
    ]
    if binding:
        lines.append(
            f"- at the end {binding['binding']} bind: d ln loss / d ln {binding['binding']} = "
            f"{binding[binding['binding']]:.3f}"
        )
    if best:
        lines.append(
            f"- {best['budget']:.4g} width x steps: width {best['width']:.4g}, {best['steps']} "
            f"steps, test loss {best['loss']:.4g}"
        )
    title = f"Random features, a = {model.a:g}, b = {model.b:g}"
    Report(
        title,
        "Exact for large sizes, not measured",
        [Section("Learning curve", [Table(heads, rows), Text("\n".join(lines))])],
    ).print()
