"""The verbs about runs of several lengths: what a study costs, and which schedule to run."""

import csv
import io
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from steelyard import units
from steelyard.cli.following import say_next
from steelyard.cli.laws.options import FLAG, MANY, LawOptions, dump, known_inputs, numbers
from steelyard.errors import ConfigError
from steelyard.files import write_bytes
from steelyard.runs.report import Column, Report, Section, Table, Text

if TYPE_CHECKING:
    from steelyard.laws.decisions.best_schedule import BestSchedule
    from steelyard.laws.decisions.study import StudyPlan
    from steelyard.laws.fitting.estimate import Estimate
    from steelyard.laws.fitting.fitted import Fit
    from steelyard.laws.forms.schedules.curves import Curve
    from steelyard.laws.forms.schedules.schedule_rates import LearningRates

__all__ = ["schedule", "study"]

_SHOWN = 11


def study(
    *,
    sizes: str,
    ratios: str = "10,20,30",
    cooldown: float = 0.2,
    method: Literal["cheapest", "branch", "cosine"] = "cheapest",
    at: Annotated[tuple[str, ...], MANY] = (),
    width: float = 0.0,
    law: LawOptions | None = None,
    json: Annotated[bool, FLAG] = False,
) -> None:
    """Plan a scaling study: one trunk per size with cooldowns, or the cheapest for an interval.

    Example: steelyard laws study --sizes 33M,110M,360M --ratios 10,20,30

    Args:
        sizes: model sizes, such as 33M,110M,360M.
        ratios: tokens per parameter of each size.
        cooldown: part of every length that cools down, 0..1.
        method: branch for cooldowns from one trunk, cosine for a run per length; cheapest branches
            wherever the cooldowns fit. Only cheapest with --width.
        at: run whose loss is to be forecast, parameters=3B tokens=60B; with --width.
        width: wanted width of that forecast's 80 % interval, as a fraction of the loss; sizes and
            ratios are then chosen from those given.
        law: a law already roughly known, for --width.
        json: print JSON instead of a table.
    """
    from steelyard.laws.decisions.study import cheapest_study, plan_study

    models = [units.parse(item, "parameter", where="--sizes") for item in _items(sizes)]
    lengths = [units.parse(item, "", where="--ratios") for item in _items(ratios)]
    if bool(at) != bool(width) or (width and method != "cheapest"):
        raise ConfigError(
            "--width needs --at, and --at needs --width; both go with --method cheapest",
            hint="such as --at parameters=3B tokens=60B --width 0.05 --published besiroglu2024",
        )
    if width:
        asked = (law or LawOptions()).law()
        run = numbers(at, "--at")
        known_inputs(run, asked, "--at")
        lacking = [name for name in ("parameters", "tokens") if name not in run]
        if lacking:
            raise ConfigError(f"--at lacks {lacking[0]}", hint="--at parameters=3B tokens=60B")
        plan = cheapest_study(
            asked, run["parameters"], run["tokens"], width, models, lengths, cooldown=cooldown
        )
    else:
        plan = plan_study(models, lengths, cooldown=cooldown, method=method)
    if json:
        known = {"flops": plan.flops, "cosine_flops": plan.cosine_flops, "ratio": plan.ratio}
        print(dump(known | {"sizes": [asdict(item) for item in plan.sizes]}))
        return
    _study_page(plan, cooldown).print()
    say_next("plan", "train", "--budget", f"{plan.flops:.3g}FLOP", "--cluster", "this-machine")


