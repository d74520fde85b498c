"""The time of a step of this package's own engine as a reader adds it up."""

from collections.abc import Sequence

from steelyard.cost.engine_step import PartTime
from steelyard.cost.why.chain import ChainStep

__all__ = ["engine_step"]


def engine_step(parts: Sequence[PartTime], source: str) -> ChainStep:
    """Show how the parts of a step add up.

    Args:
        parts: parts of one step.
        source: where their times are from.

    Returns:
        The time of the step, named as that of a pass on any machine.
    """
    # The engine's parts follow each other on one processor: nothing hides behind anything.
    times = {f"{part.name}_time": part.seconds for part in parts}
    return ChainStep(
        name="kernel_time",
        formula=" + ".join(times),
        numbers=times,
        value=sum(times.values()),
        unit="s",
        source=source,
    )
