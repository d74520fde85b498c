"""The ladder: small models, their token counts, and the larger model that they are to forecast."""

from collections.abc import Mapping
from dataclasses import dataclass

from steelyard.catalog.architecture import Architecture
from steelyard.catalog.parameters import count_parameters
from steelyard.errors import InfeasibleError
from steelyard.train.study import resized

__all__ = [
    "BASE",
    "BATCH_SIZE",
    "COOLDOWN_FRACTION",
    "LEAST_SHAPES",
    "SEQUENCE_LENGTH",
    "VOCAB_SIZE",
    "Ladder",
    "design",
    "parameters",
    "probe_shapes",
    "rung_architecture",
]

VOCAB_SIZE = 1024
SEQUENCE_LENGTH = 128
BATCH_SIZE = 8
_HEAD_DIM = 32
_SHAPES = ((32, 2), (64, 2), (96, 3), (128, 4), (192, 5), (256, 6), (384, 7), (512, 8))
_RUNGS = 3
LEAST_SHAPES = _RUNGS + 1
"""Shapes whose step times a ladder needs: its rungs and the larger model."""

_BRANCH_FRACTIONS = (0.25, 0.4, 0.63, 1.0)
COOLDOWN_FRACTION = 0.2
_LADDER_SHARE = 0.35
_TARGET_SHARE = 0.30
_MIN_STEPS = 120


BASE = Architecture(
    name="rung",
    hidden_size=_HEAD_DIM,
    num_layers=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=_HEAD_DIM,
    # 8/3 of the width, not rounded: SwiGLU's three matrices then hold as many parameters as the two
    # of a plain MLP of four times the width.
    intermediate_size=_HEAD_DIM * 8 // 3,
    vocab_size=VOCAB_SIZE,
    max_positions=4 * SEQUENCE_LENGTH,
    tied_embeddings=True,
    source="steelyard ladder",
)
"""What all rungs share: RMSNorm, rotary positions, SwiGLU, tied embeddings."""


def rung_architecture(hidden_size: int, num_layers: int) -> Architecture:
    """Return the decoder of one rung."""
    return resized(BASE, hidden_size, num_layers)


@dataclass(frozen=True, kw_only=True, slots=True)
class Ladder:
    """What a quickstart trains.

    Attributes:
        rungs: (hidden_size, num_layers) of the small models, small to large.
        target: (hidden_size, num_layers) of the larger model.
        branch_steps: optimizer steps at which each rung is cooled down and measured.
        target_steps: optimizer steps of the larger model.
        expected_s: wall time of all rungs and the larger model, from the probed step times.
    """

    rungs: tuple[tuple[int, int], ...]
    target: tuple[int, int]
    branch_steps: tuple[int, ...]
    target_steps: int
    expected_s: float


def parameters(shape: tuple[int, int]) -> int:
    """Count the parameters of a rung, the tied table once."""
    return count_parameters(rung_architecture(*shape)).total


def _rounded(steps: float) -> int:
    """Round steps down to about two significant digits."""
    # Small noise of the probed times then leads to the same ladder.
    unit = 20 if steps < 400 else 100 if steps < 4000 else 1000
    return max(int(steps) // unit * unit, unit)


def design(
    step_time_s: Mapping[tuple[int, int], float], *, budget_s: float, max_tokens: int
) -> Ladder:
    """Choose the largest ladder whose training fits the time.

    Three neighbouring shapes are trained at four token counts each, off one constant-learning-rate
    trunk; the next shape up is the target, trained on as many tokens as the longest branch. A
    machine too slow for any ladder gets the smallest one, which then takes longer than asked;
    `expected_s` says how long.

    Args:
        step_time_s: probed seconds of one optimizer step, by (hidden_size, num_layers), small to
            large.
        budget_s: wall time of the whole quickstart; the ladder may use 35 % of it and the target 30
            %.
        max_tokens: tokens at hand; no branch sees one twice.

    Returns:
        The ladder with the largest target that still gets enough steps.

    Raises:
        InfeasibleError: there is too little text for the shortest runs.
    """
    limit = max_tokens // (BATCH_SIZE * SEQUENCE_LENGTH)
    if limit < _MIN_STEPS:
        need = _MIN_STEPS * BATCH_SIZE * SEQUENCE_LENGTH
        raise InfeasibleError(
            f"{max_tokens} training tokens are too few for a ladder: its shortest runs see {need}",
            hint="give more text with --text",
        )
    shapes = list(step_time_s)
    windows = [tuple(shapes[first : first + _RUNGS + 1]) for first in range(len(shapes) - _RUNGS)]
    ladders = [_ladder(window, step_time_s, budget_s=budget_s, limit=limit) for window in windows]
    trained = [
        item for item in ladders if item.expected_s <= budget_s * (_LADDER_SHARE + _TARGET_SHARE)
    ]
    # A model with fewer tokens than parameters would end far from its own optimum, where the law of
    # the smaller ones says little.
    enough = [
        item
        for item in trained
        if item.target_steps * BATCH_SIZE * SEQUENCE_LENGTH >= parameters(item.target)
    ]
    return (enough or ladders[:1])[-1]


def _ladder(
    shapes: tuple[tuple[int, int], ...],
    step_time_s: Mapping[tuple[int, int], float],
    *,
    budget_s: float,
    limit: int,
) -> Ladder:
    """Return a ladder of as many steps as time and text allow, at least the minimum."""
    # A branch adds only its cooldown to the trunk. The last one is the trunk's own end.
    branches = 1 - COOLDOWN_FRACTION + COOLDOWN_FRACTION * sum(_BRANCH_FRACTIONS)
    rungs_s = sum(step_time_s[shape] for shape in shapes[:-1]) * branches
    target_s = step_time_s[shapes[-1]]
    longest = max(
        _rounded(
            min(budget_s * _LADDER_SHARE / rungs_s, budget_s * _TARGET_SHARE / target_s, limit)
        ),
        _MIN_STEPS,
    )
    return Ladder(
        rungs=shapes[:-1],
        target=shapes[-1],
        branch_steps=tuple(int(longest * fraction) for fraction in _BRANCH_FRACTIONS),
        target_steps=longest,
        expected_s=longest * (rungs_s + target_s),
    )


def probe_shapes(minutes: float) -> tuple[tuple[int, int], ...]:
    """Return the shapes whose step time is worth probing: five, and more for longer jobs."""
    return _SHAPES[: 5 if minutes < 15 else 6 if minutes < 60 else len(_SHAPES)]
