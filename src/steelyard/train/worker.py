"""Train in a fresh process, so that memory and threads are the run's alone.

`python -m steelyard.train.worker JOB.json` is the child. The parent may be killed at any time: the
child dies with it, and the next call goes on from the last checkpoint. Progress comes back as JSON
lines.
"""

import ctypes
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from steelyard import config as configs
from steelyard import errors
from steelyard.train.config import TrainConfig
from steelyard.train.result import Progress, TrainResult

__all__ = ["Job", "launcher", "main", "train_in_subprocess"]

_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What the child is told.

    Attributes:
        config: the run.
        data: folder of token shards.
        directory: the run's folder.
        start_from: tensors file of a checkpoint to begin with, or empty.
        peak_flops_per_s: peak for model FLOPs utilization; 0 for none.
    """

    config: TrainConfig
    data: str
    directory: str
    start_from: str = ""
    peak_flops_per_s: float = 0.0


def train_in_subprocess(
    config: TrainConfig,
    data: Path,
    directory: Path,
    *,
    start_from: Path | None = None,
    on_step: Callable[[Progress], None] | None = None,
    peak_flops_per_s: float | None = None,
) -> TrainResult:
    """Train like `trainer.train`, in a fresh process that this one watches.

    Args:
        config: the run.
        data: folder of token shards, as `data.text.prepare` wrote it.
        directory: the run's folder.
        start_from: tensors file of a checkpoint to begin with.
        on_step: called here after each step.
        peak_flops_per_s: peak dense FLOP/s of the dtype, from which `mfu` follows.

    Returns:
        The run's result.

    Raises:
        SteelyardError: the error the child met, of its own class.
        BackendError: the child died without a word, such as for lack of memory.
    """
    job = Job(
        config=config,
        data=str(Path(data).resolve()),
        directory=str(Path(directory).resolve()),
        start_from=str(start_from.resolve()) if start_from else "",
        peak_flops_per_s=peak_flops_per_s or 0.0,
    )
    # Errors go to a file and not to a second pipe, which would fill up and stop the child while
    # this process reads only the first.
    with (
        tempfile.TemporaryDirectory(prefix="steelyard-train-") as folder,
        tempfile.TemporaryFile("w+") as complaints,
    ):
        path = Path(folder) / "job.json"
        configs.dump(job, path)
        command = [sys.executable, "-m", "steelyard.train.worker", str(path)]
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=complaints, text=True
        ) as child:
            try:
                return _listen(child, on_step, complaints)
            finally:
                child.kill()


def launcher(
    data: Path, *, on_step: Callable[[Progress], None] | None = None
) -> Callable[[TrainConfig, Path, Path | None], TrainResult]:
    """Make a `launch` argument of `study.run_ladder_rung` that trains in fresh processes."""
    return lambda config, directory, start_from: train_in_subprocess(
        config, data, directory, start_from=start_from, on_step=on_step
    )


def _listen(
    child: "subprocess.Popen[str]", on_step: Callable[[Progress], None] | None, complaints: IO[str]
) -> TrainResult:
    """Read the child's lines until they hold a result or an error."""
    assert child.stdout is not None
    for line in child.stdout:
        message = json.loads(line)
        if "progress" in message and on_step is not None:
            on_step(Progress(**message["progress"]))
        if "result" in message:
            return TrainResult.from_plain(message["result"])
        if "error" in message:
            raise _rebuild(message["error"])
    code = child.wait()
    complaints.seek(0)
    last = (complaints.read().strip().splitlines() or ["it left no message"])[-1]
    killed = " (out of memory?)" if code == -signal.SIGKILL else ""
    raise errors.BackendError(
        f"the training process ended with code {code}{killed}: {last}",
        hint="run again: it goes on where it was",
    )


def _rebuild(error: dict[str, str]) -> errors.SteelyardError:
    """Make the child's error anew, of its class."""
    kind = getattr(errors, error["kind"], errors.SteelyardError)
    return kind(error["message"], hint=error["hint"])


def main(arguments: list[str]) -> int:
    """Train what the job file says and print JSON lines, as the child process.

    Args:
        arguments: the path of the job file.

    Returns:
        0, or the exit code of the error that was printed.
    """
    _die_with_parent()
    try:
        result = _run(configs.load(Path(arguments[0]), Job))
    except errors.SteelyardError as error:
        _say({"error": {"kind": type(error).__name__, "message": str(error), "hint": error.hint}})
        return error.exit_code
    _say({"result": result.to_plain()})
    return 0


def _run(job: Job) -> TrainResult:
    """Train a job in this process."""
    from steelyard.data.shards import TokenShards
    from steelyard.train.trainer import train

    return train(
        job.config,
        TokenShards(Path(job.data)),
        Path(job.directory),
        start_from=Path(job.start_from) if job.start_from else None,
        on_step=lambda progress: _say({"progress": configs.to_plain(progress)}),
        peak_flops_per_s=job.peak_flops_per_s or None,
    )


def _say(message: dict[str, Any]) -> None:
    """Print one JSON line at once."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def _die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies.

    Elsewhere the next progress line fails and ends it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
