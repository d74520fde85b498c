import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steelyard.train.evaluate import bits_per_byte, evaluate, heldout_windows


@given(st.integers(2, 500), st.integers(1, 60), st.integers(1, 600))
def test_windows_predict_no_token_twice(count, sequence_length, max_tokens):
    if count <= sequence_length:
        return
    windows = heldout_windows(np.arange(count, dtype=np.uint16), sequence_length, max_tokens)
    predicted = windows[:, 1:].ravel()
    assert windows.shape[1] == sequence_length + 1 and windows.dtype == np.int64
    assert len(set(predicted)) == len(predicted) <= max(max_tokens, sequence_length)
    assert (np.diff(windows, axis=1) == 1).all()


def test_uniform_model_has_the_loss_of_its_vocabulary():
    class Uniform(torch.nn.Module):
        def forward(self, tokens):
            return torch.zeros(*tokens.shape, 50)

    windows = np.zeros((5, 9), dtype=np.int64)
    loss = evaluate(Uniform(), windows, batch_size=2)
    assert loss == pytest.approx(math.log(50))
    assert bits_per_byte(loss, 2.0) == pytest.approx(math.log2(50) / 2)
