"""Other people's itemset miners, timed in their own interpreter.

It first says its name. The options hold {"peer": "pyfim", "mlxtend" or "efficient-apriori"}. A line
{"path": .dat or .dat.gz file, "support": baskets, "algorithm": name} is answered by {"seconds",
"itemsets", "peak_bytes": memory above that after imports}. Baskets are read and turned into what
the miner takes before the clock starts.
"""

import gzip
import importlib
import json
import os
import sys
import time
from functools import cache
from importlib.metadata import version
from pathlib import Path

channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
peer = json.loads(sys.argv[1])["peer"]


def peak_bytes():
    """Return the largest resident memory so far."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@cache
def baskets(path):
    """Read baskets."""
    opened = gzip.open if path.endswith(".gz") else open
    with opened(path, "rt") as file:
        return [tuple(map(int, line.split())) for line in file]


def pyfim(rows, given):
    """Mine with Borgelt's miners."""
    import fim  # pyright: ignore[reportMissingImports]

    miner = getattr(fim, given["algorithm"])
    begin = time.perf_counter()
    # A negative support is a number of baskets.
    found = miner(rows, target="s", supp=-given["support"], zmin=1)
    return time.perf_counter() - begin, len(found)


@cache
def one_hot(path):
    """Return a one-hot table."""
    import pandas as pd  # pyright: ignore[reportMissingImports]
    from mlxtend.preprocessing import TransactionEncoder  # pyright: ignore[reportMissingImports]

    encoder = TransactionEncoder()
    rows = baskets(path)
    return pd.DataFrame(encoder.fit(rows).transform(rows), columns=encoder.columns_)


def mlxtend(rows, given):
    """Mine a one-hot table; encoding is not timed."""
    from mlxtend.frequent_patterns import fpgrowth  # pyright: ignore[reportMissingImports]

    table = one_hot(given["path"])
    begin = time.perf_counter()
    found = fpgrowth(table, min_support=(given["support"] - 0.5) / len(rows))
    return time.perf_counter() - begin, len(found)


def efficient_apriori(rows, given):
    """Mine with dictionaries."""
    from efficient_apriori import itemsets_from_transactions  # pyright: ignore[reportMissingImports]

    begin = time.perf_counter()
    found, _ = itemsets_from_transactions(rows, (given["support"] - 0.5) / len(rows), 1000)
    return time.perf_counter() - begin, sum(map(len, found.values()))


miners = {"pyfim": pyfim, "mlxtend": mlxtend, "efficient-apriori": efficient_apriori}
if peer == "mlxtend":
    # What imports take is no memory of the miner.
    importlib.import_module("mlxtend.frequent_patterns")
    importlib.import_module("pandas")
before = peak_bytes()
channel.write(json.dumps({"name": f"{peer} {version(peer)}"}) + "\n")
channel.flush()
for line in sys.stdin:
    asked = json.loads(line)
    seconds, count = miners[peer](baskets(asked["path"]), asked)
    told = {"seconds": seconds, "itemsets": count, "peak_bytes": peak_bytes() - before}
    channel.write(json.dumps(told) + "\n")
    channel.flush()
