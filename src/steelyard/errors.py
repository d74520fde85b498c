"""The exceptions users meet, one class per thing a user has to fix.

Every message says what was given, what is allowed, where it stood, and what to do about it.
"""

__all__ = [
    "BackendError",
    "CalibrationError",
    "CapacityError",
    "CatalogError",
    "ConfigError",
    "DataError",
    "DivergedError",
    "FitError",
    "InfeasibleError",
    "SteelyardError",
    "SteelyardWarning",
    "StoreError",
    "TraceError",
    "require",
]


class SteelyardError(Exception):
    """Base of every error Steelyard raises on purpose.

    Attributes:
        exit_code: exit status of the command line: 2 for bad input, 1 for a goal that cannot be
            met.
        hint: what to do next, one sentence, or an empty string.
    """

    exit_code = 2

    def __init__(self, message: str, *, hint: str = "") -> None:
        """Keep the message and the hint.

        Args:
            message: one sentence that says what was given, what is allowed, and where.
            hint: what to do next, one sentence.
        """
        super().__init__(message)
        self.hint = hint


class ConfigError(SteelyardError):
    """A configuration value, option or unit is wrong.

    Attributes:
        field: field of the configuration that is wrong, where there is one.
    """

    field = ""


class DivergedError(ConfigError):
    """A training run's loss is no longer finite: its learning rate is too high."""


class CatalogError(SteelyardError):
    """A catalog record is unknown, incomplete or contradicts itself."""


class DataError(SteelyardError):
    """Input data cannot be used: missing, empty, binary, too little, or corrupted."""


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


class SteelyardWarning(UserWarning):
    """A result stands, but the reader should know something about it."""


def require(owner: object, **rules: tuple[object, str]) -> None:
    """Refuse the first field of a configuration that breaks its rule.

    Args:
        owner: the configuration; a message shows its field's value.
        **rules: pairs by field name: whether the value is good, and what is allowed ("at least 1").

    Raises:
        ConfigError: names the field, its value and what is allowed.

    Example:
        >>> require(options, port=(0 <= options.port < 65536, "in [0, 65535]"))  # doctest: +SKIP
    """
    for name, (is_good, allowed) in rules.items():
        if not is_good:
            value = getattr(owner, name)
            message = f"{name} is {value!r}, but must be {allowed}"
            error = ConfigError(message, hint=f"change {name}")
            error.field = name
            raise error
