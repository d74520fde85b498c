"""Studies that benchmarks run themselves: cells on the study engine, kept beside the results.

A full study goes on where it was stopped, and what a finished one measured is kept in
`results/cells`, so that checks on it are computed anew without training. It is trained again when
its recipe or its tokens have changed since.
"""

import hashlib
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from benchmarks.train._own_text import VOCAB_SIZE, WORK
from numpy.typing import NDArray

from steelyard.catalog.architecture import Architecture
from steelyard.config import convert, to_plain
from steelyard.data.manifest import read_manifest
from steelyard.files import read_json, write_json
from steelyard.train import TrainConfig, TrainResult
from steelyard.train.batch_pilot import BatchPilot
from steelyard.train.study import CellOutcome, StudyRecipe, run_study

__all__ = ["OwnRun", "own_runs", "shape", "steps_to"]

_KEPT = Path(__file__).parents[1] / "results" / "cells"


@dataclass(frozen=True, kw_only=True)
class OwnRun:
    """What one cell measured.

    Attributes:
        folder: name of the cell in its study.
        is_trunk: whether it is a trunk.
        hidden_size: width of the model.
        parameters: parameters of the model.
        experts: experts of a layer that has some; 1 for a dense model.
        batch_size: sequences per step.
        tokens: tokens trained on.
        tokens_run: tokens that this cell trained itself.
        unique_tokens: tokens it had; 0 for all.
        pool: what it trained on; empty for the whole text.
        steps: steps of the run.
        learning_rate: peak rate.
        seed: seed of weights and order.
        loss: held-out loss at the end; infinite for a run that diverged.
        curve: (steps done, held-out loss) on its way.
        averages: the same of each average of the weights.
        noise: (step, sequences) of the noise scale where it was measured.
        updates: (steps done, updates made) where an adaptive batch was evaluated.
    """

    folder: str
    is_trunk: bool
    hidden_size: int
    parameters: int
    experts: int
    batch_size: int
    tokens: int
    tokens_run: int
    unique_tokens: int
    pool: str
    steps: int
    learning_rate: float
    seed: int
    loss: float
    curve: list[tuple[int, float]] = field(default_factory=list)
    averages: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    noise: list[tuple[int, float]] = field(default_factory=list)
    updates: list[tuple[int, int]] = field(default_factory=list)

    @property
    def best_curve(self) -> NDArray[np.float64]:
        """Steps done and the least loss of the weights and their averages there, [2, n]."""
        least = dict(self.curve)
        for pairs in self.averages.values():
            for step, loss in pairs:
                least[step] = min(least.get(step, np.inf), loss)
        return np.array(sorted(least.items()), dtype=np.float64).T


