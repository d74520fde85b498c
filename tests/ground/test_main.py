import re
from pathlib import Path

import pytest

from steelyard.cli.main import COMMANDS, main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve", "nosuch", "--token-budget", "0"], "--token-budget is 0, but must be at least 1"),
        (["serve", "nosuch", "--max-num-seqs=0"], "--max-num-seqs is 0, but must be at least 1"),
        (["serve", "nosuch", "--port", "70000"], "--port is 70000, but must be in [0, 65535]"),
        (["quickstart", "--minutes", "0"], "--minutes is 0.0, but must be in 1..600"),
    ],
)
def test_a_value_that_was_typed_is_refused_under_its_flag(words, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_a_value_from_a_recipe_is_refused_under_its_field(tmp_path, capsys):
    tiny = Path(__file__).parents[2] / "recipes" / "train-tiny.toml"
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(re.sub(r"(?m)^steps = .*", "steps = 0", tiny.read_text()))
    with pytest.raises(SystemExit):
        main(["train", "run", str(recipe), "--data", str(tmp_path), "--out", str(tmp_path / "out")])
    error = capsys.readouterr().err
    assert "steps is 0" in error
    assert "--steps" not in error


def test_completion_knows_every_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["--install-completion", "bash"])
    assert not ended.value.code
    place = Path(capsys.readouterr().out.split(": ")[1].strip())
    script = place.read_text()
    assert all(name in script for name in COMMANDS)
    assert "--token-budget" in script


def test_completion_of_an_unknown_shell_is_refused(monkeypatch, capsys):
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    with pytest.raises(SystemExit) as ended:
        main(["--install-completion"])
    assert ended.value.code == 2
    assert "no completion for the shell 'tcsh'" in capsys.readouterr().err
