"""Where the nodes of a store run: as processes of this host, or elsewhere."""

import dataclasses
from pathlib import Path
from typing import Protocol

from steelyard.data.shardstore.config import NodeConfig
from steelyard.data.shardstore.process import NodeProcess, start_node
from steelyard.errors import ConfigError
from steelyard.train import chaos
from steelyard.train.chaos import FaultKind

__all__ = ["LocalNodes", "NodeLauncher"]


class NodeLauncher(Protocol):
    """Starts nodes, does faults to them, and ends them."""

    @property
    def is_local(self) -> bool:
        """Whether nodes and clients share the memory of one host."""
        ...

    def start(self, config: NodeConfig) -> tuple[str, str]:
        """Start a node; return its address and its host, which is empty where all share one.

        The address of the configuration is left to the launcher.
        """
        ...

    def is_running(self, name: str) -> bool:
        """Whether a node was started and has not ended."""
        ...

    def strike(self, kind: FaultKind, name: str) -> None:
        """Do "kill", "stop" or "resume" to a node that was started."""
        ...

    def moved(self) -> dict[str, tuple[str, str]]:
        """Return nodes that began again by themselves: addresses and hosts that are new."""
        ...

    def stop(self) -> None:
        """End all nodes."""
        ...


class LocalNodes:
    """Nodes as processes of this host."""

    def __init__(self, transport: str) -> None:
        """Take how they are reached: "unix", or "tcp" on the loopback."""
        self._is_unix = transport == "unix"
        self._processes: dict[str, NodeProcess] = {}

    @property
    def is_local(self) -> bool:
        """Whether rows pass in shared memory: over Unix sockets."""
        return self._is_unix

    def start(self, config: NodeConfig) -> tuple[str, str]:
        """Start a process; errors as of `start_node`."""
        config.folder.mkdir(parents=True, exist_ok=True)
        address = "tcp:127.0.0.1:0"
        if self._is_unix:
            address = _unix_address(config.folder)
        made = start_node(dataclasses.replace(config, address=address))
        self._processes[config.name] = made
        return made.address, ""

    def is_running(self, name: str) -> bool:
        """Whether a process of this name runs."""
        found = self._processes.get(name)
        return found is not None and found.process.poll() is None

    def strike(self, kind: FaultKind, name: str) -> None:
        """Send the signal, and wait for the end of one that is killed."""
        process = self._processes[name].process
        chaos.strike(kind, process.pid)
        if kind == "kill":
            process.wait()

    def moved(self) -> dict[str, tuple[str, str]]:
        """Return nothing: a process that has ended stays so until it is started again."""
        return {}

    def stop(self) -> None:
        """End all processes."""
        for process in self._processes.values():
            process.stop()


def _unix_address(folder: Path) -> str:
    """Return the address of a node's socket, or refuse a folder that is too long for one."""
    address = f"unix:{folder / 'socket'}"
    if len(address) > 100:
        raise ConfigError(f"{folder} is too long for a Unix socket", hint="use transport tcp")
    return address
