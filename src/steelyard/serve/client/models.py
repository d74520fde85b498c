"""Which models a server has."""

import asyncio

import msgspec

from steelyard.errors import BackendError
from steelyard.serve.client.wire.address import Endpoint
from steelyard.serve.client.wire.connection import Answer, ConnectionPool, ProtocolError

__all__ = ["ServedModel", "list_models", "served_models"]


class ServedModel(msgspec.Struct, frozen=True):
    """A model of a server.

    Attributes:
        id: name by which requests ask for it.
        max_model_len: longest prompt and answer together in tokens, None where the server does not
            say.
    """

    id: str
    max_model_len: int | None = None


class _Listing(msgspec.Struct):
    """Answer to `/models`."""

    data: list[ServedModel]


def served_models(endpoint: Endpoint, *, timeout_s: float = 10.0) -> list[ServedModel]:
    """Ask a server for its models.

    Args:
        endpoint: the server.
        timeout_s: longest wait for the answer.

    Returns:
        Its models; empty when it has no such list.

    Raises:
        BackendError: the server cannot be reached, refuses the key, or does not speak HTTP.
    """
    answer = Answer()

    async def ask() -> None:
        pool = ConnectionPool(endpoint)
        async with asyncio.timeout(timeout_s):
            await pool.exchange(endpoint.request("GET", "/models"), answer)
        pool.close()

    try:
        asyncio.run(ask())
    except (OSError, ProtocolError) as error:
        words = str(error) or f"no answer in {timeout_s:g} s"
        raise BackendError(
            f"no server answers at {endpoint.url}: {words}",
            hint="start one with: steelyard serve MODEL_DIR",
        ) from error
    if answer.status in (401, 403):
        raise BackendError(
            f"{endpoint.url} refuses the API key ({answer.status})",
            hint="name its variable with --api-key-env",
        )
    try:
        return msgspec.json.decode(answer.body, type=_Listing).data if answer.status == 200 else []
    except (msgspec.DecodeError, UnicodeDecodeError):
        return []


def list_models(endpoint: Endpoint, *, timeout_s: float = 10.0) -> list[str]:
    """Return the names of a server's models; see `served_models`."""
    return [item.id for item in served_models(endpoint, timeout_s=timeout_s)]
