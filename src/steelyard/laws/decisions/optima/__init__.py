"""The best setting of a sweep, and how it moves with scale."""
