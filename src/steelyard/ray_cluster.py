"""Joining a Ray cluster (extra `[ray]`)."""

from typing import Any

from steelyard.errors import BackendError

__all__ = ["join_ray"]


def join_ray(address: str) -> Any:
    """Connect to a Ray cluster, once in a process.

    Args:
        address: "auto" for the cluster of this machine, or "ray://host:10001".

    Returns:
        The module `ray`.

    Raises:
        BackendError: Ray is not installed, or no cluster answers.
    """
    try:
        import ray  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise BackendError(
            "a cluster address was given, but Ray is not installed",
            hint="pip install 'steelyard[ray]'",
        ) from error
    try:
        ray.init(address=address, ignore_reinit_error=True)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise BackendError(
            f"cannot reach a Ray cluster at {address!r}: {error}",
            hint="start one with: ray start --head",
        ) from error
    return ray
