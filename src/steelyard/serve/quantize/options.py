"""What the user may choose about a quantized model."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from steelyard.errors import ConfigError, require

__all__ = ["MethodName", "QuantizeOptions"]

Weights = Literal["int4", "int8", "mixed"]
MethodName = Literal["auto", "nearest", "awq", "gptq", "awq+gptq"]
_GROUPS = (32, 64, 128)


@dataclass(frozen=True, kw_only=True, slots=True)
class QuantizeOptions:
    """How to quantize a model.

    Args:
        weights: Type of the layers' matrices: 16 levels with a scale per group, 255 levels with a
            scale per output, or for each matrix one of both or none, by how much the loss rises
            when it alone is rounded.
        calibrate: Text, or a folder of it, that codes are fitted to; a quarter of it is kept aside
            to choose and to measure by. Without it codes are rounded to the nearest.
        method: How int4 codes are found; "auto" tries all and keeps what loses least on text that
            none of them has seen.
        group: Weights that share a scale in int4; where it does not divide the rows of a matrix,
            the largest of 32, 64 and 128 that does.
        zero_points: Give each int4 group a zero point of four bits.
        memory_bytes: Most bytes of all weights under "mixed".
        max_loss: Largest forecast loss of quality under "mixed", as a relative increase of the
            perplexity, such as .005.
        calibration_tokens: Most tokens that codes are fitted to.
        seed: Seed of the model's own outputs.
        threads: Threads of the tensor library, 0 for its own choice.
    """

    weights: Weights = "int4"
    calibrate: Path | None = None
    method: MethodName = "auto"
    group: int = 128
    zero_points: bool = False
    memory_bytes: int = 0
    max_loss: float = 0.0
    calibration_tokens: int = 32768
    seed: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        """Refuse values out of range and options that need another.

        Raises:
            ConfigError: names the option, and its range or the option it needs.
        """
        require(
            self,
            weights=(self.weights in get_args(Weights), ", ".join(get_args(Weights))),
            method=(self.method in get_args(MethodName), ", ".join(get_args(MethodName))),
            group=(self.group in _GROUPS, ", ".join(map(str, _GROUPS))),
            memory_bytes=(self.memory_bytes >= 0, "at least 0"),
            max_loss=(0 <= self.max_loss < 1, "from 0 to 1"),
            calibration_tokens=(self.calibration_tokens >= 1, "at least 1"),
            seed=(self.seed >= 0, "at least 0"),
            threads=(self.threads >= 0, "at least 0"),
        )
        is_mixed, is_int8 = self.weights == "mixed", self.weights == "int8"
        fits = self.method not in ("auto", "nearest")
        needs = (
            ("--memory", self.memory_bytes, is_mixed, "--weights mixed"),
            ("--max-loss", self.max_loss, is_mixed, "--weights mixed"),
            (f"--method {self.method}", fits, self.calibrate, "--calibrate TEXT"),
            (f"--method {self.method}", fits, not is_int8, "--weights int4 or mixed"),
            ("--zero-points", self.zero_points, not is_int8, "--weights int4 or mixed"),
        )
        for option, given, is_met, needed in needs:
            if given and not is_met:
                raise ConfigError(f"{option} needs {needed}", hint=f"give {needed} too")
        if is_mixed and bool(self.memory_bytes) == bool(self.max_loss):
            raise ConfigError(
                "--weights mixed needs --memory or --max-loss, and not both",
                hint="such as --memory 300MiB, or --max-loss 0.005",
            )

    @property
    def methods(self) -> tuple[str, ...]:
        """Methods that are compared."""
        if self.method != "auto":
            return (self.method,)
        is_nearest = self.calibrate is None or self.weights == "int8"
        return ("nearest",) if is_nearest else ("nearest", "awq", "gptq", "awq+gptq")
