"""Guessed tokens: what n-grams and a draft model gain on copied text, and cost elsewhere.

Engines with and without guesses take turns on the same requests; outputs are compared token by
token.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from benchmarks.common import Check
from benchmarks.serve._recall_model import Recipe, trained
from benchmarks.serve._recall_text import real_text

from steelyard.catalog.architecture import Architecture
from steelyard.nn.transformer import Transformer, build
from steelyard.serve import SamplingParams, SchedulerConfig
from steelyard.serve.engine import LLM
from steelyard.serve.scheduling.request import Request

PAPER: list[str] = []

_TRAINED = Recipe(hidden_size=192, num_layers=2, phases=((160, 8, 256, 0, 0),), max_positions=1024)
_FIRST_KEY = 128
_TURNS = {1: 14, 8: 5, 16: 6}
"""Jobs by requests at once, twice as many in a full run: short ones vary most."""


@dataclass(frozen=True)
class _Job:
    """Requests to run at once.

    Attributes:
        prompts: token ids of each.
        params: how their tokens are chosen.
    """

    prompts: list[list[int]]
    params: SamplingParams


def run(quick: bool) -> list[Check]:
    """Train what is not cached, then time each case."""
    small, random = trained(_TRAINED), _random_model()
    found = _compare("copying", _engine(small), _copying, (1, 8), quick, bar=1.5)
    engine = _engine(random)
    found += _compare("random weights", engine, _rambling, (1, 16), quick)
    found += _compare("random weights, drawn", engine, _drawing, (1, 16), quick)
    useless = _engine(random, _random_model(layers=1))
    found += _compare("useless draft model", useless, _rambling, (1,), quick)
    large = _stretched(small)
    found += _compare("copying, 24 layers", _engine(large), _copying, (1, 8), quick, bar=1.5)
    agreeing = _engine(large, small)
    return found + _compare("agreeing draft model", agreeing, _copying, (1, 8), quick, bar=1.5)


def _engine(model: Transformer, drafter: Transformer | Literal["ngram"] = "ngram") -> LLM:
    """Make an engine with room for all requests."""
    longest = min(model.architecture.max_positions, 1024)
    limits = SchedulerConfig(num_blocks=1024, max_model_len=longest, max_num_seqs=32)
    return LLM(model, limits, speculate=drafter)


@torch.no_grad()
def _stretched(model: Transformer, layers: int = 24) -> Transformer:
    """Add layers that change nothing: a large model that agrees with the small one.

    How often a draft model is right depends on both models; this case shows what the engine makes
    of guesses that are right, at the cost of a model of that many layers.

    Args:
        model: the small model.
        layers: layers of the large one.

    Returns:
        The large model.
    """
    large = build(dataclasses.replace(model.architecture, num_layers=layers))
    for name, value in large.named_parameters():
        if name.endswith(("out.weight", "down.weight")):
            value.zero_()
    large.load_state_dict(model.state_dict(), strict=False)
    return large.eval()


def _random_model(layers: int = 8) -> Transformer:
    """Build a model of random weights, whose outputs repeat little."""
    return build(
        Architecture(
            name=f"{layers}x512",
            hidden_size=512,
            num_layers=layers,
            num_heads=8,
            num_kv_heads=4,
            head_dim=64,
            intermediate_size=1408,
            vocab_size=8192,
            max_positions=2048,
            tied_embeddings=False,
        )
    )


def _copying(count: int, turn: int) -> _Job:
    """Ask for records that stand in the prompt, among text: extraction."""
    text = real_text()[0]
    rng = np.random.default_rng((1, turn))
    held = text[int(len(text) * 0.95) :]
    prompts = []
    for _ in range(count):
        prompt = bytearray()
        for record in range(8):
            start = int(rng.integers(len(held) - 64))
            payload = held[start : start + 32].replace(b"\n", b" ")
            prompt += bytes([ord("!"), _FIRST_KEY + record]) + payload + b"\n"
        prompt += bytes([ord("?"), _FIRST_KEY + int(rng.integers(8))])
        prompts.append(list(prompt))
    return _Job(prompts, SamplingParams(max_tokens=33, ignore_end=True))


def _rambling(count: int, turn: int) -> _Job:
    """Let a model go on from random tokens with its likeliest ones."""
    rng = np.random.default_rng((2, turn))
    prompts = [rng.integers(0, 8192, 64).tolist() for _ in range(count)]
    return _Job(prompts, SamplingParams(max_tokens=25, ignore_end=True))


def _drawing(count: int, turn: int) -> _Job:
    """Let a model go on from random tokens with drawn ones."""
    params = SamplingParams(max_tokens=25, ignore_end=True, temperature=1.0, seed=turn)
    return _Job(_rambling(count, turn).prompts, params)


def _compare(
    name: str,
    llm: LLM,
    make: Callable[[int, int], _Job],
    counts: tuple[int, ...],
    quick: bool,
    bar: float = 0.97,
) -> list[Check]:
    """Time an engine on jobs of each number of requests at once, with and without guesses in turn.

    Args:
        name: of the case.
        llm: engine that guesses. It is the same one that runs without guesses: another would have
            its weights elsewhere in memory, and its own speed.
        make: makes the job of a turn.
        counts: requests at once; the bar is for one, and .97 for more.
        quick: fewer jobs.
        bar: least gain.

    Returns:
        Time per output token without guesses over that with them, median of the turns, and the
        share of outputs that are the same.
    """
    found = []
    for count in counts:
        turns = _TURNS[count] * (1 if quick else 2)
        _time(llm, make(count, turns))
        llm.reset()  # what was learnt of the machine is learnt anew in the timed turns
        guesser = llm.scheduler.speculator
        seconds = np.empty((turns, 2))
        same = 0
        for turn in range(turns):
            job = make(count, turn)
            outputs = {}
            for guesses in (turn % 2, 1 - turn % 2):  # neither always runs first
                llm.scheduler.speculator = guesser if guesses else None
                seconds[turn, guesses], outputs[guesses] = _time(llm, job)
            same += outputs[0] == outputs[1]
        llm.scheduler.speculator = guesser
        stats = llm.stats()
        off, on = np.median(seconds, axis=0) * 1e3
        print(
            f"{name} x{count}: {off:.2f} -> {on:.2f} ms a token; {stats.drafted_tokens} checked, "
            f"{stats.accepted_tokens} right"
        )
        gain = float(off / on)
        least = bar if count == 1 else 0.97
        found.append(
            Check(f"1 {name} x{count}: TPOT without guesses over it", gain, least, "higher")
        )
        found.append(Check(f"2 {name} x{count}: equal outputs", same / turns, 1.0, "higher"))
    return found


def _time(llm: LLM, job: _Job) -> tuple[float, list[list[int]]]:
    """Run a job; return the mean time per output token after the first, and the outputs."""
    names = [llm.add_request(prompt, job.params) for prompt in job.prompts]
    done: dict[str, Request] = {}
    while len(done) < len(names):
        done.update({request.id: request for request in llm.step().finished})
    ended = [done[name] for name in names]
    tpots = [(one.last_token_s - one.first_token_s) / (len(one.output) - 1) for one in ended]
    return float(np.mean(tpots)), [one.output for one in ended]
