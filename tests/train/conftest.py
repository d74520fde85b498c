import gc
import importlib
import importlib.util
import multiprocessing
import multiprocessing.forkserver
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from steelyard.catalog.architecture import Architecture
from steelyard.train import TrainConfig

_HERE = Path(__file__).parent


def _load_sources():
    spec = importlib.util.spec_from_file_location("train_test_sources", _HERE / "sources.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


_SOURCES = _load_sources()


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Keep torch to one thread: test processes share the cores, and spinning threads collide."""
    torch.set_num_threads(1)
    # Every run collects garbage before it measures its memory: what is loaded, and what the tests
    # of other rooms left in this process, is not looked through each time.
    importlib.import_module("torch._dynamo")
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def fork_server():
    """Load what training needs once, for all processes that tests start from here."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["steelyard.train.launch", "torch._dynamo"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        multiprocessing.forkserver.ensure_running()
    return context


@pytest.fixture
def start_processes(fork_server):
    """Start a program of this folder as torchrun would; none outlives the test."""
    children = []

    def start(count, program, *arguments):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        common = {"WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        path = str(_HERE / program)
        found = []
        for rank in range(count):
            environment = {name: str(value) for name, value in {**common, "RANK": rank}.items()}
            # The code is text, as no module of the tests has a name that a process can import.
            code = (
                "import os, runpy, sys\n"
                f"os.environ.update({environment})\n"
                f"sys.argv = {[path, *map(str, arguments)]}\n"
                "runpy.run_path(sys.argv[0], run_name='__main__')"
            )
            found.append(fork_server.Process(target=exec, args=(code, {})))
            found[-1].start()
        children.extend(found)
        return found

    yield start
    for child in children:
        child.kill()
        child.join()
        child.close()


@pytest.fixture
def exit_codes():
    """Wait for processes; return their exit codes, None for one that runs on after `limit_s`."""

    def wait(children, limit_s=280):
        for child in children:
            child.join(limit_s)
        return [child.exitcode for child in children]

    return wait


@pytest.fixture
def source():
    return _SOURCES.MarkovTokens()


@pytest.fixture
def arch() -> Architecture:
    return Architecture(
        name="atom",
        hidden_size=32,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        intermediate_size=64,
        vocab_size=64,
        max_positions=64,
    )


@pytest.fixture
def config(arch) -> TrainConfig:
    return TrainConfig(
        architecture=arch,
        steps=12,
        batch_size=4,
        sequence_length=16,
        learning_rate=5e-3,
        warmup_steps=2,
        cooldown_steps=3,
        checkpoint_every=4,
        eval_every=6,
        eval_tokens=512,
        threads=1,
        seed=3,
    )


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Shards of a little made-up text."""
    from steelyard.data import text

    folder = tmp_path_factory.mktemp("text")
    words = [
        "steel",
        "yard",
        "weight",
        "balance",
        "small",
        "large",
        "beam",
        "hook",
        "load",
        "count",
    ]
    rng = np.random.default_rng(0)
    sources = folder / "sources"
    sources.mkdir()
    for index in range(40):
        lines = [" ".join(rng.choice(words, 12)) + f" {index} {line}." for line in range(40)]
        (sources / f"{index}.txt").write_text("\n".join(lines))
    text.prepare([sources], folder / "shards", vocab_size=300, heldout_fraction=0.1)
    return folder / "shards"
