"""Shape of a masked encoder: one frozen record, valid or refused."""

from dataclasses import dataclass
from typing import Literal

from steelyard.catalog.architecture import Architecture
from steelyard.errors import require

__all__ = ["EncoderConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EncoderConfig:
    """What a masked encoder reads, how large it is, and what it answers with.

    Attributes:
        context_steps: last steps of the past that become tokens.
        horizon: steps that it is trained to forecast at once.
        patch: steps of a token; 1 is the paper's, more make a shorter sequence. It divides
            `context_steps` and `horizon`.
        seasons: lags that each step reads, in seasons (days).
        hidden_size: width of a token.
        num_layers: layers.
        num_heads: heads of attention.
        head: "student-t" as in the paper, "gaussian", "quantile" for the quantiles themselves, or
            "flow" for a Gaussian that a learned monotone map bends, with one mode or several.
        scaling: "standard" for mean and deviation of the context as in the paper; "asinh" for its
            recent median and spread with the inverse hyperbolic sine, which spikes do not blow up.
        anchored: whether outputs are added to the quantiles of the last 24 values, so that an
            untrained model says what that rule says.
        seed: seed of the initial weights.

    Source: Woo et al. 2023 (arXiv 2310.05063), section 5.1 and table 8.
    """

    context_steps: int = 288
    horizon: int = 48
    patch: int = 8
    seasons: tuple[int, ...] = (1, 2, 7)
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    head: Literal["student-t", "gaussian", "quantile", "flow"] = "quantile"
    scaling: Literal["standard", "asinh"] = "asinh"
    anchored: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse shapes that no encoder can have.

        Raises:
            ConfigError: a number is out of range or does not divide another.
        """
        require(
            self,
            context_steps=(self.context_steps >= 24, "at least 24"),
            horizon=(self.horizon >= 1, "at least 1"),
            patch=(
                self.patch >= 1
                and not (self.context_steps % self.patch or self.horizon % self.patch),
                f"a divisor of context_steps = {self.context_steps} and horizon = {self.horizon}",
            ),
            seasons=(all(season >= 1 for season in self.seasons), "whole numbers of 1 or more"),
            num_heads=(
                self.num_heads >= 1
                and self.hidden_size % self.num_heads == 0
                and self.hidden_size // self.num_heads % 2 == 0,
                f"a divisor of hidden_size = {self.hidden_size} with an even quotient",
            ),
            num_layers=(self.num_layers >= 1, "at least 1"),
        )

    def history_steps(self, season: int = 288) -> int:
        """Return the steps before a forecast that are read where a season has `season` steps."""
        return self.context_steps + max(self.seasons, default=0) * season

    @property
    def architecture(self) -> Architecture:
        """The layers: pre-norm, GELU, rotary positions, width of the MLP four times the tokens'."""
        return Architecture(
            name="masked-encoder",
            hidden_size=self.hidden_size,
            num_layers=self.num_layers,
            num_heads=self.num_heads,
            num_kv_heads=self.num_heads,
            head_dim=self.hidden_size // self.num_heads,
            intermediate_size=4 * self.hidden_size,
            vocab_size=1,
            max_positions=(self.context_steps + self.horizon) // self.patch,
            norm="layernorm",
            mlp="gelu",
            qkv_bias=True,
            output_bias=True,
            mlp_bias=True,
        )
