"""Joining a Ray cluster, and room on it (extra `[ray]`)."""

import socket
from typing import Any

from steelyard.errors import BackendError

__all__ = ["RayRoom", "join_ray", "require_reached"]

_REACH_S = 5.0


def require_reached(address: str) -> None:
    """Refuse the address of a machine where nothing listens: Ray itself tries for minutes.

    Args:
        address: of a cluster; one without a port, such as "auto", is left to Ray.

    Raises:
        BackendError: nothing answers there in five seconds.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=_REACH_S).close()
    except (OSError, OverflowError) as error:
        raise BackendError(
            f"no Ray cluster listens at {address!r}: {error}",
            hint="give the address that `ray start --head` printed",
        ) from error


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
    require_reached(address)
    try:
        ray.init(address=address, ignore_reinit_error=True)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise BackendError(
            f"cannot reach a Ray cluster at {address!r}: {error}",
            hint="start one with: ray start --head",
        ) from error
    return ray


class RayRoom:
    """Room for actors on as many machines of a cluster as there are (strategy `SPREAD`).

    The package has to be installed on every machine.

    Attributes:
        ray: the module.
    """

    def __init__(self, address: str, *, actors: int, of_what: str, cpus: float, wait_s: float):
        """Join a cluster and reserve room.

        Args:
            address: address of the cluster; "auto" for the one that this machine belongs to.
            actors: actors that there will be.
            of_what: what they are, as an error calls them.
            cpus: processors that each reserves.
            wait_s: longest wait for room.

        Raises:
            BackendError: Ray is not installed, no cluster answers, or it has no room.
        """
        self.ray, self._cpus = join_ray(address), cpus
        from ray.util.placement_group import placement_group  # pyright: ignore

        # Begun again, an actor waits for its own bundle and not for those of others.
        self._group = placement_group([{"CPU": cpus}] * actors, strategy="SPREAD")
        if not self._group.wait(wait_s):
            self.release()
            raise BackendError(
                f"the cluster at {address!r} has no room for {actors} {of_what} of {cpus:g} "
                "processors",
                hint=f"start more machines, or fewer {of_what}",
            )

    def placed(self, kind: type, place: int, **options: Any) -> Any:
        """Return what makes an actor in its place; Ray makes it anew where it dies.

        Args:
            kind: class of the actor.
            place: which of the places, from 0; each is for one actor.
            **options: further options of the actor, such as its name.

        Returns:
            Its `remote` takes the arguments of the class.
        """
        from ray.util.scheduling_strategies import (  # pyright: ignore[reportMissingImports]
            PlacementGroupSchedulingStrategy,
        )

        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=place
        )
        kept = {"num_cpus": self._cpus, "max_restarts": -1, "scheduling_strategy": strategy}
        return self.ray.remote(kind).options(**kept, **options)

    def release(self) -> None:
        """Return the room to the cluster; actors are ended before."""
        from ray.util.placement_group import remove_placement_group  # pyright: ignore

        remove_placement_group(self._group)
