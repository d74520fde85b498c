import copy
import mmap
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.serve.test_products import rows_as_read, weight_as_kept

from steelyard.catalog.architecture import Architecture
from steelyard.errors import BackendError, ConfigError
from steelyard.nn.transformer import build
from steelyard.serve import Request, SamplingParams, Scheduler, SchedulerConfig
from steelyard.serve.engine import LLM
from steelyard.serve.running.linear import can_pack
from steelyard.serve.running.native import library as native_library
from steelyard.serve.running.pages import HUGE_PAGE_BYTES
from steelyard.serve.running.pool import KVPool
from steelyard.serve.running.runner import TorchRunner
from steelyard.serve.running.sampling import Sampler
from steelyard.serve.running.weights import INT4_GROUP, head_type
from steelyard.serve.scheduling.step import StepOutput, StepPlan

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
KERNELS = [
    pytest.param({"compiled": False}, id="torch"),
    pytest.param({"native": False}, id="numba"),
    pytest.param({"native": True}, id="native", marks=needs_compiler),
]
LLAMA = {"num_heads": 4, "num_kv_heads": 2, "tied_embeddings": False}
TRAITS = {
    "llama": LLAMA,
    "gpt2": {
        "num_heads": 4,
        "num_kv_heads": 4,
        "norm": "layernorm",
        "position": "learned",
        "mlp": "gelu",
        "qkv_bias": True,
    }
    | {"output_bias": True, "mlp_bias": True},
    "opt": {
        "num_heads": 4,
        "num_kv_heads": 4,
        "norm": "layernorm",
        "position": "learned",
        "position_offset": 2,
        "mlp": "relu",
    }
    | {"mlp_bias": True},
    "qwen2": LLAMA | {"qkv_bias": True, "tied_embeddings": True},
    "qwen3": LLAMA | {"qk_norm": True, "head_dim": 24},
    "wide group": LLAMA | {"num_heads": 11, "num_kv_heads": 1},
    "windows": LLAMA
    | {"sliding_window": 20, "full_attention_every": 2, "attention_softcap": 5.0, "mlp": "geglu"},
}


def make_model(traits, seed=0, scale=6.0, **changes):
    shape = {
        "hidden_size": 40,
        "num_layers": 3,
        "head_dim": 8,
        "intermediate_size": 72,
        "vocab_size": 101,
        "max_positions": 128,
    }
    model = build(Architecture(name="tiny", **{**shape, **traits, **changes}), seed=seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale) if parameter.ndim > 1 else parameter.add_(
                torch.randn(parameter.shape, generator=generator), alpha=0.2
            )
    return model.eval()


class Recorder(Sampler):
    """A greedy sampler that keeps the logits of every sampled row by request and position."""

    def __init__(self):
        super().__init__()
        self.rows = {}

    def sample(self, logits, plan, known=None):
        for row, request, position in zip(
            logits, plan.sampled, plan.output_positions.tolist(), strict=True
        ):
            self.rows[request.id, position] = row.clone()
        return StepOutput(tokens=logits.argmax(-1).numpy())


def serve(model, prompts, count, *, token_budget=48, block_size=8, kv_dtype=None, **kernels):
    config = SchedulerConfig(
        num_blocks=768 // block_size,
        block_size=block_size,
        token_budget=token_budget,
        max_num_seqs=6,
        max_model_len=128,
    )
    scheduler, recorder = Scheduler(config), Recorder()
    runner = TorchRunner(model, config, sampler=recorder, kv_dtype=kv_dtype, **kernels)
    requests = [
        Request(id=str(row), prompt=prompt, params=SamplingParams(max_tokens=count))
        for row, prompt in enumerate(prompts)
    ]
    for request in requests:
        scheduler.add(request, 0.0)
    while (plan := scheduler.schedule(0.0)) is not None:
        scheduler.complete(plan, runner.execute(plan), 0.0)
    return runner, requests, recorder.rows


@torch.inference_mode()
def assert_equals_forward(model, requests, rows, tolerance):
    worst = 0.0
    for request in requests:
        expected = model(torch.tensor([request.prompt + request.output]))[0]
        for position in range(len(request.output)):
            row = expected[len(request.prompt) - 1 + position]
            worst = max(worst, float((rows[request.id, position] - row).abs().max() / row.std()))
    assert worst < tolerance


class Rounded(torch.nn.Module):
    """A linear layer by the reference codecs: weights, and rows as the type reads them."""

    def __init__(self, weight, bias, kind):
        super().__init__()
        group = {"group": INT4_GROUP} if kind == "int4" else {}
        self.kept, self.bias, self.kind = weight_as_kept(weight.detach(), kind, **group), bias, kind

    def forward(self, rows):
        read = rows_as_read(rows.flatten(0, -2), self.kind).view(rows.shape)
        return torch.nn.functional.linear(read, self.kept, self.bias)


