"""Train in a process apart, so that memory and threads are the run's alone.

`python -m steelyard.train.worker` is the child: it reads one job per line and answers with JSON
lines. The parent may be killed at any time: the child dies with it, and the next call goes on from
the last checkpoint.
"""

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from steelyard import config as configs
from steelyard import errors
from steelyard.train.config import TrainConfig
from steelyard.train.result import Progress, TrainResult

__all__ = ["Job", "TrainProcess", "main", "train_in_subprocess"]

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
        is_checked: whether the shards were compared with their hashes before.
    """

    config: TrainConfig
    data: str
    directory: str
    start_from: str = ""
    peak_flops_per_s: float = 0.0
    is_checked: bool = False


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
    with TrainProcess() as process:
        return process.train(
            config,
            data,
            directory,
            start_from=start_from,
            on_step=on_step,
            peak_flops_per_s=peak_flops_per_s,
        )


class TrainProcess:
    """A process that trains run after run, each in a fork of its own where Linux can fork.

    A fork finds PyTorch loaded, and its memory is the run's alone.
    """

    def __init__(self) -> None:
        """Start nothing yet."""
        self._child: subprocess.Popen[str] | None = None
        # Errors go to a file and not to a second pipe, which would fill up and stop the child while
        # this process reads only the first.
        self._complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)

    def __enter__(self) -> "TrainProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process for good."""
        self.stop()
        self._complaints.close()

    def start(self) -> None:
        """Start the process, and wait until it has loaded what runs need.

        Raises:
            BackendError: it died before that.
        """
        if self._child is None:
            child = self._child = self._start()
            assert child.stdout is not None
            if not child.stdout.readline():
                raise _died(child.wait(), self._complaints)

    def stop(self) -> None:
        """End the process; a later call of `train` starts another."""
        if self._child is not None:
            self._child.kill()
            with self._child:  # closes its pipes and waits for it
                self._child = None

    def train(
        self,
        config: TrainConfig,
        data: Path,
        directory: Path,
        *,
        start_from: Path | None = None,
        on_step: Callable[[Progress], None] | None = None,
        peak_flops_per_s: float | None = None,
        is_checked: bool = False,
    ) -> TrainResult:
        """Train like `train_in_subprocess`, with the same arguments, errors and result.

        Args:
            config: the run.
            data: folder of token shards.
            directory: the run's folder.
            start_from: tensors file of a checkpoint to begin with.
            on_step: called here after each step.
            peak_flops_per_s: peak of the device.
            is_checked: whether the caller has compared the shards with their hashes.

        Returns:
            The run's result.

        Raises:
            SteelyardError: the error the child met, of its own class.
        """
        job = Job(
            config=config,
            data=str(Path(data).resolve()),
            directory=str(Path(directory).resolve()),
            start_from=str(start_from.resolve()) if start_from else "",
            peak_flops_per_s=peak_flops_per_s or 0.0,
            is_checked=is_checked,
        )
        self.start()
        child = self._child
        assert child is not None
        is_whole = False
        try:
            _send(child, job)
            result = _listen(child, on_step, self._complaints)
            is_whole = True
            return result
        except errors.SteelyardError:
            # The child has said what it met, and waits for the next job.
            is_whole = child.poll() is None
            raise
        finally:
            # Whatever else ends the wait leaves a run going on: it must not outlive this call.
            if not is_whole:
                self.stop()

    def _start(self) -> "subprocess.Popen[str]":
        """Start the child."""
        return subprocess.Popen(
            [sys.executable, "-m", "steelyard.train.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._complaints,
            text=True,
        )


def _send(child: "subprocess.Popen[str]", job: Job) -> None:
    """Write a job as one line; a child that has died is met when its answer is read."""
    assert child.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(json.dumps(configs.to_plain(job)) + "\n")
        child.stdin.flush()


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
        if "death" in message:
            raise _died(int(message["death"]), complaints)
    raise _died(child.wait(), complaints)


def _died(code: int, complaints: IO[str]) -> errors.BackendError:
    """Return the error of a process that ended without an answer."""
    complaints.seek(0)
    last = (complaints.read().strip().splitlines() or ["it left no message"])[-1]
    killed = " (out of memory?)" if code == -signal.SIGKILL else ""
    return errors.BackendError(
        f"the training process ended with code {code}{killed}: {last}",
        hint="run again: it goes on where it was",
    )


def _rebuild(error: dict[str, str]) -> errors.SteelyardError:
    """Make the child's error anew, of its class."""
    kind = getattr(errors, error["kind"], errors.SteelyardError)
    return kind(error["message"], hint=error["hint"])


def main() -> int:
    """Train the jobs that come in line by line, as the child process.

    Returns:
        0 when the parent has no more.
    """
    _die_with_parent()
    can_fork = sys.platform == "linux"
    if can_fork:
        _load_for_forks()
    _say({"ready": True})
    for line in sys.stdin:
        if can_fork:
            _train_in_fork(line)
        else:
            _answer(line)
    return 0


def _load_for_forks() -> None:
    """Load once what every run needs, before the first job and by no thread but this one."""
    # The first optimizer of a process loads torch's compiler, which takes seconds: here they pass
    # once, in a fork they would pass in each run.
    for name in ("steelyard.data.shards", "steelyard.train.trainer", "torch._dynamo"):
        importlib.import_module(name)
    # Forks need not look through what no run can free: each would copy its pages and lose time.
    gc.collect()
    gc.freeze()


def _train_in_fork(line: str) -> None:
    """Train one job in a fork, and say so when it dies without an answer."""
    server = os.getpid()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            _die_with_parent()
            # The parent may have died before this process asked to die with it.
            if os.getppid() == server:
                _answer(line)
                code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            # Not sys.exit: what the parent would do at its end is not the fork's to do.
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code:
        _say({"death": code})


def _answer(line: str) -> None:
    """Train one job and say its result or its error."""
    try:
        result = _run(configs.convert(json.loads(line), Job))
    except errors.SteelyardError as error:
        _say({"error": {"kind": type(error).__name__, "message": str(error), "hint": error.hint}})
    else:
        _say({"result": result.to_plain()})


def _run(job: Job) -> TrainResult:
    """Train a job in this process."""
    from steelyard.data.shards import TokenShards
    from steelyard.train.trainer import train

    return train(
        job.config,
        TokenShards(Path(job.data), check=not job.is_checked),
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
    sys.exit(main())
