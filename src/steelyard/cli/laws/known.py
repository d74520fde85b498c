"""The verbs that need no points: published laws, and an exactly solved model of learning."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from steelyard.cli.laws.options import JSON, chart_file, dump, published_law
from steelyard.cli.laws.pages import law_page, registry_page, theory_page
from steelyard.runs.save import save_chart

__all__ = ["registry", "theory"]

_KEYS = (
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


def registry(name: str = "", *, json: Annotated[bool, JSON] = False) -> None:
    """List the published laws, or show one.

    Args:
        name: name of one law; all unless given.
        json: print JSON instead of a table.
    """
    from steelyard.laws import published

    chosen = [published_law(name)] if name else list(published.values())
    if json:
        rows = [
            {key: getattr(item, key) for key in _KEYS}
            | {"law": item.law.name, "formula": item.law.formula}
            for item in chosen
        ]
        print(dump(rows))
    else:
        (law_page(chosen[0]) if name else registry_page(chosen)).print()


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
    import numpy as np

    from steelyard.laws.theory.random_features import RandomFeatureModel

    chart_file(chart)
    model = RandomFeatureModel(a=a, b=b, modes=modes, learning_rate=learning_rate)
    when = np.unique(np.geomspace(1, max(steps, 1), 25).round().astype(np.int64))
    curve = model.loss(when, width, samples)
    best = asdict(model.compute_optimal(budget, samples)) if budget else None
    binding = asdict(model.bottleneck(steps, width, samples)) if steps > 1 else None
    title = f"Random features, a = {a:g}, b = {b:g}"
    losses = {"test": curve.test.tolist(), "train": curve.train.tolist()}
    if chart is not None:
        from steelyard.runs.charts import loss_curves

        lines = {name: (curve.steps.tolist(), loss) for name, loss in losses.items()}
        words = {"x_title": "Steps", "y_title": "Mean squared error"}
        save_chart(loss_curves(lines, title, log_x=True, **words), chart)
    if json:
        value = {
            "steps": curve.steps,
            **{f"{name}_loss": loss for name, loss in losses.items()},
            "truncation": curve.truncation,
            "exponents": asdict(model.exponents()),
            "slopes": binding,
            "compute_optimal": best,
        }
        print(dump(value))
    else:
        theory_page(title, model, curve, binding, best).print()
