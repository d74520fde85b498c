"""Nodes that hold shards of rows by key: batches of gets, puts and scans, repair from peers.

`steelyard.data.shardstore.process.start_node` starts one; `client.StoreClient` talks to several.
Who holds which shard, and until when, is handed to nodes; they decide nothing of it.
"""

__all__: list[str] = []
