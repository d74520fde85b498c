"""Places configurations of one model by context, accuracy and performance at equal resources."""

import hashlib
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from steelyard.errors import ConfigError
from steelyard.nn.transformer import Transformer
from steelyard.plan.tradeoff.cells import ClockName, Measured, MeasurePlan, QualityCell, SpeedCell
from steelyard.plan.tradeoff.configuration import Configuration
from steelyard.plan.tradeoff.running import Bench
from steelyard.plan.tradeoff.tasks import Encode
from steelyard.runs.progress import Advance
from steelyard.runs.stages import Stages

__all__ = ["measure"]

T = TypeVar("T")
_Jobs = Sequence[tuple[int, Configuration]]


def measure(
    model: Transformer,
    configurations: Sequence[Configuration],
    plan: MeasurePlan,
    *,
    text: np.ndarray,
    encode: Encode,
    begins: np.ndarray,
    folder: Path,
    clock: ClockName = "wall",
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
        clock: "processor" counts the seconds that processors spent on this process: what a machine
            that others use costs, whatever they do; for models on the CPU.
        advance: told the share that is done.

    Returns:
        All cells.

    Raises:
        ConfigError: there is nothing to compare, names repeat, a configuration does not fit the
            model, or the baseline answers nothing.
        DataError: the text is too short, or a kept cell is corrupted.

    Source: Zeng et al. 2024 (arXiv 2405.11299), the three goals and their comparison at equal
        resources.
    """
    _refuse_names(configurations)
    _refuse_clock(model, clock)
    bench = Bench(model=model, text=text, encode=encode, begins=begins, plan=plan, clock=clock)
    key = {"model": fingerprint(model), "text": _hash(text), "plan": plan}
    turns = _turns(configurations, plan.rounds)
    asked = [(seed, chosen) for chosen in configurations for seed in plan.seeds]
    own = len(plan.seeds)
    done = 0

    def cells(
        kind: type[T], what: str, work: Callable[[Configuration, int], T], jobs: _Jobs
    ) -> tuple[T, ...]:
        nonlocal done
        found = []
        for number, chosen in jobs:
            found.append(
                Stages(folder).run(
                    f"{what}-{_slug(chosen.name)}-{number}",
                    key | {"chosen": chosen} | ({"clock": clock} if kind is SpeedCell else {}),
                    kind,
                    partial(work, chosen, number),
                )
            )
            done += 1
            advance(done / (len(turns) + len(asked)), f"{chosen.name}: {what}")
        return tuple(found)

    # The baseline first: where it answers nothing, all that would follow says nothing.
    base = cells(QualityCell, "quality", bench.quality, asked[:own])
    _refuse_mute(base, plan)
    return Measured(
        model=model.architecture,
        plan=plan,
        configurations=tuple(configurations),
        clock=clock,
        speed=cells(SpeedCell, "speed", bench.speed, turns),
        quality=(*base, *cells(QualityCell, "quality", bench.quality, asked[own:])),
    )


def _refuse_mute(base: Sequence[QualityCell], plan: MeasurePlan) -> None:
    """Refuse a model that answers nothing at reference lengths."""
    places = [plan.lengths.index(length) for length in plan.reference]
    if not any(row[place] for cell in base for row in cell.accuracy.values() for place in places):
        raise ConfigError(
            f"{base[0].configuration} answers none of the questions at reference lengths",
            hint="give records in a form that the model knows, or shorter reference lengths",
        )


def _refuse_clock(model: Transformer, clock: ClockName) -> None:
    """Refuse a clock that does not see where the model works."""
    if clock == "processor" and model.embedding.weight.is_cuda:
        raise ConfigError("processor time says nothing of a GPU", hint="measure wall time")


def _refuse_names(configurations: Sequence[Configuration]) -> None:
    """Refuse what cannot be told apart, in tables or as files."""
    names = {_slug(item.name) for item in configurations}
    if len(configurations) < 2 or len(names) < len(configurations):
        raise ConfigError(
            f"{len(configurations)} configurations, {len(names)} names",
            hint="give a baseline and others, with different names",
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