def reference(model, kind):
    """The slow obvious version of a model with weights of a type."""
    twin = copy.deepcopy(model).float()
    for layer in twin.layers:
        for name in ("qkv", "out", "up", "down"):
            part = getattr(layer, name)
            setattr(layer, name, Rounded(part.weight, part.bias, kind))
    head = twin.embedding.weight if twin.output is None else twin.output.weight
    vars(twin)["head"] = Rounded(head, None, head_type(kind))  # in front of the method
    return twin


@pytest.mark.parametrize("kernels", [item for item in KERNELS if item.id != "torch"])
@pytest.mark.parametrize("kind", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_narrow_weights_equal_the_reference_codecs(name, kind, kernels):
    if not can_pack(kind):
        pytest.skip("this PyTorch has no such products here")
    for stored in (torch.float32, torch.bfloat16):
        model = make_model(TRAITS[name], scale=1.0).to(stored)
        # The rotary tables stay in float32 when a model is loaded.
        model.rotary_cosines, model.rotary_sines = (
            table.float() for table in (model.rotary_cosines, model.rotary_sines)
        )
        runner, requests, rows = serve(
            model,
            make_prompts(),
            5,
            token_budget=23,
            kv_dtype=torch.float32,
            weights=kind,
            **kernels,
        )
        assert runner.weights == kind
        # A number near the middle of two codes may go to either; PyTorch's products of bytes do
        # not round rows to bytes, but results to bfloat16.
        tolerance = 0.02 if runner.kernel == "native" else 0.15
        assert_equals_forward(reference(model, kind), requests, rows, tolerance)


@pytest.mark.parametrize(
    ("kind", "kernels"),
    [
        *(
            pytest.param(kind, *KERNELS[2].values, marks=needs_compiler, id=f"{kind}-native")
            for kind in ("bf16", "int8", "int4")
        ),
        # One type stands for all that PyTorch multiplies.
        pytest.param("int8", *KERNELS[1].values, marks=pytest.mark.slow, id="int8-numba"),
    ],
)
def test_preemption_and_prefix_hits_change_no_token_of_narrow_weights(kind, kernels):
    if not can_pack(kind):
        pytest.skip("this PyTorch has no such products here")
    model = make_model(LLAMA)
    prompts = make_prompts((20, 21, 22, 23, 24))
    outputs = []
    for blocks, caching, swaps in ((96, False, 0), (14, False, 0), (14, False, 40), (96, True, 0)):
        config = SchedulerConfig(
            num_blocks=blocks,
            block_size=8,
            max_model_len=96,
            max_num_seqs=5,
            prefix_caching=caching,
            preemption="swap" if swaps else "recompute",
            host_blocks=swaps,
        )
        llm = LLM(model, config, weights=kind, **kernels)
        for _ in range(1 + caching):
            done = llm.generate(prompts, SamplingParams(max_tokens=30))
        assert (llm.stats().preemptions > 0) == (blocks < 96)
        assert (done[0].num_cached > 0) == caching
        outputs.append([item.tokens for item in done])
        llm.close()
    # Without native kernels PyTorch's products depend on the batch's size in the last places.
    if kernels["native"]:
        assert all(found == outputs[0] for found in outputs[1:])


def make_prompts(sizes=(1, 3, 17, 40, 8, 70), seed=0):
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 101, size).tolist() for size in sizes]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", TRAITS)
def test_logits_equal_the_models_own_forward(name, kernels):
    model = make_model(TRAITS[name])
    runner, requests, rows = serve(model, make_prompts(), 5, token_budget=23, **kernels)
    assert (
        runner.kernel
        == {"compiled": "torch", "native": "native" if kernels.get("native") else "numba"}[
            next(iter(kernels))
        ]
    )
    assert_equals_forward(model, requests, rows, 2e-4)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("block_size", [1, 4, 32])
def test_any_block_size(block_size, kernels):
    model = make_model(LLAMA, num_layers=1)
    _, requests, rows = serve(model, make_prompts((1, 5, 33)), 4, block_size=block_size, **kernels)
    assert_equals_forward(model, requests, rows, 2e-4)


@pytest.mark.parametrize("kernels", KERNELS)
def test_bfloat16_keys_and_values_stay_close_and_take_half_the_bytes(kernels):
    model = make_model(LLAMA, num_layers=2, scale=3.0)
    runner, requests, rows = serve(model, make_prompts(), 4, kv_dtype=torch.bfloat16, **kernels)
    assert_equals_forward(model, requests, rows, 0.1)
    assert runner.pool_bytes == 2 * 2 * 96 * 8 * 2 * 8 * 2


