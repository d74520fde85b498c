"""The folder of a run: one run, one process at a time, and which run it is."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from steelyard import files
from steelyard.config import convert, flatten, to_plain
from steelyard.errors import BackendError, ConfigError
from steelyard.parallel import torch_threads
from steelyard.train.estimator_config import EstimatorConfig
from steelyard.train.reducer import Reducer

__all__ = ["check_compile", "check_device", "claimed"]

_MAY_CHANGE = {
    "threads",
    "checkpoint_every",
    "measure",
    "measure_every",
    "usd_per_hour",
    "parallel",
}
"""Fields that do not change what a run computes, so a resumed run may set them anew."""


@contextmanager
def claimed(
    directory: Path,
    config: EstimatorConfig,
    data: Mapping[str, object],
    start_from: Path | None,
    reducer: Reducer,
) -> Iterator[None]:
    """Hold a folder for a run, with the run's threads.

    Args:
        directory: the run's folder, made where there is none.
        config: the run.
        data: what tells its data from other data, as scalars.
        start_from: checkpoint that the run begins with, or None.
        reducer: processes that train it together; the first one holds the folder.

    Yields:
        Nothing.

    Raises:
        ConfigError: the folder holds another run.
        StoreError: another process trains in this folder.
        BackendError: the device is not there.
    """
    check_device(config.device)
    check_compile(config)
    with torch_threads(config.threads):
        if reducer.rank:
            reducer.wait()
            yield
            return
        with files.exclusive(directory):
            _claim(directory, config, data, start_from)
            reducer.wait()
            yield


def _claim(
    directory: Path, config: EstimatorConfig, data: Mapping[str, object], start_from: Path | None
) -> None:
    """Write down what the folder's run is, or refuse a folder that holds another one."""
    path = directory / "config.json"
    # The last two parts of the start's path, so that a study may be moved as a whole.
    claim = {
        "config": to_plain(config),
        "data": dict(data),
        "start_from": "/".join(start_from.parts[-2:]) if start_from else "",
    }
    if not path.exists():
        files.write_json(path, claim)
    kept = files.read_json(path)
    # A field that came later than the folder had its default.
    kept["config"] = to_plain(convert(kept["config"], type(config), where=str(path)))
    stored, wanted = flatten(kept), flatten(claim)
    for name in sorted(stored.keys() | wanted.keys()):
        same = stored.get(name) == wanted.get(name)
        if not same and not _MAY_CHANGE.intersection(name.split(".")):
            raise ConfigError(
                f"{directory} holds another run: its {name} is {stored.get(name)}, now "
                f"{wanted.get(name)} was asked",
                hint="choose another folder, or delete this one to train anew",
            )


def check_compile(config: EstimatorConfig) -> None:
    """Refuse a choice that nobody has made yet.

    Args:
        config: the run.

    Raises:
        ConfigError: whether to compile is still to be timed.
    """
    if config.compile == "auto":
        raise ConfigError(
            "compile is 'auto', but nothing was timed",
            hint="set it to true or false; `steelyard train run` and `train.pace.choose_compile` "
            "time both",
        )


def check_device(device: str) -> None:
    """Refuse a device this machine or this build of torch does not have.

    Args:
        device: torch device, such as "cuda:1".

    Raises:
        BackendError: it is not there.
    """
    try:
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise BackendError(
            f"device {device!r} cannot be used: {str(error).splitlines()[0]}",
            hint="set device = 'cpu'",
        ) from error
