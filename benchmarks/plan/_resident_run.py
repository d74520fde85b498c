"""One run of the engine or the trainer in a process of its own, and its peak of resident memory.

`python -m benchmarks.plan._resident_run JOB`, JOB being a JSON object; the last line is JSON.
"""

import json
import sys
import tempfile
from pathlib import Path

import msgspec
import numpy as np

from steelyard.catalog.architecture import Architecture
from steelyard.config import convert

__all__ = ["Job", "RandomTokens", "main"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the process does.

    Attributes:
        use: "write" (a model folder of random weights), "serve" or "train".
        architecture: the model, as plain values.
        dtype: "fp32" or "bf16".
        sequence_length: tokens of each sequence, prompt and output together when served.
        batch: sequences served together, or of a training step.
        folder: of the model to write or serve; a training run has one of its own.
        outputs: tokens that each served sequence writes.
        steps: training steps.
    """

    use: str
    architecture: dict[str, object]
    dtype: str
    sequence_length: int
    batch: int
    folder: str = ""
    outputs: int = 8
    steps: int = 5


class RandomTokens:
    """Uniform noise in memory; its size does not depend on the run."""

    bytes_per_token = 1.0
    tokenizer = None

    def __init__(self, vocab_size: int) -> None:
        """Draw the tokens."""
        self.vocab_size = vocab_size
        self._tokens = np.random.default_rng(0).integers(0, vocab_size, 1 << 17, dtype=np.int32)
        self.num_tokens = len(self._tokens)
        self.heldout_tokens = self._tokens[:8192]

    def batch(self, index: int, batch_size: int, sequence_length: int, seed: int, /) -> np.ndarray:
        """Cut windows [B, T + 1] at places drawn from the seed and the index."""
        draw = np.random.default_rng((seed, index))
        starts = draw.integers(0, self.num_tokens - sequence_length - 1, batch_size)
        return self._tokens[starts[:, None] + np.arange(sequence_length + 1)].astype(np.int64)


def resident_bytes(name: str = "VmHWM") -> int:
    """Return a line of /proc/self/status in bytes; VmHWM is the peak of resident memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def _write(job: Job, arch: Architecture) -> None:
    """Write a folder of random weights, whose tensors exist once and in the stored type only."""
    import torch

    from steelyard.nn import checkpoint
    from steelyard.nn.transformer import Transformer

    torch.set_default_dtype(torch.bfloat16 if job.dtype == "bf16" else torch.float32)
    model = Transformer(arch)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.02)
            else:
                parameter.fill_(1.0)
    torch.set_default_dtype(torch.float32)
    checkpoint.save(model, job.folder, max_shard_bytes=1 << 40)


def _serve(job: Job, arch: Architecture) -> dict[str, object]:
    """Serve all sequences together in an engine whose pool holds just them."""
    import torch

    from steelyard.cost.memory import kv_bytes_per_token
    from steelyard.nn import checkpoint
    from steelyard.serve.build import make_engine
    from steelyard.serve.options import EngineOptions
    from steelyard.serve.scheduling.params import SamplingParams

    dtype = torch.bfloat16 if job.dtype == "bf16" else torch.float32
    slots = job.batch * -(-job.sequence_length // 16) * 16
    options = EngineOptions(
        pool_bytes=int(slots * kv_bytes_per_token(arch, dtype.itemsize)),
        max_num_seqs=job.batch,
    )
    llm = make_engine(checkpoint.load(job.folder, dtype=dtype), options)
    ready = resident_bytes("VmRSS")
    draw = np.random.default_rng(0)
    length = job.sequence_length - job.outputs
    prompts = [draw.integers(0, arch.vocab_size, length).tolist() for _ in range(job.batch)]
    llm.generate(prompts, SamplingParams(max_tokens=job.outputs))
    return {"kernel": llm.runner.kernel, "ready_bytes": ready}


def _train(job: Job, arch: Architecture) -> dict[str, object]:
    """Train a few steps with a checkpoint and an evaluation at the end."""
    from steelyard.train import TrainConfig
    from steelyard.train.trainer import train

    config = TrainConfig(
        architecture=arch,
        steps=job.steps,
        batch_size=job.batch,
        sequence_length=job.sequence_length,
        learning_rate=1e-4,
        dtype="bf16" if job.dtype == "bf16" else "fp32",
        eval_tokens=job.sequence_length,
        checkpoint_at=(),
    )
    with tempfile.TemporaryDirectory() as folder:
        result = train(config, RandomTokens(arch.vocab_size), Path(folder))
    return {
        "needed_bytes": result.peak_memory_bytes,
        "above_start_bytes": result.resident_peak_bytes,
    }


def main(arguments: list[str]) -> int:
    """Run a job and print its peak of resident memory as one JSON line."""
    job = msgspec.json.decode(arguments[0], type=Job)
    arch = convert(job.architecture, Architecture, where="architecture")
    if job.use == "write":
        _write(job, arch)
        said: dict[str, object] = {}
    else:
        said = _serve(job, arch) if job.use == "serve" else _train(job, arch)
    said |= {"peak_bytes": resident_bytes(), "file_bytes": resident_bytes("RssFile")}
    sys.stdout.write(json.dumps(said) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
