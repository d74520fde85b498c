"""Retention policies: how much each cached token is worth, so that the least is released.

A policy decides per token, never per layer: a token is in the cache of all layers or of none, so a
released one can be computed again. Tokens keep their original positions.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from steelyard.errors import ConfigError

__all__ = ["H2O", "Adore", "Full", "RetentionPolicy", "Sinks", "TopK", "Window"]

Signal = Literal["none", "attention", "controller"]


class RetentionPolicy(Protocol):
    """What a bounded cache asks of a policy.

    Attributes:
        capacity: tokens kept between steps, m; 0 keeps all.
        rebuild: most released tokens computed again in a step, R.
        signal: what `scores` are: nothing, attention mass received so far, or a controller's
            scores.
    """

    @property
    def capacity(self) -> int:
        """Tokens kept between steps, 0 for all."""
        ...

    @property
    def rebuild(self) -> int:
        """Most tokens computed again in a step."""
        ...

    @property
    def signal(self) -> Signal:
        """What the scores are."""
        ...

    def priority(self, positions: np.ndarray, now: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Rank cached tokens; the lowest is released first.

        Args:
            positions: int64 [B, S] position of the token in each slot, -1 in an empty one.
            now: int64 [B] latest position of each request.
            scores: float32 [B, S] the signal, anything where it is "none".

        Returns:
            float32 [B, S]; infinity for tokens that are never released.
        """
        ...


class _KeepAll:
    """What policies without releases share."""

    __slots__ = ()

    def priority(self, positions: np.ndarray, now: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Rank all alike, infinitely: nothing is released."""
        del now, scores
        return np.full(positions.shape, np.inf, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Full(_KeepAll):
    """Keep every token."""

    capacity: int = 0
    rebuild: int = 0
    signal: Signal = "none"


@dataclass(frozen=True, slots=True)
class Window:
    """Keep the latest tokens.

    Attributes:
        capacity: tokens kept, m.
    """

    capacity: int
    rebuild: int = 0
    signal: Signal = "none"

    def __post_init__(self) -> None:
        """Refuse an empty window."""
        _check_capacity(self.capacity)

    def priority(self, positions: np.ndarray, now: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Rank by position."""
        del now, scores
        return positions.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Sinks:
    """Keep the first tokens, on which attention rests when nothing matters, and the latest ones.

    Attributes:
        capacity: tokens kept, m, sinks included.
        num_sinks: first tokens kept.
        renumber: turn the sinks' keys as if they stood right before the window, so that no distance
            exceeds `capacity`.

    Source: Xiao et al. 2024 (arXiv 2309.17453), section 3.2; with `renumber`, positions within the
        cache as there.
    """

    capacity: int
    num_sinks: int = 4
    renumber: bool = False
    rebuild: int = 0
    signal: Signal = "none"

    def __post_init__(self) -> None:
        """Refuse sinks that leave no window."""
        _check_capacity(self.capacity)
        _check_protected(self.num_sinks, self.capacity, "num_sinks")

    def priority(self, positions: np.ndarray, now: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Rank by position, the first tokens above all."""
        del now, scores
        return np.where(positions < self.num_sinks, np.inf, positions).astype(np.float32)


@dataclass(frozen=True, slots=True)
class H2O:
    """Keep the latest tokens and those that received most attention so far (heavy hitters).

    Attention is added up over heads and layers, because a token is kept or released as a whole.

    Attributes:
        capacity: tokens kept, m.
        recent: share of them that are simply the latest, in [0, 1).

    Source: Zhang et al. 2023 (arXiv 2306.14048), algorithm 1.
    """

    capacity: int
    recent: float = 0.5
    rebuild: int = 0
    signal: Signal = "attention"

    def __post_init__(self) -> None:
        """Refuse a share out of range."""
        _check_capacity(self.capacity)
        _check_share(self.recent)

    def priority(self, positions: np.ndarray, now: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Rank by attention received, the latest above all."""
        # New tokens have received little attention so far: ranked by it, they would leave at once.
        latest = positions > (now - max(1, round(self.recent * self.capacity)))[:, None]
        return np.where(latest, np.inf, scores).astype(np.float32)


@dataclass(frozen=True, slots=True)
class TopK(_KeepAll):
    """Keep every token and attend only to those with most attention.

    This is what bounded caches try to reach, at more than the cost of full attention: a first pass
    over all tokens ranks them by attention averaged over heads and layers, a second attends to the
    best.

    Attributes:
        attended: tokens attended besides the current one, K.

    Source: Zhang et al. 2024 (arXiv 2407.02328), section 2 (top-K attention as the target).
    """

    attended: int
    capacity: int = 0
    rebuild: int = 0
    signal: Signal = "attention"

    def __post_init__(self) -> None:
        """Refuse attending to nothing."""
        if self.attended < 1:
            raise ConfigError(f"attended is {self.attended}, but must be at least 1", hint="use 96")


@dataclass(frozen=True, slots=True)
class Adore:
    """Keep the tokens that a trained controller scores highest.

    Released tokens are computed again when it scores them higher than cached ones.

    Attributes:
        capacity: tokens kept, m.
        rebuild: most released tokens computed again in a step, R, below `capacity`.
        num_sinks: first tokens, never released.
        recent: share of the capacity that the latest tokens have for sure, in [0, 1).

    Source: Zhang et al. 2024 (arXiv 2407.02328), section 3.
    """

    capacity: int = 256
    rebuild: int = 8
    num_sinks: int = 4
    recent: float = 0.25
    signal: Signal = "controller"

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit into the capacity."""
        _check_capacity(self.capacity)
        _check_share(self.recent)
        _check_protected(
            self.num_sinks + round(self.recent * self.capacity),
            self.capacity,
            "num_sinks + recent * capacity",
        )
        if not 0 <= self.rebuild < self.capacity:
            raise ConfigError(
                f"rebuild is {self.rebuild}, but must be in [0, capacity = {self.capacity})",
                hint="use 8",
            )

    def priority(self, positions: np.ndarray, now: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Rank by score, the first and the latest tokens above all."""
        # Sinks take no part in the controller's training, so its scores of them mean nothing.
        kept = (positions < self.num_sinks) | (
            positions > (now - round(self.recent * self.capacity))[:, None]
        )
        return np.where(kept, np.inf, scores).astype(np.float32)


def _check_capacity(capacity: int) -> None:
    """Refuse a cache without room for one token."""
    if capacity < 1:
        raise ConfigError(f"capacity is {capacity}, but must be at least 1", hint="use 256")


def _check_share(recent: float) -> None:
    """Refuse a share out of range."""
    if not 0 <= recent < 1:
        raise ConfigError(
            f"recent is {recent}, but must be in [0, 1)", hint="it is a share of the capacity"
        )


def _check_protected(count: int, capacity: int, name: str) -> None:
    """Refuse more protected tokens than the cache holds."""
    if not 0 <= count < capacity:
        raise ConfigError(
            f"{name} is {count}, but must be in [0, capacity = {capacity})",
            hint="raise the capacity",
        )
