"""Coded blocks of cold shards on disk, one file each, checked when they are read."""

from pathlib import Path

import numpy as np

from steelyard.data.erasure import ErasureCode
from steelyard.data.shardstore.messages import FragmentBytes, GetFragment
from steelyard.data.shardstore.wire import Peer
from steelyard.errors import DataError, DataLostError
from steelyard.files import write_bytes
from steelyard.frames import FrameCodec

__all__ = ["FragmentStore", "gather_fragments"]

_HEAD_BYTES = 8


class FragmentStore:
    """Coded blocks by shard, version and number."""

    def __init__(self, folder: Path) -> None:
        """Open a folder, made when the first block is kept."""
        self._folder = folder

    def _path(self, shard: int, version: int, number: int) -> Path:
        return self._folder / f"{shard}-{version}-{number}.block"

    def keep(self, shard: int, version: int, number: int, fragment: FragmentBytes) -> None:
        """Write a block atomically.

        Args:
            shard: number of the shard.
            version: epoch that it was coded in.
            number: number of the block in the code.
            fragment: the block.

        Raises:
            CapacityError: the disk is full.
        """
        body = fragment.size.to_bytes(_HEAD_BYTES, "little") + fragment.content
        write_bytes(self._path(shard, version, number), FrameCodec().encode(body))

    def read(self, shard: int, version: int, number: int) -> FragmentBytes | None:
        """Return a block; None where there is none. A damaged one is removed and counts as none."""
        path = self._path(shard, version, number)
        try:
            bodies = FrameCodec().feed(path.read_bytes())
        except OSError:
            return None
        except DataError:
            bodies = []
        if len(bodies) != 1:
            # Blocks of other nodes make it again; kept, it would be found damaged forever.
            path.unlink(missing_ok=True)
            return None
        size = int.from_bytes(bodies[0][:_HEAD_BYTES], "little")
        return FragmentBytes(content=bodies[0][_HEAD_BYTES:], size=size)

    def drop(self, shard: int, version: int, number: int) -> None:
        """Remove one block; others of its shard stay, such as those of a later coding."""
        self._path(shard, version, number).unlink(missing_ok=True)

    def held(self) -> list[tuple[int, int, int]]:
        """Return shard, version and number of every block, in order."""
        names = (path.stem.split("-") for path in self._folder.glob("*.block"))
        return sorted((int(name[0]), int(name[1]), int(name[2])) for name in names)

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks."""
        return sum(path.stat().st_size for path in self._folder.glob("*.block"))


async def gather_fragments(
    peers: list[Peer], shard: int, version: int, code: ErasureCode
) -> tuple[dict[int, np.ndarray], int]:
    """Read as many blocks of a shard as its code needs.

    Args:
        peers: holders of the blocks, in their order.
        shard: number of the shard.
        version: epoch that it was coded in.
        code: its code.

    Returns:
        Blocks uint8 [N] by number, and the bytes of the whole content.

    Raises:
        DataLostError: fewer can be read.
    """
    found: dict[int, np.ndarray] = {}
    size = 0
    for number, peer in enumerate(peers):
        try:
            answer = await peer.ask(GetFragment(shard=shard, version=version, number=number))
        except (OSError, DataError, DataLostError):
            continue
        if answer.content or not answer.size:
            found[number] = np.frombuffer(answer.content, np.uint8)
            size = answer.size
        if len(found) == code.data:
            return found, size
    raise DataLostError(
        f"shard {shard}: {len(found)} of its blocks can be read, but {code.data} are needed",
        hint="bring back a node that holds another one",
    )
