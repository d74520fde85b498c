"""Every family through the engine: logits and tokens are those `transformers` computed."""

import shutil
import warnings

import pytest
import torch
from tests.family_models import golden, write_folder

from steelyard.errors import BackendError, ConfigError, SteelyardWarning
from steelyard.nn import checkpoint
from steelyard.nn.traits import beyond_kernels
from steelyard.serve import Request, SamplingParams, Scheduler, SchedulerConfig
from steelyard.serve.running.embed import embed
from steelyard.serve.running.runner import TorchRunner
from steelyard.serve.running.sampling import Sampler
from steelyard.serve.scheduling.step import StepOutput
from steelyard.serve.sparse.engine import SparseDecoder
from steelyard.serve.sparse.policies import Window

GOLDEN = golden()
PROMPT = GOLDEN["prompt"]
LONGEST = 64
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
KERNELS = [
    pytest.param({"compiled": False}, id="torch"),
    pytest.param({"native": False}, id="numba"),
    pytest.param({"native": True}, id="native", marks=needs_compiler),
]
CONFIG = SchedulerConfig(
    num_blocks=96,
    block_size=8,
    token_budget=17,
    max_num_seqs=8,
    max_model_len=LONGEST,
)


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(params=sorted(GOLDEN["families"]))
def family(request, tmp_path):
    name = request.param
    entry = GOLDEN["families"][name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SteelyardWarning)
        longest = 96 if name.endswith("-long") else None
        model = checkpoint.load(write_folder(entry, tmp_path), max_positions=longest)
    return name, entry, model


class Recorder(Sampler):
    """A greedy sampler that keeps the logits of every sampled row by request and position."""

    def __init__(self):
        super().__init__()
        self.rows = {}

    def sample(self, logits, plan, known=None):
        for row, request, place in zip(
            logits, plan.sampled, plan.output_positions.tolist(), strict=True
        ):
            self.rows[request.id, place] = row.clone()
        return StepOutput(tokens=logits.argmax(-1).numpy())


def serve(model, prompts, count, *, config=CONFIG, **kernels):
    """Run prompts side by side: chunks of prompts and decoding rows share steps."""
    scheduler, recorder = Scheduler(config), Recorder()
    runner = TorchRunner(model, config, sampler=recorder, **kernels)
    requests = [
        Request(id=str(len(prompt)), prompt=prompt, params=SamplingParams(max_tokens=count))
        for prompt in prompts
    ]
    for request in requests:
        scheduler.add(request, 0.0)
    while (plan := scheduler.schedule(0.0)) is not None:
        scheduler.complete(plan, runner.execute(plan), 0.0)
    return {request.id: request.output for request in requests}, recorder.rows


@pytest.mark.parametrize("kernels", KERNELS)
def test_the_engine_computes_what_transformers_does(family, kernels):
    _, entry, model = family
    if kernels.get("native") and beyond_kernels(model.architecture):
        with pytest.raises(BackendError, match="no experts"):
            TorchRunner(model, CONFIG, **kernels)
        return
    prompts = [PROMPT[: place + 1] for place in GOLDEN["positions"]]
    outputs, rows = serve(model, prompts, len(entry["greedy"]), **kernels)
    assert outputs[str(len(PROMPT))] == entry["greedy"]
    found = [rows[str(len(prompt)), 0] for prompt in prompts]
    expected = torch.tensor(entry["logits"])
    torch.testing.assert_close(torch.stack(found), expected, rtol=0, atol=2e-5)
    last = rows[str(len(PROMPT)), len(entry["greedy"]) - 1]
    torch.testing.assert_close(last, torch.tensor(entry["last"]), rtol=0, atol=2e-5)


def test_embeddings_are_of_the_models_own_attention(family):
    _, _, model = family
    found = embed(model, [PROMPT, PROMPT[:9]], pooling="last", normalize=False)
    with torch.inference_mode():
        places = torch.arange(len(PROMPT))
        hidden = model.run(torch.tensor([PROMPT]), places, model.attend)[0]
    torch.testing.assert_close(torch.as_tensor(found), hidden[[39, 8]], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "family", ["mistral", "gemma2", "gemma3_text", "smollm3", "deepseek_v3"], indirect=True
)
def test_bounded_caches_refuse_attention_they_do_not_know(family):
    _, _, model = family
    with pytest.raises(ConfigError, match="does not know"):
        SparseDecoder(model, Window(8), num_requests=1, max_length=LONGEST)
