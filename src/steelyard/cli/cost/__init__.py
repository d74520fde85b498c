"""`steelyard cost`: time, memory, energy and money of training and serving, before they run."""

import cyclopts

app = cyclopts.App(
    name="cost", help="Time, memory, energy and money of training and serving a model."
)
# Each verb is imported when it is asked for, and numpy only when it answers.
for name, module, text, example in (
    (
        "train",
        "train",
        "Forecast one optimizer step on one accelerator.",
        "--model gpt2-xl --machine L40S --micro-batch 4",
    ),
    (
        "serve",
        "serve",
        "Forecast prefill and decoding on one accelerator.",
        "--model llama-3.1-8b --machine L40S --context 8192 --batch 4",
    ),
    (
        "optimal",
        "limits",
        "Find the most tokens per second that one device can serve, and what binds it.",
        "--model llama-2-70b --machine A100-SXM4-80GB --devices 8 --gemm 260TFLOP/s",
    ),
    (
        "longcontext",
        "limits",
        "Show the four numbers of long contexts: users that fit, prefill, decode and switch.",
        "--model yi-34b --machine A100-SXM4-80GB --context 4096 --context 50000",
    ),
    (
        "memory",
        "memory",
        "Forecast the memory of the fullest accelerator in mixed-precision training with AdamW.",
        "--model llama-3.1-8b --tensor 8 --recompute full",
    ),
    (
        "hpc",
        "hpc",
        "Forecast a cluster's benchmarks: HPL with power and energy, HPCG, a stencil, an "
        "all-reduce.",
        "--cluster LEONARDO-Booster",
    ),
    (
        "run",
        "run",
        "Price a training run: amortized, bought, rented and, with people, the whole development.",
        "--flop 2.1e25 --chip a100-40 --n 25000 --date 2022-08",
    ),
):
    told = f"{text}\n\nExample: steelyard cost {name} {example}"
    app.command(f"steelyard.cli.cost.{module}:{name}", name=name, help=told)
