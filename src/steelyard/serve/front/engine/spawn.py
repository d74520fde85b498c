"""Starts an engine's process, before anything else of a server is loaded.

Importing PyTorch is most of a start. The process begins with it while its gateway still loads its
own packages, so this module imports next to nothing.
"""

import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

__all__ = ["SpawnedEngine"]

ENGINE_MODULE = "steelyard.serve.front.engine.process"
"""Program of the process."""


class SpawnedEngine:
    """A process that has begun, and the socket where it will ask what engine to be.

    Attributes:
        process: the process.
        listener: a Unix socket in a folder only this user can enter; who accepts its connection
            says what engine to make.
        began_s: when it was started, on the monotonic clock.
    """

    def __init__(self) -> None:
        """Start the process.

        Raises:
            OSError: the system has no room for a process or a socket.
        """
        self._folder = tempfile.TemporaryDirectory(prefix="steelyard-")
        path = str(Path(self._folder.name) / "engine.sock")
        self.listener = socket.socket(socket.AF_UNIX)
        try:
            self.listener.bind(path)
            self.listener.listen(1)
            self.began_s = time.perf_counter()
            self.process = subprocess.Popen([sys.executable, "-m", ENGINE_MODULE, path])
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Remove the socket: its process has connected, or never will."""
        self.listener.close()
        self._folder.cleanup()

    def kill(self) -> None:
        """End the process that nobody took, and wait for it."""
        self.process.kill()
        self.process.wait()
        self.close()
