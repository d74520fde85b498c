import numpy as np
import pytest
import torch

from steelyard.serve.sparse.engine import SparseDecoder
from steelyard.serve.sparse.policies import H2O, Adore, Full, Sinks, TopK, Window
from steelyard.serve.sparse.training import ControllerModule


@pytest.fixture(scope="module")
def controller(model):
    torch.manual_seed(0)
    return ControllerModule(model.embedding.weight, 16, 8).export(model.architecture.hidden_size)


def run(model, policy, prompts, count, controller=None, **options):
    """Feed prompts in chunks and decode greedily; give tokens [B, count]."""
    decoder = SparseDecoder(model, policy, num_requests=len(prompts), max_length=120, controller=controller, **options)
    first = []
    for row, prompt in enumerate(prompts):
        for start in range(0, len(prompt), decoder.chunk):
            logits = decoder.feed(np.array([row]), [np.array(prompt[start : start + decoder.chunk])])
        first.append(logits)
    latest, rows, out = torch.cat(first), np.arange(len(prompts)), []
    for _ in range(count):
        chosen = latest.argmax(-1).numpy()
        out.append(chosen)
        latest = decoder.feed(rows, [chosen[row : row + 1] for row in rows])
    return np.array(out).T.tolist(), decoder


@pytest.mark.parametrize(
    "policy",
    [Full(), Window(120), Sinks(120), Sinks(120, renumber=True), H2O(120), TopK(120), Adore(capacity=120, rebuild=8)],
    ids=lambda item: type(item).__name__,
)
def test_a_cache_that_holds_everything_equals_full_attention(model, controller, greedy, policy):
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 97, size).tolist() for size in (5, 33, 40)]
    found, decoder = run(model, policy, prompts, 30, controller)
    assert found == [greedy(prompt, 30) for prompt in prompts]
    assert decoder.stats().released == 0
