"""The engine alone, under a closed loop of requests: the lower bound of every front's latency.

`python -m benchmarks.serve._engine_alone FOLDER CORE CONCURRENCY REQUESTS PROMPT_TOKENS
OUTPUT_TOKENS` prints mean seconds per request and output tokens per second.
"""

import os
import sys
import time
from pathlib import Path

import numpy as np


def main(arguments: list[str]) -> None:
    """Run the loop and print two numbers."""
    folder, core, *numbers = arguments
    concurrency, count, prompt_tokens, output_tokens = map(int, numbers)
    os.sched_setaffinity(0, [int(core)])
    import torch

    from steelyard.nn import checkpoint
    from steelyard.serve import Request, SamplingParams
    from steelyard.serve.engine import LLM

    torch.set_num_threads(1)
    llm = LLM(checkpoint.load(Path(folder)))
    generator = np.random.default_rng(1)
    params = SamplingParams(max_tokens=output_tokens, ignore_end=True)
    vocab = llm.model.architecture.vocab_size

    def run(number: int) -> tuple[float, float]:
        waiting = [
            Request(
                id=f"{number}-{index}",
                prompt=generator.integers(0, vocab, prompt_tokens).tolist(),
                params=params,
            )
            for index in range(number)
        ]
        begin_s = time.perf_counter()
        seconds: list[float] = []
        active = 0
        while waiting or active:
            while waiting and active < concurrency:
                request = waiting.pop()
                request.arrival_s = time.perf_counter()
                llm.add(request, request.arrival_s)
                active += 1
            for request in llm.step().finished:
                active -= 1
                seconds.append(time.perf_counter() - request.arrival_s)
        return float(np.mean(seconds)), number * output_tokens / (time.perf_counter() - begin_s)

    run(min(concurrency, count))
    print(*run(count))


if __name__ == "__main__":
    main(sys.argv[1:])
