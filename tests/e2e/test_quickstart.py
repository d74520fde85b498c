"""The main job as a user runs it: to its end, with wrong input, and killed at random moments."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from steelyard.cli.main import main
from steelyard.cli.models import find_model, model_folder
from steelyard.runs.report import Checks, Report
from steelyard.runs.store import RunStore
from steelyard.serve.front.text import TextCodec

CHECKED = {
    "eval.loss",
    "train.step_time",
    "train.total_time",
    "train.peak_memory",
    "serve.ttft",
    "serve.tpot",
    "serve.throughput",
}


# About half a minute of work, which a crowded machine may stretch many times over.
pytestmark = pytest.mark.timeout(1800)

HERE = Path(__file__).parent
SOURCES = (
    "_pydecimal.py",
    "argparse.py",
    "doctest.py",
    "inspect.py",
    "pdb.py",
    "pickletools.py",
    "subprocess.py",
    "tarfile.py",
    "turtle.py",
    "typing.py",
)


def environment(home: Path) -> dict[str, str]:
    return os.environ | {"STEELYARD_HOME": str(home)}


def command(out: Path, *options: str, small: bool = True) -> list[str]:
    """A quickstart of one minute; a small one climbs the same ladder on every machine."""
    program = [str(HERE / "small_loop.py")] if small else ["-m", "steelyard"]
    minutes = () if "--minutes" in options else ("--minutes", "1")
    return [sys.executable, *program, "quickstart", *minutes, "--out", str(out), *options]


def run(
    home: Path, out: Path, *options: str, small: bool = True
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(out, *options, small=small),
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
    )


def small_text(folder: Path) -> Path:
    """Half a megabyte of this Python's own modules, enough for the smallest ladder."""
    text = folder / "text"
    text.mkdir()
    for name in SOURCES:
        source = Path(sysconfig.get_path("stdlib")) / name
        (text / source.name).write_bytes(source.read_bytes())
    return text


def table(out: Path) -> list[tuple[str, float, float]]:
    """Forecasts and measurements as the stored report has them, loss first."""
    report = Report.from_json((out / "report.json").read_bytes())
    blocks = [
        block
        for section in report.sections
        for block in section.blocks
        if isinstance(block, Checks)
    ]
    return [
        (item.forecast.quantity, item.forecast.value, item.measurement.value)
        for block in blocks
        for item in block.checks
    ]


class Loop(NamedTuple):
    """A finished quickstart.

    `text` is what it read, `printed` what it wrote to standard output.
    """

    home: Path
    out: Path
    text: Path
    printed: str


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Loop:
    """Run the whole loop once, small, with the calibration at hand."""
    folder = tmp_path_factory.mktemp("loop")
    home, out, text = calibrated_home(folder), folder / "out", small_text(folder)
    done = run(home, out, "--text", str(text), "--json")
    assert done.returncode == 0, done.stderr
    return Loop(home, out, text, done.stdout)


def times(folder: Path) -> dict[Path, int]:
    """When each file of a folder was written."""
    return {
        path: path.stat().st_mtime_ns
        for path in folder.rglob("*")
        if path.is_file() and path.name != ".lock"
    }


def test_the_loop_ends_with_a_table_and_a_second_call_trains_nothing(finished):
    home, out, text, printed = finished
    found = {name: (forecast, measured) for name, forecast, measured in table(out)}
    assert set(found) >= CHECKED
    forecast, measured = found["eval.loss"]
    assert 0.8 < forecast / measured < 1.25
    assert json.loads(printed)["title"]
    page = (out / "report.html").read_text()
    assert "<svg" in page and "</html>" in page
    first = table(out)
    made = {folder: times(out / folder) for folder in ("data", "ladder", "target", "stages")}
    assert run(home, out, "--text", str(text)).returncode == 0
    assert table(out) == first
    assert made == {folder: times(out / folder) for folder in made}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_loop_as_a_user_runs_it(tmp_path):
    home, out = tmp_path / "home", tmp_path / "out"
    done = run(home, out, small=False)
    assert done.returncode == 0, done.stderr
    found = {name: (forecast, measured) for name, forecast, measured in table(out)}
    assert set(found) >= CHECKED
    forecast, measured = found["eval.loss"]
    assert 0.8 < forecast / measured < 1.25


