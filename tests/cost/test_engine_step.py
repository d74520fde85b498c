from dataclasses import replace

import numpy as np
import pytest
from tests.made_rates import PEAKS, made_rates, s_per_weight

from steelyard.catalog import architecture_by_name
from steelyard.cost import EngineStepTime, operators
from steelyard.cost.engine_step import decode_features, part_works
from steelyard.cost.step_time import step_features
from steelyard.cost.weights import StoredWidth, engine_bytes_per_weight, kv_element_bytes
from steelyard.cost.windows import attended_keys, attended_pairs

ARCH = architecture_by_name("smollm-135m")
WINDOWS = replace(ARCH, sliding_window=7, full_attention_every=4)
RATES = made_rates()


def timed(weights="int8", **how):
    return EngineStepTime(arch=ARCH, rates=RATES, weights=weights, **how)


@pytest.mark.parametrize(("tokens", "context"), [(1, 1), (1, 9), (5, 5), (5, 20), (20, 20), (3, 8)])
def test_pairs_and_keys_within_windows_are_those_that_one_counts(tokens, context):
    ends = range(context - tokens + 1, context + 1)
    reach = [WINDOWS.window_of(layer) or context for layer in range(WINDOWS.num_layers)]
    pairs = np.mean([sum(min(end, window) for end in ends) for window in reach])
    keys = np.mean([len({i for e in ends for i in range(max(e - w, 0), e)}) for w in reach])
    assert attended_pairs(WINDOWS, tokens, context) == pytest.approx(pairs)
    assert attended_keys(WINDOWS, tokens, context) == pytest.approx(keys)


def test_operators_read_the_keys_of_windows_in_their_own_type():
    def attention(arch, **how):
        table = operators(arch, phase="decode", tokens=1, context=512, dtype_bytes=4.0, **how)
        row = table.names.index("attention")
        return table.bytes_read[row], table.flops[row]

    plain, windowed = attention(ARCH), attention(WINDOWS)
    mean = attended_keys(WINDOWS, 1, 512) / 512
    assert windowed[1] == pytest.approx(plain[1] * mean) and windowed[0] < plain[0]
    query = 4.0 * ARCH.num_heads * ARCH.head_dim
    narrow = attention(ARCH, kv_bytes=kv_element_bytes("int8", ARCH.head_dim))
    scales = 1 + 4 / ARCH.head_dim
    assert (narrow[0] - query) / (plain[0] - query) == pytest.approx(scales / 4)


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8", "int4"])
def test_times_of_products_equal_those_measured_and_lie_between_them(kind):
    for rows, size in ((1, 8e6), (8, 128e6), (64, 8e6)):
        wanted = 512 * 4096 * s_per_weight(kind, rows, size)
        assert RATES.product_s(kind, rows, 4096, 512, size) == pytest.approx(wanted)
    low, middle, high = (RATES.product_s(kind, rows, 4096, 512, 30e6) for rows in (8, 20, 64))
    assert low <= middle <= high
    # Beyond the most rows that were measured time is in proportion.
    assert RATES.product_s(kind, 640, 512, 512, 8e6) == pytest.approx(
        10 * RATES.product_s(kind, 64, 512, 512, 8e6)
    )
    assert RATES.flops_per_s(kind) == pytest.approx(PEAKS[kind])
    with pytest.raises(KeyError):
        RATES.product_s("fp8", 1, 512, 512, 8e6)


def test_parts_add_up_to_the_step_and_none_is_faster_than_its_bound():
    for features in (decode_features(1, 64), decode_features(8, 512), _prompt(256)):
        parts = timed().parts(features)
        assert timed().predict(features) == pytest.approx(sum(part.seconds for part in parts))
        assert all(part.seconds >= 0.99 * part.bound_s for part in parts)
        assert timed().scaled(2.0).predict(features) == pytest.approx(2 * timed().predict(features))
    many = timed().predict([decode_features(1, 64), decode_features(8, 512)])
    assert many.shape == (2,) and many[0] < many[1]


def test_decoding_reads_each_weight_once_and_a_prompt_is_bound_by_products():
    alone = {part.name: part for part in timed().parts(decode_features(1, 64))}
    many = {part.name: part for part in timed().parts(_prompt(512))}
    assert all(alone[name].is_memory and not many[name].is_memory for name in ("qkv", "up"))
    assert alone["up"].num_bytes == pytest.approx(
        ARCH.num_layers
        * 2
        * ARCH.intermediate_size
        * ARCH.hidden_size
        * engine_bytes_per_weight("int8", ARCH.hidden_size),
        rel=0.01,
    )


def test_the_head_keeps_eight_bits_where_the_layers_have_four():
    size = ARCH.vocab_size * ARCH.hidden_size
    layers = (timed("bf16").weight_bytes - 2 * size) / 2
    narrow = layers * (0.5 + 2 / 32) + size * engine_bytes_per_weight("int8", ARCH.hidden_size)
    assert timed("int4").weight_bytes == pytest.approx(narrow)


def test_narrow_keys_and_windows_shorten_attention():
    def attention(arch, kv):
        return part_works(arch, decode_features(4, 1024), kv)["decode"].units

    wide = attention(ARCH, "fp32")
    assert attention(ARCH, "bf16") == wide / 2
    assert attention(ARCH, "int8") == wide * (1 + 4 / ARCH.head_dim) / 4
    assert attention(WINDOWS, "fp32") < wide / 2


def _prompt(tokens):
    return step_features(
        sequences=1,
        prefill_tokens=tokens,
        prefill_kv=tokens * (tokens + 1) / 2,
        decode_tokens=0,
        decode_kv=0,
    )


def test_matrices_that_are_kept_otherwise_take_time_by_their_bytes():
    def down(width, tokens=1):
        stored = {"down": (StoredWidth("int8", 1 + 4 / ARCH.intermediate_size), width)}
        stored["down"] += stored["down"][:1] * (ARCH.num_layers - 2)
        parts = timed(stored=stored).parts(decode_features(tokens, 64))
        return next(part for part in parts if part.name == "down")

    same = down(StoredWidth("int8", 1 + 4 / ARCH.intermediate_size))
    plain = next(p for p in timed().parts(decode_features(1, 64)) if p.name == "down")
    assert same == plain
    more = down(StoredWidth("int8", 2 + 8 / ARCH.intermediate_size))
    assert more.num_bytes - same.num_bytes == pytest.approx(
        ARCH.hidden_size * (ARCH.intermediate_size + 4)
    )
    assert more.seconds / same.seconds == pytest.approx(1 + 1 / ARCH.num_layers, rel=0.05)
    # Few bytes make no product faster than it is with full caches.
    few, none = (down(StoredWidth("int8", size), tokens=64) for size in (0.01, 0.0))
    assert few.seconds == none.seconds > 0.5 * down(StoredWidth("int8", 1.0), 64).seconds
    assert down(StoredWidth("fp32", 2.0)).seconds > same.seconds
