import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from steelyard.cost import FEATURES, Machine, ServeStepTime
from steelyard.cost.phase_time import PhaseStepTime
from steelyard.cost.step_time import FIRST_TOKENS, step_features
from steelyard.errors import DataError, FitError


def steps(generator: np.random.Generator, count: int) -> np.ndarray:
    prompt, decoding, context = (
        generator.integers(0, high, count).astype(float) for high in (512, 32, 2048)
    )
    return np.stack(
        [
            np.ones(count),
            decoding + (prompt > 0),
            prompt,
            prompt * prompt / 2,
            decoding,
            decoding * context,
            np.minimum(prompt + decoding, FIRST_TOKENS),
        ],
        axis=1,
    )


def test_fit_recovers_a_linear_machine_despite_outliers():
    generator = np.random.default_rng(1)
    features, truth = steps(generator, 300), np.array([2e-3, 1e-4, 5e-5, 1e-8, 4e-4, 2e-7, 1e-4])
    seconds = features @ truth * np.exp(generator.normal(0, 0.03, 300))
    seconds[::25] *= 5
    model = ServeStepTime.fit(features, seconds)
    assert np.median(np.abs(model.predict(features) / (features @ truth) - 1)) < 0.02
    assert min(model.coefficients) >= 0 and model.relative_spread < 0.06


def test_roofline_times_are_nearly_linear_and_grow(architectures, calibration, tmp_path):
    model = ServeStepTime.from_roofline(
        architectures["tiny"], Machine.from_calibration(calibration)
    )
    assert len(model.coefficients) == len(FEATURES) and model.relative_spread < 0.5
    base = np.array([1.0, 5, 64, 64 * 65 / 2, 4, 4 * 128, FIRST_TOKENS])
    assert model.predict(2 * base) > model.predict(base) > 0
    PhaseStepTime.of(model).save(tmp_path / "step.json")
    assert PhaseStepTime.load(tmp_path / "step.json") == PhaseStepTime.of(model)
    with pytest.raises(DataError, match="no such file"):
        PhaseStepTime.load(tmp_path / "none.json")


def test_phases_find_where_decoding_turns_from_waiting_to_computing():
    """Flat up to a batch, then rising: no line through all of it comes near."""
    generator = np.random.default_rng(2)
    features = steps(generator, 400)
    features[::2, 2:4] = 0
    features[:, 6] = np.minimum(features[:, 2] + features[:, 4], FIRST_TOKENS)
    features[:, 1] = features[:, 4] + (features[:, 2] > 0)
    features = features[features[:, 1] > 0]
    work = 4e-4 * features[:, 4] + 3e-4 * features[:, 2] + 1e-7 * features[:, 5]
    truth = np.maximum(4e-3, 1e-3 + work)
    seconds = truth * np.exp(generator.normal(0, 0.01, len(truth)))
    seconds[::25] *= 5
    model = PhaseStepTime.fit(features, seconds)
    decodes = features[:, 2] == 0
    errors, line = (
        np.abs(found.predict(features) / truth - 1)[decodes]
        for found in (model, ServeStepTime.fit(features, seconds))
    )
    assert 6 <= model.large_batch <= 10 and model.relative_spread < 0.05
    assert np.mean(errors) < 0.01 < 0.03 < np.mean(line)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 40), st.booleans())
def test_no_phase_gets_shorter_with_a_token_more(seed, prompt, decoding, is_prompt):
    generator = np.random.default_rng(seed)
    features = steps(generator, 40)
    model = PhaseStepTime.fit(features, generator.uniform(1e-3, 2e-3, 40))
    assume(is_prompt or decoding + 1 != model.large_batch)  # two fits meet there
    kinds = {"sequences": 50, "prefill_kv": 9, "decode_kv": 9}
    less = step_features(prefill_tokens=prompt, decode_tokens=decoding, **kinds)
    more = step_features(
        prefill_tokens=prompt + is_prompt, decode_tokens=decoding + (not is_prompt), **kinds
    )
    assert model.predict(more) >= model.predict(less) * (1 - 1e-12) > 0


def test_decoding_one_sequence_reads_the_weights_once(architectures, a100):
    machine = Machine.from_accelerator(a100)
    model = ServeStepTime.from_roofline(architectures["yi-34b"], machine)
    expected = 2 * 34.4e9 / machine.memory_bytes_per_s
    assert float(model.predict([1, 1, 0, 0, 1, 512, 1])) == pytest.approx(expected, rel=0.25)


def test_the_roofline_tells_attention_from_products(architectures, a100):
    """Pairs of prompt and attended token cost attention's rate, not what prompts leave over."""
    arch, machine = architectures["yi-34b"], Machine.from_accelerator(a100)
    pairs = ServeStepTime.from_roofline(arch, machine).coefficients[FEATURES.index("prefill_kv")]
    expected = (
        4
        * arch.num_layers
        * arch.num_heads
        * arch.head_dim
        / (machine.peak_flops_per_s * machine.efficiencies.attention)
    )
    assert pairs == pytest.approx(expected, rel=0.15)


def test_too_few_or_bad_steps_are_refused():
    with pytest.raises(FitError, match="n >= 7"):
        ServeStepTime.fit(np.ones((3, 7)), np.ones(3))
    with pytest.raises(FitError, match="positive"):
        ServeStepTime.fit(np.ones((8, 7)), np.zeros(8))
