"""Decoding with experts and with latent attention: sorted against one by one, and `transformers`.

A step sorts its rows by expert and multiplies each expert once; the naive loop multiplies the same
packed matrices row by row. The peer decodes the same folder in a batch of equally long prompts.
"""

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from benchmarks.common import Check, alternate, ratio
from benchmarks.serve._peer_engine import Ours, Peer, save_model
from torch import Tensor

from steelyard.catalog.architecture import Architecture
from steelyard.errors import BackendError
from steelyard.nn.moe.routers import Routing
from steelyard.nn.moe.separate import SeparateExperts
from steelyard.nn.parts.activation import activate
from steelyard.nn.transformer import Transformer, build
from steelyard.serve import TraceRequest

PAPER: list[str] = []

_SEQUENCES, _PROMPT = 16, 4
_COMMON = {
    "hidden_size": 512,
    "num_heads": 8,
    "vocab_size": 4096,
    "max_positions": 512,
    "tied_embeddings": False,
    "norm_eps": 1e-6,
    "num_experts": 8,
    "experts_per_token": 2,
}
_SHAPES = {
    "experts": {"num_kv_heads": 4, "head_dim": 64, "intermediate_size": 1024}
    | {"moe_intermediate_size": 1024},
    "latents": {"num_kv_heads": 8, "head_dim": 96, "intermediate_size": 2048}
    | {"moe_intermediate_size": 512, "num_shared_experts": 1, "num_dense_layers": 1}
    | {"kv_lora_rank": 128, "qk_rope_head_dim": 32, "v_head_dim": 64, "normalized_gates": False},
}


class _OneByOne(SeparateExperts):
    """The obvious version: a product per row and expert."""

    def _visit(self, rows: Tensor, routing: Routing) -> Tensor:
        added = torch.zeros_like(rows)
        for place in range(len(rows)):
            for gate, expert in zip(routing.gates[place], routing.experts[place], strict=True):
                inner = activate(self.form, self.ups[int(expert)](rows[place : place + 1]))
                added[place] += gate * self.downs[int(expert)](inner)[0]
        return added


def run(quick: bool) -> list[Check]:
    """Time steps of both shapes."""
    layers, steps, rounds = (2, 24, 3) if quick else (8, 48, 5)
    found = []
    for name, shape in _SHAPES.items():
        arch = Architecture(name=name, num_layers=layers, **(_COMMON | shape))
        found += _checks(name, build(arch).eval(), steps, rounds)
    return found


def _checks(name: str, model: Transformer, steps: int, rounds: int) -> list[Check]:
    """Time our engine, the same with the naive loop, and the peer."""
    ours, naive = (Ours(model, concurrency=_SEQUENCES) for _ in range(2))
    steps_of = cast(Any, naive.llm.runner)._steps
    for module in steps_of._model.modules():
        if isinstance(module, SeparateExperts):
            module.__class__ = _OneByOne
    rivals = {"ours": ours, "one by one": naive}
    with tempfile.TemporaryDirectory() as folder:
        peer = _peer(save_model(model, Path(folder)))
        seconds = _step_seconds(rivals | ({"peer": peer} if peer else {}), steps, rounds)
        if peer:
            peer.close()
    for rival, samples in seconds.items():
        print(f"{name}, {_SEQUENCES} rows, {rival}: {min(samples) * 1e3:.2f} ms per step at best")
    faster = ratio(seconds["one by one"], seconds["ours"])
    print(f"{name}: one by one over ours {faster.low:.2f} to {faster.high:.2f} of a whole step")
    # Narrow experts beside shared ones and latent attention are the smaller part of a step.
    checks = [Check("1 speed, sorted experts over one by one", faster.median, 2.0, "higher")]
    checks = checks if name == "experts" else []
    if peer:
        beside = ratio(seconds["peer"], seconds["ours"])
        print(f"{name}: {peer.name} over ours {beside.low:.2f} to {beside.high:.2f}")
        checks.append(Check(f"2 speed, {name}: over transformers", beside.median, 1.0, "higher"))
    return checks


def _peer(folder: Path) -> Peer | None:
    """Start `transformers` where it is installed."""
    try:
        return Peer("static", folder, concurrency=_SEQUENCES)
    except BackendError as error:
        print(f"without transformers: {error}; {error.hint}")
        return None


def _step_seconds(
    rivals: dict[str, Ours | Peer], steps: int, rounds: int
) -> dict[str, list[float]]:
    """Return seconds per step of runs that decode, short prompts included."""
    trace = [
        TraceRequest(
            arrival_s=0.0,
            prompt=[(7 * place + 13 * row) % _COMMON["vocab_size"] for place in range(_PROMPT)],
            output_tokens=steps,
        )
        for row in range(_SEQUENCES)
    ]
    work: dict[str, Callable[[], object]] = {
        name: partial(rival.run, trace) for name, rival in rivals.items()
    }
    seconds = alternate(work, rounds=rounds, rest_s=0.1)
    return {name: [sample / steps for sample in samples] for name, samples in seconds.items()}
