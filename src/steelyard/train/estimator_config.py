"""How a module is trained: one frozen record, valid or refused."""

from dataclasses import dataclass, field
from typing import Literal

from steelyard.errors import ConfigError, all_of, require
from steelyard.train.adaptive_batch import AdaptiveBatch
from steelyard.train.parallel_config import ParallelConfig
from steelyard.train.weight_average import WeightAverage

__all__ = ["EstimatorConfig", "Schedule"]

Schedule = Literal[
    "1-sqrt",
    "linear",
    "cosine-cooldown",
    "mirror-cosine",
    "1-square",
    "power",
    "exponential",
    "cosine",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class EstimatorConfig:
    """One training run of any module: batches, optimizer, schedule and what is kept.

    Attributes:
        steps: optimizer steps of the whole run, at least 1.
        batch_size: examples per optimizer step.
        accumulation: micro-batches a step is split into, over all processes that share the step;
            divides `batch_size`. It changes memory and speed, not the data.
        adaptive_batch: how the batch grows with the noise of its gradient; None for one size.
        learning_rate: peak learning rate.
        warmup_steps: steps of linear warm-up from 0.
        cooldown_steps: last steps in which the rate falls to 0; 0 leaves it constant.
        warmup_from: rate at which the warm-up begins, as a fraction of the peak.
        schedule: form of the schedule; "1-sqrt", "linear", "cosine-cooldown", "mirror-cosine",
            "1-square", "power" and "exponential" are shapes of the cooldown; "cosine" decays over
            the whole run. A multiplier of the peak for every step, each in [0, 1], is a schedule of
            one's own, such as one that `laws.best_schedule` found; it has its warm-up and cooldown
            in itself.
        final_fraction: what the schedule falls to, as a fraction of the peak; None for 10 % of
            "cosine" and "exponential" and 0 of all others.
        cooldown_power: a of the cooldown 1 - x^a of "power"; .3 to .5 do about equally well.
        optimizer: "adamw"; "sgd" with Nesterov momentum and decay inside the gradient; "lamb" for
            very large batches; "muon" for inner matrices with AdamW for the rest; "schedule-free"
            for an AdamW whose evaluated weights are an average and which needs no cooldown.
        momentum: momentum of "sgd" and "muon".
        weight_decay: decay of matrices; vectors (norms, biases) have none.
        betas: decay of AdamW's two moments; "schedule-free" likes (.95, .99).
        clip: largest global gradient norm; 0 turns clipping off.
        averages: averages of the weights to keep and to evaluate beside them.
        dtype: "fp32"; "bf16" for bfloat16 matrix products over fp32 weights; "fp8" for linear maps
            whose operands are rounded to eight bits, scaled by their largest value, beside
            bfloat16 for the rest (Perez et al. 2023, arXiv 2309.17224, FP8-AMAX).
        compile: whether torch.compile makes the forward and backward pass; "auto" lets `steelyard
            train run` time both and take what ends sooner. Losses agree to rounding.
        seed: makes the order of the data, and the initial weights where the run makes them.
        device: torch device, such as "cpu", "cuda" or "cuda:1".
        checkpoint_every: steps between checkpoints; 0 keeps only the last.
        checkpoint_at: steps whose checkpoints are kept for good, ascending.
        eval_every: steps between held-out evaluations; 0 evaluates only at the end.
        threads: CPU threads of torch; 0 leaves torch's own choice.
        usd_per_hour: what an hour of the machine costs; 0 takes it from the machine's record.
        parallel: how processes that share the run's steps work together.

    Source: defaults follow Haegele et al. 2024 (arXiv 2405.18392), section 3 and appendix A.
    """

    steps: int
    batch_size: int
    accumulation: int = 1
    adaptive_batch: AdaptiveBatch | None = None
    learning_rate: float
    warmup_steps: int = 0
    cooldown_steps: int = 0
    warmup_from: float = 0.0
    schedule: Schedule | tuple[float, ...] = "1-sqrt"
    final_fraction: float | None = None
    cooldown_power: float = 0.5
    optimizer: Literal["adamw", "sgd", "lamb", "muon", "schedule-free"] = "adamw"
    momentum: float = 0.9
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    averages: tuple[WeightAverage, ...] = ()
    dtype: Literal["fp32", "bf16", "fp8"] = "fp32"
    compile: bool | Literal["auto"] = False
    seed: int = 0
    device: str = "cpu"
    checkpoint_every: int = 0
    checkpoint_at: tuple[int, ...] = ()
    eval_every: int = 0
    threads: int = 0
    usd_per_hour: float = 0.0
    parallel: ParallelConfig = field(default_factory=ParallelConfig)

    def __post_init__(self) -> None:
        """Refuse values that no run can have.

        Raises:
            ConfigError: a count or rate is out of range, or the parts contradict each other.
        """
        all_of(self._check_values, self._check_schedule)

    def _check_values(self) -> None:
        """Refuse counts and rates out of range."""
        counts = ("steps", "batch_size")
        amounts = ("cooldown_steps", "checkpoint_every", "eval_every", "threads")
        # A list that differs from its own sorted set repeats a step, goes back or beyond the end.
        ascending = sorted({step for step in self.checkpoint_at if 0 < step <= self.steps})
        require(
            self,
            **{name: (getattr(self, name) >= 1, "at least 1") for name in counts},
            **{
                name: (getattr(self, name) >= 0, "0 or more")
                for name in (*amounts, "weight_decay", "clip", "usd_per_hour")
            },
            accumulation=(
                self.accumulation >= 1 and self.batch_size % self.accumulation == 0,
                f"at least 1 and a divisor of batch_size = {self.batch_size}",
            ),
            adaptive_batch=(
                self.adaptive_batch is None
                or (self.accumulation >= 2 and all(item.kind == "ema" for item in self.averages)),
                "with accumulation of 2 or more, to compare micro-batches, and averages of kind "
                "'ema' only: windows count updates, whose number nobody knows before",
            ),
            learning_rate=(0 < self.learning_rate < 10, "above 0 and below 10"),
            betas=(
                all(0 <= beta < 1 for beta in self.betas)
                and (self.optimizer != "schedule-free" or self.betas[0] > 0),
                "in [0, 1), the first of schedule-free above 0",
            ),
            momentum=(0 <= self.momentum < 1, "in [0, 1)"),
            averages=(
                len({item.name for item in self.averages}) == len(self.averages),
                "different from one another",
            ),
            checkpoint_at=(
                list(self.checkpoint_at) == ascending,
                f"ascending steps from 1 to {self.steps}",
            ),
        )

    def _check_schedule(self) -> None:
        """Refuse a schedule that does not fit the run's length."""
        if isinstance(self.schedule, tuple):
            self._check_multipliers(self.schedule)
        # Of a warm-up that is too long itself, what is left is 0 and no negative number.
        room = max(self.steps - self.warmup_steps, 0)
        require(
            self,
            warmup_steps=(
                0 <= self.warmup_steps <= self.steps,
                f"at least 0 and at most steps = {self.steps}",
            ),
            cooldown_steps=(
                self.cooldown_steps <= room,
                f"at most {room}, what the warm-up leaves of {self.steps} steps; 20 % of the "
                f"steps is a good cooldown",
            ),
            schedule=(
                self.schedule != "cosine" or self.cooldown_steps == 0,
                "a shape of cooldown such as '1-sqrt' or 'linear', or cooldown_steps must be 0",
            ),
            cooldown_power=(0 < self.cooldown_power <= 4, "above 0 and at most 4"),
            warmup_from=(0 <= self.warmup_from <= 1, "in [0, 1]"),
            final_fraction=(
                self.final_fraction is None
                or (
                    0 <= self.final_fraction <= 1
                    and (self.final_fraction > 0 or self.schedule != "exponential")
                ),
                "in [0, 1], and above 0 for an exponential fall",
            ),
        )

    def _check_multipliers(self, own: tuple[float, ...]) -> None:
        """Refuse a schedule of one's own that is not one number per step."""
        is_whole = len(own) == self.steps and all(0 <= item <= 1 for item in own) and any(own)
        if not is_whole or self.warmup_steps or self.cooldown_steps:
            raise ConfigError(
                f"a schedule of {len(own)} multipliers for {self.steps} steps, "
                f"{self.warmup_steps} of warm-up and {self.cooldown_steps} of cooldown",
                hint="give one number in [0, 1] for every step, not all 0, and leave warmup_steps "
                "and cooldown_steps at 0: the multipliers hold both",
            )

    @property
    def tokens_per_step(self) -> int:
        """Tokens that one optimizer step trains on; examples where an example is no sequence."""
        return self.batch_size

    @property
    def micro_batch_size(self) -> int:
        """Examples in one forward pass."""
        return self.batch_size // self.accumulation