def shape(width: int, layers: int = 1, **changes: object) -> Architecture:
    """Return a decoder of heads of 16 and an MLP of 8/3 of the width."""
    plain: dict[str, object] = {
        "name": f"own-{width}x{layers}",
        "hidden_size": width,
        "num_layers": layers,
        "num_heads": width // 16,
        "num_kv_heads": width // 16,
        "head_dim": 16,
        "intermediate_size": -(-width * 8 // 3 // 32) * 32,
        "vocab_size": VOCAB_SIZE,
        "max_positions": 64,
    }
    return convert(plain | changes, Architecture, where="shape")


def own_runs(name: str, recipe: StudyRecipe, data: Path, *, quick: bool = False) -> list[OwnRun]:
    """Train a study, or return what an earlier call kept of it.

    Args:
        name: of its table in `results/cells`.
        recipe: the study.
        data: folder of token shards, or of pools of them.
        quick: train nothing.

    Returns:
        Its runs, trunks last; none where nothing is kept and nothing may be trained.
    """
    # Threads and checkpoints change no result.
    alike = replace(recipe, train=replace(recipe.train, threads=0, checkpoint_every=0))
    tokens = _tokens(recipe, data)
    path = _KEPT / f"{name}.json"
    if path.exists():
        kept = read_json(path)
        # A field that came later than the table had its default.
        known = convert(kept["recipe"], StudyRecipe, where=str(path))
        if known == alike and kept["tokens"] == tokens:
            return [convert(item, OwnRun, where=str(path)) for item in kept["runs"]]
    if quick:
        print(f"  no kept runs of {name} on these tokens: a full run trains them")
        return []
    what = {"recipe": to_plain(alike), "tokens": tokens}
    plain = msgspec.json.encode(what, order="deterministic")
    folder = WORK / f"{name}-{hashlib.sha256(plain).hexdigest()[:16]}"
    runs = _train(recipe, data, folder)
    write_json(path, {**what, "runs": to_plain(runs)})
    shutil.rmtree(folder)
    return runs


def _train(recipe: StudyRecipe, data: Path, folder: Path) -> list[OwnRun]:
    """Run a study to its end."""
    found = run_study(recipe, data, folder)
    print(
        f"  {len(found.cells)} runs in {found.wall_s:.0f} s, forecast {found.forecast.value:.0f} "
        f"[{found.forecast.low:.0f}, {found.forecast.high:.0f}]"
    )
    return [_own(item) for item in (*found.cells, *found.trunks)]


def _own(item: CellOutcome) -> OwnRun:
    """Keep of a cell what checks need."""
    cell, result = item.cell, item.result
    config = cell.config
    noise = []
    if result is not None:
        for name, report in result.reports.items():
            if name.startswith("noise-scale"):
                noise = [(step, value) for step, value in report["curve"] if value is not None]
    return OwnRun(
        folder=cell.folder,
        is_trunk=cell.is_trunk,
        hidden_size=config.architecture.hidden_size,
        parameters=result.parameters if result else 0,
        experts=config.architecture.num_experts or 1,
        batch_size=config.batch_size,
        tokens=config.steps * config.tokens_per_step,
        tokens_run=cell.steps * config.tokens_per_step,
        unique_tokens=config.unique_tokens,
        pool=cell.pool,
        steps=config.steps,
        learning_rate=config.learning_rate,
        seed=config.seed,
        loss=result.eval_loss if result else float("inf"),
        curve=_rounded(result.eval_losses) if result else [],
        averages={
            name: _rounded(pairs)
            for name, pairs in (result.average_losses if result else {}).items()
        },
        noise=[(step, float(f"{value:.4g}")) for step, value in noise],
        updates=_updates(config, result) if result and config.adaptive_batch else [],
    )


def _updates(config: TrainConfig, result: TrainResult) -> list[tuple[int, int]]:
    """Count the updates of an adaptive run up to each evaluation, from when its batch changed."""
    report: dict[str, Any] = result.reports["adaptive-batch"]
    pilot, changes = BatchPilot(config), dict(report["batches"])
    found, step, updates = [], 0, 0
    while step < config.steps:
        taken, updates = pilot.count(step), updates + 1
        pilot.multiple = changes.get(step, pilot.multiple)
        step += taken
        if step % config.eval_every == 0 or step == config.steps:
            found.append((step, updates))
    assert updates == report["updates"], (updates, report["updates"])
    return found


def _rounded(pairs: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """Round losses, for smaller tables."""
    return [(step, round(loss, 6)) for step, loss in pairs]


def _tokens(recipe: StudyRecipe, data: Path) -> str:
    """Return a hash of the tokens that a study trains on."""
    folders = [data / pool for pool in recipe.pools] or [data]
    shards = [[part.sha256 for part in read_manifest(item).train] for item in folders]
    return hashlib.sha256(msgspec.json.encode(shards)).hexdigest()[:16]


def steps_to(run: OwnRun, target: float) -> float:
    """Return the steps after which a run's loss first reaches a target, or infinity.

    Args:
        run: a run evaluated on its way, with averages or without.
        target: held-out loss.

    Returns:
        Steps, interpolated in their logarithm.
    """
    if not run.curve:
        return float("inf")
    steps, losses = run.best_curve
    below = np.flatnonzero(losses <= target)
    if not len(below):
        return float("inf")
    at = int(below[0])
    if at == 0:
        return float(steps[0])
    share = (losses[at - 1] - target) / (losses[at - 1] - losses[at])
    return float(np.exp(np.log(steps[at - 1]) + share * np.log(steps[at] / steps[at - 1])))
