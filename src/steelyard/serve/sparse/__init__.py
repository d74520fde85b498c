"""Bounded key/value caches: which tokens a request keeps, which it releases, and which it computes again when they matter."""
