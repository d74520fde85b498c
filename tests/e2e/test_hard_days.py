"""The first day on machines that are short of something: one core, little memory, no writable home.

A full disk and kills are in `test_quickstart`.
"""

import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.test_quickstart import CHECKED, command, environment, small_text

pytestmark = pytest.mark.timeout(1800)

GIGABYTE = 2**30


def run(
    tmp_path: Path, before: Callable[[], object], home: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a small quickstart in a process that is limited first."""
    return subprocess.run(
        command(tmp_path / "out", "--text", str(small_text(tmp_path))),
        env=environment(home or tmp_path / "home"),
        preexec_fn=before,
        capture_output=True,
        text=True,
        check=False,
    )


def one_core() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def limit(size: int) -> Callable[[], None]:
    """Limit what a process may allocate; mapped files such as libraries do not count."""
    return lambda: resource.setrlimit(resource.RLIMIT_DATA, (size, size))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system cannot pin processes")
def test_one_core_is_enough(tmp_path):
    done = run(tmp_path, one_core)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in CHECKED)


@pytest.mark.slow
def test_four_gigabytes_are_enough(tmp_path):
    done = run(tmp_path, limit(4 * GIGABYTE))
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in CHECKED)


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """Mount a folder that nobody, not even root, may write to."""
    folder = tmp_path / "read-only"
    folder.mkdir()
    mount = shutil.which("mount")
    made = (
        mount
        and not subprocess.run(
            [mount, "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", str(folder)],
            check=False,
            capture_output=True,
        ).returncode
    )
    if not made:
        folder.chmod(0o500)
        if os.access(folder, os.W_OK):
            pytest.skip("this user may write everywhere and may not mount")
    yield folder
    if made:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.parametrize("name", ["", "home"])
def test_a_home_that_cannot_be_written_is_refused_before_any_work(tmp_path, read_only, name):
    done = run(tmp_path, lambda: None, home=read_only / name)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == 2
    assert len(lines) == 2 and str(read_only) in lines[0], done.stderr
    assert not (tmp_path / "out").exists()
