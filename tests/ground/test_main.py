import re
from pathlib import Path

import pytest

from steelyard.cli.main import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serve", "nosuch", "--token-budget", "0"], "--token-budget is 0, but must be at least 1"),
        (["serve", "nosuch", "--pool=0MiB"], "--pool is 0, but must be at least 1"),
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
