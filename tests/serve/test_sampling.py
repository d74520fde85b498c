import math

import numpy as np
import torch

from steelyard.serve.running.sampling import Sampler
from steelyard.serve.scheduling.params import SamplingParams
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.step import StepPlan


def make_plan(requests):
    """A plan that only samples, one row per request."""
    count, none = len(requests), np.zeros(0, dtype=np.int64)
    return StepPlan(
        request_ids=[request.id for request in requests],
        num_decodes=count,
        token_ids=none,
        positions=none,
        slot_mapping=none,
        query_lengths=none,
        context_lengths=none,
        block_tables=none,
        sample_rows=np.arange(count),
        sampled=requests,
        output_positions=np.array([len(request.output) for request in requests], dtype=np.int64),
    )


def requests_of(params, count, **rest):
    return [Request(id=str(row), prompt=[0], params=params, output=[0] * row, **rest) for row in range(count)]


def test_tokens_follow_the_cut_distribution():
    logits = torch.log(torch.tensor([[0.5, 0.3, 0.15, 0.05]]))
    draws = 2000
    for params, expected in (
        (SamplingParams(temperature=1.0), [0.5, 0.3, 0.15, 0.05]),
        (SamplingParams(temperature=1.0, top_k=2), [0.625, 0.375, 0, 0]),
        (SamplingParams(temperature=1.0, top_p=0.7), [0.625, 0.375, 0, 0]),
        (SamplingParams(temperature=0.5, top_k=2), [0.25 / 0.34, 0.09 / 0.34, 0, 0]),
        (SamplingParams(temperature=1.0, top_p=1e-9), [1, 0, 0, 0]),
        (SamplingParams(), [1, 0, 0, 0]),
    ):
        tokens = Sampler().sample(logits.expand(draws, 4), make_plan(requests_of(params, draws))).tokens
        share = np.bincount(tokens, minlength=4) / draws
        np.testing.assert_allclose(share, expected, atol=4 * math.sqrt(0.25 / draws))
