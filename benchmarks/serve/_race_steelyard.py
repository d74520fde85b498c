"""Our engine, behind the same two methods as the others."""

from pathlib import Path

import torch

from steelyard.serve import SamplingParams
from steelyard.serve.build import make_engine
from steelyard.serve.options import EngineOptions


class Engine:
    """`LLM` as the server makes it."""

    def __init__(self, options):
        torch.set_num_threads(options["threads"])
        self.engine = make_engine(
            Path(options["model"]),
            EngineOptions(
                weights=options["weights"],
                pool_bytes=2**30,
                max_model_len=options["max_model_len"],
                max_num_seqs=options["max_num_seqs"],
                token_budget=options["token_budget"],
                # Random weights fall into loops, which no text does so often.
                speculate="off",
            ),
        )
        self.name = f"steelyard ({self.engine.runner.kernel} kernels)"
        self.places = {}

    def add(self, index, prompt, length):
        """Queue a request."""
        asked = SamplingParams(max_tokens=length, ignore_end=True)
        self.places[self.engine.add_request(prompt, asked)] = index

    def step(self):
        """Run a step; return the requests that got tokens, with their number."""
        return [
            (self.places[delta.request_id], len(delta.tokens))
            for delta in self.engine.step().deltas
            if delta.tokens
        ]
