"""Mixtures of experts against a loop over tokens, and what keeps them balanced."""

import copy
import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.nn.wide_models import WIDE
from torch.nn import functional as F

from steelyard.errors import ConfigError
from steelyard.nn.moe.clip import SparseClip, expert_parameters
from steelyard.nn.moe.dispatch import sort_by_expert
from steelyard.nn.moe.experts import MixtureOfExperts
from steelyard.nn.moe.losses import auxiliary_loss, balance_loss, expert_loads
from steelyard.nn.moe.routers import CosineRouter, HashRouter, Routing
from steelyard.nn.moe.sinkhorn import balanced_plan
from steelyard.nn.parts.activation import activate
from steelyard.nn.parts.noise import Noise
from steelyard.nn.transformer import build

ROUTED = {
    name: arch
    for name, arch in WIDE.items()
    if name in ("softmax", "cosine", "sinkhorn", "hash", "reinforce", "shared")
}


def mixture_of(arch, seed=0) -> MixtureOfExperts:
    model = build(dataclasses.replace(arch, moe_every=1, num_dense_layers=0), seed=seed)
    return model.layers[0].experts


def rows_of(count: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 48, generator=generator), torch.randint(
        0, 97, (count,), generator=generator
    )


def looped(layer: MixtureOfExperts, rows, tokens, capacity: int) -> torch.Tensor:
    """One token and one expert at a time, first choices of all tokens before second ones."""
    routing = layer.router(rows, tokens)
    taken, added = [0] * len(layer.up), [torch.zeros(48) for _ in rows]
    for choice in range(routing.experts.shape[1]):
        for place, row in enumerate(rows):
            expert = int(routing.experts[place, choice])
            taken[expert] += 1
            if capacity and taken[expert] > capacity:
                continue
            inner = layer.up[expert] @ row
            if layer.up_bias is not None:
                inner = inner + layer.up_bias[expert]
            inner = activate(layer.form, inner)
            if layer.inner_norm is not None:
                inner = layer.inner_norm(inner)
            outer = layer.down[expert] @ inner
            if layer.down_bias is not None:
                outer = outer + layer.down_bias[expert]
            added[place] = added[place] + routing.gates[place, choice] * outer
    if layer.shared_up is not None:
        added = [
            total + layer.shared_down(activate(layer.form, layer.shared_up(row)))
            for total, row in zip(added, rows, strict=True)
        ]
    return torch.stack(added)


@pytest.mark.parametrize("name", ROUTED)
@pytest.mark.parametrize("factor", [0.0, 0.5])
def test_it_equals_a_loop_over_tokens_with_its_gradients(name, factor):
    arch = dataclasses.replace(ROUTED[name], capacity_factor=factor)
    layer = mixture_of(arch).train()
    if layer.noise is not None:
        layer.noise = None  # which second experts are drawn is another test's affair
    rows, tokens = rows_of(33)
    count = arch.experts_per_token
    capacity = math.ceil(factor * count * 33 / arch.num_experts)
    results = []
    for compute in (layer, lambda *given: looped(layer, *given, capacity)):
        layer.zero_grad()
        for module in layer.modules():
            if isinstance(module, Noise):
                module.reseed(4)
        inputs = rows.clone().requires_grad_()
        result = compute(inputs, tokens)
        result.square().sum().backward()
        grads = [p.grad.clone() for p in layer.parameters() if p.grad is not None]
        results.append([result.detach(), inputs.grad, *grads])
    for ours, slow in zip(*results, strict=True):
        torch.testing.assert_close(ours, slow, rtol=1e-4, atol=1e-5)
    dropped = layer.load.dropped_fraction
    assert (dropped > 0) == (factor > 0)
    assert layer.load.shares.sum().item() == pytest.approx(1)


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(0, 40),
    num_experts=st.integers(1, 9),
    capacity=st.integers(0, 12),
    seed=st.integers(0, 999),
)
def test_dispatch_visits_each_choice_once_and_no_expert_beyond_its_capacity(
    count, num_experts, capacity, seed
):
    generator = torch.Generator().manual_seed(seed)
    choices = min(2, num_experts)
    scores = torch.rand(count, num_experts, generator=generator)
    experts = scores.argsort(1)[:, :choices]
    skipped = torch.rand(count, choices, generator=generator) < 0.3
    found = sort_by_expert(experts, num_experts, capacity, skipped)
    visits = list(zip(found.rows.tolist(), found.choices.tolist(), strict=True))
    assert len(set(visits)) == len(visits)
    assert not any(bool(skipped[visit]) for visit in visits)
    assert len(visits) + found.dropped == int((~skipped).sum())
    begin = 0
    for expert, end in enumerate(found.ends.tolist()):
        run = visits[begin:end]
        assert all(int(experts[visit]) == expert for visit in run)
        assert not capacity or len(run) <= capacity
        assert run == sorted(run, key=lambda visit: visit[::-1])  # first choices, early rows
        begin = end
    assert begin == len(visits)
    assert int(found.load.sum()) == experts.numel()


