"""Processes started as torchrun starts them."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable

__all__ = ["launch"]


def launch(count: int, program: str, arguments: Callable[[int], list[str]]) -> None:
    """Start processes as torchrun does, one thread each, and wait for them."""
    environment = os.environ | {
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
        "OMP_NUM_THREADS": "1",
    }
    children = [
        subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.train.{program}", *arguments(rank)],
            env=environment | {"RANK": str(rank)},
        )
        for rank in range(count)
    ]
    codes = [child.wait() for child in children]
    if any(codes):
        raise RuntimeError(f"the processes of {program} ended with {codes}")


def _free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
