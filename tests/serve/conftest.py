import asyncio
import threading

import numpy as np
import pytest
import torch

from steelyard.catalog.architecture import Architecture
from steelyard.nn.transformer import build


@pytest.fixture(scope="session")
def model():
    """A tiny decoder with grouped heads; weights are widened so that greedy outputs vary."""
    torch.set_num_threads(1)
    shape = {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "tied_embeddings": False,
    }
    built = build(Architecture(name="tiny", vocab_size=97, max_positions=128, **shape), seed=1)
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.ndim > 1:
                parameter.mul_(10.0)
    return built.eval()


@pytest.fixture(scope="session")
def greedy(model):
    """The slow obvious version: a full forward for every token."""

    def generate(prompt, count):
        tokens = list(prompt)
        with torch.inference_mode():
            for _ in range(count):
                tokens.append(int(model(torch.tensor([tokens]))[0, -1].argmax()))
        return tokens[len(prompt) :]

    return generate


@pytest.fixture(scope="session")
def complete():
    """Greedy completions of a bounded cache, one prompt after the other, without an engine."""

    def generate(decoder, prompts, count):
        row, outputs = np.zeros(1, dtype=np.int64), []
        for prompt in prompts:
            decoder.free(0)
            for start in range(0, len(prompt), decoder.chunk):
                logits = decoder.feed(row, [np.array(prompt[start : start + decoder.chunk])])
            output = [int(logits[0].argmax())]
            while len(output) < count:
                output.append(int(decoder.feed(row, [np.array(output[-1:])])[0].argmax()))
            outputs.append(output)
        return outputs

    return generate


async def end_tasks(server):
    """Close a server and cancel all that still runs on its loop."""
    server.close()
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture(scope="module")
def listen():
    """Run handlers of connections on a thread of their own, until the module's tests are done."""
    running = []

    def start(serve):
        loop = asyncio.new_event_loop()
        server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        running.append((loop, server, thread))
        return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    yield start
    for loop, server, thread in running:
        asyncio.run_coroutine_threadsafe(end_tasks(server), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
