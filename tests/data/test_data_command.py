import json
import random
import re

import pytest

from steelyard.cli.data import app
from steelyard.data.shards import TokenShards
from steelyard.errors import DataError


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
