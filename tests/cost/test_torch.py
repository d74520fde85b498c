"""FLOPs and saved activations against what PyTorch itself counts."""

import contextlib
import gc
import itertools
from dataclasses import replace
from typing import Any, Literal, get_args

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.cost import operators
from steelyard.cost.eager import TURNED_LOGITS, eager_training_memory
from steelyard.cost.resident import resident_serving_memory
from steelyard.nn.parts import token_loss
from steelyard.nn.transformer import build
from steelyard.serve.running.runner import TorchRunner
from steelyard.serve.scheduling.config import SchedulerConfig
from steelyard.train.trainer import next_token_loss

Kind = Literal["fp32", "bf16"]
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


def passes(dtype):
    narrow = torch.autocast("cpu", dtype=torch.bfloat16)
    return narrow if dtype == "bf16" else contextlib.nullcontext()


@pytest.mark.filterwarnings("ignore:Mismatch dtype")  # torch widens the input of such a norm
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("changes", VARIANTS, ids=["llama", "untied", "gpt", "qk-norm"])
def test_saved_activations_equal_what_autograd_keeps(changes, dtype):
    torch.set_num_threads(1)
    arch, batch, length = small(**changes), 4, 128
    model, tokens = build(arch), torch.randint(0, arch.vocab_size, (batch, length))
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with passes(dtype), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(tokens)
    measured = sum(
        tensor.untyped_storage().nbytes()
        for storage, tensor in kept.items()
        if storage not in weights
    )
    assert eager_training_memory(
        arch, batch=batch, sequence_length=length, dtype=dtype
    ).activations == pytest.approx(measured, rel=0.03)


def most_allocated(work) -> int:
    """Return the most bytes that torch's allocator gave out at once, beyond those at the start."""
    gc.collect()  # what earlier tests left would be freed in between
    with torch.profiler.profile(profile_memory=True) as found:
        work()
    events: list[Any] = found.profiler.kineto_results.events()  # pyright: ignore[reportOptionalMemberAccess]
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    sizes = [size for _, size in sorted(changes, key=lambda change: change[0])]
    return max(itertools.accumulate(sizes))


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("changes", VARIANTS[:3], ids=["llama", "untied", "gpt"])
@pytest.mark.parametrize(
    ("batch", "length", "accumulation"),
    [(8, 128, 1), (1, 16, 1), (1, 16, 2)],
    ids=["many", "few", "accumulated"],
)
def test_the_peak_of_a_step_is_what_the_allocator_gives_out(
    changes, dtype, batch, length, accumulation
):
    torch.set_num_threads(1)
    arch = small(**changes, vocab_size=2048)
    model, tokens = build(arch), torch.randint(0, arch.vocab_size, (batch, length + 1))

    def loss():
        with passes(dtype):
            return next_token_loss(model, tokens)

    def steps():
        for _ in range(accumulation):
            loss().backward()

    forecast = eager_training_memory(
        arch, batch=batch, sequence_length=length, accumulation=accumulation, dtype=dtype
    )
    measured = most_allocated(steps) + forecast.weights + forecast.optimizer
    assert measured == pytest.approx(forecast.total, rel=0.04)


def test_both_sides_turn_as_many_logits_at_once():
    assert token_loss._ELEMENTS["cpu"] == TURNED_LOGITS


GEMMA = {
    "mlp": "geglu",
    "sandwich_norm": True,
    "unit_offset_norm": True,
    "attention_softcap": 30.0,
    "sliding_window": 16,
    "full_attention_every": 3,
    "local_rope_theta": 100.0,
    "rotary_dim": 24,
}


@pytest.mark.parametrize(
    "changes", [*VARIANTS, GEMMA], ids=["llama", "untied", "gpt", "qk-norm", "gemma"]
)
def test_an_engine_holds_what_its_account_says(changes):
    torch.set_num_threads(1)
    arch = small(**changes)
    sequences, context = 3, 40
    config = SchedulerConfig(num_blocks=9, max_model_len=context, token_budget=512)
    for kind in get_args(Kind):
        dtype = torch.float32 if kind == "fp32" else torch.bfloat16
        runner = TorchRunner(build(arch, dtype=dtype), config, native=False)
        forecast = resident_serving_memory(
            arch, sequences=sequences, context=context, dtype=kind, process_bytes=0
        )
        assert runner.pool_bytes == forecast.kv_cache
        kept = [
            item
            for name, item in runner.model.named_parameters()
            if item.ndim == 1 or "embedding" in name
        ]
        held = [*kept, *(table.float() for table in runner.model.buffers())]
        assert sum(item.nbytes for item in held) == forecast.weights
        assert runner.packed_bytes == (forecast.packed if runner.packed_bytes else 0)
        assert sum(vars_of(forecast)) == forecast.total


def vars_of(found):
    return [getattr(found, name) for name in found.__slots__ if name != "total"]


def test_eager_norms_of_narrow_values_go_through_wider_copies():
    """Bytes that the kernels of an eager RMSNorm read and write, against the operator's."""
    values, weight = torch.randn(192, 256, dtype=torch.bfloat16), torch.ones(256).bfloat16()
    wide = values.float()
    square = wide.pow(2)
    scaled = wide * torch.rsqrt(square.mean(-1, keepdim=True) + 1e-6)
    narrow = scaled.to(torch.bfloat16)
    kernels = [(values, wide), (wide, square), (square,), (wide, scaled), (scaled, narrow)]
    kernels.append((narrow, narrow * weight))
    moved = sum(item.nbytes for kernel in kernels for item in kernel)
    arch = replace(catalog.architecture_by_name("llama-3-8b"), hidden_size=256)
    plain, fused = (
        operators(arch, phase="prefill", tokens=64, batch=3, fused=item) for item in (False, True)
    )
    place = plain.names.index("norm")
    assert plain.bytes_moved[place] == moved
    assert fused.bytes_moved[place] == 2 * values.nbytes
