"""Steps whose rows the native kernels share out among threads."""

import shutil

import numpy as np
import pytest
import torch

from steelyard.catalog.architecture import Architecture
from steelyard.nn.transformer import build
from steelyard.serve.running.model_steps import ModelSteps
from steelyard.serve.running.native.library import compiled_library
from steelyard.serve.running.native.steps import NativeSteps
from steelyard.serve.running.packed_model import model_with
from steelyard.serve.running.pool import KVPool
from steelyard.serve.running.rounded import RoundedLinear
from steelyard.serve.scheduling.request import Request
from steelyard.serve.scheduling.step import StepPlan

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
BLOCK, BLOCKS = 4, 6
SHAPE = Architecture(
    name="shared-out",
    hidden_size=72,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=24,
    intermediate_size=152,
    vocab_size=1100,
    max_positions=64,
    sliding_window=7,
    full_attention_every=2,
)


def decoding(contexts, picks, guesses=0):
    """A step of sequences with `contexts`, of which the middle one has `guesses` rows more."""
    count, middle = len(contexts), len(contexts) // 2
    tables = np.arange(count * BLOCKS, dtype=np.int64).reshape(count, BLOCKS)[:, ::-1]
    rows = np.array([*range(middle), *[middle] * guesses, *range(middle, count)])
    contexts = np.array(contexts)[rows]
    contexts[middle : middle + guesses + 1] += np.arange(guesses + 1)
    positions, tables = contexts - 1, np.ascontiguousarray(tables[rows])
    ones = np.ones(len(rows), dtype=np.int64)
    return StepPlan(
        request_ids=[str(row) for row in range(len(rows))],
        num_decodes=len(rows),
        token_ids=np.arange(len(rows), dtype=np.int64),
        positions=positions,
        slot_mapping=tables[np.arange(len(rows)), positions // BLOCK] * BLOCK + positions % BLOCK,
        query_lengths=ones,
        context_lengths=contexts,
        block_tables=tables,
        sample_rows=np.array(picks, dtype=np.int64),
        sampled=[Request(id=str(row), prompt=[0]) for row in picks],
        output_positions=np.ones(len(picks), dtype=np.int64),
    )


def random_pool(dtype=torch.float32):
    pool = KVPool(SHAPE, 40 * BLOCKS, BLOCK, dtype, torch.device("cpu"))
    pool.kv.copy_(torch.randn(pool.kv.shape, generator=torch.Generator().manual_seed(1)))
    return pool


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    return build(SHAPE).eval()


@pytest.mark.parametrize("weights", ["fp32", "bf16", "int8", "int4"])
@torch.inference_mode()
def test_rows_of_a_thread_are_the_same_bits_as_shared_ones(model, weights):
    draw = np.random.default_rng(0)
    # The middle of 19 rows lies between guesses.
    for count, guesses, most_threads in ((24, 0, 3), (17, 2, 2)):
        contexts = draw.integers(1, BLOCKS * BLOCK - guesses, count).tolist()
        picks = sorted(draw.choice(count + guesses, 11, replace=False).tolist())
        plan = decoding(contexts, picks, guesses)
        found = []
        for threads in (1, most_threads):
            pool = random_pool()
            steps = NativeSteps(
                model, pool, compiled_library(), rows=4, threads=threads, weights=weights
            )
            logits = steps.logits(plan, plan.token_ids)
            assert logits is not None
            found.append((logits.clone(), pool.kv))
        for logits, kv in found[1:]:
            assert torch.equal(logits, found[0][0]) and torch.equal(kv, found[0][1])


@torch.inference_mode()
def test_rows_of_a_thread_equal_those_of_the_plain_model(model):
    plan = decoding([1, 9, 24, 3] * 6, picks=[0, 5, 5, 12, 23, 22])
    twin, _ = model_with(RoundedLinear, model, "fp32")
    plain = ModelSteps(twin, random_pool(), compiled=False).logits(plan, plan.token_ids)
    steps = NativeSteps(model, random_pool(), compiled_library(), rows=24, threads=2)
    native = steps.logits(plan, plan.token_ids)
    assert plain is not None and native is not None and steps.peaks is not None
    assert (plain - native).abs().max() < 1e-4
    assert steps.peaks.values.tolist() == native.amax(-1).tolist()
    assert steps.peaks.tokens.tolist() == native.argmax(-1).tolist()


@torch.inference_mode()
def test_peaks_show_broken_logits():
    broken = build(SHAPE).eval()
    broken.embedding.weight[700] = torch.nan
    plan = decoding([3, 4], picks=[0, 1])
    steps = NativeSteps(broken, random_pool(), compiled_library(), rows=2, threads=2)
    assert steps.logits(plan, plan.token_ids) is not None and steps.peaks is not None
    assert np.isnan(steps.peaks.values).all()
