"""Run pip `torchscale` in the peer's own Python: its results on given weights, and its speed."""

import json
import sys
import time
import types

import numpy as np
import torch


def _stub_timm() -> None:
    """Stand in for the one function of timm that is imported, which needs torchvision."""
    for name in ("timm", "timm.models", "timm.models.layers"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["timm.models.layers"].drop_path = lambda x, *_: x  # pyright: ignore[reportAttributeAccessIssue]


_stub_timm()
from torchscale.architecture.config import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    DecoderConfig,
    EncoderConfig,
)
from torchscale.architecture.decoder import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    Decoder,
)
from torchscale.architecture.encoder import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    Encoder,
)


def main() -> None:
    """Load, write the results, and time one step for each line of stdin."""
    weights_path, result_path, description = sys.argv[1:]
    case = json.loads(description)
    torch.set_num_threads(case["threads"])
    tensors = {name: torch.from_numpy(part) for name, part in np.load(weights_path).items()}
    tokens = tensors.pop("tokens")
    model = _build(case, tensors)
    with torch.no_grad():
        np.savez(result_path, result=_result(model, tokens).numpy())
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        _result(model, tokens).square().mean().backward()
        seconds = time.perf_counter() - start
        model.zero_grad()
        print(seconds, flush=True)


def _build(case: dict, tensors: dict[str, torch.Tensor]) -> torch.nn.Module:
    """Make the model, with all weights ours."""
    rows, width = tensors["embed_tokens.weight"].shape
    table = torch.nn.Embedding(rows, width)
    kind, config = (
        (Decoder, DecoderConfig) if case["kind"] == "decoder" else (Encoder, EncoderConfig)
    )
    model = kind(config(**case["config"]), embed_tokens=table)
    missing, left = model.load_state_dict(tensors, strict=False)
    missing = [name for name in missing if "output_projection" not in name and "xpos" not in name]
    if missing or left:
        raise SystemExit(f"weights do not fit: {missing} missing, {left} left over")
    return model.eval()


def _result(model: torch.nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """Return logits of a decoder, hidden states of an encoder."""
    found = model(tokens)
    return found["encoder_out"] if isinstance(found, dict) else found[0]


if __name__ == "__main__":
    main()
