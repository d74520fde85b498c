"""The law of tower sizes and pairs: entropy of the right document, each pair seen at most once.

With every pair seen once, no run can learn pairs by heart, and the end of a run is its best point:
nothing is stopped early. The learning rate follows from the width by one rule for all sizes. The
vector of a text has as many numbers as the widest tower: with fewer, wider ones would begin alike.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.common import Check
from benchmarks.retrieve._abstracts import Abstracts, quality
from benchmarks.retrieve._tower_runs import PairJob, Size, vectors_of

from steelyard.laws import fit, law_named, power_law

__all__ = ["Ladder", "Rung", "law_checks"]


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A tower size.

    Attributes:
        parameters: parameters of a tower without its token table.
        pairs: pairs that it saw, each once.
        entropies: contrastive entropy in nats of each seed.
    """

    parameters: int
    pairs: int
    entropies: tuple[float, ...]

    @property
    def entropy(self) -> float:
        """Mean over the seeds."""
        return float(np.mean(self.entropies))


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Sizes and shares of the pairs that towers are trained with.

    Attributes:
        widths: widths, ascending; the last is also how many numbers a text's vector has.
        layers: layers of all.
        repeated: widest of the towers that are trained `repeats` times, and on shares.
        steps: steps on all pairs.
        batch: pairs of a step.
        shares: shares of the pairs, below 1.
        repeats: seeds of each size that is repeated; larger towers have one.
        rate: learning rate at a width of 64; it falls as the width grows (Yang et al. 2022, arXiv
            2203.03466). Of .0005, .001, .002 and .004 the best were .004 at a width of 32 and
            .002 at 64, after 60 steps; at 128, .001 was better than .003 after 56.
    """

    widths: tuple[int, ...]
    layers: int
    repeated: int
    steps: int
    batch: int
    shares: tuple[float, ...] = ()
    repeats: int = 2
    rate: float = 2e-3

    def name(self, width: int, seed: int, share: float = 1.0) -> str:
        """Return the name of a job."""
        return f"ladder-{width}-{seed}" + (f"-{share:g}" if share < 1 else "")

    def rate_of(self, width: int) -> float:
        """Return the learning rate of a width."""
        return self.rate * 64 / width

    def size(self, width: int) -> Size:
        """Return the shape of a width."""
        return Size(self.layers, width, self.widths[-1])

    def jobs(self, folder: Path, papers: Abstracts) -> Iterator[PairJob]:
        """Yield the runs."""
        for width, seed, share in self._cells():
            size = self.size(width)
            yield PairJob(
                name=self.name(width, seed, share),
                folder=folder,
                papers=papers,
                queries=size,
                documents=size,
                steps=round(share * self.steps),
                batch=self.batch,
                share=share,
                rate=self.rate_of(width),
                clozes=None,
                seed=seed,
            )

    def rungs(self, folder: Path, papers: Abstracts) -> list[Rung]:
        """Return what the runs left, the sizes of all pairs first."""
        found: dict[tuple[float, int], list[float]] = {}
        for width, seed, share in self._cells():
            place = folder / self.name(width, seed, share)
            asked = vectors_of(place / "queries", papers.asked)
            documents = vectors_of(place / "documents", papers.texts)
            entropy = quality(papers, asked, documents).entropy
            found.setdefault((share, width), []).append(entropy)
        return [
            Rung(
                parameters=self.size(width).parameters(),
                pairs=round(share * self.steps) * self.batch,
                entropies=tuple(values),
            )
            for (share, width), values in sorted(
                found.items(), key=lambda item: (-item[0][0], item[0][1])
            )
        ]

    def _cells(self) -> Iterator[tuple[int, int, float]]:
        """Yield width, seed and share of each run."""
        for width in self.widths:
            # Large towers cost most of the time: they are trained once.
            is_repeated = width <= self.repeated
            for seed in range(self.repeats if is_repeated else 1):
                yield width, seed, 1.0
            for share in self.shares if is_repeated else ():
                yield width, 0, share


def law_checks(rungs: Sequence[Rung], *, is_full: bool) -> list[Check]:
    """Fit the law to all sizes, and without the largest, which it then predicts.

    Args:
        rungs: what `Ladder.rungs` returned.
        is_full: whether there are sizes enough for a law.

    Returns:
        Checks; of too few sizes only their order.
    """
    most = max(item.pairs for item in rungs)
    whole = [item for item in rungs if item.pairs == most]
    nats = np.array([item.entropy for item in whole])
    order = [Check("2 sizes out of order", float((np.diff(nats) >= 0).sum()), 0.0, "lower")]
    if not is_full:
        return order
    sizes = np.array([item.parameters for item in whole], np.float64)
    law = power_law("parameters")
    fitted = fit(law, {"parameters": sizes}, nats, prior=None)
    made = fitted.predict({"parameters": sizes}).value
    few = fit(law, {"parameters": sizes[:-1]}, nats[:-1], prior=None)
    ahead = few.predict({"parameters": sizes[-1:]}).first
    error = abs(ahead.value / nats[-1] - 1)
    for item, value in zip(whole, made, strict=True):
        spread = f"{min(item.entropies):.4f} to {max(item.entropies):.4f}"
        print(
            f"{item.parameters:10,} parameters: entropy {item.entropy:.4f} ({spread} of "
            f"{len(item.entropies)} seeds), law {value:.4f}"
        )
    params = fitted.params
    print(
        f"law {law.formula}: alpha {params['alpha']:.3f}, floor {params['E']:.3f}; largest "
        f"predicted {ahead.value:.4f} ({ahead.low:.4f} to {ahead.high:.4f})"
    )
    return [
        Check("2 R2 of the law of sizes", _explained(nats, made), 0.97, "higher"),
        Check("2 largest size, error of its entropy", error, 0.03, "lower"),
        *order,
        *_joint_checks(rungs),
    ]


def _joint_checks(rungs: Sequence[Rung]) -> list[Check]:
    """Fit the law of sizes and pairs together."""
    columns = {
        "parameters": np.array([item.parameters for item in rungs], np.float64),
        "pairs": np.array([item.pairs for item in rungs], np.float64),
    }
    nats = np.array([item.entropy for item in rungs])
    fitted = fit(law_named("dense_retrieval"), columns, nats, prior=None)
    made = fitted.predict(columns).value
    for item, value in zip(rungs, made, strict=True):
        print(
            f"{item.parameters:10,} parameters, {item.pairs:7,} pairs: entropy "
            f"{item.entropy:.4f}, joint law {value:.4f}"
        )
    return [Check("2 R2 of the law of sizes and pairs", _explained(nats, made), 0.97, "higher")]


def _explained(nats: np.ndarray, made: np.ndarray) -> float:
    """Return the share of the variance that a law explains."""
    return 1 - float(((nats - made) ** 2).sum() / ((nats - nats.mean()) ** 2).sum())
