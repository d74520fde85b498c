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
from steelyard.plan.idle import NoiseTokens
from steelyard.train.memory import peak_resident_bytes

__all__ = ["Job", "main"]


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What the process does.

    Attributes:
        use: "write" (a model folder of random weights), "serve" or "train".
        architecture: the model, as plain values.
        dtype: "fp32" or "bf16".
        sequence_length: tokens of each sequence, prompt and output together when served.
        batch: sequences served together, or of a training step.
        folder: of the model to write or serve; a training run has one of its own.
        steps: training steps.
    """

    use: str
    architecture: dict[str, object]
    dtype: str
    sequence_length: int
    batch: int
    folder: str = ""
    steps: int = 5


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
    # The first sequence must still run when the last one's prompt is done: then the pool is full.
    outputs = -(-job.batch * job.sequence_length // options.token_budget) + 8
    draw = np.random.default_rng(0)
    length = job.sequence_length - outputs
    prompts = [draw.integers(0, arch.vocab_size, length).tolist() for _ in range(job.batch)]
    llm.generate(prompts, SamplingParams(max_tokens=outputs))
    return {"kernel": llm.runner.kernel}


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
        result = train(config, NoiseTokens(arch.vocab_size), Path(folder))
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
    said["peak_bytes"] = peak_resident_bytes()
    sys.stdout.write(json.dumps(said) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
