import ctypes
import hashlib
import json
import shutil
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from steelyard import native
from steelyard.errors import BackendError
from steelyard.native import NativeCode

COMPILER = shutil.which("g++") or ""
needs_compiler = pytest.mark.skipif(not COMPILER, reason="no g++")


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "steelyard" / "native"


@pytest.fixture
def code(tmp_path):
    header, source = tmp_path / "number.h", tmp_path / "answer.cpp"
    header.write_text("constexpr int NUMBER = 41;\n")
    source.write_text(
        '#include "number.h"\nextern "C" int answer(int x) { return NUMBER + x * SCALE; }\n'
    )
    return NativeCode(
        name="answer",
        sources=(source, header),
        flags=("-O1", "-shared", "-fPIC", "-DSCALE=1"),
    )


def make_compiler(folder, script):
    """A compiler that answers for its version and otherwise runs `script`."""
    path = folder / "compiler"
    path.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "compiler 1" && exit 0\n{script}\n')
    path.chmod(0o755)
    return str(path)


@needs_compiler
def test_a_library_is_compiled_once(code, folder, tmp_path):
    count = tmp_path / "count"
    compiler = make_compiler(tmp_path, f'echo x >> {count}\nexec g++ "$@"')
    for _ in range(3):
        assert native.load(code, compiler).answer(1) == 42
    assert count.read_text() == "x\n"
    assert sorted(path.suffix for path in folder.iterdir()) == [".sha256", ".so"]


@needs_compiler
def test_sources_of_a_group_are_compiled_as_one(code, tmp_path):
    other, alone = tmp_path / "other.cpp", tmp_path / "alone.cpp"
    other.write_text('#include "number.h"\nstatic int twice(int x) { return 2 * x + NUMBER; }\n')
    alone.write_text('extern "C" int three() { return 3; }\n')
    answer, header = code.sources
    header.write_text("#pragma once\nconstexpr int NUMBER = 41;\n")
    answer.write_text(
        '#include "number.h"\nextern "C" int answer(int x) { return twice(x) - NUMBER; }\n'
    )
    count, missing = tmp_path / "count", tmp_path / "missing.cpp"
    compiler = make_compiler(tmp_path, f'echo x >> {count}\nexec g++ "$@"')
    group = replace(
        code, sources=(answer, other, alone, header), together=((other, answer, missing),)
    )
    library = native.load(group, compiler)
    assert (library.answer(1), library.three()) == (2, 3)
    assert count.read_text() == "x\n" * 3  # the group, the one alone, and both linked


@needs_compiler
def test_flags_sources_versions_and_processor_each_make_another_library(code, monkeypatch):
    found = {native.library_path(code, COMPILER)}
    doubled = replace(code, flags=(*code.flags[:-1], "-DSCALE=2"))
    found.add(native.library_path(doubled, COMPILER))
    assert native.load(code).answer(1) == 42
    assert native.load(doubled).answer(1) == 43
    found.add(native.library_path(replace(code, versions=("2.13.0",)), COMPILER))
    code.sources[1].write_text("constexpr int NUMBER = 50;\n")
    found.add(native.library_path(code, COMPILER))
    assert native.load(code).answer(1) == 51
    monkeypatch.setattr(native, "_processor", lambda: "another processor")
    found.add(native.library_path(code, COMPILER))
    assert len(found) == 5


@needs_compiler
def test_another_version_of_the_compiler_makes_another_library(code, tmp_path):
    compiler = make_compiler(tmp_path, "exit 1")
    first = native.library_path(code, compiler)
    script = (tmp_path / "compiler").read_text()
    (tmp_path / "compiler").write_text(script.replace("compiler 1", "compiler 2"))
    assert native.library_path(code, compiler) != first


