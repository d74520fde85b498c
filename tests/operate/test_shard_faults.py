"""Random faults under a virtual clock: one writer an epoch, nothing acknowledged is lost."""

import pytest
from benchmarks.operate._fault_sequences import World


@pytest.mark.parametrize("start", [0, 10])
def test_sequences_of_faults_keep_what_was_acknowledged(start):
    counts = {}
    for seed in range(start, start + 10):
        world = World(seed).run()
        assert world.violations == []
        for name, count in world.counts.items():
            counts[name] = counts.get(name, 0) + count
    # The sequences hold real work: most of it is done, some of it is refused.
    assert counts["acknowledged"] > 0.3 * counts["writes"]
    assert counts["read"] > 0.4 * counts["reads"]
    assert counts["frozen"] > 0
