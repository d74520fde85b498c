"""Places configurations of one model by context, accuracy and performance at equal resources."""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from steelyard.errors import ConfigError
from steelyard.nn.transformer import Transformer
from steelyard.plan.tradeoff.cells import Measured, MeasurePlan, QualityCell, SpeedCell
from steelyard.plan.tradeoff.configuration import Configuration
from steelyard.plan.tradeoff.running import Bench
from steelyard.plan.tradeoff.tasks import Encode
from steelyard.runs.progress import Advance
from steelyard.runs.stages import Stages

__all__ = ["measure"]


def measure(
    model: Transformer,
    configurations: Sequence[Configuration],
    plan: MeasurePlan,
    *,
    text: np.ndarray,
    encode: Encode,
    begins: np.ndarray,
    folder: Path,
    advance: Advance = lambda done, words: None,
) -> Measured:
    """Measure accuracy on questions with known answers, loss on text, and speed.

    Each cell is kept when it is done; a measurement that was killed goes on where it was. Rounds of
    speed run over all configurations in turn, each time in another order, so that what disturbs
    the machine for a while disturbs none of them alone.

    Args:
        model: a decoder as it was trained; `max_positions` is what it was trained for.
        configurations: the first is the baseline; names differ.
        plan: what is measured, and at which resources.
        text: int64 [N] tokens that the model was not trained on.
        encode: turns a string into tokens, without any that begin a text.
        begins: bool [V] tokens with which a new word begins.
        folder: keeps the cells.
        advance: told the share that is done.

    Returns:
        All cells.

    Raises:
        ConfigError: there is nothing to compare, names repeat, or a configuration does not fit the
            model.
        DataError: the text is too short, or a kept cell is corrupted.

    Source: Zeng et al. 2024 (arXiv 2405.11299), the three goals and their comparison at equal
        resources.
    """
    names = [item.name for item in configurations]
    if len(names) < 2 or len(set(map(_slug, names))) < len(names):
        raise ConfigError(
            f"{len(names)} configurations, {len(set(map(_slug, names)))} names",
            hint="give a baseline and others, with different names",
        )
    bench = Bench(model=model, text=text, encode=encode, begins=begins, plan=plan)
    key = {"model": fingerprint(model), "text": _hash(text), "plan": plan}
    stages = Stages(folder)
    jobs = len(names) * len(plan.seeds) + (len(names) + 1) * plan.rounds
    done = 0

    def tell(words: str) -> None:
        nonlocal done
        done += 1
        advance(done / jobs, words)

    speed: list[SpeedCell] = []
    for repeat, chosen in _turns(configurations, plan.rounds):
        speed.append(
            stages.run(
                f"speed-{_slug(chosen.name)}-{repeat}",
                key | {"chosen": chosen},
                SpeedCell,
                lambda chosen=chosen, repeat=repeat: bench.speed(chosen, repeat),
            )
        )
        tell(f"{chosen.name}: speed")
    quality: list[QualityCell] = []
    for chosen in configurations:
        for seed in plan.seeds:
            quality.append(
                stages.run(
                    f"quality-{_slug(chosen.name)}-{seed}",
                    key | {"chosen": chosen},
                    QualityCell,
                    lambda chosen=chosen, seed=seed: bench.quality(chosen, seed),
                )
            )
            tell(f"{chosen.name}: accuracy")
    return Measured(
        model=model.architecture,
        plan=plan,
        configurations=tuple(configurations),
        quality=tuple(quality),
        speed=tuple(speed),
    )


def fingerprint(model: Transformer) -> str:
    """Return a hash of a model's shape and weights."""
    found = hashlib.sha256(repr(model.architecture).encode())
    for name, item in sorted(model.state_dict().items()):
        found.update(f"{name} {tuple(item.shape)} {item.dtype}".encode())
        found.update(item.detach().contiguous().cpu().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _turns(configurations: Sequence[Configuration], rounds: int) -> list[tuple[int, Configuration]]:
    """Return the order of speed: the baseline twice a round, for the noise."""
    found = []
    for repeat in range(rounds):
        turn = [(repeat, item) for item in configurations]
        turn.append((rounds + repeat, configurations[0]))
        order = np.random.default_rng(repeat).permutation(len(turn))
        found += [turn[place] for place in order]
    return found


def _hash(text: np.ndarray) -> str:
    """Return a hash of tokens."""
    return hashlib.sha256(np.ascontiguousarray(text, dtype=np.int64).tobytes()).hexdigest()


def _slug(name: str) -> str:
    """Return a name for files."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
