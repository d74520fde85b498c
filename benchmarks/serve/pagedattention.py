"""PagedAttention: memory waste, batch sizes, equal outputs and sharing; kernel bandwidth.

Throughput against vLLM and transformers.
"""

from benchmarks.common import Check
from benchmarks.serve import _kv_waste, _paged_kernel, _peer_race

PAPER = ["87-pagedattention"]


def run(quick: bool) -> list[Check]:
    """Run the card's six checks."""
    return [*_kv_waste.checks(quick), *_paged_kernel.checks(quick), *_peer_race.checks(quick)]
