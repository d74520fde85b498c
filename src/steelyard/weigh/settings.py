"""What the user may choose about a quickstart.

Everything else is derived from it and shown in the report.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path

from steelyard.errors import ConfigError

__all__ = ["QuickstartConfig"]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuickstartConfig:
    """Choices of one quickstart.

    Attributes:
        text: files or folders to learn from; empty for the running Python's own library and
            documentation.
        out: folder of everything the job makes.
        budget_flops: training budget of the plan, floating-point operations.
        cluster: catalog name of the cluster the plan is for.
        minutes: wall time the job aims at on this machine, all stages together.
        seed: of data order, weights, bootstrap and trace.
        threads: of every compute kernel; 0 for all cores.
    """

    text: tuple[Path, ...] = ()
    out: Path = field(default=Path("quickstart-out"))
    budget_flops: float = 1e21
    cluster: str = "JUWELS-Booster"
    minutes: float = 5.0
    seed: int = 0
    threads: int = 0

    def __post_init__(self) -> None:
        """Refuse values no quickstart can work with."""
        if not (math.isfinite(self.minutes) and 1.0 <= self.minutes <= 600.0):
            raise ConfigError(
                f"minutes: {self.minutes} is outside 1..600",
                hint="the default, 5, suits a first run",
            )
        if not (math.isfinite(self.budget_flops) and self.budget_flops > 0):
            raise ConfigError(
                f"budget: {self.budget_flops} FLOP is not a positive amount",
                hint="for example --budget 1e21FLOP",
            )
        if self.seed < 0:
            raise ConfigError(
                f"seed: {self.seed} is negative", hint="give 0 or a positive whole number"
            )
        missing = [str(path) for path in self.text if not path.exists()]
        if missing:
            raise ConfigError(
                f"text: no such file or folder: {missing[0]}",
                hint="give the path of a text file or of a folder of them",
            )