def schedule(
    file: Path,
    *,
    steps: int,
    model: str = "",
    like: str = "",
    warmup: int = 0,
    peak: float = 0.0,
    final: float | None = None,
    predict: Literal["best", "constant", "cosine", "linear", "1-sqrt"] = "best",
    cooldown: float = 0.2,
    level: float = 0.8,
    bootstraps: int = 30,
    seed: int = 0,
    out: Path | None = None,
    json: Annotated[bool, FLAG] = False,
) -> None:
    """Find the learning-rate schedule of least final loss, or predict the loss under one.

    Example: steelyard laws schedule curves.csv --steps 24000 --warmup 2160 --out schedule.csv

    Args:
        file: CSV, Parquet or JSON lines of loss curves with the columns schedule, step, lr, loss,
            and model where there are several.
        steps: length of the run, warm-up included.
        model: which model's curves, where the file holds several.
        like: another model of the file with more curves, which lends all but the floor of its law.
        warmup: steps of linear rise before the first row of every curve, and of the run asked for.
        peak: highest rate; that of the curves unless given.
        final: last rate as a fraction of the peak; for best the lowest of the curves, for cosine
            0.1, else 0.
        predict: best searches all schedules that never rise after the warm-up; the others predict
            the loss under one of that name, linear and 1-sqrt being cooldowns.
        cooldown: part of the run that cools down, for linear and 1-sqrt.
        level: probability that the final loss falls into the interval, 0..1.
        bootstraps: resampled fits for the interval.
        seed: seed of the resampling.
        out: CSV file for the rate of every step.
        json: print JSON instead of a table.
    """
    from steelyard.laws.decisions.best_schedule import best_schedule
    from steelyard.laws.fitting.bootstrap import Bootstrap
    from steelyard.laws.forms.schedules.curves import fit_curves, predict_curve

    if bootstraps < 2 or steps < 2 or peak < 0:
        raise ConfigError("--bootstraps and --steps are at least 2, --peak is not negative")
    draws = Bootstrap(count=bootstraps, seed=seed)
    own, lender = _chosen(file, model, like, warmup)
    prior = fit_curves(lender, bootstrap=draws) if lender else "published"
    fitted = fit_curves(own, prior=prior, bootstrap=draws, source=str(file))
    top = peak or max(curve.rates.peak for curve in own)
    found = None
    if predict == "best":
        lowest = min(float(curve.rates.at(curve.step).min()) for curve in own) / top
        end = min(lowest, 0.99) if final is None else final
        found = best_schedule(fitted, steps, top, warmup=warmup, final=end)
        rates = found.rates
    else:
        rates = _named(predict, steps, top, warmup, cooldown, final)
    said = predict_curve(fitted, rates, [steps - 1], level).first
    if out is not None:
        write_bytes(out, _rates_csv(rates))
    if json:
        print(dump(_plain(fitted, rates, said, found)))
        return
    _schedule_page(fitted, rates, said, found, level).print()
    if predict == "best" and out is None:
        say_next("laws", "schedule", file, "--steps", str(steps), "--out", "schedule.csv")


def _items(text: str) -> list[str]:
    """Split a list at its commas."""
    return [item.strip() for item in text.split(",") if item.strip()]


def _chosen(file: Path, model: str, like: str, warmup: int) -> "tuple[list[Curve], list[Curve]]":
    """Return the curves of the model asked for, and of the one that lends its law."""
    from steelyard.laws.decisions.curve_table import read_curves

    models = read_curves(file, warmup=warmup)
    if not model and len(models) > 1:
        raise ConfigError(
            f"{file} holds curves of {len(models)} models", hint=f"--model {' or '.join(models)}"
        )
    wanted = model or next(iter(models), "")
    for option, name in (("--model", wanted), ("--like", like)):
        if (name or option == "--model") and name not in models:
            raise ConfigError(
                f"{option} {name!r} has no curve in {file}",
                hint=f"models there: {', '.join(models) or 'none'}",
            )
    if like and like == wanted:
        raise ConfigError("--like names the model itself", hint="leave it out")
    return list(models[wanted].values()), list(models[like].values()) if like else []


def _named(
    name: str, steps: int, peak: float, warmup: int, cooldown: float, final: float | None
) -> "LearningRates":
    """Build the schedule of a name."""
    from steelyard.laws.forms.schedules.schedule_rates import LearningRates

    if name == "constant":
        return LearningRates.constant(steps, peak, warmup)
    if name == "cosine":
        return LearningRates.cosine(steps, peak, warmup, 0.1 if final is None else final)
    shape: Literal["linear", "1-sqrt"] = "linear" if name == "linear" else "1-sqrt"
    return LearningRates.trapezoid(steps, peak, warmup, cooldown, shape, final or 0.0)


