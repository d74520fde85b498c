"""Steps that follow each other through the stages of a pipeline."""

from steelyard.errors import ConfigError

__all__ = ["StagePipeline"]


class StagePipeline:
    """Equal stages; a stage runs one step at a time, in the order in which they were sent."""

    def __init__(self, stages: int, ready_s: float = 0.0) -> None:
        """Start idle.

        Args:
            stages: how many, at least 1.
            ready_s: when they are there.

        Raises:
            ConfigError: there is none.
        """
        if stages < 1:
            raise ConfigError(f"a pipeline of {stages} stages", hint="give at least 1 stage")
        self._free_s = [ready_s] * stages

    @property
    def free_s(self) -> float:
        """When the first stage is free."""
        return self._free_s[0]

    def run(self, now_s: float, seconds: float) -> float:
        """Send a step through all stages.

        Args:
            now_s: when it is sent; the first stage is free.
            seconds: what it takes where nothing is in its way.

        Returns:
            When it leaves the last stage.
        """
        each_s = seconds / len(self._free_s)
        end_s = now_s
        for stage, free_s in enumerate(self._free_s):
            end_s = max(end_s, free_s) + each_s
            self._free_s[stage] = end_s
        return end_s
