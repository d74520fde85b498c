"""Nodes as actors of a Ray cluster, one a node, spread over its machines (extra `[ray]`)."""

import asyncio
import dataclasses
import os
import threading
from typing import Any

from steelyard.data.shardstore.config import NodeConfig
from steelyard.data.shardstore.process import decode_config, encode_config, node_server
from steelyard.errors import BackendError, ConfigError
from steelyard.ray_cluster import RayRoom
from steelyard.train.chaos import FaultKind

__all__ = ["RayNodes", "ShardActor"]

_START_S = 120.0
"""The first start on a machine compiles for some seconds."""
_ASK_S = 2.0


class ShardActor:
    """One node of a store; Ray makes it anew, on the same machine or another, where it dies.

    It then reads its folder where there is one, and gets the rest from its peers, as a process that
    was started again does.
    """

    def __init__(self, config: bytes) -> None:
        """Serve, in a thread: the actor's own answers Ray.

        Args:
            config: a `NodeConfig` as JSON.
        """
        import ray  # pyright: ignore[reportMissingImports]

        given = decode_config(config)
        address = f"tcp:{ray.util.get_node_ip_address()}:0"
        self._config = dataclasses.replace(given, address=address)
        self._place = ""
        self._ready = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()
        if not self._ready.wait(_START_S):
            raise BackendError(
                f"node {given.name!r} does not serve", hint=f"its folder is {given.folder}"
            )

    def _run(self) -> None:
        """Serve until the process ends; end it where that fails, so that Ray begins anew."""
        try:
            asyncio.run(self._serve())
        finally:
            os._exit(1)

    async def _serve(self) -> None:
        """Listen, say where, and serve."""
        self._config.folder.mkdir(parents=True, exist_ok=True)
        with node_server(self._config) as server:
            self._place = server.address
            self._ready.set()
            await server.run()

    def place(self) -> tuple[str, str]:
        """Return where it listens, and the machine that it runs on."""
        import ray  # pyright: ignore[reportMissingImports]

        return self._place, ray.get_runtime_context().get_node_id()


class RayNodes:
    """Starts actors on a cluster; they end with the process that started them.

    Actors lie on as many machines as there are (placement group `SPREAD`), and each tells its
    machine, so that no two copies of a shard share one. The package has to be installed on every
    machine, and the store's folder is the same path on each.
    """

    is_local = False

    def __init__(
        self, address: str, *, nodes: int, cpus: float = 1.0, wait_s: float = 30.0
    ) -> None:
        """Join a cluster and reserve room.

        Args:
            address: address of the cluster; "auto" for the one that this machine belongs to.
            nodes: actors that there will be.
            cpus: processors that each reserves.
            wait_s: longest wait for room.

        Raises:
            BackendError: Ray is not installed, no cluster answers, or it has no room.
        """
        self._room = RayRoom(address, actors=nodes, of_what="nodes", cpus=cpus, wait_s=wait_s)
        self._ray, self._actors = self._room.ray, {}
        self._free, self._lock = list(range(nodes)), threading.Lock()
        self._places: dict[str, tuple[str, str]] = {}

    def start(self, config: NodeConfig) -> tuple[str, str]:
        """Start an actor; BackendError where it does not serve in time."""
        ray = self._ray
        with self._lock:
            if not self._free:
                raise ConfigError(
                    f"no room was reserved for node {config.name!r}",
                    hint=f"ask for all nodes when the store is started: {len(self._actors)} and 1",
                )
            number = self._free.pop(0)
        name = f"shards-{config.name}-{os.getpid()}"
        made = self._room.placed(ShardActor, number, name=name).remote(encode_config(config))
        self._actors[config.name] = made
        try:
            self._places[config.name] = ray.get(made.place.remote(), timeout=_START_S)
        except ray.exceptions.RayError as error:
            raise BackendError(
                f"node {config.name!r} has not started: {error}",
                hint=f"its folder there is {config.folder}",
            ) from error
        return self._places[config.name]

    def is_running(self, name: str) -> bool:
        """Whether an actor was started: one that dies is begun again."""
        return name in self._actors

    def strike(self, kind: FaultKind, name: str) -> None:
        """Kill an actor, which Ray then begins anew."""
        if kind != "kill":
            raise ConfigError(f"{kind!r} is no fault of an actor", hint="kill it")
        self._ray.kill(self._actors[name], no_restart=False)

    def moved(self) -> dict[str, tuple[str, str]]:
        """Return nodes whose actors were begun again, with their new addresses and machines."""
        found: dict[str, tuple[str, str]] = {}
        asked = {actor.place.remote(): name for name, actor in list(self._actors.items())}
        # One that is about to begin again must not hold up the others.
        done, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=_ASK_S)
        for item in done:
            place = self._answer(item)
            if place is not None and place != self._places.get(asked[item]):
                self._places[asked[item]] = found[asked[item]] = place
        return found

    def _answer(self, item: Any) -> tuple[str, str] | None:
        """Return an actor's answer; None of one that is about to be begun again."""
        try:
            return self._ray.get(item)
        except self._ray.exceptions.RayError:
            return None

    def stop(self) -> None:
        """End all actors and return their room to the cluster."""
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors.clear()
        self._room.release()
