"""Our models beside pip `torchscale` with the same weights: results, and tokens per second."""

import json
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks import peers
from benchmarks.common import Check, ratio
from benchmarks.nn._tiny import tiny
from torch import Tensor

from steelyard.catalog.architecture import Architecture
from steelyard.errors import BackendError
from steelyard.nn.transformer import Transformer, build

__all__ = ["peer_checks"]

_PROGRAM = Path(__file__).with_name("_torchscale_program.py")
_LAYER = {
    "out": "self_attn.out_proj",
    "attention_inner_norm": "self_attn.inner_attn_ln",
    "attention_norm": "self_attn_layer_norm",
    "attention_sum_norm": "self_attn_layer_norm",
    "up": "ffn.fc1",
    "mlp_inner_norm": "ffn.ffn_layernorm",
    "down": "ffn.fc2",
    "mlp_norm": "final_layer_norm",
    "mlp_sum_norm": "final_layer_norm",
}
"""Names of a layer's modules, ours and theirs."""


@dataclass(frozen=True)
class _Case:
    """A model that both sides build."""

    name: str
    arch: Architecture
    config: dict


def _cases(layers: int, hidden: int) -> list[_Case]:
    """Return decoders and an encoder of each norm scheme."""

    def case(name: str, theirs: dict, **changes: Any) -> _Case:
        arch = tiny(layers, hidden, **changes)
        prefix = arch.kind
        config = {
            f"{prefix}_embed_dim": hidden,
            f"{prefix}_attention_heads": arch.num_heads,
            f"{prefix}_ffn_embed_dim": arch.intermediate_size,
            f"{prefix}_layers": layers,
            "activation_fn": "relu",
            "vocab_size": arch.vocab_size,
        }
        tied = {"share_decoder_input_output_embed": True} if prefix == "decoder" else {}
        bare = {} if prefix == "decoder" else {"no_output_layer": True}
        return _Case(name, arch, config | tied | bare | theirs)

    relative = {"rel_pos_buckets": 32, "max_rel_pos": 128}
    return [
        case("SubLN and xPos", {"xpos_rel_pos": True}, subln=True, position="xpos"),
        case("DeepNorm", {"deepnorm": True}, deepnorm=True, position="none"),
        case("encoder, T5 buckets", relative, kind="encoder", subln=True, position="relative"),
    ]


def peer_checks(quick: bool) -> list[Check]:
    """Compare results and speed; no checks where the peer is not installed."""
    try:
        interpreter = peers.python("torchscale")
    except BackendError as error:
        print(f"checks against pip torchscale left out: {error}")
        return []
    worst = 0.0
    for case in _cases(3, 64):
        with tempfile.TemporaryDirectory() as folder:
            worst = max(worst, _difference(interpreter, case, Path(folder)))
    checks = [Check("5 largest difference to torchscale's results", worst, 1e-5, "lower")]
    with tempfile.TemporaryDirectory() as folder:
        speed = _speed(interpreter, _cases(4, 256)[0], Path(folder), rounds=3 if quick else 9)
    return [*checks, Check("5 tokens per second over torchscale", speed, 1.0, "higher")]


def _difference(interpreter: Path, case: _Case, folder: Path) -> float:
    """Return the largest difference of results."""
    model = build(case.arch, seed=0).eval()
    _disturb(model)
    tokens = torch.randint(0, 64, (2, 40), generator=torch.Generator().manual_seed(0))
    peer = _start(interpreter, case, model, tokens, folder)
    _stop(peer)
    with torch.no_grad():
        ours = model(tokens)
    theirs = torch.from_numpy(np.load(folder / "result.npz")["result"])
    found = float((ours - theirs).abs().max())
    print(f"{case.name}: differs by {found:.1e} on results of spread {float(ours.std()):.2f}")
    return found


def _speed(interpreter: Path, case: _Case, folder: Path, rounds: int) -> float:
    """Return how many times as many tokens per second ours computes, forward and backward."""
    model = build(case.arch, seed=0)
    tokens = torch.randint(0, 64, (4, 256), generator=torch.Generator().manual_seed(0))
    peer = _start(interpreter, case, model, tokens, folder)
    ours, theirs = [], []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        model(tokens).square().mean().backward()
        ours.append(time.perf_counter() - start)
        model.zero_grad()
        assert peer.stdin is not None
        assert peer.stdout is not None
        peer.stdin.write("step\n")
        peer.stdin.flush()
        theirs.append(float(peer.stdout.readline()))
    _stop(peer)
    found = ratio(theirs[1:], ours[1:])
    print(f"{case.name}: {found.low:.2f} to {found.high:.2f} times torchscale's tokens per second")
    return found.median


def _start(
    interpreter: Path, case: _Case, model: Transformer, tokens: Tensor, folder: Path
) -> subprocess.Popen[str]:
    """Start the peer on our weights, and wait until it has written its result."""
    arrays: dict[str, Any] = {name: part.numpy() for name, part in _their_weights(model).items()}
    np.savez(folder / "weights.npz", tokens=tokens.numpy(), **arrays)
    description = {
        "kind": case.arch.kind,
        "config": case.config,
        "threads": torch.get_num_threads(),
    }
    words = [folder / "weights.npz", folder / "result.npz", json.dumps(description)]
    # -P: the folder of the program holds a benchmark of the package's own name.
    peer = subprocess.Popen(
        [str(interpreter), "-P", str(_PROGRAM), *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert peer.stdout is not None
    lines = iter(peer.stdout.readline, "")
    # What the package prints when it is imported stands before.
    if not any(line.strip() == "ready" for line in lines):
        raise BackendError("pip torchscale could not run the model; its message stands above")
    return peer


def _stop(peer: subprocess.Popen[str]) -> None:
    """Let the peer end."""
    peer.communicate()


@torch.no_grad()
def _disturb(model: Transformer) -> None:
    """Give gains and biases values of their own, so that none could be left out unseen."""
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


@torch.no_grad()
def _their_weights(model: Transformer) -> dict[str, Tensor]:
    """Return our weights under their names."""
    arch = model.architecture
    found = {"embed_tokens.weight": model.embedding.weight}
    if model.relative_bias is not None:
        name = "relative_position.relative_attention_bias.weight"
        found[name] = model.relative_bias.weight
    for name, value in model.named_parameters():
        owner, _, kind = name.rpartition(".")
        if owner.startswith("layers."):
            _, index, module = owner.split(".")
            prefix = f"layers.{index}."
            if module == "qkv":
                for part, rows in zip("qkv", value.chunk(3), strict=True):
                    turned = part != "v" and arch.position == "xpos"
                    kept = _interleaved(rows, arch.head_dim) if turned else rows
                    found[f"{prefix}self_attn.{part}_proj.{kind}"] = kept
            else:
                found[f"{prefix}{_LAYER[module]}.{kind}"] = value
        elif owner == "norm":
            found[f"layer_norm.{kind}"] = value
    return {name: value.detach().contiguous() for name, value in found.items()}


def _interleaved(rows: Tensor, width: int) -> Tensor:
    """Order the rows of each head as they do: the two coordinates of a pair side by side."""
    order = torch.arange(width).view(2, -1).T.flatten()
    return rows.unflatten(0, (-1, width))[:, order].flatten(0, 1)
