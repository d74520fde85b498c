"""Runs in the environment of the peer `vidur`: its simulator on a trace, with given step times.

Reads one JSON object from standard input: `arrival_s`, `input_tokens`, `output_tokens`, `prefill`
and `decode` (constants of step times in seconds), `blocks`, `block_size`, `token_budget`,
`max_num_seqs`. Prints one JSON object: processor seconds of the simulation, and of each request the
times of its first and last token.

The package's own step times come from profiles that it downloads, so its predictor is replaced by
one that returns the given ones; its scheduler, events and entities run as they are.
"""

# pyright: reportMissingImports=false
import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd
from vidur._native.entities import ExecutionTime
from vidur.config import ClusterConfig, MetricsConfig, ReplicaConfig, SimulationConfig
from vidur.config.config import CacheConfig, TraceRequestGeneratorConfig, VllmSchedulerConfig
from vidur.execution_time_predictor import ExecutionTimePredictorRegistry
from vidur.simulator import Simulator
from vidur.types import ExecutionTimePredictorType

_DAY = "2024-01-01"


class GivenTimes:
    """Step times of a formula, where the package looks up its profiles."""

    prefill: tuple[float, float, float]
    decode: tuple[float, float, float]

    def __init__(self, **_: object) -> None:
        """Take what every predictor is given."""

    def get_execution_time(self, batch: Any, pipeline_stage: int) -> ExecutionTime:
        """Return the time of a step as that of its one layer, in milliseconds."""
        del pipeline_stage
        if batch.requests[0].is_prefill_complete:
            a, b, c = self.decode
            seconds = a + b * sum(batch.num_kv_tokens) + c * len(batch.requests)
        else:
            a, b, c = self.prefill
            tokens = batch.num_q_tokens
            seconds = a + b * sum(tokens) + c * sum(item * item for item in tokens)
        return ExecutionTime(1, 1e3 * seconds, *[0.0] * 13)


def main() -> None:
    """Simulate and report."""
    given = json.load(sys.stdin)
    logging.disable(logging.CRITICAL)
    GivenTimes.prefill, GivenTimes.decode = given["prefill"], given["decode"]
    ExecutionTimePredictorRegistry._registry[ExecutionTimePredictorType.RANDOM_FORREST] = GivenTimes
    with tempfile.TemporaryDirectory() as folder:
        simulator = Simulator(_config(given, Path(folder)))
        requests = [item[1]._request for item in simulator._event_queue]
        start = time.process_time()
        simulator.run()
        spent = time.process_time() - start
    requests.sort(key=lambda item: item.arrived_at)
    print(
        json.dumps(
            {
                "seconds": spent,
                "first_token_s": [item.prefill_completed_at for item in requests],
                "last_token_s": [item.completed_at for item in requests],
            }
        )
    )


def _config(given: dict, folder: Path) -> SimulationConfig:
    """Return the set-up: one replica, vLLM's scheduler, nothing written."""
    rows = {
        "Date": _DAY,
        "Time": given["arrival_s"],
        "PromptTokenCount": given["input_tokens"],
        "CompletionTokenCount": given["output_tokens"],
    }
    pd.DataFrame(rows).to_csv(folder / "trace.csv", index=False)
    return SimulationConfig(
        cluster_config=ClusterConfig(
            replica_config=ReplicaConfig(
                model_name="meta-llama/Llama-2-7b-hf",
                num_pipeline_stages=1,
                tensor_parallel_size=1,
                device="a100",
                network_device="a100_dgx",
            ),
            cache_config=CacheConfig(block_size=given["block_size"], num_blocks=given["blocks"]),
            replica_scheduler_config=VllmSchedulerConfig(
                batch_size_cap=given["max_num_seqs"], max_tokens_in_batch=given["token_budget"]
            ),
        ),
        request_generator_config=TraceRequestGeneratorConfig(
            trace_file=str(folder / "trace.csv"),
            date=_DAY,
            max_tokens=4096,
            # Its defaults change the trace.
            time_scale_factor=1.0,
            prefill_scale_factor=1.0,
            decode_scale_factor=1.0,
        ),
        metrics_config=MetricsConfig(
            write_metrics=False,
            enable_chrome_trace=False,
            store_plots=False,
            store_request_metrics=False,
            store_batch_metrics=False,
            store_utilization_metrics=False,
            output_dir=str(folder),
        ),
    )


if __name__ == "__main__":
    main()
