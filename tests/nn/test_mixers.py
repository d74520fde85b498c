"""Positions and mixers against the slow obvious versions."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nn.wide_models import WIDE

from steelyard.errors import ConfigError
from steelyard.nn.mixers.dilated import attend_dilated
from steelyard.nn.mixers.retention import retain_chunks, retain_parallel, retain_step
from steelyard.nn.mixers.sequences import attend_blocks, attend_sequence
from steelyard.nn.positions.bias import alibi_bias, alibi_slopes, relative_buckets
from steelyard.nn.positions.xpos import decay_scales, spread_decayed
from steelyard.nn.rotary import rotary_tables, rotate, spread
from steelyard.nn.transformer import build


def heads_of(length: int, *, heads: int = 4, kv: int = 2, seed: int = 0, width: int = 8):
    generator = torch.Generator().manual_seed(seed)
    return tuple(
        torch.randn(2, length, count, width, generator=generator) for count in (heads, kv, kv)
    )


@settings(max_examples=25, deadline=None)
@given(length=st.integers(1, 70), chunk=st.integers(1, 40), seed=st.integers(0, 99))
def test_retention_is_the_same_at_once_by_token_and_by_chunk(length, chunk, seed):
    parts = heads_of(length, seed=seed)
    parallel, state, steps = retain_parallel(*parts), None, []
    for place in range(length):
        step, state = retain_step(*(part[:, place] for part in parts), state)
        steps.append(step)
    torch.testing.assert_close(torch.stack(steps, 1), parallel, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(retain_chunks(*parts, chunk), parallel, rtol=1e-5, atol=1e-5)


def test_retention_decays_by_head_and_distance():
    ones = torch.ones(1, 3, 2, 1)
    result = retain_parallel(ones, ones, ones)[0, :, :, 0]
    first, second = 31 / 32, 63 / 64
    assert result[2].tolist() == pytest.approx([1 + first + first**2, 1 + second + second**2])


def looped_dilated(queries, keys, values, segments, rates):
    """One query at a time; patterns joined by the sum of all their exponentials."""
    batch, length, heads, width = queries.shape
    result = torch.zeros_like(queries)
    for b in range(batch):
        for h in range(heads):
            kv = h // (heads // keys.shape[2])
            for m in range(length):
                scores, seen = [], []
                for segment, rate in zip(segments, rates, strict=True):
                    start = m // segment * segment
                    places = range(start + h % rate, min(start + segment, length), rate)
                    if m in places:
                        part = [n for n in places if n <= m]
                        scores += [queries[b, m, h] @ keys[b, n, kv] * width**-0.5 for n in part]
                        seen += part
                if seen:
                    shares = torch.stack(scores).softmax(0)
                    result[b, m, h] = shares @ values[b, seen, kv]
    return result


@pytest.mark.parametrize("length", [16, 21])
@pytest.mark.parametrize(("segments", "rates"), [((4, 8), (1, 2)), ((8,), (1,)), ((4, 16), (2, 4))])
def test_dilated_attention_is_one_softmax_over_all_its_patterns(length, segments, rates):
    parts = heads_of(length, seed=3)
    ours = attend_dilated(*parts, segments, rates)
    torch.testing.assert_close(ours, looped_dilated(*parts, segments, rates), rtol=1e-4, atol=1e-5)
    queries = parts[0].clone().requires_grad_()
    attend_dilated(queries, *parts[1:], segments, rates).square().sum().backward()
    assert torch.isfinite(queries.grad).all()


@pytest.mark.parametrize("block", [1, 5, 8, 40])
def test_blocks_see_themselves_and_the_one_before(block):
    queries, keys, values = heads_of(22, kv=4)
    slopes = alibi_slopes(4)
    ours = attend_blocks(queries, keys, values, block=block, bias=lambda d: alibi_bias(d, 4))
    for m in (0, 4, 5, 13, 21):
        first = max(m // block - 1, 0) * block
        seen = torch.arange(first, m + 1)
        scores = torch.einsum("bhd,bnhd->bhn", queries[:, m], keys[:, seen]) * 8**-0.5
        scores = scores - slopes[:, None] * (m - seen)
        wanted = torch.einsum("bhn,bnhd->bhd", scores.softmax(-1), values[:, seen])
        torch.testing.assert_close(ours[:, m], wanted, rtol=1e-4, atol=1e-5)


def test_one_block_is_all_and_both_ways_is_torchs_attention():
    parts = heads_of(12)
    whole = attend_sequence(*parts, causal=True)
    torch.testing.assert_close(attend_blocks(*parts, block=12), whole)
    both = attend_sequence(*parts, causal=False)
    assert not torch.allclose(both[:, 0], whole[:, 0])
    torch.testing.assert_close(both[:, -1], whole[:, -1])


def test_xpos_scores_depend_on_the_distance_alone_and_fall_with_it():
    tables, scales = rotary_tables(1024, 8, 100.0), decay_scales(1024, 8)
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 2, 8, generator=generator)

    def score(m: int, n: int) -> torch.Tensor:
        def turned(x, place):
            rows = tables[0][place : place + 1], tables[1][place : place + 1]
            rotation = spread(*rows, torch.float32)
            wide = spread_decayed(rotation, scales[place : place + 1], (2, 2))
            return rotate(torch.cat((x, x), dim=1), *wide)

        return (turned(query, m)[:, :2] * turned(key, n)[:, 2:]).sum(-1)

    torch.testing.assert_close(score(40, 3), score(1000, 963), rtol=1e-4, atol=1e-5)
    plain = rotary_tables(1024, 8, 100.0)
    zeta = (torch.arange(4) / 4 + 0.4) / 1.4
    for m in (5, 300):
        wide = [spread(plain[0][p : p + 1], plain[1][p : p + 1], torch.float32) for p in (m, 0)]
        products = rotate(query, *wide[0]) * rotate(key, *wide[1])
        wanted = (products * (zeta ** (m / 512)).repeat(2)).sum(-1)
        torch.testing.assert_close(score(m, 0), wanted, rtol=1e-4, atol=1e-5)


def test_relative_buckets_are_t5s():
    # From the reference implementation: 32 buckets, largest distance 128.
    behind = [0, -1, -7, -15, -16, -20, -31, -64, -127, -500, 3]
    assert relative_buckets(torch.tensor(behind), both_ways=False).tolist() == [
        *(0, 1, 7, 15, 16, 17, 21, 26, 31, 31, 0)
    ]
    both = [0, -1, -7, -8, -16, -64, -127, 1, 8, 64, 500]
    assert relative_buckets(torch.tensor(both), both_ways=True).tolist() == [
        *(0, 1, 7, 8, 10, 14, 15, 17, 24, 30, 31)
    ]


def test_alibi_slopes_are_the_published_series():
    assert alibi_slopes(8).tolist() == [2.0**-power for power in range(1, 9)]
    twelve = alibi_slopes(12).tolist()
    assert twelve[:8] == alibi_slopes(8).tolist()
    assert twelve[8:] == pytest.approx([2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])


@torch.no_grad()
def test_a_retention_model_run_token_by_token_computes_the_same():
    arch = WIDE["retention"]
    model, states = build(arch, seed=1), {}
    tokens = torch.randint(0, 97, (2, 11), generator=torch.Generator().manual_seed(0))

    def attend(layer, queries, keys, values):
        result, states[layer] = retain_step(queries, keys, values, states.get(layer))
        return result

    steps = [model.run(tokens[:, t], torch.full((2,), t), attend) for t in range(11)]
    torch.testing.assert_close(
        model.head(torch.stack(steps, dim=1)), model(tokens), rtol=1e-4, atol=1e-5
    )


@torch.no_grad()
@pytest.mark.parametrize("name", ["xpos", "relative", "alibi"])
def test_in_blocks_a_model_forgets_what_is_two_blocks_back(name):
    model = build(dataclasses.replace(WIDE[name], num_layers=1), seed=1)
    tokens = torch.randint(0, 97, (1, 20), generator=torch.Generator().manual_seed(0))
    changed = tokens.clone()
    changed[0, 2] = (changed[0, 2] + 1) % 97
    before, after = model(tokens, block=5), model(changed, block=5)
    assert torch.equal(before[:, 10:], after[:, 10:])
    assert not torch.equal(before[:, 9], after[:, 9])
    torch.testing.assert_close(model(tokens, block=20), model(tokens), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["retention", "encoder"])
def test_models_without_blocks_say_so(name):
    with pytest.raises(ConfigError, match="cannot attend in blocks"):
        build(WIDE[name])(torch.zeros(1, 8, dtype=torch.long), block=4)


@torch.no_grad()
def test_branches_of_a_layer_see_all_tokens_but_weigh_their_own():
    model = build(WIDE["multiway"], seed=1).eval()
    tokens = torch.randint(0, 97, (1, 12), generator=torch.Generator().manual_seed(0))
    before = model(tokens, split=5)
    for layer in model.layers:
        layer.branches[0].load_state_dict(layer.branches[1].state_dict())
    alike = model(tokens, split=5)
    assert not torch.allclose(before[:, 5:], alike[:, 5:])  # keys and values of the others changed
    torch.testing.assert_close(model(tokens, split=0), alike, rtol=1e-4, atol=1e-5)
