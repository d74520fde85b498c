"""The scale of a profiled step-time model, from a replay whose truth is known."""

import numpy as np
import pytest

from steelyard.cost.step_time import FEATURES, ServeStepTime
from steelyard.sim.timeline import Timeline
from steelyard.weigh.serving import _rescaled

MODEL = ServeStepTime(
    coefficients=(2e-4, 1e-5, 2e-6, 1e-9, 3e-6, 1e-9, 1e-6), relative_spread=0.05, count=9
)


def replay(seconds, features):
    one = np.ones(1)
    return Timeline(
        arrival_s=one,
        first_token_s=one,
        last_token_s=one,
        output_tokens=one,
        step_features=features,
        step_s=seconds,
        kv_utilization=np.zeros(len(seconds)),
    )


def steps(*, prompts):
    """Return features of 200 decoding steps, a fifth of them with a prompt where asked."""
    generator = np.random.default_rng(0)
    features = np.zeros((200, len(FEATURES)))
    features[:, 0] = 1
    features[:, 1] = features[:, 4] = generator.integers(1, 9, 200)
    features[:, 5] = 100 * features[:, 4]
    features[:, 6] = np.minimum(features[:, 4], 8)
    if prompts:
        features[::5, 2] = 96
        features[::5, 3] = 96 * 97 / 2
    return features


def test_prompts_and_decoding_have_scales_of_their_own():
    features = steps(prompts=True)
    truth = MODEL.scaled(0.9, prefill=1.5)
    found = _rescaled(MODEL, replay(truth.predict(features), features))
    assert found.coefficients == pytest.approx(truth.coefficients, rel=1e-6)


def test_a_pause_of_the_process_hardly_counts():
    features = steps(prompts=True)
    seconds = MODEL.predict(features)
    seconds[3] += 0.2
    found = _rescaled(MODEL, replay(seconds, features))
    assert found.coefficients == pytest.approx(MODEL.coefficients, rel=0.05)


def test_a_replay_without_prompts_has_one_scale():
    features = steps(prompts=False)
    found = _rescaled(MODEL, replay(1.2 * MODEL.predict(features), features))
    assert found.coefficients == pytest.approx(MODEL.scaled(1.2).coefficients)
