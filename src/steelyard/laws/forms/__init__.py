"""The laws of the literature, declared on the one fitting engine."""
