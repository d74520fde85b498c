import numpy as np
import pytest

from steelyard import laws
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.laws.decisions.study import branch_tokens, cheapest_study, plan_study


@pytest.mark.parametrize(
    ("ratios", "cooldown", "share"),
    [
        ((10, 20, 30), 0.2, 0.6),
        ((10, 20, 30), 0.1, 0.55),
        ((10, 15, 20, 25), 0.1, 0.4214),
        ((10, 20, 30), 0.0, 0.5),
    ],
)
def test_published_shares_of_the_cosine_cost(ratios, cooldown, share):
    """Haegele et al. 2024, section 5; the paper prints 0.422 for the third row."""
    plan = plan_study([33e6, 360e6], ratios, cooldown=cooldown, method="branch")
    assert plan.ratio == pytest.approx(share, abs=5e-4)
    assert branch_tokens(ratios, cooldown) / sum(ratios) == pytest.approx(share, abs=5e-4)


def walk(lengths, cooldown):
    """Train token by token: the trunk once, each cooldown once."""
    trained = 0
    for position in range(max(round(length * (1 - cooldown)) for length in lengths)):
        trained += position >= 0
    return trained + sum(length - round(length * (1 - cooldown)) for length in lengths)


def test_account_equals_a_walk_over_tokens():
    lengths = [1000, 2500, 4000]
    assert branch_tokens(lengths, 0.2) == walk(lengths, 0.2)
    plan = plan_study([1.0], lengths, method="branch")
    assert plan.flops == 6 * walk(lengths, 0.2)
    assert plan.cosine_flops == 6 * sum(lengths)


def test_branch_without_checkpoint_replays_from_the_earlier_one():
    plan = plan_study([1e6], [10, 20, 30], cooldown=0.2, method="branch", checkpoint_tokens=5e6)
    first, second, last = plan.sizes[0].branches
    assert (first.start, first.replayed) == (8e6, 3e6)
    assert (second.start, second.replayed) == (16e6, 1e6)
    assert last.replayed == 0
    assert plan.sizes[0].replayed_flops == 6e6 * 4e6
    assert plan.flops == 6e6 * (24e6 + 12e6 + 4e6)


def test_cheapest_runs_cosine_where_no_cooldown_fits():
    plan = plan_study(
        [1e6, 1e9], [10, 11], cooldown=0.1, min_cooldown_tokens=9.99e6, warmup_tokens=1e6
    )
    assert [size.method for size in plan.sizes] == ["cosine", "branch"]
    assert plan.sizes[0].flops == plan.sizes[0].cosine_flops
    assert plan_study([1e6], [10, 20], checkpoint_tokens=1e7).ratio <= 1


def test_explicit_flops_hours_and_money():
    plan = plan_study([1e6], [10, 20], flops_per_token=lambda parameters: 8 * parameters)
    assert plan.flops == pytest.approx(8e6 * branch_tokens([1e7, 2e7], 0.2))
    assert (
        plan.usd(1e12, 2.0)
        == pytest.approx(2 * plan.hours(1e12))
        == pytest.approx(plan.flops / 1e12 / 1800)
    )
    sizes, tokens = plan.cells()
    assert sizes.tolist() == [1e6, 1e6] and tokens.tolist() == [1e7, 2e7]


def published():
    law = laws.chinchilla()
    theta = law.coordinates(laws.published["besiroglu2024"].params)
    return laws.Fit(law=law, theta=theta, samples=np.zeros((0, 5)), noise=0.002)


def test_cheapest_study_meets_the_width_and_simulated_fits_agree():
    fit, sizes, ratios = published(), [1e7, 3e7, 1e8, 3e8], [5, 10, 20, 40]
    target = {"parameters": np.array([3e9]), "tokens": np.array([6e10])}
    plan = cheapest_study(fit, 3e9, 6e10, 0.05, sizes, ratios)
    assert plan.flops < plan_study(sizes, ratios).flops
    assert cheapest_study(fit, 3e9, 6e10, 0.02, sizes, ratios).flops > plan.flops
    cells = dict(zip(("parameters", "tokens"), plan.cells(), strict=True))
    generator = np.random.default_rng(0)
    said = []
    for _ in range(12):
        loss = np.exp(
            fit.law.predict(fit.theta[None], cells)[0]
            + 0.002 * generator.standard_normal(len(cells["tokens"]))
        )
        drawn = laws.fit(
            fit.law,
            cells,
            loss,
            starts=fit.theta[None],
            bootstrap=laws.Bootstrap(count=0),
            prior=None,
            delta=1.0,
        )
        said.append(np.log(drawn.predict(target).value[0]))
    assert np.std(said) * 2 * 1.2816 < 0.05 * 1.7


def test_bad_input_is_refused():
    with pytest.raises(ConfigError, match="does not fit"):
        plan_study([1e6], [1], min_cooldown_tokens=2e6, method="branch")
    with pytest.raises(ConfigError, match="fraction"):
        plan_study([1e6], [10], cooldown=1.5)
    with pytest.raises(ConfigError, match="sizes"):
        plan_study([1e6, 1e6], [10])
    with pytest.raises(ConfigError, match="lengths"):
        branch_tokens([], 0.2)
    with pytest.raises(ConfigError, match="FLOP/s"):
        plan_study([1e6], [10]).hours(0.0)
    with pytest.raises(ConfigError, match="parameters and tokens"):
        cheapest_study(
            laws.Fit(law=laws.power_law("tokens"), theta=np.zeros(3), samples=np.zeros((0, 3))),
            1,
            1,
            0.1,
            [1],
            [1],
        )
    with pytest.raises(InfeasibleError, match="wider than"):
        cheapest_study(published(), 3e12, 6e13, 1e-4, [1e7, 2e7, 4e7], [10, 20, 30])
