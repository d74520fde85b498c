"""What a process of the engine or the trainer holds without a model, measured in a process each.

`python -m steelyard.plan.idle engine` or `trainer` is that process: it runs a model of a few
kilobytes and prints its peak of resident memory.
"""

import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from steelyard.catalog.architecture import Architecture
from steelyard.errors import BackendError

__all__ = ["NoiseTokens", "idle_bytes", "main"]

_MODEL = Architecture(
    name="idle",
    hidden_size=64,
    num_layers=1,
    num_heads=2,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=128,
    vocab_size=256,
    max_positions=64,
)
_LIMIT_S = 100.0
"""Longest wait for one of the processes; the engine may have to compile its kernels first."""


class NoiseTokens:
    """Uniform noise as training data, in memory."""

    bytes_per_token = 1.0
    tokenizer = None

    def __init__(self, vocab_size: int) -> None:
        """Draw the tokens.

        Args:
            vocab_size: token ids are below it.
        """
        self.vocab_size = vocab_size
        self._tokens = np.random.default_rng(0).integers(0, vocab_size, 1 << 17, dtype=np.int32)
        self.num_tokens = len(self._tokens)
        self.heldout_tokens = self._tokens[:8192]

    def batch(self, index: int, batch_size: int, sequence_length: int, seed: int, /) -> np.ndarray:
        """Cut windows [B, T + 1] at places drawn from the seed and the index."""
        draw = np.random.default_rng((seed, index))
        starts = draw.integers(0, self.num_tokens - sequence_length - 1, batch_size)
        return self._tokens[starts[:, None] + np.arange(sequence_length + 1)].astype(np.int64)


def idle_bytes() -> dict[str, float]:
    """Measure both processes.

    Returns:
        `engine_process_bytes` and `trainer_process_bytes`, fields of a calibration.

    Raises:
        BackendError: a process failed or took too long.
    """
    # Side by side: importing torch is most of their time, and memory does not depend on it.
    with ThreadPoolExecutor(2) as both:
        found = both.map(_measure, ("engine", "trainer"))
        return dict(zip(("engine_process_bytes", "trainer_process_bytes"), found, strict=True))


def _measure(name: str) -> float:
    """Run one of the processes and read what it printed."""
    command = [sys.executable, "-m", "steelyard.plan.idle", name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_S, check=True)
        return float(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise BackendError(
            f"the idle {name}'s memory cannot be measured: {error}",
            hint=f"see what `{' '.join(command)}` says",
        ) from error


def main(arguments: list[str]) -> int:
    """Run the engine or the trainer on the smallest of models and print the peak in bytes.

    Args:
        arguments: "engine" or "trainer".

    Returns:
        0.
    """
    from steelyard.train.memory import peak_resident_bytes

    {"engine": _serve, "trainer": _train}[arguments[0]]()
    sys.stdout.write(f"{peak_resident_bytes()}\n")
    return 0


def _serve() -> None:
    """Answer one prompt."""
    from steelyard.nn.transformer import build
    from steelyard.serve.build import make_engine
    from steelyard.serve.options import EngineOptions
    from steelyard.serve.scheduling.params import SamplingParams

    engine = make_engine(build(_MODEL), EngineOptions(pool_bytes=1 << 16))
    engine.generate([[1, 2, 3]], SamplingParams(max_tokens=4))


def _train() -> None:
    """Train two steps."""
    from steelyard.train import TrainConfig
    from steelyard.train.trainer import train

    config = TrainConfig(
        architecture=_MODEL,
        steps=2,
        batch_size=1,
        sequence_length=32,
        learning_rate=1e-3,
        eval_tokens=32,
    )
    with tempfile.TemporaryDirectory(prefix="steelyard-idle-") as folder:
        train(config, NoiseTokens(_MODEL.vocab_size), Path(folder))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
