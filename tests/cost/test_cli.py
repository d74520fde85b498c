import json

import pytest

from steelyard.cli.main import main


def run(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(caught.value.code or 0)


def test_optimal_throughput_of_the_published_machine(capsys):
    options = (
        "--model",
        "llama-2-70b",
        "--machine",
        "A100-SXM4-80GB",
        "--devices",
        "8",
        "--gemm",
        "260 TFLOP/s",
    )
    assert run("cost", "optimal", *options) == 0
    out = capsys.readouterr().out
    assert "compute" in out and "serve.optimal_throughput" in out
    assert run("cost", "optimal", *options, "--requests", "32", "--json") == 0
    assert "memory" in json.dumps(json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--machine", "A100-SXM4-80GB"), "datasheet"),
        (("--machine", "A100-SXM4-80GB", "--gemm", "fast"), "--gemm"),
        (("--machine", "A100-SXM4-80GB", "--gemm", "260 TFLOP/s"), "does not fit"),
        (
            (
                "--machine",
                "A100-SXM4-80GB",
                "--gemm",
                "260 TFLOP/s",
                "--devices",
                "8",
                "--output",
                "0",
            ),
            "output_tokens",
        ),
        (
            (
                "--machine",
                "Z9",
            ),
            "Z9",
        ),
    ],
)
def test_optimal_throughput_says_what_is_wrong(options, said, capsys):
    assert run("cost", "optimal", "--model", "llama-2-70b", *options) == 2
    assert said in " ".join(capsys.readouterr().err.split())


def test_long_contexts_side_by_side(capsys):
    options = (
        "--model",
        "yi-34b",
        "--machine",
        "A100-SXM4-80GB",
        "--context",
        "4000",
        "--context",
        "20000",
    )
    assert run("cost", "longcontext", *options, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["sections"][0]["blocks"][0]["rows"]
    assert [row[:2] for row in rows] == [
        ["4,000", "peak"],
        ["4,000", "typical"],
        ["20,000", "peak"],
        ["20,000", "typical"],
    ]
    assert rows[0][2] > rows[2][2] > 0
    assert (
        run(
            "cost",
            "longcontext",
            "--model",
            "yi-34b",
            "--machine",
            "A100-SXM4-80GB",
            "--context",
            "0",
        )
        == 2
    )
    assert (
        run(
            "cost",
            "longcontext",
            "--model",
            "yi-34b",
            "--machine",
            "A100-SXM4-80GB",
            "--dtype",
            "int3",
        )
        == 2
    )


@pytest.mark.parametrize(
    ("verb", "options", "names"),
    [
        ("train", ("--machine", "MI325X"), {"train.step_time", "train.peak_memory"}),
        ("serve", ("--machine", "A100-SXM4-80GB", "--batch", "4"), {"serve.ttft", "serve.tpot"}),
        ("memory", ("--tensor", "8", "--recompute", "full"), {"plan.memory_per_accelerator"}),
    ],
)
def test_every_verb_takes_the_shared_options(verb, options, names, capsys):
    assert run("cost", verb, "--model", "llama-3-8b", *options, "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert names <= {item["quantity"] for item in values["forecasts"]}
    assert run("cost", verb, "--model", "llama-3-8b", *options) == 0
    assert names <= set(capsys.readouterr().out.split())


def test_help_explains_the_shared_options(capsys):
    assert run("cost", "train", "--help") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "catalog name of the architecture" in said


def test_an_unknown_policy_is_refused(capsys):
    for verb in ("train", "memory"):
        assert run("cost", verb, "--model", "llama-3-8b", "--recompute", "some") == 2
        assert "--recompute 'some'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("train", "--model", "llama-3-8b"),
        ("serve", "--model", "llama-3.1-70b", "--context", "1024"),
    ],
)
def test_what_does_not_fit_says_so_first_and_fails(words, capsys):
    assert run("cost", *words, "--machine", "H100-SXM5-80GB") == 1
    first = " ".join(capsys.readouterr().out.strip().split("\n\n")[0].split())
    assert f"{words[2]} does not fit: needs 1" in first
    assert "has 80 GB; fits on " in first
