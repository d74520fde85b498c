"""Shards that heal: placement, failure detection, repair and moves ahead of the load.

`steelyard.operate.shards.cluster.ShardCluster` starts nodes and keeps them whole;
`steelyard.operate.shards.simulate.simulate` drives the same controller in virtual time.
"""

__all__: list[str] = []
