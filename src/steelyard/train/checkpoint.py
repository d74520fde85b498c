"""Checkpoints that survive a kill at any moment: tensors in safetensors, scalars in JSON.

A checkpoint of step n by one process is two files, `step-0000000n.safetensors` and
`step-0000000n.json`. Several processes write a part of the tensors each, its shard
`step-0000000n.1-of-2.safetensors`, and the JSON names them all. The JSON is written last, so a
checkpoint without it was never finished and is ignored.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from steelyard import files
from steelyard.errors import CapacityError, DataError, SteelyardError, StoreError
from steelyard.nn.mapped import write_tensors
from steelyard.train.pieces import TensorPiece, assemble, read_places, rows_of, write_places
from steelyard.train.reducer import AloneReducer, Reducer

__all__ = ["Checkpoint", "CheckpointStore", "load_checkpoint"]

_NAME = re.compile(r"^step-(\d{8})\.json$")
_SHARD = re.compile(r"^step-\d{8}\.\d+-of-\d+\.safetensors$")
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in memory.

    Attributes:
        step: optimizer steps done.
        tensors: whole tensors by name, on the CPU.
        scalars: what JSON holds besides.
    """

    step: int
    tensors: dict[str, torch.Tensor]
    scalars: dict[str, Any]


class CheckpointStore:
    """The checkpoints of one run folder: the newest few, and pinned ones for good."""

    def __init__(
        self,
        directory: Path,
        *,
        keep: int = 2,
        pinned: tuple[int, ...] = (),
        reducer: Reducer | None = None,
    ) -> None:
        """Open a folder; it need not exist yet.

        Args:
            directory: where the files lie; the same for all processes.
            keep: newest checkpoints that stay, at least 1.
            pinned: steps whose checkpoints are never removed.
            reducer: processes that write each checkpoint together; None for this one alone.
        """
        self.directory = directory
        self.keep = keep
        self.pinned = frozenset(pinned)
        self._reducer = reducer or AloneReducer()

    def path(self, step: int) -> Path:
        """Return the tensors file of a step, whether it exists or not.

        A checkpoint of several processes has shards in its place and is known by the same path.
        """
        return self.directory / f"step-{step:08d}.safetensors"

    def steps(self) -> list[int]:
        """List the steps with a whole checkpoint, ascending."""
        if not self.directory.is_dir():
            return []
        found = (_NAME.match(item.name) for item in self.directory.iterdir())
        steps = (int(match[1]) for match in found if match)
        return sorted(step for step in steps if all(path.exists() for path in self._files(step)))

    def _files(self, step: int) -> list[Path]:
        """List the files with the tensors of a step whose JSON is there."""
        path = self.path(step)
        if path.exists():
            return [path]
        try:
            shards = [item["name"] for item in files.read_json(path.with_suffix(".json"))["shards"]]
        except (DataError, KeyError, TypeError):
            # A record that cannot be read speaks of the file that it always spoke of.
            return [path]
        return [self.directory / str(name) for name in shards]

    def save(self, step: int, tensors: dict[str, Tensor], scalars: dict[str, Any]) -> Path:
        """Write a checkpoint atomically and remove those no longer kept.

        Processes that write together all call it, with equal tensors.

        Args:
            step: optimizer steps done.
            tensors: contiguous tensors by name; they may live on any device.
            scalars: JSON values; the first process's count.

        Returns:
            The tensors file, or the path that stands for the shards.

        Raises:
            CapacityError: the disk is full for any process; earlier checkpoints are untouched.
            StoreError: the processes do not write into the same folder.
        """
        reducer = self._reducer
        if reducer.world_size > 1:
            self.save_pieces(step, rows_of(tensors, reducer.rank, reducer.world_size), scalars)
            return self.path(step)
        target = self.path(step)
        write_tensors(target, tensors)
        # The JSON is what makes a checkpoint: it is written after the tensors, and older ones are
        # removed only after it, so that at every moment one whole checkpoint is there.
        digest = files.sha256_file(target)
        files.write_json(
            target.with_suffix(".json"), {"step": step, "sha256": digest, "scalars": scalars}
        )
        self._remove_old()
        return target

    def save_pieces(
        self, step: int, pieces: Iterable[TensorPiece], scalars: dict[str, Any]
    ) -> None:
        """Write this process's shard, and the record of all of them in the first process.

        Args:
            step: optimizer steps done.
            pieces: what this process writes of the tensors; those of all processes make them up.
            scalars: JSON values; the first process's count.

        Raises:
            CapacityError: the disk is full for any process; earlier checkpoints are untouched.
            StoreError: the processes do not write into the same folder.
        """
        reducer, record = self._reducer, self.path(step).with_suffix(".json")
        names = [
            f"{record.stem}.{rank}-of-{reducer.world_size}.safetensors"
            for rank in range(reducer.world_size)
        ]
        if not reducer.rank:
            # A record of the same step would speak of shards that are about to be replaced.
            record.unlink(missing_ok=True)
            self.path(step).unlink(missing_ok=True)
        reducer.wait()
        digests: list[str] = []

        shard = self.directory / names[reducer.rank]

        def write_shard() -> bytes:
            write_tensors(shard, *write_places(pieces))
            return bytes.fromhex(files.sha256_file(shard))

        def write_record() -> bytes:
            if not reducer.rank:
                self._check_shards(names)
                shards = [
                    {"name": name, "sha256": digest}
                    for name, digest in zip(names, digests, strict=True)
                ]
                files.write_json(record, {"step": step, "shards": shards, "scalars": scalars})
                self._remove_old()
            return b"\1" * _DIGEST_BYTES

        try:
            digests += [row.hex() for row in self._by_all(write_shard)]
            self._by_all(write_record)
        except SteelyardError:
            shard.unlink(missing_ok=True)  # on a full disk it would only be in the way
            raise

    def _check_shards(self, names: list[str]) -> None:
        """Refuse to record shards that lie elsewhere."""
        missing = [name for name in names if not (self.directory / name).exists()]
        if missing:
            raise StoreError(
                f"{self.directory} has no {missing[0]}: the processes write into other folders",
                hint="give all processes one folder that they share",
            )

    def _by_all(self, work: Callable[[], bytes]) -> list[bytes]:
        """Do something in every process and return the results, or fail in all of them."""
        reducer, failure, result = self._reducer, None, bytes(_DIGEST_BYTES)
        try:
            result = work()
        except SteelyardError as error:
            # The others wait for this process: they must hear of the failure first.
            failure = error
        rows = reducer.gather(torch.tensor(list(result), dtype=torch.uint8)).view(-1, len(result))
        if failure is not None:
            raise failure
        failed = [rank for rank, row in enumerate(rows) if not row.any()]
        if failed:
            raise CapacityError(
                f"process {failed[0]} could not write its part of a checkpoint in {self.directory}",
                hint="its own message says why; earlier checkpoints are untouched",
            )
        return [bytes(row.tolist()) for row in rows]

    def latest(self) -> Checkpoint | None:
        """Read the newest whole checkpoint.

        Returns:
            The checkpoint, or None when there is none.

        Raises:
            DataError: the newest checkpoint is damaged; the message names the file, the hint what
                is left without it.
        """
        steps = self.steps()
        if not steps:
            return None
        earlier = f"from step {steps[-2]}" if len(steps) > 1 else "from the start"
        return load_checkpoint(
            self.path(steps[-1]), hint=f"delete that file and run again: training goes on {earlier}"
        )

    def _remove_old(self) -> None:
        """Remove all but the newest `keep` and the pinned checkpoints, and what a kill left."""
        steps = self.steps()
        kept = {*steps[-self.keep :], *self.pinned.intersection(steps)}
        stay = {item for step in kept for item in self._files(step)}
        stay |= {self.path(step).with_suffix(".json") for step in kept}
        for item in self.directory.glob("step-*"):
            if item not in stay:
                item.unlink(missing_ok=True)
        for item in self.directory.glob(".step-*.part"):
            item.unlink(missing_ok=True)


