"""Where the time of an engine's start goes."""

import time

__all__ = ["StartStages"]


class StartStages:
    """Seconds of each stage of a start, in order.

    Attributes:
        seconds: seconds of each stage, by name.
    """

    def __init__(self) -> None:
        """Begin now."""
        self.seconds: dict[str, float] = {}
        self._begun_s = self._last_s = time.perf_counter()

    def end(self, name: str, *, not_before_s: float = 0.0) -> None:
        """End a stage that began when the one before ended.

        Args:
            name: name of the stage.
            not_before_s: time before which it cannot have begun, on the machine's monotonic clock;
                what lies before is no stage's.
        """
        now_s = time.perf_counter()
        self.seconds[name] = now_s - max(self._last_s, not_before_s)
        self._last_s = now_s

    def began(self, name: str, began_s: float) -> None:
        """Put a stage before all others.

        Args:
            name: name of the stage.
            began_s: when it began, on the machine's monotonic clock; it ended when this object was
                made.
        """
        self.seconds = {name: max(self._begun_s - began_s, 0.0), **self.seconds}
