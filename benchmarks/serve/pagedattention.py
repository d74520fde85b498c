"""PagedAttention: waste of memory, batch sizes, sharing, equal outputs, kernels, throughput."""

from benchmarks.common import Check
from benchmarks.serve import _kv_waste, _paged_kernel, _peer_race

PAPER = ["87-pagedattention"]


def run(quick: bool) -> list[Check]:
    """Compare memory and outputs, the kernel, and throughput with vLLM and transformers."""
    return [*_kv_waste.checks(quick), *_paged_kernel.checks(quick), *_peer_race.checks(quick)]
