"""Another table format, driven in its own interpreter on one core.

It is started with {"format": "lance" or "vortex", "core": number} and first says its name. A line
{"do": "write", "from": Arrow IPC file, "to": path} is answered by {"seconds", "bytes"}; {"do":
"read", "path", "schema", "columns": names or null} and {"do": "take", "path", "schema", "rows"} by
{"seconds": [...], "rows", "types"}. Opening the file counts, but for "kept": true, where it stays
open.
"""

import json
import os
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pyarrow as pa

channel = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
options = json.loads(sys.argv[1])
os.sched_setaffinity(0, {options["core"]})
kept = {}


class Lance:
    """The Lance format by pylance."""

    package = "pylance"

    def write(self, table, path):
        """Write a table."""
        import lance  # pyright: ignore[reportMissingImports]

        lance.write_dataset(table, path, mode="overwrite", data_storage_version="2.2")

    def read(self, path, columns, schema):
        """Read columns, all when there are none."""
        import lance  # pyright: ignore[reportMissingImports]

        return lance.dataset(path).to_table(columns=columns)

    def open(self, path):
        """Open a table."""
        import lance  # pyright: ignore[reportMissingImports]

        return lance.dataset(path)

    def take(self, opened, rows, schema):
        """Read rows."""
        return opened.take(rows)


class Vortex:
    """The Vortex format by vortex-data, mapped into memory, which is its fastest way."""

    package = "vortex-data"

    def write(self, table, path):
        """Write a table."""
        import vortex  # pyright: ignore[reportMissingImports]

        vortex.io.write(table, path)

    def read(self, path, columns, schema):
        """Read columns, all when there are none."""
        import vortex  # pyright: ignore[reportMissingImports]

        wanted = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        file = vortex.open(path, memory_map=True)
        return file.to_arrow(columns, schema=wanted).read_all()

    def open(self, path):
        """Open a table."""
        import vortex  # pyright: ignore[reportMissingImports]

        return vortex.open(path, memory_map=True)

    def take(self, opened, rows, schema):
        """Read rows."""
        import vortex  # pyright: ignore[reportMissingImports]

        return opened.to_arrow(indices=vortex.array(rows), schema=schema).read_all()


def answer(engine, given):
    """Do one piece of work and time it."""
    if given["do"] == "write":
        with pa.memory_map(given["from"]) as source:
            table = pa.ipc.open_file(source).read_all()
            begin = time.perf_counter()
            engine.write(table, given["to"])
            seconds = time.perf_counter() - begin
        path = Path(given["to"])
        files = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
        return {"seconds": [seconds], "bytes": sum(item.stat().st_size for item in files)}
    with pa.memory_map(given["schema"]) as source:
        schema = pa.ipc.open_file(source).schema
    if given.get("kept") and given["path"] not in kept:
        kept[given["path"]] = engine.open(given["path"])
    begin = time.perf_counter()
    if given["do"] == "take":
        opened = kept[given["path"]] if given.get("kept") else engine.open(given["path"])
        found = engine.take(opened, given["rows"], schema)
    else:
        found = engine.read(given["path"], given["columns"], schema)
    return {
        "seconds": [time.perf_counter() - begin],
        "rows": len(found),
        "types": [str(t) for t in found.schema.types],
    }


def main():
    """Answer lines until there are no more."""
    engine = {"lance": Lance, "vortex": Vortex}[options["format"]]()
    told = f"{engine.package} {version(engine.package)}"
    channel.write(json.dumps({"name": told}) + "\n")
    channel.flush()
    for line in sys.stdin:
        channel.write(json.dumps(answer(engine, json.loads(line))) + "\n")
        channel.flush()


if __name__ == "__main__":
    main()
