"""`steelyard plan`: which model, which machines, how many, and what they cost."""

import cyclopts

app = cyclopts.App(name="plan", help="Choose model size, layout and machines for a budget.")
# Each verb is imported when it is asked for: the laws alone take longer than this help.
for name, text, example in (
    (
        "train",
        "Plan the training run that a budget of compute, money or time buys.",
        "--budget '$5,000' --accelerator H100-SXM5-80GB --count 8",
    ),
    (
        "layout",
        "Rank the ways to lay a model over machines: time, memory, and how sure the order is.",
        "--model gpt3-175b --cluster Selene --nodes 128",
    ),
    (
        "machine",
        "Design a cluster with each network, price it, and say whether to buy, rent or wait.",
        "--accelerator H100-SXM5-80GB --count 1024",
    ),
    (
        "fit",
        "Say where a model fits, how fast it is there, and for how much.",
        "llama-3.1-8b --context 8k --users 4 --use serve",
    ),
    (
        "which",
        "Rank the accelerators of the catalog for one work by money, time and energy.",
        "--model llama-3.1-8b --rate '20 request/s' --tpot '30 ms'",
    ),
    (
        "energy",
        "Find width, copies, clock and batch of least energy per token for a load.",
        "--rate '2 request/s' --count 16 --ttft '2 s' --tpot '100 ms'",
    ),
    (
        "power",
        "Find how many more servers a row carries with caps, without a brake or slower answers.",
        "--servers 40 --days 7 --seeds 3",
    ),
    (
        "serve",
        "Plan the fleet that serves a load within limits: what shares machines, how split.",
        "--model llama-3-8b --machine H100-SXM5-80GB --rate '20 request/s' --tpot '30 ms'",
    ),
    (
        "tomorrow",
        "From several days, find the fleet that holds on a day not seen.",
        "--model llama-3-8b --machine H100-SXM5-80GB --trace week.csv",
    ),
    (
        "tradeoff",
        "Weigh context, accuracy and performance of long-context techniques at equal memory.",
        "recommend --model llama-3-8b --machine H100-SXM5-80GB --context 32k --tpot '20 ms'",
    ),
    (
        "overlap",
        "Cut a batch so that products, attention and collectives work at once.",
        "--model llama-2-70b --machine A100-SXM4-80GB --tensor 8 --batch 2048",
    ),
    (
        "experts",
        "Simulate a node whose router sends each prompt to one of many models.",
        "--count 150 --popularity 0.8 --rate '3 request/s'",
    ),
    (
        "retrieve",
        "Say which index a goal needs: bytes, build, latency, machines, money; why others lost.",
        "'10 M x 768, 200 tenants, recall .95, 20 ms, 8 GB'",
    ),
    (
        "codesign",
        "Choose an index with codes and the FPGA design that serves it, from measured recalls.",
        "recalls.csv --vectors 100M --k 10 --recall 0.8 --device U55C",
    ),
    (
        "retriever",
        "Choose teacher, student and index of a retriever for a load, from a ladder of sizes.",
        "ladder.csv --vectors vectors.npy --docs 1M --qps 50 --p95 '20 ms' --budget '$500'",
    ),
    (
        "network",
        "Say which routing a traffic needs on a network, and what the others would take.",
        "--topology leaf-spine:16x16x16 --collective halving-doubling",
    ),
    (
        "checkpoint",
        "Say how often a job should save, and what its failures cost.",
        "--mtbf '3 hours' --save '30 s' --restart '10 min'",
    ),
    (
        "timeline",
        "Simulate one step of training, device by device, with the closed forms beside.",
        "--model gpt3-175b --cluster Selene --tensor 8 --pipeline 8 --micro-batches 16",
    ),
    (
        "explain",
        "Say which term of a running job departs from its forecast, from its log of steps.",
        "steps.jsonl --model gpt3-175b --cluster Selene --tensor 8 --pipeline 8 --micro-batches 16",
    ),
):
    told = f"{text}\n\nExample: steelyard plan {name} {example}"
    app.command(f"steelyard.cli.plan.{name}:{name}", name=name, help=told)
