"""Errors as clients of the API see them."""

import math

import msgspec

from steelyard.errors import SteelyardError

__all__ = ["ApiError", "error_body"]

_CODES = {
    401: "invalid_api_key",
    404: "not_found",
    405: "method_not_allowed",
    408: "request_timeout",
    413: "body_too_large",
    429: "rate_limit_exceeded",
}


class ApiError(Exception):
    """A request that gets an error for an answer.

    Attributes:
        status: HTTP status.
        param: field at fault, or None.
        code: short name of the error, or None.
        retry_after_s: seconds after which another try may succeed, 0 when it would not.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float = 0.0,
    ) -> None:
        """Keep the parts.

        Args:
            status: HTTP status.
            message: what is wrong and what to do.
            param: field at fault.
            code: short name; follows from the status when None.
            retry_after_s: value of `Retry-After`, sent when above 0.
        """
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code or _CODES.get(status)
        self.retry_after_s = retry_after_s

    @classmethod
    def refusal(cls, error: SteelyardError, param: str | None = None) -> "ApiError":
        """Return 400 with the message and hint of an error of ours.

        Args:
            error: what was refused.
            param: field at fault; by default the message's first word, where it looks like one.

        Returns:
            The answer.
        """
        first = str(error).partition(" ")[0]
        text = f"{error}; {error.hint}" if error.hint else str(error)
        return cls(
            400, text, param=param or (first if first.isidentifier() and "_" in first else None)
        )

    @property
    def kind(self) -> str:
        """Type of the error in OpenAI's words."""
        if self.status == 429:
            return "rate_limit_error"
        return "invalid_request_error" if self.status < 500 else "server_error"

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Headers beyond the usual ones."""
        found = []
        if self.retry_after_s > 0:
            found.append((b"retry-after", str(max(math.ceil(self.retry_after_s), 1)).encode()))
        if self.status == 408:  # the rest of the request, should it come, is no request
            found.append((b"connection", b"close"))
        return found

    @property
    def body(self) -> bytes:
        """JSON in OpenAI's shape."""
        return error_body(str(self), kind=self.kind, param=self.param, code=self.code)


def error_body(
    message: str, *, kind: str, param: str | None = None, code: str | None = None
) -> bytes:
    """Return an error in OpenAI's shape as JSON."""
    return msgspec.json.encode(
        {"error": {"message": message, "type": kind, "param": param, "code": code}}
    )