@needs_compiler
def test_two_processes_at_once_both_get_the_library(code, folder, tmp_path):
    # Each waits inside its compiler until both are there, so that both surely compile at once.
    meet = tmp_path / "meet"
    meet.mkdir()
    wait = f'touch {meet}/$$\nuntil [ "$(ls {meet} | wc -l)" -ge 2 ]; do sleep 0.01; done\n'
    compiler = make_compiler(tmp_path, f'{wait}exec g++ "$@"')
    program = (
        "import sys; from pathlib import Path; from steelyard.native import NativeCode, load\n"
        f"sources = tuple(map(Path, {list(map(str, code.sources))}))\n"
        f"code = NativeCode(name='answer', sources=sources, flags={code.flags})\n"
        f"print(load(code, {compiler!r}).answer(1))\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert [process.communicate(timeout=60)[0].strip() for process in running] == ["42", "42"]
    assert sorted(path.suffix for path in folder.iterdir()) == [".sha256", ".so"]


@needs_compiler
@pytest.mark.parametrize("damage", ["cut", "empty", "changed", "checksum", "no checksum"])
def test_a_damaged_library_is_compiled_again(code, tmp_path, damage):
    command = [COMPILER, *code.flags, "-o", str(tmp_path / "good.so"), str(code.sources[0])]
    subprocess.run(command, check=True)
    good = (tmp_path / "good.so").read_bytes()
    path = native.library_path(code, COMPILER)
    path.parent.mkdir(parents=True)
    damaged = {"cut": good[: len(good) // 2], "empty": b"", "changed": good[:-9] + b"x" * 9}
    path.write_bytes(damaged.get(damage, good))
    if damage != "no checksum":
        checksum = hashlib.sha256(good).hexdigest().encode()
        path.with_suffix(".sha256").write_bytes(b"\xff" if damage == "checksum" else checksum)
    assert native.load(code).answer(1) == 42
    assert path.read_bytes() == good


def test_without_a_compiler_the_reason_is_told(code, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackendError, match="no compiler 'g\\+\\+'"):
        native.load(code)


def test_a_compiler_that_fails_leaves_nothing(code, folder, tmp_path):
    compiler = make_compiler(tmp_path, 'echo "no vector unit" >&2; exit 1')
    with pytest.raises(BackendError, match="no vector unit"):
        native.load(code, compiler)
    assert list(folder.iterdir()) == []


def test_a_compiler_that_does_not_run_or_writes_nonsense_is_told(code, tmp_path):
    (tmp_path / "compiler").write_text("neither a program nor a script")
    (tmp_path / "compiler").chmod(0o755)
    with pytest.raises(BackendError, match="did not run"):
        native.load(code, str(tmp_path / "compiler"))
    nonsense = make_compiler(tmp_path, 'while [ "$1" != -o ]; do shift; done\necho nonsense > "$2"')
    with pytest.raises(BackendError, match="cannot load"):
        native.load(code, nonsense)


@needs_compiler
def test_a_cache_folder_that_cannot_be_written_is_told(code, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(BackendError, match="cannot keep"):
        native.load(code)


def test_the_cache_and_the_switch_follow_the_environment(monkeypatch, tmp_path):
    assert native.cache_dir() == tmp_path / "cache" / "steelyard"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert native.cache_dir() == tmp_path / ".cache" / "steelyard"
    monkeypatch.delenv("STEELYARD_NATIVE", raising=False)
    assert not native.switched_off()
    monkeypatch.setenv("STEELYARD_NATIVE", "0")
    assert native.switched_off()


@needs_compiler
def test_a_thread_waits_for_the_one_that_compiles(code, tmp_path):
    count = tmp_path / "count"
    compiler = make_compiler(tmp_path, f'echo x >> {count}\nsleep 0.2\nexec g++ "$@"')
    answers = []
    threads = [
        threading.Thread(target=lambda: answers.append(native.load(code, compiler).answer(1)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert answers == [42, 42, 42]
    assert count.read_text() == "x\n"


def test_looking_for_a_library_starts_no_program(code, tmp_path):
    compiler = make_compiler(tmp_path, "exit 1")
    (tmp_path / "compiler").write_text("#!/bin/sh\ntouch started\n")
    native.library_path(code, compiler)
    assert not (tmp_path / "started").exists()
    with pytest.raises(OSError):
        native.library_path(code, str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("difference", "is_refused"), [(0.5, True), (float("nan"), True), (0, False)]
)
def test_the_verdict_wants_equal_results(monkeypatch, tmp_path, difference, is_refused):
    library = ctypes.CDLL(None)
    monkeypatch.setattr(library, "_name", str(tmp_path / "some.so"))
    reason = native.verdict(library, "1", lambda: difference, 1e-3)
    assert bool(reason) == is_refused == ("differ" in reason)
    # What failed is compared again the next time, what passed is not.
    assert native.verdict(library, "1", lambda: 0.0, 1e-3) == ""
    assert native.verdict(library, "1", lambda: 0.5, 1e-3) == ""


def test_a_verdict_that_cannot_be_read_or_kept_is_reached_anew(monkeypatch, tmp_path):
    calls = []

    def compare():
        calls.append(1)
        return 0.0

    library = ctypes.CDLL(None)
    monkeypatch.setattr(library, "_name", str(tmp_path / "some.so"))
    for label in ("2", "2", "1"):
        assert native.verdict(library, label, compare, 1.0) == ""
    assert len(calls) == 2
    (tmp_path / "some.2.json").write_text(json.dumps({"difference": "small"}))
    native.verdict(library, "2", compare, 1.0)
    assert len(calls) == 3
    monkeypatch.setattr(library, "_name", str(tmp_path / "some.2.json" / "below.so"))
    assert native.verdict(library, "2", compare, 1.0) == ""
    assert len(calls) == 4