def _rates_csv(rates: "LearningRates") -> bytes:
    """Write one line per step, with the rate as a fraction of the peak beside it."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(("step", "lr", "multiplier"))
    lines.writerows(
        (step, float(rate), float(rate) / rates.peak) for step, rate in enumerate(rates.rates)
    )
    return text.getvalue().encode()


def _places(rates: "LearningRates") -> list[tuple[int, float]]:
    """Pick steps at even distances with their rates, first and last included."""
    at = sorted({round(index * (rates.steps - 1) / (_SHOWN - 1)) for index in range(_SHOWN)})
    return [(step, float(rates.rates[step])) for step in at]


def _plain(
    fitted: "Fit", rates: "LearningRates", said: "Estimate", found: "BestSchedule | None"
) -> dict[str, Any]:
    """Return what the page says as plain values."""
    plain: dict[str, Any] = {
        "loss": asdict(said),
        "rates": [{"step": step, "lr": rate} for step, rate in _places(rates)],
        "drift": fitted.drift,
        "drift_source": fitted.drift_source,
        "noise": fitted.noise,
        "params": fitted.params,
    }
    if found:
        plain |= {
            "best_rival": found.best_rival,
            "gain_under_the_law": found.gain,
            "rivals": found.rivals,
            "lowest_fitted": found.lowest_fitted,
        }
    return plain


def _study_page(plan: "StudyPlan", cooldown: float) -> Report:
    """Show what every size trains and costs."""
    rows: list[list[Any]] = [
        [
            units.pretty(size.parameters, "parameter"),
            size.method,
            ", ".join(units.pretty(branch.length, "token") for branch in size.branches),
            units.pretty(size.trunk_tokens, "token") if size.trunk_tokens else "",
            units.pretty(size.flops, "FLOP"),
            f"{size.flops / size.cosine_flops:.0%}",
        ]
        for size in plan.sizes
    ]
    heads = [Column("size"), Column("method"), Column("lengths")]
    heads += [Column(word, align="right") for word in ("trunk", "compute", "of cosine runs")]
    words = (
        f"The study costs {units.pretty(plan.flops, 'FLOP')}, {plan.ratio:.0%} of one cosine run "
        f"per length. The last {cooldown:.0%} of every length cool down; what comes before is "
        f"the trunk, trained once per size up to the last start of a cooldown."
    )
    return _report("Study", "Runs", heads, rows, words)


def _schedule_page(
    fitted: "Fit",
    rates: "LearningRates",
    said: "Estimate",
    found: "BestSchedule | None",
    level: float,
) -> Report:
    """Show the rates at even distances, the final loss and, for a search, what it beats."""
    rows = [[f"{step}", f"{rate:.3g}", f"{rate / rates.peak:.3f}"] for step, rate in _places(rates)]
    heads = [Column(word, align="right") for word in ("step", "learning rate", "of the peak")]
    notes = [
        f"final loss {said.value:.4f} ({said.low:.4f} to {said.high:.4f}, {level:.0%})",
        f"where no curve had these rates, the law is taken to err by {fitted.drift:.0%} of the "
        f"change it predicts ("
        + ("by leaving whole curves out)" if fitted.drift_source == "holdout" else "assumed)"),
    ]
    if found:
        gain = (
            f"under the law {found.gain:.4f} below the best of cosine, linear and 1-sqrt "
            f"({found.best_rival})"
        )
        unsure = "; the law errs by more than so little, so run both"
        notes.append(gain + (unsure if found.gain < said.high - said.value else ""))
        if rates.rates[-1] < found.lowest_fitted * (1 - 1e-9):
            notes.append(
                f"it ends below {found.lowest_fitted:.3g}, the lowest rate of the curves, where "
                f"the law is extrapolated"
            )
    return _report("Schedule", "Rates", heads, rows, "\n".join(f"- {note}" for note in notes))


def _report(
    title: str, heading: str, heads: list[Column], rows: list[list[Any]], words: str
) -> Report:
    """Return a page of one table with words below it."""
    return Report(title, "", [Section(heading, [Table(heads, rows, ""), Text(words)])])