def test_the_run_it_leaves_can_be_served(finished, monkeypatch):
    home, out = finished.home, finished.out
    monkeypatch.setenv("STEELYARD_HOME", str(home))
    record = RunStore().list(kind="quickstart")[0]
    assert model_folder(record.id) == (out / "target" / "model").resolve()
    assert find_model(str(out)).names == find_model(record.id).names == (out.name, record.id)
    codec = TextCodec.load(model_folder(record.id))
    assert codec.decode(codec.encode("to be or not")) == "to be or not"


def flip_byte(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_damaged_shard_or_checkpoint_is_named_and_not_used(finished, tmp_path):
    home, out, text, _ = finished
    for name in ("data/train-00000.bin", "target/*.safetensors"):
        copy = tmp_path / name.partition("/")[0]
        shutil.copytree(out, copy)
        (copy / "target" / "result.json").unlink()
        damaged = max(copy.glob(name))
        flip_byte(damaged)
        before = (copy / "report.json").read_bytes()
        done = run(home, copy, "--text", str(text))
        assert done.returncode == 2, done.stderr
        assert damaged.name in done.stderr and "Traceback" not in done.stderr
        assert (copy / "report.json").read_bytes() == before


def test_a_full_disk_ends_with_one_line_and_no_half_written_file(tmp_path):
    limits = (
        "import resource, os, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, "
        "300_000)); os.execv(sys.argv[1], sys.argv[1:])"
    )
    out = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, "-c", limits, *command(out)],
        env=environment(calibrated_home(tmp_path)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and "disk" in done.stderr
    assert all(path.stat().st_size < 300_000 for path in out.rglob("*") if path.is_file())
    assert not list((out / "data").glob("*.bin"))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no usable text"),
        (bytes(range(256)) * 999, "no usable text"),
        (b" ".join(b"word%d" % number for number in range(900)), "too little"),
    ],
)
def test_unusable_text_is_refused(tmp_path, monkeypatch, capsys, content, words):
    text = tmp_path / "text.txt"
    text.write_bytes(content)
    monkeypatch.setenv("STEELYARD_HOME", str(calibrated_home(tmp_path)))
    with pytest.raises(SystemExit) as caught:
        main(["quickstart", "--text", str(text), "--out", str(tmp_path / "out")])
    said = capsys.readouterr().err
    assert caught.value.code == 2, said
    assert words in said
    assert "Traceback" not in said


def calibrated_home(folder: Path) -> Path:
    """Make a user folder whose calibration is there already, so that a test need not measure."""
    from steelyard.catalog.calibration import Calibration, MatmulPoint
    from steelyard.files import write_json

    points = tuple(
        MatmulPoint(dtype="fp32", m=n, n=n, k=n, flops_per_s=5e10, spread=0.1)
        for n in (64, 256, 1024)
    )
    made = Calibration(
        description="test",
        num_threads=2,
        memory_bytes=8e9,
        matmul=points,
        stream_bytes_per_s=1e10,
        cache_bytes_per_s=3e10,
        gather_bytes_per_s=2e9,
        disk_read_bytes_per_s=1e9,
        disk_write_bytes_per_s=1e9,
        link_latency_s=1e-5,
        link_bytes_per_s=1e9,
        launch_s=3e-6,
        noise=0.1,
        time_s=time.time(),
    )
    write_json(folder / "home" / "calibration.json", made)
    return folder / "home"


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_kills_at_random_moments_lose_nothing(tmp_path):
    home, out = calibrated_home(tmp_path), tmp_path / "out"
    draw = random.Random(0)
    kills = 0
    while kills < 20:
        with subprocess.Popen(
            command(out, small=False),
            env=environment(home),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as child:
            try:
                child.wait(timeout=draw.uniform(2.5, 9))
                break
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGKILL)
                kills += 1
    done = run(home, out, small=False)
    assert done.returncode == 0, done.stderr
    first = table(out)
    assert {name for name, _, _ in first} >= CHECKED
    straight = tmp_path / "straight"
    (straight / "stages").mkdir(parents=True)
    for name in (
        "calibrate",
        "ladder",
    ):  # the same ladder, though step times were probed at another moment
        (straight / "stages" / f"{name}.json").write_bytes(
            (out / "stages" / f"{name}.json").read_bytes()
        )
    assert run(home, straight, small=False).returncode == 0
    losses = [
        {name: (forecast, measured) for name, forecast, measured in table(folder)}["eval.loss"]
        for folder in (out, straight)
    ]
    assert losses[0] == losses[1]
    assert kills == 20
