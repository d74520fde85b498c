"""A program that answers a line of JSON with a line of JSON."""

import json
import os
import signal
import subprocess
import tempfile
from typing import Any

from steelyard.errors import BackendError

__all__ = ["JsonProcess", "peer_environment"]


class JsonProcess:
    """An engine in its own interpreter; idle unless it is asked.

    Attributes:
        name: name of the engine with its version.
    """

    def __init__(
        self, command: list[str], options: dict[str, Any], environment: dict[str, str], hint: str
    ) -> None:
        """Start the program and wait for its first line, which holds its name.

        Args:
            command: interpreter and program; the options follow as JSON.
            options: of the engine.
            environment: of the process.
            hint: what to do when it fails.

        Raises:
            BackendError: it ended before that.
        """
        self._hint = hint
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": self._log,
        }
        # A group of its own, so that what it starts is paused and ended with it.
        self._process = subprocess.Popen(
            [*command, json.dumps(options)],
            text=True,
            process_group=0,
            env=environment,
            **pipes,
        )
        try:
            self.name: str = self._answer()["name"]
        except BackendError:
            self.close()
            raise

    def ask(self, work: dict[str, Any]) -> dict[str, Any]:
        """Send a line and return the answer.

        Raises:
            BackendError: the program ended.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(work) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def pause(self) -> None:
        """Stop the process and what it started, so that no thread of it spins."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.killpg(self._process.pid, signal.SIGCONT)

    def _answer(self) -> dict[str, Any]:
        """Read one line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise BackendError(f"the peer ended: {self._log.read()[-1500:]}", hint=self._hint)
        return json.loads(line)

    def close(self) -> None:
        """End the process and every one that it started."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self.resume()
            self._process.wait(timeout=10)
        except ProcessLookupError:
            self._process.wait()
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()


def peer_environment() -> dict[str, str]:
    """Return the environment without this interpreter's own settings, and the peer offline."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NO_USAGE_STATS": "1",
    }
