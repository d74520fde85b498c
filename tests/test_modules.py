"""Modules of the package: each is reached by a user, none imports itself, no class twice."""

import ast
import importlib.util
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location(
    "module_graph", Path(__file__).with_name("module_graph.py")
)
module_graph = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(module_graph)

ROOT = module_graph.ROOT
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
GRAPH = module_graph.ModuleGraph()
ROOMS = sorted({name.split(".")[1] for name in GRAPH.packages if name.count(".") == 1})


def test_every_module_is_reached_from_a_command_or_a_documented_example():
    starts = [name for name in GRAPH.paths if name.startswith("steelyard.cli")]
    starts += ["steelyard.__main__"]
    for page in PAGES:
        starts += GRAPH.used_by_page(page.read_text())
    assert sorted(set(GRAPH.paths) - GRAPH.packages - GRAPH.fronts - GRAPH.reachable(starts)) == []


def test_no_class_name_stands_twice():
    places = defaultdict(list)
    for name, tree in GRAPH.trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(name)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


@pytest.mark.parametrize("room", ROOMS)
def test_no_modules_of_a_room_import_one_another_in_a_circle(room):
    assert GRAPH.circles(f"steelyard.{room}") == []


def test_every_package_holds_several_modules():
    folders = [GRAPH.paths[name].parent for name in GRAPH.packages]
    alone = [
        folder.name
        for folder in folders
        if sum(
            path.suffix == ".py" or path.is_dir()
            for path in folder.iterdir()
            if path.name != "__pycache__"
        )
        <= 2
    ]
    assert alone == []


@pytest.fixture
def small(tmp_path):
    """A package in which a re-export, a circle and a lonely module stand."""
    files = {
        "steelyard/__init__.py": "from steelyard.a import one\nfrom steelyard.lonely import two\n",
        "steelyard/a.py": "def one():\n    from steelyard.room import c as d\n",
        "steelyard/lonely.py": "two = 2\n",
        "steelyard/room/__init__.py": "from steelyard.room.b import c\n",
        "steelyard/room/b.py": "import steelyard.room.e\nc = 1\n",
        "steelyard/room/e.py": "from steelyard.room import c\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return module_graph.ModuleGraph(tmp_path)


def test_a_reexport_reaches_nothing(small):
    page = textwrap.dedent("""
        ```python
        import steelyard

        steelyard.one()
        ```
    """)
    starts = small.used_by_page(page)
    assert starts == {"steelyard", "steelyard.a"}
    assert small.reachable(starts) >= {"steelyard.a", "steelyard.room.b", "steelyard.room.e"}
    assert "steelyard.lonely" not in small.reachable(starts)


def test_a_circle_through_a_package_is_found(small):
    assert small.circles("steelyard.room") == [["steelyard.room.b", "steelyard.room.e"]]
    assert small.circles("steelyard.other") == []
