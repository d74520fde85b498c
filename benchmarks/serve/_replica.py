"""One engine replica in a process of its own, which serves a closed loop of requests.

Started by `_concurrency_map`: prints "ready", then answers each line of JSON with one of its own:
{"profile_s": limit} with a step-time model, {"concurrency": requests, "seconds": duration} with the
output rate.
"""

import json
import sys
import time
from typing import Any

import numpy as np
import torch

from steelyard.catalog.architecture import Architecture
from steelyard.config import to_plain
from steelyard.nn.transformer import build
from steelyard.serve import Request, SamplingParams, SchedulerConfig
from steelyard.serve.engine import LLM
from steelyard.serve.profile import profile

SHAPE = Architecture(
    name="replica",
    hidden_size=512,
    num_layers=6,
    num_heads=8,
    num_kv_heads=4,
    head_dim=64,
    intermediate_size=1408,
    vocab_size=8192,
    max_positions=1024,
    tied_embeddings=False,
)
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 32


def closed_loop(llm: LLM, concurrency: int, seconds: float) -> dict[str, float]:
    """Keep requests in flight; return output tokens/s, a first fifth of the time left out."""
    generator = np.random.default_rng(0)
    scheduler, count, tokens = llm.scheduler, 0, 0

    def add() -> None:
        nonlocal count
        prompt = generator.integers(0, SHAPE.vocab_size, PROMPT_TOKENS).tolist()
        params = SamplingParams(
            max_tokens=int(generator.integers(1, 2 * OUTPUT_TOKENS)), ignore_end=True
        )
        scheduler.add(Request(id=f"r{count}", prompt=prompt, params=params), 0.0)
        count += 1

    for _ in range(concurrency):
        add()
    begin = time.perf_counter()
    counted_from = begin + seconds / 5
    while (now := time.perf_counter()) < begin + seconds and concurrency:
        plan = scheduler.schedule(now)
        assert plan is not None
        output = llm.runner.execute(plan)
        for _ in scheduler.complete(plan, output, now):
            add()
        tokens += len(plan.sampled) if now >= counted_from else 0
    spent = time.perf_counter() - counted_from
    for request in [*scheduler.running, *scheduler.waiting]:
        scheduler.abort(request.id)
    return {"tokens_per_s": tokens / spent}


def answer(llm: LLM, task: dict[str, float]) -> dict[str, Any]:
    """Do one task."""
    if "concurrency" in task:
        return closed_loop(llm, int(task["concurrency"]), task["seconds"])
    model = profile(llm, generator=np.random.default_rng(1), limit_s=task["profile_s"]).fit()
    return to_plain(model)


def main() -> None:
    """Serve tasks with the number of threads of the command line until the input ends."""
    torch.set_num_threads(int(sys.argv[1]))
    llm = LLM(
        build(SHAPE, seed=0).eval(),
        SchedulerConfig(num_blocks=1000, max_model_len=256, prefix_caching=False),
    )
    llm.runner.warm_up()
    closed_loop(llm, 4, 0.5)
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(llm, json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
