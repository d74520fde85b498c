"""Share of the memory's bandwidth that decode attention reaches, and the cost of paging."""

from collections.abc import Callable

import numpy as np
import torch
from benchmarks.common import Check, alternate, median_spread, ratio
from benchmarks.serve import _decode_types
from torch.nn import functional as F

from steelyard.errors import BackendError
from steelyard.serve.running.kernels import paged_decode
from steelyard.serve.running.native.library import Team, compiled_library
from steelyard.serve.running.pool import KVPool

__all__ = ["checks"]

_HEADS, _KV_HEADS, _WIDTH, _BLOCK = 12, 4, 64, 16
_REST_S = 0.05  # threads of PyTorch spin after their work, for longer on a busy machine
Decode = Callable[..., None]


def _native_decode() -> Decode:
    """Return the C++ kernel with the arguments of `paged_decode`."""
    library, threads = compiled_library(), torch.get_num_threads()
    team = Team(library, threads)

    def decode(query, keys, values, tables, contexts, out):
        """Call the library."""
        arrays = [item.ctypes.data for item in (query, keys, values)]
        sizes = (
            len(query),
            query.shape[1],
            keys.shape[1],
            query.shape[2],
            keys.shape[2],
            tables.shape[1],
        )
        pointers = tables.ctypes.data, None, contexts.ctypes.data
        library.steelyard_attend(
            team.address, *arrays, keys.itemsize == 2, *pointers, *sizes, 0, 0.0, out.ctypes.data
        )

    return decode


class _Case:
    """Sequences of one context, in shuffled blocks and each in one piece."""

    def __init__(self, sequences: int, context: int, dtype: torch.dtype = torch.float32) -> None:
        generator = torch.Generator().manual_seed(0)
        self.contexts = np.full(sequences, context, dtype=np.int64)
        self.query = torch.randn(sequences, _HEADS, _WIDTH, generator=generator)
        whole = self.whole = KVPool(
            _decode_types.layer_shape(_HEADS), sequences, context, dtype, torch.device("cpu")
        ).kv[0]
        whole.copy_(torch.randn(whole.shape, generator=generator))
        blocks = sequences * context // _BLOCK
        self.tables = (
            np.random.default_rng(0).permutation(blocks).reshape(sequences, -1).astype(np.int64)
        )
        paged = KVPool(
            _decode_types.layer_shape(_HEADS), blocks, _BLOCK, dtype, torch.device("cpu")
        ).kv[0]
        split = whole.unflatten(3, (-1, _BLOCK)).transpose(2, 3).flatten(1, 2)
        paged[:, torch.from_numpy(self.tables.reshape(-1))] = split
        self.paged = paged
        self.num_bytes = whole.numel() * whole.element_size()
        self.single = np.arange(sequences, dtype=np.int64)[:, None]

    def work(self, decode: Decode, paged: bool) -> Callable[[], np.ndarray]:
        """Return a run of a kernel over either layout."""
        kv = self.paged if paged else self.whole
        kind = torch.uint32 if kv.element_size() == 4 else torch.uint16
        keys, values = kv.view(kind).numpy()
        tables = self.tables if paged else self.single
        out = np.empty(self.query.shape, dtype=np.float32)

        def run() -> np.ndarray:
            decode(self.query.numpy(), keys, values, tables, self.contexts, out)
            return out

        return run

    def gathered(self) -> torch.Tensor:
        """Attend with PyTorch over the contiguous layout."""
        keys, values = self.whole.float()
        return F.scaled_dot_product_attention(
            self.query[:, :, None], keys, values, enable_gqa=True
        )[:, :, 0]


def _stream(num_bytes: int) -> dict[str, Callable[[], object]]:
    """Return ways of only reading memory; the fastest counts as its bandwidth."""
    data = torch.ones(num_bytes // 4)
    return {
        "stream sum": data.sum,
        "stream dot": lambda: torch.dot(data, data),
        "stream max": data.max,
    }


def checks(quick: bool) -> list[Check]:
    """Time the kernel in turn with plain reading, and print bytes per second.

    Args:
        quick: fewer sequences and rounds.

    Returns:
        Ratios to the fastest way of reading and to the contiguous layout, medians over rounds.
    """
    rounds = 11 if quick else 41
    cases = {"1K": (32 if quick else 64, 1024), "8K": (4 if quick else 8, 8192)}
    try:
        decode, name = _native_decode(), "native"
    except BackendError as error:
        print(f"no native kernel: {error}")
        decode, name = paged_decode, "numba"
    found = []
    for label, (sequences, context) in cases.items():
        case = _Case(sequences, context)
        paged, contiguous = case.work(decode, True), case.work(decode, False)
        assert np.abs(paged() - case.gathered().numpy()).max() < 1e-4
        rivals = {
            "paged": paged,
            "contiguous": contiguous,
            "numba paged": case.work(paged_decode, True),
            "torch": case.gathered,
        }
        seconds = alternate(rivals | _stream(case.num_bytes), rounds=rounds, rest_s=_REST_S)
        rates = {
            rival: [case.num_bytes / item / 1e9 for item in samples]
            for rival, samples in seconds.items()
        }
        for rival, samples in rates.items():
            spread = median_spread(samples)
            print(
                f"{label} context, {name}: {rival:12s} {spread.median:6.1f} GB/s "
                f"[{spread.low:.1f}, {spread.high:.1f}]"
            )
        stream = max(
            (rival for rival in rates if rival.startswith("stream")),
            key=lambda rival: median_spread(rates[rival]).median,
        )
        share = ratio(rates["paged"], rates[stream])
        slower = ratio(rates["contiguous"], rates["paged"])
        found.append(
            Check(
                f"5 share of the memory's bandwidth, context {label}", share.median, 0.70, "higher"
            )
        )
        found.append(
            Check(f"5 time paged over contiguous, context {label}", slower.median, 1.25, "lower")
        )
    if name == "native":
        found += _decode_types.checks(_stream(_decode_types.STREAM_BYTES), quick)
    return found
