"""How good the quickstart's loss forecasts are, over stored ladders of several texts and seeds.

Every ladder of `ladder_points.csv` (trained by `_ladders.py`) is fitted from its rungs alone; its
larger run is then compared with what each forecaster said. The table shows them side by side: the
forms weighed by what they foresaw, as the quickstart does, each form alone, among them the simplest
rule, the loss of the largest rung's run.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from benchmarks.common import Check
from benchmarks.weigh._ladders import FRESH, SHORT, LadderRun, read_ladders

from steelyard.errors import DataError
from steelyard.weigh.forecast import loss_forecasts

PAPER: list[str] = []

_LADDERS = 20
_QUICK_LADDERS = 6
_OWN = "quickstart"


@dataclass(frozen=True, slots=True)
class _Score:
    """How one forecaster did: relative errors, relative half-widths, and intervals that held."""

    errors: list[float]
    half_widths: list[float]
    held: list[bool]

    @property
    def error(self) -> float:
        """Median of the absolute relative errors."""
        return median(abs(error) for error in self.errors)

    @property
    def bias(self) -> float:
        """Median of the signed relative errors."""
        return median(self.errors)

    @property
    def half_width(self) -> float:
        """Median half-width of the intervals over the measured loss."""
        return median(self.half_widths)

    @property
    def coverage(self) -> float:
        """Share of the intervals that held the measured loss."""
        return float(np.mean(self.held))


def run(quick: bool) -> list[Check]:
    """Score every forecaster on every stored ladder."""
    ladders = read_ladders()
    if not ladders:
        raise DataError(
            "no ladder is stored",
            hint="train them: python -m benchmarks.weigh._ladders --out FOLDER",
        )
    some = ladders[:_QUICK_LADDERS] if quick else ladders
    scores = _score(some)
    _print(scores, some)
    own = scores[_OWN]
    return [
        Check("stored ladders", len(ladders), _LADDERS, "higher"),
        Check("median error of the loss", own.error, 0.02, "lower"),
        Check("losses within 2 %", float(np.mean(np.abs(own.errors) <= 0.02)), 0.8, "higher"),
        Check("80 % intervals hold at least", own.coverage, 0.7, "higher"),
        Check("80 % intervals hold at most", own.coverage, 0.9, "lower"),
        Check("median half-width over median error", own.half_width / own.error, 2.5, "lower"),
        *_untuned(FRESH, "fresh"),
        *_untuned(SHORT, "shorter runs"),
    ]


def _untuned(points: Path, called: str) -> list[Check]:
    """Score ladders of other texts and seeds, which no setting was chosen on."""
    ladders = read_ladders(points)
    if not ladders:
        return []
    print(f"\nother texts and seeds, {called}:", end=" ")
    scores = _score(ladders)
    _print(scores, ladders)
    own = scores[_OWN]
    return [
        Check(f"{called}: ladders", len(ladders), _LADDERS, "higher"),
        Check(
            f"{called}: losses within 2 %",
            float(np.mean(np.abs(own.errors) <= 0.02)),
            0.8,
            "higher",
        ),
        Check(f"{called}: 80 % intervals hold at least", own.coverage, 0.7, "higher"),
        Check(f"{called}: 80 % intervals hold at most", own.coverage, 0.9, "lower"),
    ]


def _score(ladders: list[LadderRun]) -> dict[str, _Score]:
    """Let each forecaster see the rungs, and compare what it says with the larger run."""
    scores: dict[str, _Score] = {}
    for item in ladders:
        target = item.target
        found = loss_forecasts(item.points, float(target.parameters), float(target.tokens))
        for name, said in found.items():
            score = scores.setdefault(name or _OWN, _Score([], [], []))
            score.errors.append(said.value / target.loss - 1)
            score.half_widths.append((said.high - said.low) / 2 / target.loss)
            score.held.append(said.low <= target.loss <= said.high)
    return scores


def _print(scores: dict[str, _Score], ladders: list[LadderRun]) -> None:
    """Show every forecaster, then the quickstart's own by text."""
    print(f"{len(ladders)} ladders\n{'forecaster':20s} {'error':>7s} {'bias':>7s}", end=" ")
    print(f"{'half-width':>10s} {'held':>6s}")
    for name, score in scores.items():
        line = f"{name:20s} {score.error:7.2%} {score.bias:+7.2%}"
        if score.half_widths:
            line += f" {score.half_width:10.2%} {score.coverage:6.0%}"
        print(line)
    for text in sorted({item.text for item in ladders}):
        errors = [
            error
            for error, item in zip(scores[_OWN].errors, ladders, strict=True)
            if item.text == text
        ]
        print(f"{text:20s} " + " ".join(f"{error:+.2%}" for error in errors))
