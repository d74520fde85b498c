"""Builds an index of planted fans in its own process and tells its time and memory.

Arguments: folder, and settings of the fans as JSON. The last line has the seconds, the bytes of its
own memory at the highest (sampled) over those after imports, and of all resident pages.
"""

import json
import sys
import threading
import time
from pathlib import Path

from steelyard.data.communities import CommunityIndex, IndexSettings
from steelyard.data.graph import PlantedFans


def status(field):
    """Return a figure of the process in bytes."""
    with Path("/proc/self/status").open() as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(field))


def main():
    """Build, and print the figures."""
    folder, settings = Path(sys.argv[1]), json.loads(sys.argv[2])
    most, ended = [status("RssAnon")], threading.Event()

    def watch():
        while not ended.wait(0.02):
            most.append(max(most[-1], status("RssAnon")))

    stages = {}

    def done(stage, share):
        stages.setdefault(stage, time.perf_counter())

    watcher = threading.Thread(target=watch)
    watcher.start()
    began_s = time.perf_counter()
    index = CommunityIndex.build(
        PlantedFans(**settings),
        folder,
        IndexSettings(min_degree=10),
        memory_bytes=1 << 30,
        done=done,
    )
    seconds = time.perf_counter() - began_s
    ended.set()
    watcher.join()
    told = {
        "seconds": seconds,
        "own_bytes": most[-1],
        "resident_bytes": status("VmHWM"),
        "edges": index.graph.num_edges,
        "accounts": len(index),
        "stages": {name: when - began_s for name, when in stages.items()},
        "index_bytes": (folder / "index.pack").stat().st_size,
        "index_bytes_at_most": index.settings.index_bytes(len(index)),
    }
    print(json.dumps(told))


main()
