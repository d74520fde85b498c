"""Retention policies: how much each cached token is worth, so that the least is released.

A policy decides per token, never per layer: a token is in the cache of all layers or of none, so a
released one can be computed again. Tokens keep their original positions.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from steelyard.errors import ConfigError, require

__all__ = ["H2O", "Adore", "Full", "RetentionPolicy", "Sinks", "TopK", "Window"]

Signal = Literal["none", "attention", "controller"]
_LEAST = "at least 1, such as 256"
_SHARE = "in [0, 1), a share of the capacity"


class RetentionPolicy:
    """What a bounded cache asks of a policy; by itself one that keeps everything.

    Attributes:
        capacity: tokens kept between steps, m; 0 keeps all.
        rebuild: most released tokens computed again in a step, R.
        signal: what `scores` are: nothing, attention mass received so far, or a controller's
            scores.
    """

    __slots__ = ()
    capacity: int = 0
    rebuild: int = 0
    signal: Signal = "none"

    def priority(self, positions: np.ndarray, now: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Rank cached tokens; the lowest is released first.

        Args:
            positions: int64 [B, S] position of the token in each slot, -1 in an empty one.
            now: int64 [B] latest position of each request.
            scores: float32 [B, S] the signal, anything where it is "none".

        Returns:
            float32 [B, S]; infinity for tokens that are never released.
        """
        return np.full(positions.shape, np.inf, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Full(RetentionPolicy):
    """Keep every token."""


@dataclass(frozen=True, slots=True)
class Window(RetentionPolicy):
    """Keep the latest tokens.

    Attributes:
        capacity: tokens kept, m.
    """

    capacity: int

    def __post_init__(self) -> None:
        """Refuse an empty window."""
        require(self, capacity=(self.capacity >= 1, _LEAST))

    def priority(self, positions: np.ndarray, now: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Rank by position."""
        return positions.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Sinks(RetentionPolicy):
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

    def __post_init__(self) -> None:
        """Refuse sinks that leave no window."""
        fits = 0 <= self.num_sinks < self.capacity
        require(
            self,
            capacity=(self.capacity >= 1, _LEAST),
            num_sinks=(fits, f"in [0, capacity = {self.capacity})"),
        )

    def priority(self, positions: np.ndarray, now: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Rank by position, the first tokens above all."""
        return np.where(positions < self.num_sinks, np.inf, positions).astype(np.float32)


@dataclass(frozen=True, slots=True)
class H2O(RetentionPolicy):
    """Keep the latest tokens and those that received most attention so far (heavy hitters).

    Attention is added up over heads and layers, because a token is kept or released as a whole.

    Attributes:
        capacity: tokens kept, m.
        recent: share of them that are simply the latest, in [0, 1).

    Source: Zhang et al. 2023 (arXiv 2306.14048), algorithm 1.
    """

    capacity: int
    recent: float = 0.5
    signal = "attention"

    def __post_init__(self) -> None:
        """Refuse a share out of range."""
        require(
            self,
            capacity=(self.capacity >= 1, _LEAST),
            recent=(0 <= self.recent < 1, _SHARE),
        )

    def priority(self, positions: np.ndarray, now: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Rank by attention received, the latest above all."""
        # New tokens have received little attention so far: ranked by it, they would leave at once.
        latest = positions > (now - max(1, round(self.recent * self.capacity)))[:, None]
        return np.where(latest, np.inf, scores).astype(np.float32)


@dataclass(frozen=True, slots=True)
class TopK(RetentionPolicy):
    """Keep every token and attend only to those with most attention.

    This is what bounded caches try to reach, at more than the cost of full attention: a first pass
    over all tokens ranks them by attention averaged over heads and layers, a second attends to the
    best.

    Attributes:
        attended: tokens attended besides the current one, K.

    Source: Zhang et al. 2024 (arXiv 2407.02328), section 2 (top-K attention as the target).
    """

    attended: int
    signal = "attention"

    def __post_init__(self) -> None:
        """Refuse attending to nothing."""
        require(self, attended=(self.attended >= 1, "at least 1, such as 96"))


@dataclass(frozen=True, slots=True)
class Adore(RetentionPolicy):
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
    signal = "controller"

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit into the capacity."""
        protected = self.num_sinks + round(self.recent * self.capacity)
        within = f"in [0, capacity = {self.capacity})"
        require(
            self,
            capacity=(self.capacity >= 1, _LEAST),
            recent=(0 <= self.recent < 1, _SHARE),
            rebuild=(0 <= self.rebuild < self.capacity, f"{within}, such as 8"),
        )
        if not 0 <= protected < self.capacity:
            raise ConfigError(
                f"num_sinks + recent * capacity is {protected}, but must be {within}",
                hint="raise the capacity",
            )

    def priority(self, positions: np.ndarray, now: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Rank by score, the first and the latest tokens above all."""
        # Sinks take no part in the controller's training, so its scores of them mean nothing.
        kept = (positions < self.num_sinks) | (
            positions > (now - round(self.recent * self.capacity))[:, None]
        )
        return np.where(kept, np.inf, scores).astype(np.float32)
