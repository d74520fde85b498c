"""OpenVINO GenAI's continuous batching on the CPU."""

import numpy as np
import openvino  # pyright: ignore[reportMissingImports]
import openvino_genai  # pyright: ignore[reportMissingImports]


class Engine:
    """The pipeline, with chunked prompts and its prefix cache."""

    def __init__(self, options):
        limits = openvino_genai.SchedulerConfig()
        limits.cache_size = 1
        limits.max_num_seqs = options["max_num_seqs"]
        limits.max_num_batched_tokens = options["token_budget"]
        limits.dynamic_split_fuse = True
        limits.enable_prefix_caching = True
        precision = "f32" if options["weights"] == "fp32" else "bf16"
        self.pipeline = openvino_genai.ContinuousBatchingPipeline(
            options["model"],
            limits,
            "CPU",
            {"INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": options["threads"]},
        )
        self.name = f"openvino-genai {openvino_genai.__version__.split('-')[0]}"
        self.asked = 0
        self.handles = {}

    def add(self, index, prompt, length):
        """Queue a request."""
        asked = openvino_genai.GenerationConfig()
        asked.max_new_tokens = asked.min_new_tokens = length
        asked.ignore_eos, asked.do_sample = True, False
        self.asked += 1
        tokens = openvino.Tensor(np.array([prompt], dtype=np.int64))
        self.handles[index] = self.pipeline.add_request(self.asked, tokens, asked)

    def step(self):
        """Run a step; return the requests that got tokens, with their number."""
        self.pipeline.step()
        found = []
        for index, handle in list(self.handles.items()):
            while handle.can_read():
                found.append((index, sum(len(o.generated_ids) for o in handle.read().values())))
            if handle.get_status() != openvino_genai.GenerationStatus.RUNNING:
                del self.handles[index]
        return found
