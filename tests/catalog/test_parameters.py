"""Parameter counts.

Published numbers, a count by hand of each part, and how counts move with shape.
"""

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.catalog import Architecture, architecture_by_name, count_parameters, names

_GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "architecture_parameters.csv"
_ROWS = list(csv.DictReader(_GOLDEN.read_text().splitlines()))


def _tiny(**traits) -> Architecture:
    shape = {
        "hidden_size": 16,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 4,
        "intermediate_size": 24,
        "vocab_size": 32,
    }
    return Architecture(name="tiny", **(shape | traits))


@pytest.mark.parametrize("row", _ROWS, ids=[row["name"] for row in _ROWS])
def test_published_counts(row):
    published, tolerance = float(row["parameters"]), float(row["relative_tolerance"])
    counted = count_parameters(architecture_by_name(row["name"])).total
    assert counted == published if tolerance == 0 else abs(counted / published - 1) <= tolerance


@pytest.mark.parametrize("name", names("architectures"))
def test_counts_agree_with_the_stated_size_and_add_up(name):
    arch = architecture_by_name(name)
    count = count_parameters(arch)
    assert count.total == count.non_embedding + count.embedding + count.head
    assert count.active - count.active_non_embedding == count.embedding + count.head
    assert count.active < count.total if arch.num_experts else count.active == count.total
    assert count.total == pytest.approx(arch.published_parameters, rel=0.055)


def test_non_embedding_counts_of_gpt2_and_llama():
    gpt2, llama = (count_parameters(architecture_by_name(name)) for name in ("gpt2", "llama-2-7b"))
    assert (gpt2.non_embedding, gpt2.embedding, gpt2.head) == (85_056_000, (50257 + 1024) * 768, 0)
    assert (llama.non_embedding, llama.embedding, llama.head) == (
        6_476_271_616,
        32000 * 4096,
        32000 * 4096,
    )


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("mixtral-8x7b", 12.9e9),
        ("deepseek-v3", 37e9),
        ("deepseek-v2", 21e9),
        ("qwen3-30b-a3b", 3.3e9),
        ("qwen3-235b-a22b", 22e9),
        ("qwen3-coder-480b-a35b", 35e9),
        ("kimi-k2", 32.6e9),
    ],
)
def test_active_parameters_as_published(name, active):
    assert count_parameters(architecture_by_name(name)).active == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize(
    ("trait", "added"),
    [
        ({"qkv_bias": True}, 2 * (16 + 8 + 8)),
        ({"output_bias": True}, 2 * 16),
        ({"mlp_bias": True}, 2 * (2 * 24 + 16)),
        ({"qk_norm": True}, 2 * 2 * 4),
        ({"sandwich_norm": True}, 2 * 2 * 16),
        ({"norm": "layernorm"}, 5 * 16),
        ({"mlp": "gelu"}, -2 * 16 * 24),
        ({"tied_embeddings": False}, 32 * 16),
        ({"position": "learned", "max_positions": 10, "position_offset": 2}, 12 * 16),
        ({"num_token_types": 2}, 2 * 16),
        ({"pooler": True}, 16 * 17),
        ({"num_kv_heads": 4}, 2 * 2 * 16 * 8),
        ({"position": "relative"}, 32 * 4),
    ],
)
def test_each_trait_adds_what_it_holds(trait, added):
    assert count_parameters(_tiny(**trait)).total - count_parameters(_tiny()).total == added


def test_one_layer_counted_by_hand():
    attention, mlp, norms = 16 * 16 + 2 * 16 * 8 + 16 * 16, 3 * 16 * 24, 2 * 16
    assert count_parameters(_tiny(num_layers=1)).non_embedding == attention + mlp + norms + 16


def test_experts_counted_by_hand():
    arch = _tiny(
        num_experts=4,
        experts_per_token=2,
        num_shared_experts=1,
        moe_intermediate_size=8,
        num_dense_layers=1,
        router_bias=True,
    )
    count, expert = count_parameters(arch), 3 * 16 * 8
    dense = count_parameters(_tiny()).total
    assert count.total == dense - 3 * 16 * 24 + 5 * expert + 17 * 4
    assert count.total - count.active == 2 * expert


@settings(deadline=None)
@given(
    growing=st.sampled_from(
        ["hidden_size", "num_layers", "intermediate_size", "vocab_size", "head_dim"]
    ),
    step=st.integers(1, 64),
    kind=st.sampled_from(["decoder", "encoder", "encoder-decoder"]),
    gated=st.booleans(),
    tied=st.booleans(),
)
def test_counts_grow_with_every_size(growing, step, kind, gated, tied):
    arch = _tiny(kind=kind, mlp="swiglu" if gated else "gelu", tied_embeddings=tied)
    larger = replace(arch, **{growing: getattr(arch, growing) + step})
    assert count_parameters(larger).total > count_parameters(arch).total
    assert count_parameters(larger).non_embedding >= count_parameters(arch).non_embedding


@settings(deadline=None)
@given(experts=st.integers(2, 64), visited=st.integers(1, 2))
def test_active_parameters_move_only_by_the_router(experts, visited):
    def count(number: int):
        return count_parameters(
            _tiny(num_experts=number, experts_per_token=visited, moe_intermediate_size=8)
        )

    assert count(experts + 1).active - count(experts).active == 2 * 16
    assert count(experts + 1).total > count(experts).total
