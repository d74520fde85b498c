"""Text to tokens, tasks to batches: cleaned, hashed, cached, and read in a deterministic order.

`steelyard.data.text.prepare` makes a folder of token shards, `steelyard.data.shards.TokenShards`
reads it; `steelyard.data.tasks` and `steelyard.data.loader` do the same for records of any kind.
Nothing is imported here, so that the command line starts fast.
"""
