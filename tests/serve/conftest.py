import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from steelyard.catalog.architecture import Architecture
from steelyard.nn.transformer import build
from steelyard.serve.scheduling.fairness.order import OrderPolicy


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


class Everything:
    """Checks every guess, up to six of a request."""

    def looks(self):
        return True

    def choose(self, requests, lengths, num_sequences, round_s):
        return [min(length, 6) for length in lengths]

    def checked(self, request, accepted, rejected):
        pass

    def timed(self, rows, seconds, spent_s):
        pass


class Oracle:
    """Knows the outputs, and is wrong at one token of `wrong`."""

    longest = 6
    round_s = spent_s = 0.0

    def __init__(self, outputs, wrong=4):
        self.outputs = outputs
        self.wrong = wrong

    def draft(self, requests, lengths):
        found = []
        for request, length in zip(requests, lengths, strict=True):
            known = self.outputs[tuple(request.prompt), request.index]
            first = len(request.output)
            tokens = known[first : first + length]
            tokens += [5] * (length - len(tokens))  # beyond the end, which nobody knows
            found.append(
                [(token + ((first + at) % self.wrong == 0)) % 97 for at, token in enumerate(tokens)]
            )
        return found


@pytest.fixture(scope="session")
def check_everything():
    """Let an engine that guesses check every guess, whether it pays or not."""

    def change(llm):
        llm.scheduler.speculator.control = Everything()

    return change


@pytest.fixture(scope="session")
def know(check_everything):
    """Let an engine guess the outputs it is to give, with mistakes."""

    def change(llm, prompts, expected, wrong=4):
        outputs = {
            (tuple(prompt), index): list(output[0])
            for prompt, outputs in zip(prompts, expected, strict=True)
            for index, output in enumerate(outputs)
        }
        llm.scheduler.speculator.drafter = Oracle(outputs, wrong)
        check_everything(llm)

    return change


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


PROGRAM = """
import sys
from steelyard.cli.main import main
from steelyard.serve.front.engine import spawn
spawn.ENGINE_MODULE = sys.argv[1] or spawn.ENGINE_MODULE
main(["serve", *sys.argv[2:], "--port", "0", "--threads", "1"])
"""


class Server:
    """`steelyard serve` in processes of its own; none of them is left, however the block ends."""

    def __init__(self, folder, *words, engine=""):
        """Words of the command, and the module of another engine."""
        command = [sys.executable, "-c", PROGRAM, engine, str(folder), *map(str, words)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdout=pipe, text=True, start_new_session=True)

    def __enter__(self):
        import httpx

        try:
            line = self.process.stdout.readline()
            assert line.startswith("serving on "), f"the server did not start: {line!r}"
        except BaseException:
            self.kill()
            raise
        self.url = line.split()[-1]
        # Loading the certificates of the world takes longer than most tests; nothing is encrypted.
        self.client = httpx.Client(base_url=self.url, timeout=120, verify=False)
        return self

    def __exit__(self, kind, error, trace):
        self.client.close()
        try:
            self.process.terminate()
            code = self.process.wait(30)
            assert kind or code == 0
        finally:
            self.kill()

    def kill(self):
        """End both processes, even a stopped one."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    def post(self, path="/v1/completions", headers=None, **body):
        return self.client.post(path, json=body, headers=headers)

    def events(self, path="/v1/completions", **body):
        with self.client.stream("POST", path, json={**body, "stream": True}) as response:
            assert response.headers["content-type"] == "text/event-stream"
            lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        assert lines[-1] == "[DONE]"
        return [json.loads(line) for line in lines[:-1]]

    def metric(self, name):
        text = self.client.get("/metrics").text
        found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    def engine_pid(self):
        """The one child of the gateway that is alive."""
        found = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                state, parent = path.read_text().rpartition(")")[2].split()[:2]
            except OSError:  # it ended meanwhile
                continue
            if int(parent) == self.process.pid and state != "Z":
                found.append(int(path.parent.name))
        (pid,) = found
        return pid

    def assert_idle(self, seconds=60):
        """Wait until no block is held."""
        limit = time.monotonic() + seconds
        while self.metric("steelyard_blocks_in_use") or self.metric("steelyard_requests_in_flight"):
            assert time.monotonic() < limit, "blocks are still held"
            time.sleep(0.02)


@pytest.fixture(scope="session")
def serving():
    """Class of a server: `with serving(folder, "--pool", "2MiB") as server`."""
    return Server


TEMPLATE = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}a:"


@pytest.fixture(scope="session")
def chat_folder(tmp_path_factory):
    """A model of bytes with a tokenizer, a chat template and an end token."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from steelyard.nn import checkpoint

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("chat") / "tiny"
    shape = {
        "hidden_size": 32,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "intermediate_size": 64,
        "tied_embeddings": False,
    }
    model = build(Architecture(name="tiny", vocab_size=257, max_positions=4096, **shape), seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6.0)
    checkpoint.save(model, folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[])
    )
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))
    return folder


@pytest.fixture(scope="session")
def chat_server(chat_folder, serving):
    """That model, served."""
    with serving(chat_folder, "--pool", "4MiB") as server:
        yield server


class Shuffled(OrderPolicy):
    """Ranks that change with every round, so that running requests lose their places."""

    round = 0

    def update(self, now_s):
        self.round += 1

    def key(self, request, now_s):
        return ((request.order * 7 + self.round * 5) % 11, request.order)


@pytest.fixture(scope="module")
def client(chat_server):
    """The client library of OpenAI; it loads no certificates, which takes most of a second."""
    openai = pytest.importorskip("openai")
    http = openai.DefaultHttpxClient(verify=False)
    url = f"{chat_server.url}/v1"
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0, http_client=http) as made:
        yield made
