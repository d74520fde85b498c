"""Memory of mining in an interpreter of its own: PATH SUPPORT, or quest ROWS ITEMS SUPPORT."""

import sys

import pyarrow.dataset  # noqa: F401 - so that importing it does not count

from steelyard.data.mining import Baskets, mine, quest_baskets, read_baskets
from steelyard.data.table import DataTable
from steelyard.train.memory import peak_resident_bytes

# Compiled, or taken from the cache, before memory is looked at.
mine(Baskets.of([[1, 2], [1, 2], [2]]), 0.5)
quest_baskets(10, num_items=50, num_patterns=5)
before = peak_resident_bytes()
if sys.argv[1] == "quest":
    rows, items = int(sys.argv[2]), int(sys.argv[3])
    baskets = quest_baskets(rows, num_items=items, num_patterns=items // 10, seed=8)
else:
    baskets, _ = read_baskets(DataTable.scan(sys.argv[1]))
found = mine(baskets, float(sys.argv[-1]))
print(len(found), peak_resident_bytes() - before)
