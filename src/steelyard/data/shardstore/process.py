"""A node as a process of its own: started with its configuration, ready when it says so."""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from steelyard.data.arena import sweep
from steelyard.data.shardstore.config import NodeConfig
from steelyard.errors import BackendError
from steelyard.files import exclusive

if TYPE_CHECKING:
    from steelyard.data.shardstore.server import NodeServer

__all__ = [
    "NodeProcess",
    "decode_config",
    "encode_config",
    "main",
    "node_server",
    "start_node",
]


@dataclass(frozen=True, slots=True)
class NodeProcess:
    """A running node.

    Attributes:
        config: what it was started with.
        address: where it listens.
        process: the process.
    """

    config: NodeConfig
    address: str
    process: subprocess.Popen[bytes]

    def stop(self) -> None:
        """End the process and wait for it; one that hangs or is stopped is killed."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(2.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_node(config: NodeConfig, *, timeout_s: float = 60.0) -> NodeProcess:
    """Start a node and wait until it listens.

    Args:
        config: the node.
        timeout_s: longest wait; the first start on a machine compiles for some seconds.

    Returns:
        The process.

    Raises:
        BackendError: it ended, or was not ready in time.
    """
    command = [sys.executable, "-m", "steelyard.data.shardstore.process"]
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Ctrl-C in a terminal goes to the starter alone, which ends its nodes itself.
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
    )
    assert child.stdin and child.stdout
    # The secret goes through the pipe: a command line can be read by every user of the host.
    child.stdin.write(encode_config(config))
    child.stdin.close()
    deadline = time.monotonic() + timeout_s
    ready, _, _ = select.select([child.stdout], [], [], max(0.0, deadline - time.monotonic()))
    line = child.stdout.readline().decode() if ready else ""
    child.stdout.close()
    if not line.startswith("ready "):
        child.kill()
        child.wait()
        raise BackendError(
            f"node {config.name!r} has not started within {timeout_s:.0f} s",
            hint=f"read its messages above; its folder is {config.folder}",
        )
    return NodeProcess(config, line.removeprefix("ready ").strip(), child)


def encode_config(config: NodeConfig) -> bytes:
    """Return a configuration as JSON."""
    return msgspec.json.encode(config, enc_hook=str)


def decode_config(content: bytes) -> NodeConfig:
    """Return the configuration that `encode_config` wrote."""
    return msgspec.json.decode(content, type=NodeConfig, dec_hook=lambda kind, value: kind(value))


@contextlib.contextmanager
def node_server(config: NodeConfig) -> Iterator["NodeServer"]:
    """Make a node and its server, which alone use the node's folder meanwhile."""
    from steelyard.data.shardstore.node import ShardNode
    from steelyard.data.shardstore.server import NodeServer
    from steelyard.data.shardstore.warmup import compile_kernels

    compile_kernels(config.row_bytes)
    sweep()
    # An earlier process of this name may be about to end; two would write into one log.
    with exclusive(config.folder):
        yield NodeServer(ShardNode(config))


async def _serve(config: NodeConfig) -> None:
    """Serve until terminated."""
    with node_server(config) as server:
        sys.stdout.write(f"ready {server.address}\n")
        sys.stdout.flush()
        task = asyncio.ensure_future(server.run())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        orphaned = asyncio.ensure_future(_end_with_parent(task))
        with contextlib.suppress(asyncio.CancelledError):
            await task
        orphaned.cancel()


async def _end_with_parent(task: "asyncio.Future[None]") -> None:
    """End when the starter is gone: nobody would renew the lease, or know of this process."""
    parent = os.getppid()
    while os.getppid() == parent:
        await asyncio.sleep(0.5)
    task.cancel()


def main() -> None:
    """Run the node that standard input configures."""
    asyncio.run(_serve(decode_config(sys.stdin.buffer.read())))


if __name__ == "__main__":
    main()
