"""What a scaling study costs: a run per length, or cooldowns from one trunk per size."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NoReturn

import numpy as np

from steelyard.errors import ConfigError, InfeasibleError
from steelyard.laws.decisions.branches import Branch, trained_in_all
from steelyard.laws.fitting.estimate import normal
from steelyard.laws.fitting.fitted import Fit
from steelyard.laws.fitting.terms import Array

__all__ = ["SizeStudy", "StudyPlan", "branch_tokens", "cheapest_study", "plan_study"]

Method = Literal["cosine", "branch"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeStudy:
    """All lengths of one model size.

    Attributes:
        parameters: model size N.
        method: "branch" for one trunk with cooldowns, "cosine" for a run per length.
        branches: one per length, ascending, in tokens.
        flops_per_token: training FLOP per token of this size.
    """

    parameters: float
    method: Method
    branches: tuple[Branch[float], ...]
    flops_per_token: float

    @property
    def trunk_tokens(self) -> float:
        """Length of the constant-rate run; 0 for cosine."""
        return max(branch.start for branch in self.branches)

    @property
    def flops(self) -> float:
        """Training FLOP of the trunk and all branches."""
        return self.flops_per_token * trained_in_all(self.branches)

    @property
    def cosine_flops(self) -> float:
        """Training FLOP of one run per length."""
        return self.flops_per_token * sum(branch.length for branch in self.branches)

    @property
    def replayed_flops(self) -> float:
        """FLOP spent because a branch found no checkpoint where it starts."""
        return self.flops_per_token * sum(branch.replayed for branch in self.branches)


@dataclass(frozen=True, slots=True)
class StudyPlan:
    """A scaling study, size by size.

    Attributes:
        sizes: one study per model size, ascending.
    """

    sizes: tuple[SizeStudy, ...]

    @property
    def flops(self) -> float:
        """Training FLOP of the whole study."""
        return sum(size.flops for size in self.sizes)

    @property
    def cosine_flops(self) -> float:
        """Training FLOP of the same study with one cosine run per cell."""
        return sum(size.cosine_flops for size in self.sizes)

    @property
    def ratio(self) -> float:
        """FLOP over that of cosine runs."""
        return self.flops / self.cosine_flops

    def cells(self) -> tuple[Array, Array]:
        """Return model sizes and token counts of every annealed loss the study yields, [n] each."""
        rows = [(size.parameters, branch.length) for size in self.sizes for branch in size.branches]
        sizes, tokens = np.array(rows, dtype=np.float64).T
        return sizes, tokens

    def hours(self, flops_per_s: float) -> float:
        """Return device hours at an achieved speed, FLOP per second."""
        if not flops_per_s > 0:
            raise ConfigError(f"a speed of {flops_per_s:g} FLOP/s must be positive")
        return self.flops / flops_per_s / 3600

    def usd(self, flops_per_s: float, usd_per_hour: float) -> float:
        """Return the price at an achieved speed and an hourly price of the device."""
        return self.hours(flops_per_s) * usd_per_hour


def branch_tokens(tokens: Sequence[float], cooldown: float) -> float:
    """Count the tokens a trunk with cooldowns trains: D_k (1 - c) + c sum D_i.

    Args:
        tokens: lengths D_1 ... D_k of one size, positive.
        cooldown: fraction c of each length that cools down, 0..1; 0 for a trunk with averaged
            weights.

    Returns:
        Tokens; one run per length would train their sum.

    Raises:
        ConfigError: no lengths, or a cooldown longer than the run.

    Source: Haegele et al. 2024 (arXiv 2405.18392), section 5.
    """
    if not tokens or min(tokens) <= 0 or not 0 <= cooldown <= 1:
        raise ConfigError(
            f"lengths {tuple(tokens)} with a cooldown of {cooldown:g}: lengths are positive and "
            f"the cooldown a fraction, 0..1"
        )
    return trained_in_all([Branch(length, length * (1 - cooldown)) for length in tokens])


def plan_study(
    sizes: Sequence[float],
    ratios: Sequence[float],
    *,
    cooldown: float = 0.2,
    method: Method | Literal["cheapest"] = "cheapest",
    flops_per_token: Callable[[float], float] | None = None,
    min_cooldown_tokens: float = 0.0,
    warmup_tokens: float = 0.0,
    checkpoint_tokens: float = 0.0,
) -> StudyPlan:
    """Plan the runs for every model size and tokens-per-parameter ratio at the least cost.

    Args:
        sizes: model sizes N, positive, different.
        ratios: tokens per parameter D / N, positive, different.
        cooldown: fraction of each length that cools down, 0..1.
        method: "branch" or "cosine" for all sizes; "cheapest" branches, which never costs more,
            wherever the cooldowns fit.
        flops_per_token: training FLOP per token of a size, such as a count with attention and
            embeddings; None for 6 N.
        min_cooldown_tokens: no cooldown is shorter; fewer than about 50 steps do not anneal.
        warmup_tokens: no branch starts before.
        checkpoint_tokens: distance of the trunk's checkpoints; 0 when it saves wherever a branch
            starts. A branch between two starts from the earlier one and trains the tokens between
            again.

    Returns:
        The plan; trunks are counted once, up to the last start of a cooldown.

    Raises:
        ConfigError: a size, ratio or cooldown is out of range, or a wanted branch has no room for
            its cooldown.

    Source: Haegele et al. 2024 (arXiv 2405.18392), section 5: cosine sum D_i, trunk D_k (1 - c) + c
        sum D_i.
    """
    for name, values in (("sizes", sizes), ("ratios", ratios)):
        if (
            not values
            or not all(np.isfinite(value) and value > 0 for value in values)
            or len(set(values)) != len(values)
        ):
            raise ConfigError(
                f"{name} {tuple(values)} must be positive, finite and different",
                hint="give at least one",
            )
    if not 0 <= cooldown <= 1 or min(min_cooldown_tokens, warmup_tokens, checkpoint_tokens) < 0:
        raise ConfigError(
            f"a cooldown of {cooldown:g} must be a fraction of the run, 0..1, and token counts "
            f"not negative"
        )
    per_token = flops_per_token or (lambda parameters: 6 * parameters)
    rows = []
    for size in sorted(sizes):
        lengths = [size * ratio for ratio in sorted(ratios)]
        starts = [length - max(cooldown * length, min_cooldown_tokens) for length in lengths]
        fits = min(starts) >= warmup_tokens
        if method == "branch" and not fits:
            _refuse(
                size, lengths[int(np.argmin(starts))], cooldown, min_cooldown_tokens, warmup_tokens
            )
        chosen: Method = "cosine" if method == "cosine" or not fits else "branch"
        rows.append(
            _size_study(
                size,
                lengths,
                starts if chosen == "branch" else None,
                checkpoint_tokens,
                per_token(size),
            )
        )
    return StudyPlan(tuple(rows))


def _refuse(
    size: float, length: float, cooldown: float, shortest: float, warmup: float
) -> NoReturn:
    """Say which length has no room for its cooldown."""
    raise ConfigError(
        f"size {size:.4g}: a cooldown of {max(cooldown * length, shortest):.4g} tokens does not "
        f"fit into a run of {length:.4g} tokens "
        f"behind {warmup:.4g} tokens of warm-up",
        hint="shorten the cooldown or the warm-up, leave the shortest length out, or let "
        'method="cheapest" run it as cosine',
    )


def _size_study(
    size: float,
    lengths: Sequence[float],
    starts: Sequence[float] | None,
    apart: float,
    per_token: float,
) -> SizeStudy:
    """Place the cooldowns of one size, or a run per length where there are no starts."""
    # The end of the trunk is always a checkpoint, whatever their distance: nothing is replayed
    # there.
    last = max(starts) if starts else 0.0
    at = starts or [0.0] * len(lengths)
    branches = tuple(
        Branch(length, start, start % apart if apart and start != last else 0.0)
        for length, start in zip(lengths, at, strict=True)
    )
    return SizeStudy(
        parameters=size,
        method="branch" if starts else "cosine",
        branches=branches,
        flops_per_token=per_token,
    )


def cheapest_study(
    fit: Fit,
    parameters: float,
    tokens: float,
    width: float,
    sizes: Sequence[float],
    ratios: Sequence[float],
    *,
    cooldown: float = 0.2,
    level: float = 0.8,
) -> StudyPlan:
    """Choose the cheapest study whose fit would forecast a target's loss within an interval width.

    Every choice of sizes and ratios is weighed by the covariance a fit of its cells would have,
    linearized around a law that is already roughly known, such as a published one.

    Args:
        fit: fit of loss against "parameters" and "tokens"; its noise is that of one run, at least
            0.1 % is assumed.
        parameters: target model size.
        tokens: target token count.
        width: wanted width of the interval of the target's expected loss, as a fraction of it.
        sizes: model sizes to choose from, up to 8.
        ratios: tokens-per-parameter ratios to choose from, up to 8.
        cooldown: fraction of each length that cools down.
        level: probability inside the interval, 0..1.

    Returns:
        The plan of least FLOP among those narrow enough.

    Raises:
        ConfigError: the law has other inputs, or there is too much to choose from.
        InfeasibleError: even all sizes and ratios give a wider interval; the message says how wide.
    """
    if (
        set(fit.law.inputs) != {"parameters", "tokens"}
        or max(len(sizes), len(ratios)) > 8
        or not width > 0
        or not 0 < level < 1
    ):
        raise ConfigError(
            f"law {fit.law.name} with {len(sizes)} sizes, {len(ratios)} ratios and width "
            f"{width:g}: a study is chosen for a law of "
            "parameters and tokens, from up to 8 sizes and 8 ratios",
            hint="give a fit such as of chinchilla(), a positive width and a level between 0 and 1",
        )
    plan_study(sizes, ratios, cooldown=cooldown)
    precision = _Precision(fit, np.sort(sizes), np.sort(ratios), parameters, tokens, level)
    # More cells only narrow the interval, so the whole grid tells whether the goal can be met.
    best = precision.width(tuple(range(len(sizes))), tuple(range(len(ratios))))
    if best > width:
        raise InfeasibleError(
            f"all {len(sizes) * len(ratios)} cells give an interval of {best:.3g} of the loss, "
            f"wider than {width:.3g}",
            hint="offer larger sizes or ratios, or repeat runs to lower the noise",
        )
    choices = [
        (rows, columns) for rows in _subsets(len(sizes)) for columns in _subsets(len(ratios))
    ]
    # At most 247 x 247 choices: all are priced, and the first that is narrow enough is the
    # cheapest.
    choices.sort(key=lambda choice: precision.cost(*choice, cooldown))
    rows, columns = next(choice for choice in choices if precision.width(*choice) <= width)
    return plan_study(
        precision.sizes[list(rows)].tolist(),
        precision.ratios[list(columns)].tolist(),
        cooldown=cooldown,
    )


def _subsets(size: int) -> list[tuple[int, ...]]:
    """List all choices of at least two of `size` things, or of the only one."""
    return [
        some for count in range(min(2, size), size + 1) for some in combinations(range(size), count)
    ]


class _Precision:
    """The interval width of a target for any choice of cells, from the slopes of a law."""

    def __init__(
        self, fit: Fit, sizes: Array, ratios: Array, parameters: float, tokens: float, level: float
    ) -> None:
        self.sizes = sizes
        self.ratios = ratios
        cells = np.repeat(sizes, len(ratios)), np.outer(sizes, ratios).ravel()
        columns = {
            "parameters": np.append(cells[0], parameters),
            "tokens": np.append(cells[1], tokens),
        }
        slopes = fit.law.evaluate(fit.theta[None], columns)[1][0]
        self.cells = slopes[:, :-1].reshape(-1, len(sizes), len(ratios))
        self.target = slopes[:, -1]
        self.factor = 2 * normal(level) * max(fit.noise, 1e-3)

    def cost(self, rows: tuple[int, ...], columns: tuple[int, ...], cooldown: float) -> float:
        """Return the cost of branches at some sizes and ratios, in units of 6 FLOP."""
        return float((self.sizes[list(rows)] ** 2).sum()) * branch_tokens(
            self.ratios[list(columns)].tolist(), cooldown
        )

    def width(self, rows: tuple[int, ...], columns: tuple[int, ...]) -> float:
        """Return the width of the target's interval after fitting some cells."""
        cells = self.cells[:, list(rows)][:, :, list(columns)].reshape(len(self.target), -1)
        information = cells @ cells.T
        scale = np.sqrt(np.diag(information))
        # Scaled to a unit diagonal, the condition number tells degenerate choices, such as a single
        # ratio, from parameters of very different size.
        enough = cells.shape[1] >= 2 * len(self.target) and (scale > 0).all()
        if not enough or np.linalg.cond(information / np.outer(scale, scale)) > 1e12:
            return np.inf
        return self.factor * float(np.sqrt(self.target @ np.linalg.solve(information, self.target)))