def test_second_experts_are_kept_with_twice_their_gate():
    layer = mixture_of(WIDE["softmax"]).train()
    gates = torch.tensor([[0.9, 0.1]]).repeat(4000, 1)
    skipped = layer._skipped(Routing(torch.zeros(4000, 2, dtype=torch.long), gates))
    assert not skipped[:, 0].any()
    assert (~skipped[:, 1]).float().mean().item() == pytest.approx(0.2, abs=0.03)
    assert layer.eval()._skipped(Routing(torch.zeros(1, 2), gates[:1])) is None


def test_outside_of_training_an_expert_takes_a_quarter_of_the_tokens():
    arch = dataclasses.replace(WIDE["softmax"], num_experts=32, capacity_factor=1.0)
    layer = mixture_of(arch).train()
    assert layer._capacity(640) == 40
    assert layer.eval()._capacity(640) == 160


@settings(max_examples=30, deadline=None)
@given(
    count=st.integers(8, 200),
    num_experts=st.integers(2, 16),
    spread=st.floats(0.1, 3),
    seed=st.integers(0, 99),
)
def test_a_balanced_plan_has_even_shares(count, num_experts, spread, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(count, num_experts, generator=generator) * spread
    plan = balanced_plan(scores, max_rounds=2000)
    assert plan.rounds < 2000
    torch.testing.assert_close(plan.shares.sum(0), torch.full((num_experts,), 1 / num_experts))
    assert (plan.shares.sum(1) * count - 1).abs().max() <= 0.011
    assert torch.equal(plan.shares.argmax(1), (scores + plan.offsets).argmax(1))


def test_sinkhorn_spreads_what_raw_scores_would_send_to_one_expert():
    layer = mixture_of(WIDE["sinkhorn"])
    rows, tokens = rows_of(256)
    lopsided = rows + 3 * layer.router.weight[0].detach() / layer.router.weight[0].norm()
    raw = layer.router.eval()(lopsided, tokens).experts.flatten().bincount(minlength=4)
    balanced = layer.router.train()(lopsided, tokens).experts.flatten().bincount(minlength=4)
    assert raw.max() > 1.6 * 64
    assert balanced.max() < 1.25 * 64
    for _ in range(400):
        layer.router.train()(lopsided, tokens)
    later = layer.router.eval()(lopsided, tokens).experts.flatten().bincount(minlength=4)
    assert later.max() < 1.25 * 64


def test_hash_needs_no_weights_and_only_the_number():
    router = HashRouter(4)
    rows, tokens = rows_of(9)
    assert list(router.parameters()) == []
    assert router(rows, tokens).experts[:, 0].tolist() == [t % 4 for t in tokens.tolist()]
    with pytest.raises(ConfigError, match="hash router"):
        router(rows, None)


def test_cosines_do_not_depend_on_lengths():
    router = mixture_of(WIDE["cosine"]).router
    assert isinstance(router, CosineRouter)
    rows, _ = rows_of(9)
    torch.testing.assert_close(router(rows, None).gates, router(rows * 7, None).gates)


def test_balance_is_1_when_even_and_counts_what_is_dropped():
    even = torch.full((8, 4), 0.25)
    routing = Routing(torch.arange(8)[:, None] % 4, even[:, :1], even)
    assert balance_loss(routing).item() == pytest.approx(1)
    one = F.one_hot(torch.zeros(8, dtype=torch.long), 4).float()
    assert balance_loss(Routing(torch.zeros(8, 1, dtype=torch.long), one[:, :1], one)) == 4


def test_auxiliary_loss_sums_layers_once_and_reinforce_needs_losses():
    model, tokens = build(WIDE["softmax"]), rows_of(24)[1][None]
    model(tokens)
    assert auxiliary_loss(copy.deepcopy(model)).item() == 0
    first = auxiliary_loss(model)
    assert first.requires_grad
    assert 0.02 < first.item() < 0.12
    assert auxiliary_loss(model).item() == 0  # taken
    assert len(expert_loads(model)) == 3
    assert all(1 <= load.imbalance <= 4 and 0 < load.entropy <= 1 for load in expert_loads(model))
    model.eval()(tokens)
    assert auxiliary_loss(model).item() == 0
    policy = build(WIDE["reinforce"])
    policy(tokens)
    with pytest.raises(ConfigError, match="24 tokens, but was given no losses"):
        auxiliary_loss(policy)
    auxiliary_loss(policy, torch.ones(1, 24))


def test_reinforce_learns_which_expert_is_rewarded():
    router = mixture_of(WIDE["reinforce"]).router.train()
    rows, _ = rows_of(256)
    optimizer = torch.optim.Adam(router.parameters(), lr=0.02)
    holder = mixture_of(WIDE["reinforce"])
    for _ in range(300):
        routing = router(rows, None)
        holder.routing = routing
        losses = (routing.experts[:, 0] != (rows[:, 0] > 0)).float()
        optimizer.zero_grad()
        auxiliary_loss(holder, losses).backward()
        optimizer.step()
    chosen = router.eval()(rows, None).experts[:, 0]
    assert (chosen == (rows[:, 0] > 0)).float().mean() > 0.8


def gradients(model):
    model(rows_of(40)[1][None]).square().mean().backward()
    return [p.grad.clone() for p in model.parameters()]


def test_sparse_clip_is_torchs_with_one_expert_and_counts_experts_for_less():
    model = build(WIDE["hash"])
    before = gradients(model)
    expected = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    clipped = [p.grad.clone() for p in model.parameters()]
    for parameter, gradient in zip(model.parameters(), before, strict=True):
        parameter.grad = gradient.clone()
    clip = SparseClip(model.parameters(), expert_parameters(model), max_norm=0.01)
    assert torch.equal(clip(), expected)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), clipped, strict=True))
    for parameter, gradient in zip(model.parameters(), before, strict=True):
        parameter.grad = gradient.clone()
    experts = expert_parameters(model)
    clip = SparseClip(model.parameters(), experts, max_norm=0.01, num_experts=4, world=9)
    squares = {id(p): float(p.grad.square().sum()) for p in model.parameters()}
    sparse = sum(squares[id(p)] for p in experts)
    wanted = math.sqrt(sum(squares.values()) - sparse + sparse / 9)
    assert clip().item() == pytest.approx(wanted, rel=1e-5)
    with pytest.raises(ConfigError, match="max_norm"):
        SparseClip(model.parameters(), max_norm=0)


def test_a_bias_moves_towards_experts_that_are_asked_rarely_and_groups_are_few():
    router = mixture_of(WIDE["sigmoid"]).router.train()
    rows = rows_of(64)[0]
    router.bias[:4] += 9.0  # the first two of four groups win everywhere
    before = router.bias.clone()
    routing = router(rows, None)
    assert routing.experts.max() < 4
    assert (router.bias[4:] > before[4:]).all()
    assert router.bias[:4].sum() < before[:4].sum()
    kept = router.eval().bias.clone()
    gates = router(rows, None).gates
    assert torch.equal(router.bias, kept)
    torch.testing.assert_close(gates.sum(1), torch.full((64,), 1.5))