@pytest.mark.parametrize("kernels", KERNELS)
def test_int8_keys_and_values_stay_close_and_take_a_byte_and_a_scale(kernels):
    model = make_model(LLAMA, num_layers=2, scale=3.0)
    runner, requests, rows = serve(model, make_prompts(), 4, kv_dtype=torch.int8, **kernels)
    assert_equals_forward(model, requests, rows, 0.2)
    assert runner.pool_bytes == 2 * 2 * 96 * 8 * 2 * (8 + 4)


@needs_compiler
def test_native_rows_do_not_depend_on_what_else_runs():
    model = make_model(LLAMA)
    prompts = make_prompts()
    _, _, together = serve(model, prompts, 5, token_budget=64, native=True)
    _, _, chunked = serve(model, prompts, 5, token_budget=7, native=True)
    assert set(together) == set(chunked)
    for key, row in together.items():
        assert (row - chunked[key]).abs().max() < 1e-4 * row.std()


@pytest.mark.parametrize("kernels", KERNELS)
def test_copied_blocks_and_shared_rows(kernels):
    model = make_model(LLAMA, num_layers=2)
    config = SchedulerConfig(num_blocks=16, block_size=4, max_model_len=32)
    recorder = Recorder()
    runner = TorchRunner(model, config, sampler=recorder, **kernels)
    prompt = make_prompts((6,))[0]
    twins = [Request(id=name, prompt=prompt) for name in "ab"]
    first = make_plan(
        range(6), prompt, [[3, 5]], num_decodes=0, lengths=[6], rows=[5, 5], sampled=twins
    )
    tokens = runner.execute(first).tokens
    assert tokens[0] == tokens[1]
    second = make_plan(
        [6, 6],
        [0, 0],
        [[3, 5], [3, 7]],
        num_decodes=2,
        lengths=[1, 1],
        rows=[0, 1],
        sampled=twins,
        copies=[[5, 7]],
        feedback=[[0, 1], [1, 0]],
    )
    output = runner.launch(second).result()
    assert torch.equal(recorder.rows["a", 0], recorder.rows["b", 0])
    with torch.inference_mode():
        expected = model(torch.tensor([[*prompt, int(tokens[0])]]))[0, -1]
    assert (recorder.rows["a", 0] - expected).abs().max() < 1e-3
    assert output.tokens.tolist() == [int(expected.argmax())] * 2


def make_plan(
    positions, tokens, tables, *, num_decodes, lengths, rows, sampled, copies=(), feedback=()
):
    tables, positions = np.array(tables, dtype=np.int64), np.array(positions, dtype=np.int64)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    ends = np.cumsum(lengths) - 1
    return StepPlan(
        request_ids=[request.id for request in sampled][: len(lengths)],
        num_decodes=num_decodes,
        token_ids=np.array(tokens, dtype=np.int64),
        positions=positions,
        slot_mapping=tables[owner, positions // 4] * 4 + positions % 4,
        query_lengths=np.array(lengths, dtype=np.int64),
        context_lengths=positions[ends] + 1,
        block_tables=tables,
        sample_rows=np.array(rows, dtype=np.int64),
        sampled=sampled,
        output_positions=np.zeros(len(rows), dtype=np.int64),
        feedback=np.array(feedback, dtype=np.int64).reshape(-1, 2),
        copies=np.array(copies, dtype=np.int64).reshape(-1, 2),
    )


def test_launched_steps_run_in_order_and_faults_come_out_of_result():
    model = make_model(LLAMA, num_layers=1)
    runner = TorchRunner(
        model, SchedulerConfig(num_blocks=16, block_size=4, max_model_len=32), native=False
    )
    request = [Request(id="a", prompt=[1])]
    plans = [make_plan([0], [1], [[3]], num_decodes=0, lengths=[1], rows=[0], sampled=request)]
    plans += [
        make_plan(
            [at],
            [0],
            [[3]],
            num_decodes=1,
            lengths=[1],
            rows=[0],
            sampled=request,
            feedback=[[0, 0]],
        )
        for at in (1, 2)
    ]
    handles = [runner.launch(plan) for plan in plans]
    tokens = [int(handle.result().tokens[0]) for handle in handles]
    expected = [1]
    with torch.inference_mode():
        for _ in range(3):
            expected.append(int(model(torch.tensor([expected]))[0, -1].argmax()))
    assert tokens == expected[1:]
    broken = make_plan([0], [10**6], [[3]], num_decodes=0, lengths=[1], rows=[0], sampled=request)
    with pytest.raises(IndexError):
        runner.launch(broken).result()
    assert runner.execute(plans[0]).tokens.tolist() == tokens[:1]


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="pools are not lazy here")
def test_pages_of_blocks_to_come_are_taken_piece_by_piece_and_no_further():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    pool = KVPool(make_model(LLAMA).architecture, 2**18, 8, torch.float32, torch.device("cpu"))
    before = resident()
    for _ in range(50):
        pool.take_ahead(0)
    taken = resident() - before
    sides = 2 * 3 * HUGE_PAGE_BYTES  # one page of each side of three layers
    assert 0.9 * sides <= taken <= 2.5 * sides
    assert not pool.kv[:, :, ::4096].any()


