"""Numbers of options, looked at before a verb's work."""

import math

from steelyard.errors import ConfigError

__all__ = ["require_range"]


def require_range(
    least: float, most: float = math.inf, *, is_open: bool = False, **given: float
) -> None:
    """Refuse options out of range, by the names of the command line.

    Args:
        least: smallest value that is allowed.
        most: largest value that is allowed.
        is_open: whether `least` itself is not allowed.
        **given: values by the name of their parameter.

    Raises:
        ConfigError: names the first that lies outside, its value and what is allowed.
    """
    begin = f"above {least:g}" if is_open else f"{least:g}"
    if math.isinf(most):
        allowed = begin if is_open else f"{begin} or more"
    else:
        allowed = f"{begin if is_open else f'from {begin}'} to {most:g}"
    for name, value in given.items():
        # Not a number lies in no range: both comparisons are false.
        is_inside = (value > least if is_open else value >= least) and value <= most
        if not is_inside:
            raise ConfigError(f"--{name.replace('_', '-')} is {value:g}, but must be {allowed}")
