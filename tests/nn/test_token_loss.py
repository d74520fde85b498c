"""Losses straight from hidden states, and the table that is the head as well."""

import pytest
import torch
import torch.nn.functional as F

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError
from steelyard.nn.parts import token_loss
from steelyard.nn.parts.token_loss import token_losses
from steelyard.nn.transformer import build
from steelyard.train import trainer
from steelyard.train.measure.example_norms import ExampleNorms
from steelyard.train.trainer import next_token_loss

SHAPE = {
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 2,
    "num_kv_heads": 2,
    "head_dim": 16,
    "intermediate_size": 64,
    "vocab_size": 300,
}


def _parts(dtype: torch.dtype):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(7, 11, 16, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(50, 16, generator=generator).to(dtype).requires_grad_()
    targets = torch.randint(0, 50, (7, 11), generator=generator)
    return hidden, weight, targets, torch.rand(7, 11, generator=generator)


@pytest.mark.parametrize("elements", [1, 500, 1 << 19])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 2e-6), (torch.bfloat16, 1e-2)])
def test_losses_and_gradients_are_those_of_log_softmax(monkeypatch, elements, dtype, error):
    monkeypatch.setitem(token_loss._ELEMENTS, "cpu", elements)
    hidden, weight, targets, upstream = _parts(dtype)
    found = token_losses(hidden, weight, targets)
    logits = (hidden @ weight.T).float()
    wanted = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    assert found.dtype == torch.float32 and found.shape == targets.shape
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=0)
    ours = torch.autograd.grad(found, (hidden, weight), upstream)
    theirs = torch.autograd.grad(wanted, (hidden, weight), upstream)
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() <= error * other.abs().max()
    with torch.no_grad():
        torch.testing.assert_close(token_losses(hidden, weight, targets), wanted, atol=2e-5, rtol=0)


def test_numeric_gradient():
    hidden, weight, targets, _ = _parts(torch.float64)

    def few(hidden, weight):
        return token_losses(hidden, weight, targets[:1, :3])

    assert torch.autograd.gradcheck(
        few,
        (hidden[:1, :3, :4].detach().requires_grad_(), weight[:, :4].detach().requires_grad_()),
        eps=1e-3,
        atol=1e-3,
    )


def test_autocast_rounds_both_factors():
    hidden, weight, targets, _ = _parts(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = token_losses(hidden, weight, targets)
        logits = F.linear(hidden, weight).float()
    wanted = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=0)
    found.sum().backward()
    assert weight.grad is not None and weight.grad.dtype == torch.float32


@pytest.mark.parametrize("tied", [True, False])
def test_a_decoder_learns_the_same_with_and_without_logits(tied, monkeypatch):
    monkeypatch.setattr(trainer, "FEW_LOGITS", 0)
    model = build(Architecture(name="small", **SHAPE, tied_embeddings=tied))
    tokens = torch.randint(0, 300, (3, 20), generator=torch.Generator().manual_seed(1))
    watched = []
    hook = model.embedding.register_forward_hook(lambda *_: watched.append(1))
    loss = next_token_loss(model, tokens)
    hook.remove()
    loss.backward()
    ours = {name: item.grad.clone() for name, item in model.named_parameters()}
    model.zero_grad()
    wanted = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    wanted.backward()
    assert watched and loss.item() == pytest.approx(wanted.item(), rel=1e-6)
    for name, item in model.named_parameters():
        torch.testing.assert_close(ours[name], item.grad, rtol=1e-4, atol=1e-7)
    assert (ours["embedding.weight"][:] != 0).any(1).sum() > (20 if tied else 0)


def test_capped_and_divided_logits_go_the_other_way():
    capped = build(Architecture(name="capped", **SHAPE, logit_softcap=30.0))
    assert not capped.has_plain_head
    assert build(Architecture(name="plain", **SHAPE)).has_plain_head
    with pytest.raises(ConfigError, match="logits of capped are divided, capped"):
        capped(torch.zeros(1, 4, dtype=torch.int64), targets=torch.zeros(1, 4, dtype=torch.int64))
    tokens = torch.randint(0, 300, (2, 9), generator=torch.Generator().manual_seed(1))
    wanted = F.cross_entropy(capped(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    assert next_token_loss(capped, tokens).item() == pytest.approx(wanted.item(), rel=1e-6)


def test_lent_tables_do_not_keep_the_graph():
    model = build(Architecture(name="small", **SHAPE))
    tokens = torch.zeros(1, 5, dtype=torch.int64)
    model(tokens, targets=tokens)
    assert model.embedding._lent is None
    assert model(tokens).shape == (1, 5, 300)


@pytest.mark.parametrize("tied", [True, False])
def test_norms_by_example_know_losses_and_lent_tables(tied):
    model = build(Architecture(name="small", **SHAPE, tied_embeddings=tied))
    tokens = torch.randint(0, 300, (3, 20), generator=torch.Generator().manual_seed(1))
    norms = ExampleNorms(dict(model.named_parameters()))
    for _ in range(2):  # names of lent tables are forgotten from pass to pass
        model.zero_grad()
        norms.start(3)
        with norms:
            model(tokens[:, :-1], targets=tokens[:, 1:]).mean(1).sum().backward()
        found = {name: value.clone() for name, value in norms.squared().items()}
    for example in range(3):
        model.zero_grad()
        rows = tokens[example : example + 1]
        F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).backward()
        for name, item in model.named_parameters():
            wanted = item.grad.square().sum()
            assert found[name][example].item() == pytest.approx(wanted.item(), rel=1e-3), name
