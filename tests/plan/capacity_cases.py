"""Random small models on random memory: plan, start the engine, fill it, and look at its peak.

`python capacity_cases.py COUNT SEED` prints one JSON object per case. The engine of
each runs in a process of its own, whose peak of resident memory is held against what was planned.
"""

import json
import os
import sys
import tempfile
import traceback
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.config import dump, load
from steelyard.cost.phase_time import PhaseStepTime
from steelyard.cost.step_time import ServeStepTime
from steelyard.errors import CapacityError
from steelyard.nn import checkpoint
from steelyard.nn.transformer import build
from steelyard.plan.fit import RESERVE
from steelyard.plan.service.case import OwnEngine, ServiceCase
from steelyard.plan.service.deployed import deployment_of
from steelyard.plan.service.load import ServiceLoad
from steelyard.serve.build import make_engine
from steelyard.serve.client.summary import Slo
from steelyard.serve.deployment import DeployedLoad, DeployedMachine, Deployment
from steelyard.serve.options import EngineOptions
from steelyard.serve.scheduling.params import SamplingParams

STEP_TIME = PhaseStepTime.of(
    ServeStepTime(
        coefficients=(1e-3, 1e-5, 2e-5, 1e-9, 1e-4, 1e-8, 0.0), relative_spread=0.1, count=7
    )
)


def status_bytes(name):
    """A line of /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


def drawn_model(draw):
    """An architecture of up to some ten megabytes."""
    head = int(draw.choice([16, 32, 64]))
    kv_heads = int(draw.choice([1, 2, 4]))
    heads = kv_heads * int(draw.choice([1, 2]))
    return Architecture(
        name="drawn",
        vocab_size=int(draw.choice([256, 1000, 4096])),
        max_positions=int(draw.choice([256, 512, 1024])),
        hidden_size=heads * head,
        num_layers=int(draw.integers(1, 7)),
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head,
        intermediate_size=8 * int(draw.integers(8, 100)),
        tied_embeddings=bool(draw.integers(2)),
    )


def drawn_case(draw, arch, process_bytes):
    """A service of the model on a machine that may be too small for it."""
    outputs = draw.integers(2, 17, 100)
    inputs = draw.integers(16, arch.max_positions - 17, 100)
    requests = ServiceLoad.drawn(inputs, outputs, draw, count=100)
    # From hardly the weights and one request to room for all at once.
    memory = process_bytes + float(np.exp(draw.uniform(np.log(20e6), np.log(400e6))))
    return ServiceCase(
        arch=arch,
        accelerator=catalog.accelerator("H100-SXM5-80GB"),  # its roofline is not looked at
        dtype="fp32",
        load=requests,
        rate_per_s=1.0,
        slo=Slo(ttft_s=1.0, tpot_s=0.1),
        per_node=1,
        token_budget=int(draw.choice([32, 128, 512])),
        max_num_seqs=int(draw.choice([1, 4, 16, 64])),
        own=OwnEngine(step_time=STEP_TIME, memory_bytes=memory, process_bytes=process_bytes),
    )


def recommended(case):
    """What the planner says of a case."""
    best = case.search().run(case.rate_per_s)[0]
    return deployment_of(
        best.arrangement,
        model=case.arch.name,
        machine=DeployedMachine(accelerator="drawn", dtype="fp32"),
        instances=1,
        max_model_len=case.load.longest,
        load=DeployedLoad(rate_per_s=1.0, ttft_s=1.0, tpot_s=0.1),
    )


def plan(seed, folder, process_bytes):
    """Draw a case, save its model, and write what the planner recommends."""
    draw = np.random.default_rng(seed)
    arch = drawn_model(draw)
    case = drawn_case(draw, arch, process_bytes)
    try:
        dump(recommended(case), folder / "deployment.json")
    except CapacityError:
        return
    checkpoint.save(build(arch, seed=seed), folder / "model")


def serve(seed, folder, process_bytes):
    """Start the engine, serve a longest request alone and then more than its pool holds."""
    draw = np.random.default_rng(seed)
    memory = drawn_case(draw, drawn_model(draw), process_bytes).own.memory_bytes
    said = {"seed": seed, "budget_mb": (memory - process_bytes) / 1e6}
    if not (folder / "deployment.json").exists():
        return said | {"state": "refused"}
    # A child begins with fewer pages than its parent: those of libraries come as they are used.
    idle(folder.parent / "idle")
    deployment = load(folder / "deployment.json", Deployment)
    options = deployment.engine_options("drawn", EngineOptions(weights="fp32"))
    llm = make_engine(folder / "model", options)
    (group,) = deployment.groups
    assert llm.config.num_blocks == group.num_blocks
    assert llm.config.whole_prompts == group.whole_prompts
    longest = deployment.max_model_len
    fitting = group.num_blocks * group.block_size // longest
    for count in (1, min(fitting, group.max_num_seqs) + 1):
        # Prompts that share nothing: equal ones would share their blocks.
        prompts = draw.integers(0, llm.model.architecture.vocab_size, (count, longest - 8))
        found = llm.generate(prompts.tolist(), SamplingParams(max_tokens=8))
        assert all(len(item.tokens) == 8 for item in found)
    peak = status_bytes("VmHWM")
    return said | {
        "state": "held" if peak <= memory else "over",
        "peak_mb": (peak - process_bytes) / 1e6,
        "used_reserve": peak > (1 - RESERVE) * memory,
        "fitting": fitting,
        "whole": group.whole_prompts,
    }


def in_child(work, seed, folder, process_bytes):
    """Do work in a process of its own, and print what it says."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            said = work(seed, folder, process_bytes)
        except BaseException as error:
            traceback.print_exc()
            said = {"seed": seed, "state": f"failed: {error!r}"[:300]}
        if isinstance(said, dict):
            print(json.dumps(said))
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)


def idle(folder):
    """Run an engine of hardly any model; return what the process holds then."""
    llm = make_engine(folder, EngineOptions(weights="fp32", pool_bytes=2**20, max_model_len=64))
    llm.generate([[1] * 40], SamplingParams(max_tokens=4))
    return status_bytes("VmHWM")


def main(count, seed):
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        arch = drawn_model(np.random.default_rng(0))
        small = replace(arch, num_layers=1, vocab_size=256, intermediate_size=64)
        checkpoint.save(build(small, seed=0), folder / "idle")
        idle(folder / "idle")
        recommended(drawn_case(np.random.default_rng(0), arch, 1e9))
        in_child(lambda *_: (folder / "held").write_text(str(idle(folder / "idle"))), 0, folder, 0)
        process_bytes = int((folder / "held").read_text())
        for number in range(seed, seed + count):
            place = folder / str(number)
            place.mkdir()
            for work in (plan, serve):
                in_child(work, number, place, process_bytes)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
