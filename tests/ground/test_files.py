import errno
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from steelyard.errors import CapacityError, DataError
from steelyard.files import (
    atomic_path,
    folder_beside,
    read_json,
    sha256_file,
    user_dir,
    write_bytes,
    write_json,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_write_and_read_json(tmp_path):
    path = tmp_path / "deep" / "a.json"
    write_json(path, {"a": np.float32(0.5), "b": np.arange(3), "c": Path("x"), "d": float("nan")})
    assert read_json(path) == {"a": 0.5, "b": [0, 1, 2], "c": "x", "d": None}
    assert names(path.parent) == ["a.json"]


def test_a_new_file_has_ordinary_permissions(tmp_path):
    write_bytes(tmp_path / "atomic", b"x")
    (tmp_path / "plain").write_bytes(b"x")
    assert (tmp_path / "atomic").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff", b'{"a": 1} x'])
def test_broken_json_is_refused(tmp_path, payload):
    path = tmp_path / "a.json"
    path.write_bytes(payload)
    with pytest.raises(DataError, match=r"a\.json"):
        read_json(path)


def test_missing_files_and_folders_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_json(tmp_path / "none.json")
    with pytest.raises(DataError, match="cannot read"):
        read_json(tmp_path)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a"
    write_bytes(path, b"old")
    with pytest.raises(ZeroDivisionError), atomic_path(path) as temporary:
        temporary.write_bytes(b"half")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_a_full_disk_is_one_clear_error(tmp_path, monkeypatch, code):
    path = tmp_path / "a"
    write_bytes(path, b"old")

    def full(self, payload):
        with self.open("wb") as stream:
            stream.write(payload[:1])
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(CapacityError, match="disk full") as caught:
        write_bytes(path, b"new")
    assert caught.value.hint
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]


def test_a_full_disk_when_flushing(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CapacityError, match="disk full"):
        write_bytes(tmp_path / "a", b"new")
    assert names(tmp_path) == []


@contextmanager
def small_disk(folder):
    """Mount 64 KiB of memory as a disk; skip where that is not allowed."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        done = False
    if not done:
        pytest.skip("mounting a small disk needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_really_full_disk(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        write_bytes(disk / "a", b"old")
        with pytest.raises(CapacityError, match="disk full"):
            write_bytes(disk / "a", bytes(200_000))
        assert (disk / "a").read_bytes() == b"old"
        assert names(disk) == ["a"]


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match="cannot write") as caught:
        write_bytes(tmp_path / "file" / "a", b"x")
    assert caught.value.hint


WRITER = """
import sys
from pathlib import Path
from steelyard.files import write_bytes
path = Path(sys.argv[1])
for turn in range(10**9):
    write_bytes(path, bytes([turn % 256]) * 300_000)
"""


def test_kill_9_leaves_a_whole_file_and_the_next_write_cleans_up(tmp_path):
    path = tmp_path / "a"
    for turn in range(6):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)])
        deadline = time.monotonic() + 30
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.005)
        time.sleep(0.05 + 0.013 * turn)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        payload = path.read_bytes()
        assert len(payload) == 300_000
        assert len(set(payload)) == 1
        write_bytes(path, payload)
        assert names(tmp_path) == ["a"]
        path.unlink()


def test_folders_that_killed_processes_left_beside_are_removed(tmp_path):
    program = (
        "import os, sys; from pathlib import Path; from steelyard.files import folder_beside\n"
        "with folder_beside(Path(sys.argv[1])) as made:\n"
        "    (made / 'deep').mkdir(); (made / 'deep' / 'a').write_text('x')\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "whole")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert len(names(tmp_path)) == 1
    with folder_beside(tmp_path / "whole") as made:
        # A second writer that lives is left alone.
        with folder_beside(tmp_path / "whole") as other:
            assert names(tmp_path) == sorted([made.name, other.name])
        (tmp_path / "plain").mkdir()
        assert made.stat().st_mode == (tmp_path / "plain").stat().st_mode
    assert names(tmp_path) == ["plain"]
    with pytest.raises(DataError, match="cannot write"), folder_beside(Path("/proc/none/a")):
        pass


def test_a_running_writer_is_left_alone(tmp_path):
    path = tmp_path / "a"
    with atomic_path(path) as outer:
        outer.write_bytes(b"outer")
        write_bytes(path, b"inner")
    assert path.read_bytes() == b"outer"


def test_sha256(tmp_path):
    write_bytes(tmp_path / "a", b"abc")
    assert (
        sha256_file(tmp_path / "a")
        == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_user_dir_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path))
    assert user_dir() == tmp_path
    monkeypatch.delenv("STEELYARD_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert user_dir() == tmp_path / "steelyard"
    monkeypatch.delenv("XDG_DATA_HOME")
    assert user_dir() == Path.home() / ".local" / "share" / "steelyard"
