"""Bounded key/value caches.

Which tokens a request keeps, which it releases, and which it computes again when they matter.
"""
