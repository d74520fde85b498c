"""What a training run is: one frozen record, valid or refused."""

from dataclasses import dataclass
from typing import Literal

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError

__all__ = ["TrainConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainConfig:
    """One training run: model, data order, optimizer, schedule and what is kept.

    Attributes:
        architecture: shape of the model.
        steps: optimizer steps of the whole run, at least 1.
        batch_size: sequences per optimizer step.
        sequence_length: tokens per sequence, at most the architecture's `max_positions`.
        accumulation: micro-batches a step is split into; divides `batch_size`. It changes memory
            and speed, not the data.
        learning_rate: peak learning rate.
        warmup_steps: steps of linear warm-up from 0.
        cooldown_steps: last steps in which the rate falls to 0; 0 leaves it constant.
        schedule: form of the schedule; "1-sqrt" and "linear" are shapes of the cooldown, "cosine"
            decays over the whole run to 10 %.
        weight_decay: decoupled decay of matrices; vectors (norms, biases) have none.
        betas: decay of AdamW's two moments.
        clip: largest global gradient norm; 0 turns clipping off.
        dtype: "fp32", or "bf16" for bfloat16 matrix products over fp32 weights.
        seed: makes the initial weights and the order of the data.
        device: torch device, such as "cpu", "cuda" or "cuda:1".
        checkpoint_every: steps between checkpoints; 0 keeps only the last.
        checkpoint_at: steps whose checkpoints are kept for good, ascending.
        eval_every: steps between held-out evaluations; 0 evaluates only at the end.
        eval_tokens: held-out tokens an evaluation predicts at most, rounded down to whole windows.
        threads: CPU threads of torch; 0 leaves torch's own choice.

    Source: defaults follow Haegele et al. 2024 (arXiv 2405.18392), section 3 and appendix A.
    """

    architecture: Architecture
    steps: int
    batch_size: int
    sequence_length: int
    accumulation: int = 1
    learning_rate: float
    warmup_steps: int = 0
    cooldown_steps: int = 0
    schedule: Literal["1-sqrt", "linear", "cosine"] = "1-sqrt"
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    dtype: Literal["fp32", "bf16"] = "fp32"
    seed: int = 0
    device: str = "cpu"
    checkpoint_every: int = 0
    checkpoint_at: tuple[int, ...] = ()
    eval_every: int = 0
    eval_tokens: int = 65536
    threads: int = 0

    def __post_init__(self) -> None:
        """Refuse values that no run can have.

        Raises:
            ConfigError: a count or rate is out of range, or the parts contradict each other.
        """
        for name in ("steps", "batch_size", "sequence_length", "accumulation", "eval_tokens"):
            _require(getattr(self, name) >= 1, f"{name} = {getattr(self, name)} must be at least 1")
        for name in (
            "warmup_steps",
            "cooldown_steps",
            "checkpoint_every",
            "eval_every",
            "threads",
            "weight_decay",
            "clip",
        ):
            _require(
                getattr(self, name) >= 0, f"{name} = {getattr(self, name)} must not be negative"
            )
        _require(
            0 < self.learning_rate < 10,
            f"learning_rate = {self.learning_rate} must lie between 0 and 10",
        )
        _require(
            all(0 <= beta < 1 for beta in self.betas), f"betas = {self.betas} must lie in [0, 1)"
        )
        _require(
            self.batch_size % self.accumulation == 0,
            f"accumulation = {self.accumulation} must divide batch_size = {self.batch_size}",
        )
        _require(
            self.warmup_steps + self.cooldown_steps <= self.steps,
            f"warm-up ({self.warmup_steps}) and cooldown ({self.cooldown_steps}) are longer than "
            f"the run ({self.steps} steps)",
            hint="shorten cooldown_steps or raise steps; 20 % of the steps is a good cooldown",
        )
        _require(
            self.schedule != "cosine" or self.cooldown_steps == 0,
            f"cooldown_steps = {self.cooldown_steps} has no meaning with the cosine schedule",
            hint="set cooldown_steps = 0, or choose schedule = '1-sqrt'",
        )
        _require(
            self.sequence_length <= self.architecture.max_positions,
            f"sequence_length = {self.sequence_length} exceeds the architecture's max_positions = "
            f"{self.architecture.max_positions}",
        )
        _require(
            list(self.checkpoint_at)
            == sorted({step for step in self.checkpoint_at if 0 < step <= self.steps}),
            f"checkpoint_at = {list(self.checkpoint_at)} must be ascending steps from 1 to "
            f"{self.steps}",
        )

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step trains on."""
        return self.batch_size * self.sequence_length

    @property
    def micro_batch_size(self) -> int:
        """Sequences in one forward pass."""
        return self.batch_size // self.accumulation


def _require(
    condition: bool, message: str, hint: str = "correct the training configuration"
) -> None:
    """Raise a ConfigError with the message unless the condition holds."""
    if not condition:
        raise ConfigError(message, hint=hint)
