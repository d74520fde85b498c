"""Serving fleets: which phases share machines, how each is split, and what load they carry."""
