"""Text to tokens: read, clean, deduplicate, tokenize, pack, and read back in a deterministic order.

`steelyard.data.text.prepare` makes a folder of token shards; `steelyard.data.shards.TokenShards`
reads it. Nothing is imported here, so that the command line starts fast.
"""
