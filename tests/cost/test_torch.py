"""FLOPs and saved activations against what PyTorch itself counts."""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from steelyard.catalog.architecture import Architecture
from steelyard.cost import operators
from steelyard.cost.eager import eager_training_memory
from steelyard.nn.transformer import build

GPT = {
    "norm": "layernorm",
    "position": "learned",
    "mlp": "gelu",
    "qkv_bias": True,
    "output_bias": True,
    "mlp_bias": True,
}
VARIANTS = [
    {},
    {"tied_embeddings": False, "num_kv_heads": 4},
    {"num_kv_heads": 4, **GPT},
    {"qk_norm": True},
]


def small(**changes) -> Architecture:
    shape = {
        "hidden_size": 128,
        "num_layers": 3,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 32,
        "intermediate_size": 384,
        "vocab_size": 512,
    }
    return Architecture(name="small", **{**shape, **changes})


@pytest.mark.parametrize("changes", VARIANTS, ids=["llama", "untied", "gpt", "qk-norm"])
def test_flops_equal_what_torch_counts(changes):
    torch.set_num_threads(1)
    arch, batch, length = small(**changes), 2, 64
    model, tokens = build(arch), torch.randint(0, arch.vocab_size, (batch, length))
    options = {"tokens": length, "batch": batch, "causal": False, "flash_attention": False}
    with sdpa_kernel(SDPBackend.MATH):
        with FlopCounterMode(display=False) as forward:
            model(tokens)
        with FlopCounterMode(display=False) as both:
            F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
    one_row_head = 2 * (batch * length - batch) * arch.hidden_size * arch.vocab_size
    assert (
        operators(arch, phase="prefill", **options).total("flops") + one_row_head
        == forward.get_total_flops()
    )
    assert operators(arch, phase="train", **options).total("flops") == both.get_total_flops()


@pytest.mark.parametrize("changes", VARIANTS, ids=["llama", "untied", "gpt", "qk-norm"])
def test_saved_activations_equal_what_autograd_keeps(changes):
    torch.set_num_threads(1)
    arch, batch, length = small(**changes), 4, 128
    model, tokens = build(arch), torch.randint(0, arch.vocab_size, (batch, length))
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(tokens)
    measured = sum(
        tensor.untyped_storage().nbytes()
        for storage, tensor in kept.items()
        if storage not in weights
    )
    assert eager_training_memory(
        arch, batch=batch, sequence_length=length
    ).activations == pytest.approx(measured, rel=0.03)
