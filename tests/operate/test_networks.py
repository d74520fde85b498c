"""Networks that forecast: no leak, masks, heads, equal resumption, checkpoints."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from steelyard.errors import ConfigError, DataError
from steelyard.operate.forecast import RecentQuantiles, evaluate
from steelyard.operate.forecast.bounds import LEVELS
from steelyard.operate.forecast.corpus import generate_corpus
from steelyard.operate.forecast.networks import EncoderConfig
from steelyard.operate.forecast.networks.batches import WindowBatches
from steelyard.operate.forecast.networks.direct import DLinearForecaster, GRUForecaster
from steelyard.operate.forecast.networks.forecaster import MaskedEncoderForecaster
from steelyard.operate.forecast.networks.heads import head_loss, head_quantiles, head_width
from steelyard.operate.forecast.networks.masked_encoder import MaskedEncoder
from steelyard.operate.forecast.networks.recipe import PretrainRecipe, run_recipe
from steelyard.operate.forecast.networks.tokens import scale_windows, tokens
from steelyard.operate.forecast.networks.training import pretraining_budget, window_loss
from steelyard.operate.series import SeriesSet

SMALL = EncoderConfig(
    context_steps=48, horizon=16, patch=8, hidden_size=16, num_layers=1, num_heads=2
)


@pytest.fixture(scope="module")
def corpus():
    return generate_corpus(8, length=900, seed=5)


def test_the_future_never_reaches_the_tokens():
    past = torch.arange(400.0, dtype=torch.float64)[None]
    features, seen = tokens(past.float(), torch.tensor([20]), SMALL)
    assert features.shape == (1, 8, 2 * 8 * 4) and seen.all()
    queries = features[0, -2:].reshape(2, 8, 8)  # token, step, (value and lags, then known)
    assert (queries[..., 0] == 0).all() and (queries[..., 4] == 0).all()
    # The lag of a day of 20 steps is known for all of 16 steps ahead; that of 10 is not.
    np.testing.assert_array_equal(queries[..., 1].reshape(-1), 400 - 20 + np.arange(16))
    shorter, _ = tokens(past.float(), torch.tensor([10]), SMALL)
    known = shorter[0, -2:].reshape(2, 8, 8)[..., 5].reshape(-1)
    assert known.tolist() == [1.0] * 10 + [0.0] * 6


def test_a_short_past_is_padded_and_its_holes_are_not_attended():
    past = torch.full((1, 60), torch.nan)
    past[0, -20:] = torch.arange(20.0)
    features, seen = tokens(past, torch.tensor([1000]), SMALL)
    assert seen[0].tolist() == [False] * 3 + [True] * 5
    assert features.isfinite().all()


@pytest.mark.parametrize("scaling", ["standard", "asinh"])
def test_scales_come_of_the_context_and_are_undone(scaling):
    config = EncoderConfig(scaling=scaling)
    past = 100 + torch.randn(
        3, 300, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    past[0, 5:50] = torch.nan
    past[2] = 7.0  # a constant has a scale too
    scaled = scale_windows(past, config)
    known = past.isfinite()
    np.testing.assert_allclose(scaled.inverse(scaled.values)[known], past[known], rtol=1e-9)
    assert scaled.scale.min() > 0
    moved = scale_windows(past * 8 + 5, config)
    np.testing.assert_allclose(
        moved.values[:2].nan_to_num(), scaled.values[:2].nan_to_num(), atol=1e-9
    )


@pytest.mark.parametrize("head", ["student-t", "gaussian"])
def test_closed_form_quantiles_are_those_of_samples_and_minimize_the_loss(head):
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(1, 1, head_width(head), generator=generator)
    found = head_quantiles(head, outputs)[0, 0].numpy()
    center = outputs[0, 0, 0].item()
    scale = torch.nn.functional.softplus(outputs[0, 0, 1]).item() + 1e-3
    freedom = 2 + torch.nn.functional.softplus(outputs[0, 0, -1]).item()
    law = (
        torch.distributions.StudentT(freedom, center, scale)
        if head == "student-t"
        else torch.distributions.Normal(center, scale)
    )
    torch.manual_seed(0)
    drawn = law.sample((400_000,)).numpy()
    np.testing.assert_allclose(found, np.quantile(drawn, LEVELS), atol=0.06 * scale, rtol=0.02)
    loss = head_loss(head, outputs, torch.tensor([[0.7]]))
    assert loss.item() == pytest.approx(-law.log_prob(torch.tensor(0.7)).item(), rel=1e-5)


def test_an_untrained_anchored_encoder_says_what_recent_quantiles_say(corpus):
    forecaster = MaskedEncoderForecaster(SMALL)
    ours = forecaster.predict(corpus, 16)
    for one, other in zip(ours, RecentQuantiles().predict(corpus, 16), strict=True):
        size = np.abs(other.values).max()
        np.testing.assert_allclose(one.values, other.values, atol=2e-3 * size)


@pytest.mark.parametrize("head", ["student-t", "gaussian", "quantile", "flow"])
def test_pretraining_lowers_the_loss(corpus, tmp_path, head):
    config = EncoderConfig(
        context_steps=48,
        horizon=16,
        patch=8,
        hidden_size=16,
        num_layers=1,
        num_heads=2,
        head=head,
        scaling="standard" if head == "student-t" else "asinh",
    )
    forecaster = MaskedEncoderForecaster(config)
    probe = WindowBatches(corpus, config, 64, seed=77).batch(0)
    with torch.no_grad():
        before = window_loss(forecaster.network, probe)
    budget = pretraining_budget(30, batch_size=16, learning_rate=5e-3)
    forecaster.pretrain(corpus, budget, tmp_path)
    with torch.no_grad():
        assert window_loss(forecaster.network, probe) < before


def test_killed_pretraining_goes_on_bit_for_bit(tmp_path):
    recipe = PretrainRecipe(
        series=6, length=700, encoder=SMALL, steps=70, batch_size=4, learning_rate=5e-3
    )
    whole, _ = run_recipe(recipe, tmp_path / "whole")

    class KilledError(Exception):
        pass

    def kill(now):
        if now.step == 60:  # the last checkpoint is that of step 50
            raise KilledError

    with pytest.raises(KilledError):
        run_recipe(recipe, tmp_path / "killed", on_step=kill)
    again, _ = run_recipe(recipe, tmp_path / "killed")
    for name, weights in whole.network.state_dict().items():
        assert torch.equal(weights, again.network.state_dict()[name]), name
    first, second = (tmp_path / item / "forecaster.safetensors" for item in ("whole", "killed"))
    assert first.read_bytes() == second.read_bytes()


def test_batches_depend_on_nothing_but_their_number(corpus):
    first, again = (WindowBatches(corpus, SMALL, 16, seed=2) for _ in range(2))
    values, seasons = first.batch(7)
    torch.testing.assert_close(values, again.batch(7)[0], equal_nan=True)
    assert values.shape == (16, SMALL.history_steps() + 16) and seasons.dtype == torch.int64
    assert values[:, :-16].isfinite().any(1).all()
    assert not torch.equal(values.nan_to_num(), first.batch(8)[0].nan_to_num())


def test_a_context_that_stands_still_after_large_values_is_read():
    config = EncoderConfig(context_steps=48, horizon=8, patch=1, scaling="standard", head="flow")
    past = torch.zeros(2, 400, dtype=torch.float64)
    past[0, :200] = 1e8
    outputs, _ = MaskedEncoder(config)(past, torch.tensor([288, 288]))
    assert outputs.isfinite().all()


WILD = hnp.arrays(
    np.float64,
    st.integers(1, 120),
    elements=st.one_of(st.floats(allow_nan=True, allow_infinity=False), st.floats(-1, 1)),
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(WILD, st.sampled_from([60.0, 300.0, 3600.0, 86400.0]))
def test_no_context_makes_the_shipped_encoder_explode(values, step_s):
    known = values[np.isfinite(values)]
    if not len(known):
        return
    context = SeriesSet.from_arrays([values], step_s=step_s)
    made = MaskedEncoderForecaster.shipped().predict(context, 60)[0].values
    assert np.isfinite(made).all()
    width = known.max() / 2 - known.min() / 2
    assert (made / 4 <= known.max() / 4 + width / 2 * 1.0001 + 1e-300).all()


def test_the_shipped_encoder_is_small_and_beats_recent_quantiles_on_series_it_never_saw():
    series = generate_corpus(24, length=3000, seed=321)
    ours, rule = (
        evaluate(item, series, 48, 4, 48)
        for item in (MaskedEncoderForecaster.shipped(), RecentQuantiles())
    )
    assert ours.crps_ratio(rule)[0] < 1
    assert 0.7 < ours.pooled.coverage < 0.9


@pytest.mark.parametrize("kind", [DLinearForecaster, GRUForecaster])
def test_own_networks_learn_a_wave(kind):
    steps = np.arange(1200)
    rng = np.random.default_rng(0)
    wave = 5 + np.sin(2 * np.pi * steps / 48) + 0.1 * rng.normal(size=1200)
    series = SeriesSet.from_arrays([wave], step_s=300)
    forecaster = kind(context_steps=48, horizon=16, steps=60)
    forecaster.fit(series.before(160))
    learned = evaluate(forecaster, series, 16, 10, 16)
    assert learned.crps_ratio(evaluate(RecentQuantiles(), series, 16, 10, 16))[0] < 0.95


def test_checkpoints_are_read_back_or_refused(tmp_path, corpus):
    made = MaskedEncoderForecaster(SMALL)
    made.save(tmp_path / "a.safetensors")
    found = MaskedEncoderForecaster.load(tmp_path / "a.safetensors")
    assert found.config == SMALL
    for one, other in zip(made.predict(corpus, 20), found.predict(corpus, 20), strict=True):
        np.testing.assert_array_equal(one.values, other.values)
    (tmp_path / "b.safetensors").write_bytes(b"no such thing")
    for name in ("b.safetensors", "none.safetensors"):
        with pytest.raises(DataError, match="no checkpoint"):
            MaskedEncoderForecaster.load(tmp_path / name)


@pytest.mark.parametrize(
    "wrong",
    [{"patch": 7}, {"num_heads": 3}, {"context_steps": 8}, {"seasons": (0,)}, {"num_layers": 0}],
)
def test_impossible_shapes_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        EncoderConfig(**wrong)


def test_one_step_a_token_is_the_papers_shape():
    config = EncoderConfig(patch=1, context_steps=48, horizon=8, head="student-t", anchored=False)
    network = MaskedEncoder(config)
    outputs, _ = network(torch.rand(2, 100), torch.tensor([24, 24]))
    assert outputs.shape == (2, 8, 3)
    assert config.architecture.max_positions == 56
