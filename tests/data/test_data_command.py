import json
import random
import re
from pathlib import Path

import pytest

from steelyard.cli.data import app
from steelyard.data.shards import TokenShards
from steelyard.data.tasks.recipe import load_recipe
from steelyard.errors import ConfigError, DataError


def run(*words) -> None:
    app([str(word) for word in words], result_action="return_value", exit_on_error=False)


@pytest.fixture
def source(tmp_path):
    draw = random.Random(0)
    (tmp_path / "book.txt").write_text(
        "\n\n".join(" ".join(f"word{draw.randrange(500)}" for _ in range(60)) for _ in range(400))
    )
    return tmp_path / "book.txt"


def test_prepare_and_show(source, tmp_path, capsys):
    run("prepare", source, "--out", tmp_path / "out", "--vocab-size", 300, "--max-bytes", "100 KB")
    assert "Token shards in" in capsys.readouterr().out
    shards = TokenShards(tmp_path / "out")
    assert 100_000 <= shards.manifest.text_bytes < 170_000
    run("show", tmp_path / "out")
    shown = capsys.readouterr().out
    assert f"{shards.num_tokens:,}" in re.sub(r"\s+", " ", shown)
    run("show", tmp_path / "out", "--json")
    assert json.loads(capsys.readouterr().out)["title"].startswith("Token shards in")


def test_show_checks_the_hashes(source, tmp_path):
    run("prepare", source, "--out", tmp_path / "out", "--vocab-size", 300, "--json")
    path = tmp_path / "out" / "heldout-00000.bin"
    path.write_bytes(b"\1\1" + path.read_bytes()[2:])
    with pytest.raises(DataError, match="heldout-00000"):
        run("show", tmp_path / "out")


RECIPE = """
[tasks.books]
files = [{source}]
piece = 127

[tasks.sayings]
files = [{source}]
format = "lines"

[tasks.sums]
generate = "add"
examples = 40

[mixtures.text]
temperature = 2.0

[mixtures.text.rates]
books = "examples"
sayings = 20
"""


@pytest.fixture
def recipe(source, tmp_path):
    path = tmp_path / "recipe.toml"
    path.write_text(RECIPE.format(source=json.dumps(str(source))))
    return path


def test_cache_and_inspect(recipe, tmp_path, capsys):
    caches = tmp_path / "caches"
    run("cache", recipe, "--out", caches, "--workers", 1)
    shown = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert "all hashes agree" in shown and "40 from 40 records, 0 dropped" in shown
    run("inspect", recipe, "--cache", caches, "--length", 128, "--json")
    found = json.loads(capsys.readouterr().out)
    table = found["sections"][0]["blocks"][0]
    rates = {row[0]: float(row[3].rstrip("%")) for row in table["rows"]}
    assert rates.keys() == {"books", "sayings"} and sum(rates.values()) == pytest.approx(100)
    assert all(float(row[5].rstrip("%")) > 90 for row in table["rows"])
    run("inspect", recipe, "--name", "sums")
    assert "add: " in capsys.readouterr().out
    shard = next((caches / "books").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(DataError, match="missing or corrupted"):
        run("inspect", caches)


def test_wrong_recipes_are_refused(recipe, tmp_path):
    with pytest.raises(ConfigError, match="no task or mixture 'txt'") as caught:
        run("inspect", recipe, "--name", "txt")
    assert "did you mean 'text'" in caught.value.hint
    good = recipe.read_text()
    for wrong, message in (
        (good.replace("sayings = 20", "saying = 20"), "unknown 'saying' .did you mean 'sayings'"),
        (good.replace("examples = 40", "examples = 0"), "generate needs examples"),
        (good.replace("[mixtures.text", "[mixtures.books"), "'books' is both a task and a mixture"),
        (good.replace("sayings = 20", "text = 20"), "contains itself: text > text"),
        (good.replace("piece = 127", "corrupt = true"), "needs sentinels"),
        (good.replace("sayings = 20", "sums = 20"), "features of 'books' are targets, of 'sums'"),
    ):
        recipe.write_text(wrong)
        with pytest.raises((ConfigError, DataError), match=message):
            run("cache", recipe, "--out", tmp_path / "caches", "--workers", 1)
            run("inspect", recipe, "--cache", tmp_path / "caches")


def test_the_recipe_of_the_repository_can_be_read():
    found = load_recipe(Path(__file__).parents[2] / "recipes" / "mixture.toml")
    assert set(found.tasks) == set(found.mixtures["text"].rates) == {"library", "notes"}
