"""Checkpoints that survive a kill at any moment: tensors in safetensors, scalars in JSON.

A checkpoint of step n is two files, `step-0000000n.safetensors` and `step-0000000n.json`. The JSON
is written last, so a checkpoint without it was never finished and is ignored.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from steelyard import files
from steelyard.errors import DataError
from steelyard.nn.mapped import write_tensors

__all__ = ["Checkpoint", "CheckpointStore", "load_checkpoint"]

_NAME = re.compile(r"^step-(\d{8})\.json$")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint in memory.

    Attributes:
        step: optimizer steps done.
        tensors: tensors by name, on the CPU.
        scalars: what JSON holds besides.
    """

    step: int
    tensors: dict[str, torch.Tensor]
    scalars: dict[str, Any]


class CheckpointStore:
    """The checkpoints of one run folder: the newest few, and pinned ones for good."""

    def __init__(self, directory: Path, *, keep: int = 2, pinned: tuple[int, ...] = ()) -> None:
        """Open a folder; it need not exist yet.

        Args:
            directory: where the files lie.
            keep: newest checkpoints that stay, at least 1.
            pinned: steps whose checkpoints are never removed.
        """
        self.directory = directory
        self.keep = keep
        self.pinned = frozenset(pinned)

    def path(self, step: int) -> Path:
        """Return the tensors file of a step, whether it exists or not."""
        return self.directory / f"step-{step:08d}.safetensors"

    def steps(self) -> list[int]:
        """List the steps with a whole checkpoint, ascending."""
        if not self.directory.is_dir():
            return []
        found = (_NAME.match(item.name) for item in self.directory.iterdir())
        return sorted(
            int(match[1]) for match in found if match and self.path(int(match[1])).exists()
        )

    def save(self, step: int, tensors: dict[str, torch.Tensor], scalars: dict[str, Any]) -> Path:
        """Write a checkpoint atomically and remove those no longer kept.

        Args:
            step: optimizer steps done.
            tensors: contiguous tensors by name; they may live on any device.
            scalars: JSON values.

        Returns:
            The tensors file.

        Raises:
            CapacityError: the disk is full; earlier checkpoints are untouched.
        """
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
        stay = {
            self.path(step).stem
            for step in {*steps[-self.keep :], *self.pinned.intersection(steps)}
        }
        for item in self.directory.glob("step-*"):
            if item.stem not in stay:
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
    if not (path.exists() and record.exists()):
        raise DataError(
            f"no checkpoint at {path}",
            hint="give the .safetensors file of a checkpoint, with its .json beside it",
        )
    try:
        meta = files.read_json(record)
        step = int(meta["step"])
        digest = str(meta["sha256"])
        scalars = dict(meta["scalars"])
    except (DataError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{record} is damaged: it does not describe a checkpoint", hint=hint
        ) from error
    if files.sha256_file(path) != digest:
        raise DataError(
            f"{path} is damaged: its SHA-256 differs from the one in {record.name}", hint=hint
        )
    return Checkpoint(step, safetensors.torch.load_file(path), scalars)
