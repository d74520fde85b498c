"""Memory of mining in an interpreter of its own: PATH SUPPORT, or heaton ROWS ITEMS SUPPORT."""

import sys

import pyarrow.dataset  # noqa: F401 - so that importing it does not count

from steelyard.data.mining import Baskets, heaton_baskets, mine, read_baskets
from steelyard.data.table import DataTable
from steelyard.train.memory import peak_resident_bytes

# Compiled, or taken from the cache, before memory is looked at.
mine(Baskets.of([[1, 2], [1, 2], [2]]), 0.5)
heaton_baskets(10, most_items=5)
before = peak_resident_bytes()
if sys.argv[1] == "heaton":
    rows, items = int(sys.argv[2]), int(sys.argv[3])
    baskets = heaton_baskets(rows, most_items=12, num_items=items, seed=8)
else:
    baskets, _ = read_baskets(DataTable.scan(sys.argv[1]))
found = mine(baskets, float(sys.argv[-1]))
print(len(found), peak_resident_bytes() - before)
