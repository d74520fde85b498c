"""A store of made documents and an index in front of it; large ones are kept between runs."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from benchmarks.retrieve import _token_documents
from benchmarks.retrieve._token_documents import TEXT_DIM, TokenDocuments

from steelyard.retrieve import IVFFlat
from steelyard.retrieve.ivf import IVF
from steelyard.retrieve.multivector import MultiVectorStore
from steelyard.retrieve.opening import open_index

_BUILDER = """
import json, sys, time
from pathlib import Path
from benchmarks.retrieve._token_documents import TokenDocuments
from steelyard.resident import peak_resident_bytes
from steelyard.retrieve.multivector.store import MultiVectorStore
made = TokenDocuments(int(sys.argv[2]))
begin_s = time.perf_counter()
store = MultiVectorStore.build(Path(sys.argv[1]), made.stream)
peak = peak_resident_bytes()
print(json.dumps({"seconds": time.perf_counter() - begin_s, "peak_bytes": peak}))
"""


@dataclass(frozen=True)
class TokenWorld:
    """Documents, where their tokens are, and an index of their texts.

    Attributes:
        made: makes the documents again.
        store: their tokens.
        index: of their texts.
        build_s: seconds that the store took.
        peak_bytes: most memory of the process that built it.
    """

    made: TokenDocuments
    store: MultiVectorStore
    index: IVF
    build_s: float
    peak_bytes: float


def kept_folder() -> Path:
    """Return the folder of large stores, named after what makes documents."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    found = hashlib.sha256()
    # The format has a version that a store is refused by; what documents are made of has none.
    found.update(Path(str(_token_documents.__file__)).read_bytes())
    return root / "steelyard" / "benchmarks" / f"tokens-{found.hexdigest()[:16]}"


def token_world(folder: Path, count: int, cells: int, nprobe: int) -> TokenWorld:
    """Build a store in a process of its own, and an index; what is there already is taken.

    Args:
        folder: where.
        count: documents.
        cells: of the index.
        nprobe: of them, that a query looks into.

    Returns:
        Both, open.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store, index, told = (folder / f"{count}.{name}" for name in ("store", "index", "json"))
    if not told.exists():
        command = [sys.executable, "-c", _BUILDER, str(store), str(count)]
        run = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
        told.write_text(run.stdout.splitlines()[-1])
    made = TokenDocuments(count)
    if not index.exists():
        _build_index(made, cells).save(index)
    about = json.loads(told.read_text())
    opened, found = MultiVectorStore.open(store), open_index(index)
    found.nprobe = nprobe
    return TokenWorld(made, opened, found, about["seconds"], about["peak_bytes"])


def _build_index(made: TokenDocuments, cells: int) -> IVF:
    """Return an index of the texts' vectors."""
    vectors = np.empty((made.count, TEXT_DIM), np.float32)
    first = 0
    for part in made.texts():
        vectors[first : first + len(part)] = part
        first += len(part)
    index = IVFFlat(TEXT_DIM, nlist=cells, nprobe=max(1, cells // 16), metric="ip")
    index.train(vectors[: 64 * cells])
    index.add(vectors)
    return index
