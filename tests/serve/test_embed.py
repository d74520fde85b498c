import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.errors import ConfigError
from steelyard.nn.attention import causal_attention
from steelyard.serve.running.embed import embed


def plain(model, prompt, pooling):
    """One prompt by itself."""
    with torch.inference_mode():
        tokens = torch.tensor([prompt])
        hidden = model.run(tokens, torch.arange(len(prompt)), causal_attention)[0]
    return (hidden.mean(0) if pooling == "mean" else hidden[-1]).numpy()


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=9),
    pooling=st.sampled_from(["mean", "last"]),
    budget=st.integers(1, 120),
    normalize=st.booleans(),
)
def test_equal_to_the_plain_forward(model, lengths, pooling, budget, normalize):
    rng = np.random.default_rng(sum(lengths))
    prompts = [rng.integers(0, 97, length).tolist() for length in lengths]
    got = embed(model, prompts, pooling=pooling, normalize=normalize, token_budget=budget)
    want = np.stack([plain(model, prompt, pooling) for prompt in prompts])
    if normalize:
        want /= np.linalg.norm(want, axis=1, keepdims=True)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-5)


def test_no_prompts_give_no_rows(model):
    assert embed(model, []).shape == (0, 32)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [([], "prompt 1 has 0"), ([1] * 129, "129 tokens"), ([97], r"\[0, 97\)"), ([-1], r"\[0, 97\)")],
)
def test_bad_prompts_are_named(model, prompt, words):
    with pytest.raises(ConfigError, match=words):
        embed(model, [[1, 2], prompt])
