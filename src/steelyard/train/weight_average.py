"""An average of the weights along a run: which ones, over how long."""

from dataclasses import dataclass
from typing import Literal

from steelyard.errors import require

__all__ = ["WeightAverage"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightAverage:
    """One average to keep beside the weights; costs a copy of them, "lawa" `count` copies.

    Attributes:
        kind: "ema", exponential; "swa", the mean since the start of a window of `window` steps, the
            whole window's at its end; "lawa", the mean of the last `count` weights that were taken
            every `window` steps.
        decay: part of the old average that a step of "ema" keeps, less in the first steps.
        window: steps of the window, for "swa" and "lawa".
        count: weights that "lawa" keeps.

    Source: Zhang et al. 2024 (arXiv 2410.21676), section 2 (exponential, several decays in one
        run); Haegele et al. 2024 (arXiv 2405.18392), section 4.1 (windows); Kaddour 2022 (arXiv
        2209.14981), section 3 (latest weights).
    """

    kind: Literal["ema", "swa", "lawa"]
    decay: float = 0.999
    window: int = 500
    count: int = 5

    def __post_init__(self) -> None:
        """Refuse averages of nothing.

        Raises:
            ConfigError: a decay outside (0, 1), or fewer than two weights to average.
        """
        require(
            self,
            decay=(0 < self.decay < 1, "above 0 and below 1"),
            window=(self.window >= (2 if self.kind == "swa" else 1), "at least 1, 2 for swa"),
            count=(self.count >= 2, "at least 2"),
        )

    @property
    def name(self) -> str:
        """Name in results, such as "ema-0.999", "swa-500", "lawa-500x5"."""
        if self.kind == "ema":
            return f"ema-{self.decay:g}"
        return f"swa-{self.window}" if self.kind == "swa" else f"lawa-{self.window}x{self.count}"
