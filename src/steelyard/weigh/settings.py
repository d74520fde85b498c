"""What the user may choose about a quickstart; the report shows all that is derived from it."""

import math
from dataclasses import dataclass, field
from pathlib import Path

from steelyard.errors import ConfigError, DataError, require
from steelyard.files import read_json

__all__ = ["QuickstartConfig", "kept_run", "target_model"]


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
        seed: seed of data order, weights, bootstrap and trace.
        threads: threads of every compute kernel; 0 for all cores.
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
        # NaN fails every comparison, so it is refused with the rest.
        require(
            self,
            minutes=(1.0 <= self.minutes <= 600.0, "in 1..600; the default, 5, suits a first run"),
            budget_flops=(0 < self.budget_flops < math.inf, "positive, such as 1e21FLOP"),
            seed=(self.seed >= 0, "0 or a positive whole number"),
        )
        missing = [str(path) for path in self.text if not path.exists()]
        if missing:
            raise ConfigError(
                f"text: no such file or folder: {missing[0]}",
                hint="give the path of a text file or of a folder of them",
            )


def target_model(out: Path) -> Path:
    """Return the folder of the larger model's final weights in a quickstart's folder."""
    return out / "target" / "model"


def kept_run(out: Path) -> str:
    """Return the id of the run that a quickstart or a training has recorded.

    Args:
        out: folder of everything the job made.

    Returns:
        The id, empty when the job has not ended or its note cannot be read.
    """
    try:
        stored = read_json(out / "stages" / "keep.json")
    except DataError:
        return ""
    found = stored.get("result") if isinstance(stored, dict) else None
    return found if isinstance(found, str) else ""
