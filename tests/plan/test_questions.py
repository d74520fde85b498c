"""`steelyard plan` asked as people ask: answers, exit codes, refusals in the words of the flags."""

import json

import pytest

from steelyard.cli.main import main


def ask(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["plan", *words])
    shown = capsys.readouterr()
    return int(ended.value.code or 0), shown.out, shown.err


def test_money_buys_a_run_on_rented_accelerators(capsys):
    code, out, _ = ask(
        capsys,
        *("train", "--budget", "$5,000", "--accelerator", "H100-SXM5-80GB", "--count", "8"),
        "--json",
    )
    made = json.loads(out)
    found = {item["quantity"]: item["value"] for item in made["forecasts"]}
    assert code == 0
    assert 4500 <= found["run.cost"] <= 5000
    # Eight accelerators at the catalog's rent.
    assert found["run.cost"] == pytest.approx(8 * 6.88 * found["train.total_time"] / 3600, rel=0.01)
    assert any("400 Gbit/s" in note for note in made["assumptions"])


def test_a_size_becomes_a_shape_with_named_models_beside_it(capsys):
    code, out, _ = ask(
        capsys,
        *("train", "--budget", "1e20FLOP", "--cluster", "Frontier", "--nodes", "4"),
        *("--model", "1B", "--json"),
    )
    made = json.loads(out)
    assert code == 0
    assert made["choice"]["parameters"] == pytest.approx(1e9, rel=0.2)
    assert any("named ones near it" in note for note in made["assumptions"])


def test_fit_lists_every_use_and_marks_what_no_engine_runs(capsys):
    code, out, _ = ask(capsys, "fit", "llama-3-8b", "--context", "8k", "--users", "4")
    assert code == 0
    for head in ("Serving", "Training, or fine-tuning of all weights", "low-rank adapters"):
        assert head in out
    assert "int4*" in out


def test_what_does_not_fit_says_so_first_and_fails(capsys):
    code, out, _ = ask(
        capsys,
        *("fit", "llama-3.1-70b", "--accelerator", "H100-SXM5-80GB", "--count", "1"),
        *("--weights", "bf16", "--use", "serve"),
    )
    assert code == 1
    first = " ".join(out.split("\n\n")[0].split())
    assert first.startswith("llama-3.1-70b does not fit: needs 143 GB in bf16")
    assert "fits on 2" in first


def test_a_price_of_ones_own_replaces_the_catalogs(capsys):
    def money(*more):
        _, out, _ = ask(
            capsys,
            *("fit", "7B", "--accelerator", "H100-SXM5-80GB", "--use", "serve"),
            *("--weights", "bf16", "--json", *more),
        )
        return json.loads(out)[0]["usd_per_million"]

    assert money("--price", "$3.44") == pytest.approx(money() / 2)


@pytest.mark.parametrize("work", [("--tokens", "300B"), ("--rate", "20 request/s")])
def test_which_ranks_the_catalog(capsys, work):
    code, out, _ = ask(capsys, "which", "--model", "llama-3.1-8b", *work, "--json")
    found = json.loads(out)
    assert code == 0
    assert found[0]["reason"] == ""
    assert all(item["reason"] for item in found[1:])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train", "--budget", "5000", "--cluster", "Frontier"), "--budget: '5000' is not"),
        (("train", "--budget", "1e21FLOP"), "either --cluster or --accelerator"),
        (("fit", "7B", "--weights", "int3"), "--weights 'int3' is not one of"),
        (("fit", "7B", "--context", "x"), "--context: cannot read 'x'"),
        (("fit", "7B", "--users", "0"), "--users and --rows are at least 1"),
        (("fit", "7B", "--use", "train", "--weights", "int8"), "nothing can be placed so"),
        (("fit", "7B", "--use", "serve", "--count", "3"), "nothing can be placed so"),
        (("which", "--model", "7B"), "either --tokens or --rate"),
        (("which", "--model", "7B", "--rate", "0 request/s"), "must be above 0"),
        (("which", "--model", "7B", "--tokens", "0 tokens"), "must be above 0"),
        (("which", "--model", "7B", "--rate", "5", "--weights", "int3"), "--weights 'int3'"),
        (("which", "--model", "nosuch", "--rate", "5 request/s"), "no architecture named"),
    ],
)
def test_wrong_input_is_refused_in_the_words_of_the_command_line(capsys, words, message):
    code, _, err = ask(capsys, *words)
    assert code == 2
    assert message in err


def test_several_of_each_leave_out_what_has_no_links(capsys):
    code, out, _ = ask(
        capsys, "fit", "llama-3-8b", "--use", "serve", "--count", "8", "--weights", "bf16", "--json"
    )
    placed = json.loads(out)
    assert code == 0
    assert {item["count"] for item in placed} == {8}
    assert "Xeon-8480+" not in {item["accelerator"] for item in placed}


def test_an_old_rent_says_so_wherever_it_counts(capsys):
    for words in (
        ("fit", "llama-3-8b", "--use", "serve", "--accelerator", "V100-SXM2-32GB"),
        ("which", "--model", "llama-3-8b", "--tokens", "1B"),
        ("train", "--budget", "$500", "--accelerator", "V100-SXM2-32GB"),
    ):
        _, out, _ = ask(capsys, *words)
        said = " ".join(out.split())
        assert "list rent of V100-SXM2-32GB, 2024-01, older than 12 months" in said
