"""The compiled library that scores documents by their token vectors, and what it takes."""

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from steelyard.errors import BackendError
from steelyard.native import FLAGS, NativeCode, load, switched_off, typed, verdict
from steelyard.retrieve.multivector.jobs import ScoreJob
from steelyard.retrieve.multivector.native_trial import difference
from steelyard.retrieve.native.library import address

__all__ = ["NativeScores", "ScoreFields", "native_scores"]

_FOLDER = Path(__file__).parents[1] / "native"
_CODE = NativeCode(
    name="token_scores",
    sources=tuple(_FOLDER / name for name in ("token_scores.cpp", "vectors.h", "nearest.h")),
    # A product and a sum rounded once would differ from numba's in the last bit.
    flags=tuple("-ffp-contract=off" if flag == "-ffp-contract=fast" else flag for flag in FLAGS),
)
_PLACE, _SIZE = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES = {
    "steelyard_open_reads": (_SIZE,),
    "steelyard_close_reads": (ctypes.c_uint64,),
    "steelyard_score_memory": (_PLACE, _PLACE, _PLACE, _SIZE, _SIZE),
    "steelyard_score_file": (_PLACE, _SIZE, ctypes.c_uint64, _PLACE, _SIZE, _SIZE),
}


class ScoreFields(ctypes.Structure):
    """The fields of `Job` in token_scores.cpp, in its order."""

    _fields_ = [
        ("count", _SIZE),
        ("offsets", _PLACE),
        ("sizes", _PLACE),
        ("numbers", _PLACE),
        ("states", _PLACE),
        ("dropped", _PLACE),
        ("block", _SIZE),
        ("text_dim", _SIZE),
        ("token_bytes", _SIZE),
        ("codec", _SIZE),
        ("dim", _SIZE),
        ("coarse", _PLACE),
        ("parts", _PLACE),
        ("num_parts", _SIZE),
        ("part_centers", _SIZE),
        ("part_dim", _SIZE),
        ("longest", _SIZE),
        ("texts", _PLACE),
        ("columns", _PLACE),
        ("num_columns", _SIZE),
        ("starts", _PLACE),
        ("lengths", _PLACE),
        ("pair_starts", _PLACE),
        ("pair_queries", _PLACE),
        ("text_scores", _PLACE),
        ("token_scores", _PLACE),
    ]

    @classmethod
    def of(cls, job: ScoreJob) -> "ScoreFields":
        """Return a job by its addresses; the job must be kept as long as they are used."""
        layout, asked = job.store.layout, job.asked
        coarse, parts, _ = job.store.kernel_layout()[4]
        arrays = {
            **{name: getattr(job, name) for name in ("offsets", "sizes", "numbers", "states")},
            **{name: getattr(job, name) for name in ("dropped", "pair_starts", "pair_queries")},
            **{name: getattr(job, name) for name in ("text_scores", "token_scores")},
            **{name: getattr(asked, name) for name in ("texts", "columns", "starts", "lengths")},
            "coarse": coarse,
            "parts": parts,
        }
        return cls(
            count=len(job),
            block=layout.block_bytes,
            text_dim=layout.text_dim,
            token_bytes=layout.token_bytes,
            codec=job.store.codec.number,
            dim=layout.token_dim,
            num_parts=parts.shape[0],
            part_centers=parts.shape[1],
            part_dim=parts.shape[2],
            longest=job.store.counts.longest_tokens * layout.token_dim,
            num_columns=asked.columns.shape[1],
            **{name: address(values) for name, values in arrays.items()},
        )


class NativeScores:
    """Scores jobs by native code, from memory or from a file."""

    def __init__(self, library: ctypes.CDLL) -> None:
        """Take the library."""
        self._library = library

    def score_memory(
        self,
        job: ScoreJob,
        raw: NDArray[np.uint8],
        busy_ns: NDArray[np.int64] | None = None,
        first_ns: int = 0,
        depth: int = 1,
    ) -> None:
        """Fill a job in from records in memory, as soon as a played drive would bring them.

        Args:
            job: the job.
            raw: all records.
            busy_ns: nanoseconds that the drive is busy with each document [N]; none for no drive.
            first_ns: latency of the drive.
            depth: reads under way at once.
        """
        fields = ScoreFields.of(job)
        busy = None if busy_ns is None else address(busy_ns)
        self._library.steelyard_score_memory(
            ctypes.addressof(fields), address(raw), busy, first_ns, depth
        )

    def open_reads(self, depth: int) -> int:
        """Open a queue of the system's own asynchronous reads; 0 where it has none."""
        return int(self._library.steelyard_open_reads(depth))

    def close_reads(self, queue: int) -> None:
        """Close a queue."""
        self._library.steelyard_close_reads(queue)

    def score_file(
        self, job: ScoreJob, handle: int, queue: int, buffers: NDArray[np.uint8], depth: int
    ) -> None:
        """Fill a job in from a file; all reads that fit the depth are handed over in one call.

        Args:
            job: the job.
            handle: descriptor of the file.
            queue: an open queue.
            buffers: memory that begins on a page, one part for each of `depth` reads.
            depth: reads under way at once.
        """
        fields = ScoreFields.of(job)
        self._library.steelyard_score_file(
            *(ctypes.addressof(fields), handle, queue, address(buffers)),
            *(depth, len(buffers) // depth),
        )


@cache
def native_scores() -> NativeScores | None:
    """Return native scores; None without a compiler, switched off, or where they are others."""
    if switched_off():
        return None
    try:
        library = typed(load(_CODE), _SIGNATURES, {"steelyard_open_reads": ctypes.c_uint64})
    except BackendError:
        return None
    found = NativeScores(library)
    return (
        found
        if not verdict(library, "tokens", lambda: difference(found.score_memory), 0.5)
        else None
    )
