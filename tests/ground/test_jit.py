import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import steelyard
from steelyard.errors import require
from steelyard.jit import ContentLocator

FILES = ("__init__.py", "errors.py", "files.py", "native.py", "jit.py")
KERNEL = """
from steelyard.factors import FACTOR
from steelyard.jit import njit


@njit()
def scaled(x):
    return FACTOR * x
"""


def make_clone(folder, factor=2):
    """A small copy of the package in a folder of its own, with one kernel."""
    package = folder / "steelyard"
    package.mkdir(parents=True)
    for name in FILES:
        shutil.copy(Path(steelyard.__file__).parent / name, package)
    (package / "factors.py").write_text(f"FACTOR = {factor}\n")
    (package / "kernel.py").write_text(KERNEL)
    return folder


def run(clone, cache, **environment):
    """Run the kernel in a process of its own; what numba says of its cache, and the answer."""
    plain = {key: value for key, value in os.environ.items() if not key.startswith("NUMBA_")}
    told = plain | {
        "PYTHONPATH": str(clone),
        "XDG_CACHE_HOME": str(cache),
        "NUMBA_DEBUG_CACHE": "1",
    }
    program = "from numba import config; from steelyard.kernel import scaled; print(scaled(21))\n"
    program += "print('setting', repr(config.CACHE_LOCATOR_CLASSES))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=told | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "setting ''" in done.stdout
    return ["data saved" in done.stdout, "data loaded" in done.stdout], done.stdout


COMPILED, FOUND = [True, False], [False, True]


def test_clones_share_kernels_until_what_they_import_differs(tmp_path):
    cache = tmp_path / "cache"
    first, second = make_clone(tmp_path / "a"), make_clone(tmp_path / "b" / "deeper")
    assert run(first, cache)[0] == COMPILED
    assert run(second, cache)[0] == FOUND
    (second / "steelyard" / "factors.py").write_text("FACTOR = 3\n")
    how, said = run(second, cache)
    assert how == COMPILED
    assert "63\n" in said
    assert run(first, cache)[0] == FOUND


@pytest.mark.parametrize("blocked", [False, True])
def test_other_choices_of_the_folder_stand(tmp_path, blocked):
    clone, cache = make_clone(tmp_path / "a"), tmp_path / "cache"
    if blocked:  # numba's own places serve where the user's cache folder cannot be made
        cache.write_text("a file")
        assert run(clone, cache)[0] == COMPILED
        assert list((clone / "steelyard" / "__pycache__").glob("*.nbi"))
    else:
        assert run(clone, cache, NUMBA_CACHE_DIR=str(tmp_path / "own"))[0] == COMPILED
        assert list((tmp_path / "own").rglob("*.nbi"))
        assert not cache.exists()


def test_old_versions_of_a_file_are_removed(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    locator = ContentLocator.from_function(require, "")
    assert locator is not None
    current = Path(locator.get_cache_path())
    current.rmdir()
    for number in range(10):
        (current.parent / f"old-{number}").mkdir()
        os.utime(current.parent / f"old-{number}", (number, number))
    locator.ensure_cache_path()
    kept = sorted(path.name for path in current.parent.iterdir())
    assert kept == sorted([current.name, *(f"old-{number}" for number in range(3, 10))])
    assert ContentLocator.from_function(os.path.join, "") is None