def test_the_pool_keeps_runs_of_blocks_together():
    runner = TorchRunner(
        make_model(LLAMA),
        SchedulerConfig(num_blocks=16, block_size=8, max_model_len=64),
        native=False,
    )
    assert runner.kv.shape[:3] == (3, 2, 16)
    assert all(
        runner.kv[layer, side, 3:7].is_contiguous() for layer in range(3) for side in range(2)
    )


def test_without_a_compiler_the_numba_kernels_run_and_the_reason_is_kept(monkeypatch, tmp_path):
    model, config = (
        make_model(LLAMA, num_layers=1),
        SchedulerConfig(num_blocks=16, block_size=8, max_model_len=64),
    )
    monkeypatch.setenv("PATH", str(tmp_path))
    runner = TorchRunner(model, config)
    assert runner.kernel == "numba"
    assert "g++" in runner.kernel_note
    with pytest.raises(BackendError, match="native kernels cannot run"):
        TorchRunner(model, config, native=True)
    monkeypatch.setenv("STEELYARD_NATIVE", "0")
    assert TorchRunner(model, config).kernel_note == "switched off"


@needs_compiler
def test_native_kernels_need_a_known_processor_equal_results_and_a_cache(monkeypatch, tmp_path):
    from steelyard.serve.running.native import trial

    # A cache without verdicts, but with what takes seconds to compile.
    built = Path(native_library.compiled_library()._name)
    cache = tmp_path / "steelyard" / "native"
    cache.mkdir(parents=True)
    for path in built.parent.glob(f"{built.stem}.*"):
        if path.suffix != ".json":
            shutil.copy2(path, cache)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    model, config = (
        make_model(LLAMA, num_layers=1),
        SchedulerConfig(num_blocks=16, block_size=8, max_model_len=64),
    )
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "SVE256")
    assert "measured on processors with SVE256" in TorchRunner(model, config).kernel_note
    assert TorchRunner(model, config, native=True).kernel == "native"
    monkeypatch.setattr(trial, "_MEASURED", ("SVE256",))
    library = native_library.compiled_library()
    assert 0 < trial.step_difference(model, library, 2, "fp32") < 1e-4
    assert 0 < trial.step_difference(model, library, 2, "int8") < 5e-2
    monkeypatch.setattr(trial, "step_difference", lambda *_: 0.5)
    for weights in ("fp32", "int8"):  # each type has to show itself
        runner = TorchRunner(model, config, weights=weights)
        assert "differ by 5.0e-01" in runner.kernel_note
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    runner = TorchRunner(model, config)
    assert (runner.kernel, "cannot keep" in runner.kernel_note) == ("numba", True)


@needs_compiler
def test_a_native_engine_does_without_numba_and_a_package_without_either():
    program = """
import sys
import steelyard.serve, steelyard.serve.front.launch
assert not {"numpy", "torch", "uvicorn"} & set(sys.modules)
import torch
from steelyard.catalog.architecture import Architecture
from steelyard.nn.transformer import build
from steelyard.serve import SamplingParams, SchedulerConfig
from steelyard.serve.engine import LLM
from steelyard.serve.front.engine import loop
shape = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8}
arch = Architecture(
    name="a", intermediate_size=24, vocab_size=40, max_positions=32, **shape
)
limits = SchedulerConfig(num_blocks=16, block_size=8, max_model_len=32)
llm = LLM(build(arch).eval(), limits, native=True)
asks = [SamplingParams(max_tokens=4), SamplingParams(max_tokens=4, temperature=1.0, logprobs=2)]
assert len(llm.generate([[1], [2]], asks)) == 2
assert "numba" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_what_does_not_fit_is_refused():
    model, config = (
        make_model(LLAMA, num_layers=1),
        SchedulerConfig(num_blocks=16, block_size=8, max_model_len=64),
    )
    with pytest.raises(ConfigError, match="kv_dtype"):
        TorchRunner(model, config, kv_dtype=torch.float16)
    odd = make_model(LLAMA, num_layers=1, intermediate_size=70)
    assert "multiples of 8" in TorchRunner(odd, config).kernel_note
