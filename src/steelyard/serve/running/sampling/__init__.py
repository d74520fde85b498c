"""From logits to tokens.

Penalties, cuts, draws, grammars and log probabilities of a whole batch.
"""

from steelyard.serve.running.sampling.sampler import Sampler

__all__ = ["Sampler"]
