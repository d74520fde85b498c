"""Where a server is, and the bytes of a request to it."""

import os
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from steelyard.errors import ConfigError

__all__ = ["Endpoint", "read_key"]


def read_key(variable: str) -> str:
    """Read an API key from the environment.

    Args:
        variable: name of the environment variable, empty for no key.

    Returns:
        The key, empty without a variable.

    Raises:
        ConfigError: the variable is named but not set.
    """
    if not variable:
        return ""
    if not os.environ.get(variable):
        raise ConfigError(
            f"the environment variable {variable} is not set",
            hint="set it to the key, or leave --api-key-env out",
        )
    return os.environ[variable]


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """An OpenAI-compatible server.

    Attributes:
        host: name or address.
        port: TCP port.
        base: path before `/completions`, without a slash at its end.
        is_tls: whether the connection is encrypted.
        api_key: sent as bearer token, none when empty.
    """

    host: str
    port: int
    base: str = "/v1"
    is_tls: bool = False
    api_key: str = field(default="", repr=False)

    @classmethod
    def parse(cls, url: str, *, api_key: str = "") -> "Endpoint":
        """Read an address such as `http://127.0.0.1:8000`; `/v1` is added where there is no path.

        Args:
            url: address with http or https; http is assumed when no scheme is named.
            api_key: sent as bearer token.

        Returns:
            The endpoint.

        Raises:
            ConfigError: the text is not such an address, or the key cannot be sent.
        """
        text = url.strip()
        parts = urlsplit(text if "://" in text else f"http://{text}")
        try:
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            port = -1
        if (
            parts.scheme not in ("http", "https")
            or not parts.hostname
            or port < 0
            or any(letter.isspace() for letter in text)
        ):
            raise ConfigError(
                f"{url!r} is not the address of a server",
                hint="write one such as http://127.0.0.1:8000",
            )
        # A line break in a key would let it write headers of its own.
        if not (api_key.isascii() and api_key.isprintable()):
            raise ConfigError(
                "the API key has characters that no header may hold",
                hint="check the environment variable",
            )
        base = parts.path.rstrip("/") or "/v1"
        return cls(
            host=parts.hostname,
            port=port,
            base=base,
            is_tls=parts.scheme == "https",
            api_key=api_key,
        )

    @property
    def url(self) -> str:
        """The address as text, without the key."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}{self.base}"

    @property
    def tls(self) -> ssl.SSLContext | None:
        """The system's trust for an encrypted connection, None for a plain one."""
        return ssl.create_default_context() if self.is_tls else None

    def request(self, method: str, path: str, body: bytes = b"", *, request_id: str = "") -> bytes:
        """Return the bytes of a request.

        Args:
            method: GET or POST.
            path: below `base`, such as "/completions".
            body: JSON, may be empty.
            request_id: sent as `x-request-id` when not empty.

        Returns:
            Head and body.
        """
        lines = [
            f"{method} {self.base}{path} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            "Accept: */*",
        ]
        lines += [f"Authorization: Bearer {self.api_key}"] if self.api_key else []
        lines += [f"X-Request-Id: {request_id}"] if request_id else []
        lines += (
            ["Content-Type: application/json", f"Content-Length: {len(body)}"]
            if body or method == "POST"
            else []
        )
        return "\r\n".join([*lines, "", ""]).encode() + body
