"""An encoder-decoder: its size, what its halves see, and its folder."""

import dataclasses

import pytest
import torch
from tests.nn.conftest import GPT2, LLAMA
from torch.nn import functional as F

from steelyard.catalog import architecture_by_name
from steelyard.catalog.parameters import count_parameters
from steelyard.errors import ConfigError
from steelyard.nn import checkpoint, transformer
from steelyard.nn.encoder_decoder import build, load

T5 = dataclasses.replace(
    architecture_by_name("t5-small"), num_layers=2, hidden_size=32, vocab_size=97, num_heads=4,
    num_kv_heads=4, head_dim=8, intermediate_size=48,
)  # fmt: skip
PAIRS = {
    "t5": T5,
    "deepnorm": dataclasses.replace(
        GPT2, kind="encoder-decoder", deepnorm=True, embedding_norm=True, drop_path=0.1
    ),
    "subln": dataclasses.replace(
        LLAMA, kind="encoder-decoder", subln=True, position="xpos", tied_embeddings=False
    ),
    "sandwich": dataclasses.replace(LLAMA, kind="encoder-decoder", sandwich_norm=True),
}


@pytest.fixture(params=PAIRS.values(), ids=list(PAIRS))
def pair(request):
    return request.param


def tokens_of(batch: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(0, 97, (batch, length), generator=torch.Generator().manual_seed(seed))


def test_parameter_count_is_the_catalogs(pair):
    assert sum(p.numel() for p in build(pair).parameters()) == count_parameters(pair).total


def test_it_learns_to_copy_and_every_parameter_moves(pair):
    model, source = build(pair, seed=1), tokens_of(8, 6)
    target = torch.cat((torch.zeros(8, 1, dtype=torch.long), source[:, :-1]), 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(model(source, target).flatten(0, 1), source.flatten())
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and (p.grad != 0).any() for p in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.5


@torch.no_grad()
def test_a_target_sees_what_is_before_it_and_all_of_the_source(pair):
    model, source, target = build(pair).eval(), tokens_of(2, 9), tokens_of(2, 7, seed=2)
    before = model(source, target)
    changed = target.clone()
    changed[:, 5] = (changed[:, 5] + 1) % 97
    after = model(source, changed)
    torch.testing.assert_close(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])
    changed = source.clone()
    changed[:, 8] = (changed[:, 8] + 1) % 97
    assert not torch.allclose(before[:, 0], model(changed, target)[:, 0])
    torch.testing.assert_close(model.decode(model.encoder(source), target), before)


@torch.no_grad()
def test_saved_and_loaded_it_computes_the_same(pair, tmp_path):
    model = build(pair, seed=2).eval()
    checkpoint.save(model, tmp_path)
    loaded, given = load(tmp_path), (tokens_of(2, 9), tokens_of(2, 7))
    assert loaded.architecture == pair
    assert loaded.decoder.embedding is loaded.encoder.embedding
    assert torch.equal(loaded(*given), model(*given))
    with pytest.raises(ConfigError, match="two stacks"):
        checkpoint.load(tmp_path)


def test_its_halves_have_constants_of_their_own():
    model = build(PAIRS["deepnorm"])
    encoder, decoder = model.encoder.layers[0], model.decoder.layers[0]
    assert encoder.residual_weight == pytest.approx(0.81 * 3 ** (5 / 16))
    assert decoder.residual_weight == pytest.approx(9**0.25)
    assert encoder.cross is None
    gains = [0.87 * 3 ** (-5 / 16), 36**-0.25]
    for layer, gain in zip((encoder, decoder), gains, strict=True):
        spread = gain * (2 / (48 + 80)) ** 0.5
        assert layer.up.weight.detach().std().item() == pytest.approx(spread, rel=0.05)
    keys, values = decoder.cross.keys_values.weight.detach().chunk(2)
    assert (values.std() / keys.std()).item() == pytest.approx(gains[1], rel=0.1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "decoder"}, "not 'encoder-decoder'"),
        ({"num_experts": 4, "experts_per_token": 1, "moe_intermediate_size": 8}, "experts"),
        ({"mixer": "retention"}, "mixer"),
    ],
)
def test_what_it_does_not_have_is_named(change, words):
    with pytest.raises(ConfigError, match=words):
        build(dataclasses.replace(PAIRS["subln"], **change))
    with pytest.raises(ConfigError, match=r"nn\.encoder_decoder|two stacks"):
        transformer.build(PAIRS["subln"])
