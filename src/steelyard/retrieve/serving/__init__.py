"""Indexes behind HTTP: batched searches, changes that survive a kill, shards in processes."""
