"""Small states of large streams: each is fed in batches, merged, and written as arrays."""

from steelyard.data.sketch.count_min import CountMin
from steelyard.data.sketch.frequent import FrequentHashes
from steelyard.data.sketch.hashing import hash_column
from steelyard.data.sketch.hyperloglog import HyperLogLog
from steelyard.data.sketch.lsh import LshTable
from steelyard.data.sketch.minhash import MinHasher
from steelyard.data.sketch.moments import Covariance, Moments
from steelyard.data.sketch.quantiles import KllQuantiles

__all__ = [
    "CountMin",
    "Covariance",
    "FrequentHashes",
    "HyperLogLog",
    "KllQuantiles",
    "LshTable",
    "MinHasher",
    "Moments",
    "hash_column",
]
