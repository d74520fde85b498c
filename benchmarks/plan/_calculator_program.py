"""Costs training steps with llm-analysis when asked; runs in that peer's interpreter.

A line {"steps": [...]} is answered by {"seconds": time of all of them, "step_s": [...]}; a step it
refuses has the time 0.
"""

import json
import logging
import os
import sys
import time
from dataclasses import replace

channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)

from llm_analysis.analysis import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    ActivationRecomputation,
    DSZeRO,
    LLMAnalysis,
)
from llm_analysis.config import (  # noqa: E402  # pyright: ignore[reportMissingImports]
    ModelConfig,
    ParallelismConfig,
    get_dtype_config_by_name,
    get_gpu_config_by_name,
)

logging.disable(logging.CRITICAL)
DTYPE = get_dtype_config_by_name("w16a16e16")
EFFICIENCY = 0.5  # its times are inverse to it
POLICIES = {
    "none": ActivationRecomputation.NONE,
    "selective": ActivationRecomputation.SELECTIVE,
    "full": ActivationRecomputation.FULL,
}


def step_s(step):
    """Return seconds of one step; 0 where the peer refuses it."""
    chip = get_gpu_config_by_name(step["chip"])
    chip = replace(chip, inter_node_bandwidth_in_GB_per_sec=step["network_gb_per_s"])
    try:
        found = LLMAnalysis(
            ModelConfig(**step["model"]),
            chip,
            DTYPE,
            ParallelismConfig(**step["degrees"]),
            flops_efficiency=EFFICIENCY,
        ).training(
            batch_size_per_gpu=step["micro_batch"],
            gradient_accumulation_steps=step["accumulation"],
            seq_len=step["sequence_length"],
            activation_recomputation=POLICIES[step["recompute"]],
            ds_zero=DSZeRO(step["zero_stage"]),
            flash_attn=step["flash_attention"],
            mlp_gated_linear_units=step["gated"],
        )
    except AssertionError:
        return 0.0
    return found["latency_per_iter"]


def main():
    """Answer lines until there are no more."""
    print(json.dumps({"name": "llm-analysis 0.2.2"}), file=channel, flush=True)
    for line in sys.stdin:
        work = json.loads(line)
        began = time.perf_counter()
        found = [step_s(step) for step in work["steps"]]
        answer = {"seconds": time.perf_counter() - began, "step_s": found}
        print(json.dumps(answer), file=channel, flush=True)


main()