def load_checkpoint(
    path: Path, *, hint: str = "use another checkpoint, or train anew"
) -> Checkpoint:
    """Read one checkpoint by its tensors file and verify its hash.

    Args:
        path: the `.safetensors` file; its `.json` lies beside it.
        hint: what the error says to do.

    Returns:
        The checkpoint, tensors on the CPU.

    Raises:
        DataError: a file is missing, or the tensors differ from what was written.
    """
    record = path.with_suffix(".json")
    if not record.exists():
        raise DataError(
            f"no checkpoint at {path}",
            hint="give the .safetensors file of a checkpoint, with its .json beside it",
        )
    try:
        meta = files.read_json(record)
        step, scalars = int(meta["step"]), dict(meta["scalars"])
        shards = {str(item["name"]): str(item["sha256"]) for item in meta.get("shards", [])}
        digest = "" if shards else str(meta["sha256"])
    except (DataError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(
            f"{record} is damaged: it does not describe a checkpoint", hint=hint
        ) from error
    if not shards:
        _verify(path, digest, record, hint)
        return Checkpoint(step, safetensors.torch.load_file(path), scalars)
    pieces = []
    for name, wanted in shards.items():
        if not _SHARD.match(name):
            raise DataError(f"{record} names {name!r}, which is no shard", hint=hint)
        shard = path.with_name(name)
        _verify(shard, wanted, record, hint)
        pieces += _read_shard(shard, hint)
    try:
        return Checkpoint(step, assemble(pieces), scalars)
    except DataError as error:
        raise DataError(f"{record} is damaged: {error}", hint=hint) from error


def _verify(path: Path, digest: str, record: Path, hint: str) -> None:
    """Refuse a file that is not the one that was written."""
    if not path.exists():
        raise DataError(f"no checkpoint at {path}, which {record.name} speaks of", hint=hint)
    if files.sha256_file(path) != digest:
        raise DataError(
            f"{path} is damaged: its SHA-256 differs from the one in {record.name}", hint=hint
        )


def _read_shard(path: Path, hint: str) -> list[TensorPiece]:
    """Read what one process wrote."""
    with safetensors.safe_open(path, framework="pt") as stream:
        header = stream.metadata() or {}
        tensors = {key: stream.get_tensor(key) for key in stream.keys()}  # noqa: SIM118
    try:
        return read_places(tensors, header)
    except DataError as error:
        raise DataError(f"{path} is damaged: {error}", hint=hint) from error
