"""The shape of the code: short files, short functions, light command line."""

import ast
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "steelyard"
FILES = sorted(SOURCE.rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50  # without the docstring
HEAVY = {"torch", "altair", "numba", "polars", "sqlalchemy", "scipy", "ray"}


def short(path):
    return str(path.relative_to(SOURCE))


def is_kernel(node):
    return any("jit" in ast.unparse(decorator) for decorator in node.decorator_list)


def code_lines(function):
    """Lines of a function from its `def`, the docstring left out."""
    docstring = function.body[0] if ast.get_docstring(function) is not None else None
    written = docstring.end_lineno - docstring.lineno + 1 if docstring else 0
    return function.end_lineno - function.lineno + 1 - written


@pytest.mark.parametrize("path", FILES, ids=short)
def test_files_and_functions_are_short(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_FILE_LINES
    functions = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    lengths = {node.name: code_lines(node) for node in functions if not is_kernel(node)}
    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}


def imported_at_once(path):
    """Yield the packages a file imports when it is imported: at top level, not for types."""
    waiting = list(ast.parse(path.read_text()).body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
        elif isinstance(node, (ast.Try, ast.With, ast.ClassDef)) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test)
        ):
            waiting += [
                child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)
            ]


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if path.name == "__init__.py" or path.parent.name == "cli"],
    ids=short,
)
def test_rooms_and_commands_import_nothing_heavy(path):
    assert HEAVY & set(imported_at_once(path)) == set()


def test_importing_every_room_and_command_loads_nothing_heavy():
    rooms = [f"steelyard.{path.parent.name}" for path in SOURCE.glob("*/__init__.py")]
    commands = [
        f"steelyard.cli.{path.stem}"
        for path in (SOURCE / "cli").glob("*.py")
        if path.stem != "__init__"
    ]
    code = (
        f"import sys, {', '.join(rooms + commands)}\nprint(*sorted({HEAVY!r} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


@pytest.mark.slow
def test_help_adds_little_to_the_start_of_what_it_is_built_on():
    command = shutil.which("steelyard", path=str(Path(sys.executable).parent)) or shutil.which(
        "steelyard"
    )
    assert command, "the steelyard command is not installed"
    libraries = [sys.executable, "-c", "import cyclopts, rich.console, rich.table"]
    seconds = {"help": [], "libraries": []}
    for _ in range(7):
        for name, words in (("help", [command, "--help"]), ("libraries", libraries)):
            start = time.perf_counter()
            subprocess.run(words, capture_output=True, check=True)
            seconds[name].append(time.perf_counter() - start)
    assert min(seconds["help"]) < 2 * min(seconds["libraries"])


def test_help_names_the_commands_without_heavy_packages():
    code = (
        "import sys\nfrom steelyard.cli.main import main\n"
        "sys.argv = ['steelyard', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        f"print(*sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "quickstart" in run.stdout
    assert run.stderr.split() == []
