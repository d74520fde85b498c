"""Continuous batching over a paged cache against static left-padded batches.

Both serve the same 64 requests of mixed lengths with the same weights. Output lengths are forced by
the trace; only tokens the trace asks for count. The static side runs requests in their order and
its best batch size is taken. Its peer is `transformers`' generate; without that package our own
static batches stand in, under another name.
"""

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.common import Check, alternate, median_spread
from torch import Tensor
from torch.nn import functional as F

from steelyard.catalog.architecture import Architecture
from steelyard.nn import checkpoint
from steelyard.nn.transformer import Transformer, build
from steelyard.serve import (
    SamplingParams,
    SchedulerConfig,
    TraceRequest,
    synthetic_rows,
    with_prompts,
)
from steelyard.serve.engine import LLM

PAPER = ["87-pagedattention"]

_NUM_REQUESTS = 64


def run(quick: bool) -> list[Check]:
    """Time both sides in turn and compare output tokens per second."""
    model = _model(quick)
    generator = np.random.default_rng(0)
    rows = synthetic_rows(
        generator,
        num_requests=_NUM_REQUESTS,
        rate_per_s=float("inf"),
        mean_prompt=40 if quick else 80,
        mean_output=24 if quick else 64,
        sigma=1.0,
        max_prompt=320,
        max_output=320,
    )
    trace = list(with_prompts(rows, generator, vocab_size=8192))
    tokens = sum(item.output_tokens for item in trace)
    parameters = sum(item.numel() for item in model.parameters())
    print(
        f"{parameters / 1e6:.1f}M parameters, {len(trace)} requests, {tokens} output tokens, "
        f"{torch.get_num_threads()} threads"
    )
    engine = _engine(model, trace)
    peer, name = _peer(model)
    sizes = (16, 32) if quick else (8, 16, 32, 64)
    rivals: dict[str, Callable[[], object]] = {"ours": engine}
    for size in sizes:
        rivals[f"static batch {size}"] = lambda size=size: _in_batches(peer, trace, size)
    seconds = alternate(rivals, rounds=1 if quick else 3)
    for rival, samples in seconds.items():
        spread = median_spread([tokens / item for item in samples])
        print(
            f"{rival:18s} {spread.median:9.0f} output tokens/s  [{spread.low:.0f}, "
            f"{spread.high:.0f}]"
        )
    best = min(np.median(seconds[f"static batch {size}"]) for size in sizes)
    return [Check(name, float(best / np.median(seconds["ours"])), 2.0, "higher")]


def _model(quick: bool) -> Transformer:
    """Build a Llama with random weights: 7M parameters when quick, else 26M."""
    arch = Architecture(
        name="bench-llama",
        hidden_size=256 if quick else 512,
        num_layers=4 if quick else 6,
        num_heads=4 if quick else 8,
        num_kv_heads=2 if quick else 4,
        head_dim=64,
        intermediate_size=704 if quick else 1408,
        vocab_size=8192,
        max_positions=1024,
        tied_embeddings=False,
    )
    return build(arch, seed=0).eval()


def _engine(model: Transformer, trace: list[TraceRequest]) -> Callable[[], object]:
    """Return the work of our side: all requests at once, outputs of their forced lengths."""
    config = SchedulerConfig(
        num_blocks=1200, max_model_len=704, max_num_seqs=64, prefix_caching=False
    )
    llm = LLM(model, config)
    prompts = [item.prompt for item in trace]
    params = [SamplingParams(max_tokens=item.output_tokens, ignore_end=True) for item in trace]

    def work() -> None:
        done = llm.generate(prompts, params)
        assert [len(item.tokens) for item in done] == [item.output_tokens for item in trace]

    return work


def _in_batches(
    generate: Callable[[Tensor, Tensor, int], object], trace: list[TraceRequest], size: int
) -> None:
    """Run left-padded batches in order, each until its longest output."""
    for start in range(0, len(trace), size):
        batch = trace[start : start + size]
        width = max(len(item.prompt) for item in batch)
        tokens = torch.zeros(len(batch), width, dtype=torch.int64)
        mask = torch.zeros(len(batch), width, dtype=torch.int64)
        for row, item in enumerate(batch):
            tokens[row, width - len(item.prompt) :] = torch.tensor(item.prompt)
            mask[row, width - len(item.prompt) :] = 1
        generate(tokens, mask, max(item.output_tokens for item in batch))


def _peer(model: Transformer) -> tuple[Callable[[Tensor, Tensor, int], object], str]:
    """Return the static side and the name of its check."""
    try:
        import transformers  # pyright: ignore[reportMissingImports]
    except ImportError:
        print(
            "peer transformers is missing (pip install transformers); comparing with our own "
            "static batches"
        )
        return _own_static(model), "output rate over own static batches"
    print(f"peer transformers {transformers.__version__}")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checkpoint.save(model, Path(folder))
        other: Any = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
    other.generation_config.eos_token_id = None

    def generate(tokens: Tensor, mask: Tensor, count: int) -> None:
        with torch.inference_mode():
            out = other.generate(
                input_ids=tokens,
                attention_mask=mask,
                max_new_tokens=count,
                min_new_tokens=count,
                do_sample=False,
                pad_token_id=0,
            )
        assert out.shape[1] == tokens.shape[1] + count

    return generate, "output rate over transformers generate, static batches"


def _own_static(model: Transformer) -> Callable[[Tensor, Tensor, int], object]:
    """Generate with a contiguous cache of the batch's full width, as a static batch does."""
    arch = model.architecture

    def generate(tokens: Tensor, mask: Tensor, count: int) -> None:
        batch, width = tokens.shape
        shape = (arch.num_layers, batch, arch.num_kv_heads, width + count, arch.head_dim)
        keys, values = torch.zeros(shape), torch.zeros(shape)
        visible = F.pad(mask.bool(), (0, count), value=True)[:, None, None]
        causal = torch.arange(width + count) <= torch.arange(width + count)[:, None]

        def run_from(start: int, step: Tensor, positions: Tensor) -> Tensor:
            stop = start + step.shape[1]
            allowed = (visible & causal)[..., start:stop, :stop]

            def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                keys[layer, :, :, start:stop] = key.transpose(1, 2)
                values[layer, :, :, start:stop] = value.transpose(1, 2)
                cached = keys[layer, :, :, :stop], values[layer, :, :, :stop]
                out = F.scaled_dot_product_attention(
                    query.transpose(1, 2), *cached, attn_mask=allowed, enable_gqa=True
                )
                return out.transpose(1, 2)

            return model.head(model.run(step, positions, attend)[:, -1:]).argmax(-1)

        with torch.inference_mode():
            positions = (mask.cumsum(1) - 1).clamp(min=0)
            step = run_from(0, tokens, positions)
            last = positions[:, -1:]
            for index in range(width, width + count - 1):
                last = last + 1
                step = run_from(index, step, last)

    return generate
