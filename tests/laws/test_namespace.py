"""What the room shows: few names, a module per question, nothing imported before it is used."""

import ast
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from steelyard import laws

ROOT = Path(__file__).parents[2]


def _map():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.laws_map()


def test_few_names_stand_at_the_top():
    assert dir(laws) == sorted(laws.__all__)
    assert set(laws.QUESTIONS) <= set(laws.__all__)
    assert len(laws.__all__) - len(laws.QUESTIONS) <= 30


def test_every_name_is_found_where_type_checkers_find_it():
    tree = ast.parse(Path(laws.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    found = {alias.name: node.module for node in block.body for alias in node.names if alias.name}
    assert sorted(found) == dir(laws)
    for name, module in found.items():
        home = importlib.import_module(module)
        assert getattr(laws, name) is getattr(home, name)


@pytest.mark.parametrize("question", laws.QUESTIONS)
def test_every_question_has_a_module(question):
    module = getattr(laws, question)
    assert module.__doc__
    for name in module.__all__:
        assert getattr(module, name).__module__.startswith("steelyard.laws.")


def test_other_names_are_refused():
    assert not hasattr(laws, "critical_batch") and hasattr(laws.batches, "critical_batch")
    with pytest.raises(ImportError, match="critical_batch"):
        exec("from steelyard.laws import critical_batch")


def test_nothing_is_imported_before_it_is_used():
    code = "import steelyard.laws, sys; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = said.stdout.split()
    assert "numpy" not in loaded
    assert not [name for name in loaded if name.startswith("steelyard.laws.")]


def test_the_page_shows_the_map():
    assert _map() in (ROOT / "docs" / "rooms" / "laws.md").read_text()
