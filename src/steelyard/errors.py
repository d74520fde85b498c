"""The exceptions users meet, one class per thing a user has to fix.

Every message says what was given, what is allowed, where it stood, and what to do about it. Whoever
gives several wrong things hears of all of them at once.
"""

from collections.abc import Callable, Sequence

__all__ = [
    "BackendError",
    "CalibrationError",
    "CapacityError",
    "CatalogError",
    "ConfigError",
    "DataError",
    "DataLostError",
    "DivergedError",
    "FitError",
    "InfeasibleError",
    "SteelyardError",
    "SteelyardWarning",
    "StoppedEarlyError",
    "StoreError",
    "TraceError",
    "all_of",
    "merged",
    "require",
]


class SteelyardError(Exception):
    """Base of every error Steelyard raises on purpose.

    Attributes:
        exit_code: exit status of the command line: 2 for bad input, 1 for a goal that cannot be
            met.
        hint: what to do next, one sentence, or an empty string.
        field: field of a configuration or record that is wrong, where there is one.
        parts: the errors that this one lists; empty for an error about one thing.
    """

    exit_code = 2
    field = ""
    parts: "tuple[SteelyardError, ...]" = ()

    def __init__(self, message: str, *, hint: str = "") -> None:
        """Keep the message and the hint.

        Args:
            message: one sentence that says what was given, what is allowed, and where.
            hint: what to do next, one sentence.
        """
        super().__init__(message)
        self.hint = hint


class ConfigError(SteelyardError):
    """A configuration value, option or unit is wrong."""


class DivergedError(ConfigError):
    """A training run's loss is no longer finite: its learning rate is too high."""


class CatalogError(SteelyardError):
    """A catalog record is unknown, incomplete or contradicts itself."""


class DataError(SteelyardError):
    """Input data cannot be used: missing, empty, binary, too little, or corrupted."""


class DataLostError(DataError):
    """All copies of some data are gone; the message names the range of keys."""

    exit_code = 1


class FitError(SteelyardError):
    """Points do not allow the fit that was asked for."""


class TraceError(SteelyardError):
    """A request trace or time series is malformed."""


class StoreError(SteelyardError):
    """The run store cannot be read or written."""


class CalibrationError(SteelyardError):
    """A measurement of the machine failed or is missing."""


class BackendError(SteelyardError):
    """An optional package or device is missing; the message carries the install line."""


class CapacityError(SteelyardError):
    """A disk, memory or pool is too small for what was asked."""


class InfeasibleError(SteelyardError):
    """No configuration meets the goal; the message names the binding constraint."""

    exit_code = 1


class StoppedEarlyError(InfeasibleError):
    """A run was ended because its forecast misses the goal; its folder can go on."""


class SteelyardWarning(UserWarning):
    """A result stands, but the reader should know something about it."""


def require(owner: object, **rules: tuple[object, str]) -> None:
    """Refuse all fields of a configuration that break their rules, at once.

    Args:
        owner: the configuration; a message shows its field's value.
        **rules: pairs by field name: whether the value is good, and what is allowed ("at least 1").

    Raises:
        ConfigError: names each such field, its value and what is allowed.

    Example:
        >>> require(options, port=(0 <= options.port < 65536, "in [0, 65535]"))  # doctest: +SKIP
    """
    broken: list[SteelyardError] = []
    for name, (is_good, allowed) in rules.items():
        if not is_good:
            value = getattr(owner, name)
            error = ConfigError(
                f"{name} is {value!r}, but must be {allowed}", hint=f"change {name}"
            )
            error.field = name
            broken.append(error)
    if broken:
        raise merged(broken)


def all_of(*checks: Callable[[], object]) -> None:
    """Make all checks, and raise what they refused as one error.

    Args:
        *checks: each raises a SteelyardError or returns.

    Raises:
        SteelyardError: what one check raised, or the `merged` error of several.
    """
    refused: list[SteelyardError] = []
    for check in checks:
        try:
            check()
        except SteelyardError as error:
            refused.append(error)
    if refused:
        raise merged(refused)


def merged(errors: Sequence[SteelyardError], *, where: str = "") -> SteelyardError:
    """Make one error of several.

    Args:
        errors: one or more errors; those that list others count as what they list.
        where: file or option that held the values, put before the message.

    Returns:
        An error of their class, or a ConfigError where they differ; several have a line each.
    """
    parts = [part for error in errors for part in error.parts or (error,)]
    kinds = {type(part) for part in parts}
    kind = kinds.pop() if len(kinds) == 1 else ConfigError
    text = str(parts[0])
    if len(parts) > 1:
        text = f"{len(parts)} things are wrong:" + "".join(f"\n  {part}" for part in parts)
    # Hints that say the same, such as to correct a field, are said once.
    hints = dict.fromkeys(part.hint for part in parts if part.hint)
    made = kind(f"{where}: {text}" if where else text, hint="; ".join(hints))
    if len(parts) > 1:
        made.parts = tuple(parts)
    else:
        made.field = parts[0].field
    return made
