from dataclasses import replace

import pytest

from steelyard import catalog
from steelyard.cost import KVSpec, serve_point
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan import compress_kv

ARCH = catalog.architecture_by_name("yi-34b")
A100 = replace(catalog.accelerator("A100-SXM4-80GB"), host_link_bytes_per_s=20e9)


def test_axes_multiply():
    """Source: arXiv 2405.08944, section 4.

    4-bit, a quarter of the heads and an eighth of the layers are 128 times.
    """
    kv = KVSpec(hidden=1 / 4, heads=1 / 4, layers=1 / 8)
    plain, small = (serve_point(ARCH, A100, context=50_000, kv=item) for item in (None, kv))
    assert 1 / kv.kept == pytest.approx(128)
    assert small.kv_bytes == pytest.approx(
        plain.kv_bytes / 128
    ) and small.switch_s == pytest.approx(plain.switch_s / 128)
    assert small.prefill_s == plain.prefill_s
    assert small.concurrency >= 128 * plain.concurrency
    gain = plain.decode_s_per_token - small.decode_s_per_token
    assert gain == pytest.approx((plain.kv_bytes - small.kv_bytes) / A100.memory_bytes_per_s)


def test_a_million_tokens_as_cheap_as_four_thousand():
    found = compress_kv(ARCH, A100, context=1_000_000, target_context=4000)
    assert found and all(
        item.factor >= 249.99 and item.point.kv_bytes <= 4000 * 245760 * 1.001 for item in found
    )
    assert [(item.axes, item.factor) for item in found] == sorted(
        (item.axes, item.factor) for item in found
    )
    assert all(item.point.prefill_s == item.plain.prefill_s for item in found)
    assert found[0].plain.beyond_positions


def test_only_the_mildest_combinations_are_kept():
    found = compress_kv(
        ARCH,
        A100,
        context=16_000,
        target_context=4000,
        axes={"tokens": [0.5, 0.25], "hidden": [0.5, 0.25]},
    )
    kept = [(item.kv.tokens, item.kv.hidden) for item in found]
    assert sorted(kept) == [(0.25, 1.0), (0.5, 0.5), (1.0, 0.25)]


def test_refusals():
    with pytest.raises(InfeasibleError, match="strongest"):
        compress_kv(ARCH, A100, context=1_000_000, axes={"heads": [0.5]})
    with pytest.raises(ConfigError, match="unknown axes depth"):
        compress_kv(ARCH, A100, context=8000, axes={"depth": [0.5]})
    with pytest.raises(ConfigError, match="target_context"):
        compress_kv(ARCH, A100, context=1000)
    with pytest.raises(ConfigError, match="heads is 0"):
        KVSpec(heads=0.0)
