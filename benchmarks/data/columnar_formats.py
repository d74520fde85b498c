"""Steelpack beside Parquet, Arrow IPC, Lance, Vortex, Polars and DuckDB, and advice beside truth.

All run on one core, in turn, with their files in the page cache; opening a file counts, but where
a check says that it was kept open. 1 reads 10 columns of 10,000, and opens tables of 100 and of
10,000. 2 reads all of the generated core workload into the same Arrow types. 3 reads 1,000 of its
rows. 4 repeats findings of the paper: dictionaries, compression on top, zone maps. 5 compares
predicted and measured sizes and times; the costs are fitted to the core workload of another seed
and size, and the tables are other workloads and real ones. Lance and Vortex run in their own
interpreters and are left out where they are not installed.
"""

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from benchmarks import peers
from benchmarks.common import Check, median_spread, ratio
from benchmarks.serve._json_process import JsonProcess, peer_environment
from pyarrow import parquet

from steelyard.data.formats import PRESETS, Steelpack, generate, preset, write_steelpack
from steelyard.data.formats.advice import advise, calibrate
from steelyard.data.formats.options import OPTIONS, bench, option, write_as
from steelyard.data.table import DataTable
from steelyard.errors import BackendError

PAPER = ["47-columnar-formats"]
_SHARED = Path(__file__).parents[3] / "shared" / "data"
_REAL = ("movietweetings-100k/ratings.csv.gz", "molecules/muv.csv.gz")
_STORAGES = {"flash": (2e9, 1e-4), "network": (2e8, 1e-3), "objects": (5e7, 3e-2)}
"""Bytes per second and seconds per request."""
_PROGRAM = str(Path(__file__).with_name("_formats_program.py"))


def run(quick: bool) -> list[Check]:
    """Run the checks.

    Args:
        quick: fewer rows, columns and rounds.

    Returns:
        The checks.
    """
    before = os.sched_getaffinity(0)
    core = max(before)
    os.sched_setaffinity(0, {core})
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    try:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            others = _others(core)
            checks = [
                *_wide(folder, others, 2000 if quick else 10_000, 5 if quick else 31),
                *_core(folder, others, 50_000 if quick else 1_000_000, 3 if quick else 11),
                *_findings(folder, 50_000 if quick else 1_000_000),
                *_advice(folder, 30_000 if quick else 300_000, quick=quick),
            ]
            for process in others.values():
                process.close()
    finally:
        os.sched_setaffinity(0, before)
    return checks


def _others(core: int) -> dict[str, JsonProcess]:
    """Start the peers that are installed."""
    found = {}
    for name, package in (("lance", "pylance"), ("vortex", "vortex-data")):
        hint = f"python -m benchmarks peers install {package}"
        try:
            command = [str(peers.python(package)), _PROGRAM]
            options = {"format": name, "core": core}
            found[name] = JsonProcess(command, options, peer_environment(), hint)
            print(f"peer {found[name].name}")
        except BackendError as error:
            print(f"left out: {error}; {error.hint}")
    return found


def _turns(rivals: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Time rivals in turn, two rounds to warm up; each says its own seconds."""
    seconds: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(rounds + 2):
        for name, work in rivals.items():
            took_s = work()
            if turn > 1:
                seconds[name].append(took_s)
    return seconds


def _timed(work: Callable[[], Any]) -> Callable[[], float]:
    """Return what says how long some work took."""

    def timed() -> float:
        began_s = time.perf_counter()
        found = work()
        took_s = time.perf_counter() - began_s
        # Giving the memory back is no part of a read, and the peers' programs do it later too.
        del found
        return took_s

    return timed


def _asked(process: JsonProcess, work: dict[str, Any]) -> Callable[[], float]:
    return lambda: float(process.ask(work)["seconds"][-1])


def _written(
    table: pa.Table, folder: Path, name: str, others: dict[str, JsonProcess]
) -> dict[str, int]:
    """Write a table in every format; return the bytes."""
    sizes = {}
    for form, words in (("arrow", "arrow plain none"), ("parquet", "parquet zstd")):
        sizes[form] = write_as(table, folder / f"{name}.{form}", option(words))
    sizes["steelpack"] = write_as(table, folder / f"{name}.steelpack", option("steelpack auto"))
    for form, process in others.items():
        work = {"do": "write", "from": f"{folder / name}.arrow", "to": f"{folder / name}.{form}"}
        sizes[form] = int(process.ask(work)["bytes"])
    return sizes


def _wide(folder: Path, others: dict[str, JsonProcess], width: int, rounds: int) -> list[Check]:
    """Read a few columns of thousands, as feature tables are read."""
    import duckdb
    import polars

    rng = np.random.default_rng(0)
    columns = {f"feature {place}": rng.normal(size=100) for place in range(width)}
    table = pa.table(columns)
    names = [f"feature {place}" for place in range(0, width, width // 10)]
    _written(table, folder, "wide", others)
    _written(table.select(list(columns)[:100]), folder, "narrow", {})
    schema = table.schema
    places = [schema.get_field_index(name) for name in names]
    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    listed = ", ".join(f'"{name}"' for name in names)
    base = str(folder / "wide")

    def arrow() -> pa.Table:
        with pa.memory_map(f"{base}.arrow") as source:
            options = pa.ipc.IpcReadOptions(included_fields=places, use_threads=False)
            return pa.ipc.open_file(source, options=options).read_all()

    rivals = {
        "steelpack": _timed(lambda: Steelpack.open(f"{base}.steelpack").read(names)),
        "parquet": _timed(
            lambda: parquet.read_table(f"{base}.parquet", columns=names, use_threads=False)
        ),
        "arrow": _timed(arrow),
        "polars": _timed(lambda: polars.read_parquet(f"{base}.parquet", columns=names)),
        "duckdb": _timed(
            lambda: connection.sql(f"SELECT {listed} FROM '{base}.parquet'").to_arrow_table()
        ),
    }
    for form, process in others.items():
        work = {"do": "read", "schema": f"{base}.arrow", "path": f"{base}.{form}", "columns": names}
        rivals[form] = _asked(process, work)
    assert Steelpack.open(f"{base}.steelpack").read(names).equals(table.select(names))
    seconds = _turns(rivals, rounds)
    medians = {name: median_spread(found).median for name, found in seconds.items()}
    told = ", ".join(f"{name} {value * 1e3:.2f} ms" for name, value in medians.items())
    print(f"10 of {width:,} columns: {told}")
    rest = {name: value for name, value in medians.items() if name not in ("steelpack", "parquet")}
    fastest = min(rest, key=rest.__getitem__)
    over = ratio(seconds["parquet"], seconds["steelpack"])
    over_rest = ratio(seconds[fastest], seconds["steelpack"])
    print(
        f"  {over.median:.0f} times pyarrow ({over.low:.0f} to {over.high:.0f}), "
        f"{over_rest.median:.1f} times {fastest} ({over_rest.low:.1f} to {over_rest.high:.1f})"
    )
    return [
        Check("1 speed of 10 columns of 10,000 over pyarrow", over.median, 10.0, "higher"),
        Check(
            "1 speed of 10 columns of 10,000 over the fastest other peer",
            over_rest.median,
            5.0,
            "higher",
        ),
        *_opened(folder, rounds),
    ]


def _opened(folder: Path, rounds: int) -> list[Check]:
    """Open tables of 100 and of many columns."""
    rivals = {
        f"{form} {name}": _timed(lambda form=form, name=name: _open(folder / f"{name}.{form}"))
        for form in ("steelpack", "parquet")
        for name in ("narrow", "wide")
    }
    seconds = _turns(rivals, rounds)
    growth = {
        form: ratio(seconds[f"{form} wide"], seconds[f"{form} narrow"]).median
        for form in ("steelpack", "parquet")
    }
    print(
        f"opening grows {growth['steelpack']:.2f} times, Parquet's footer {growth['parquet']:.0f}"
    )
    return [
        Check(
            "1 growth of the time to open, 100 to 10,000 columns", growth["steelpack"], 2.0, "lower"
        ),
        Check("1 growth of Parquet's time to open", growth["parquet"], 20.0, "higher"),
    ]


def _open(path: Path) -> Any:
    return Steelpack.open(path) if path.suffix == ".steelpack" else parquet.read_metadata(path)


def _core(folder: Path, others: dict[str, JsonProcess], rows: int, rounds: int) -> list[Check]:
    """Compare sizes, scans and single rows of the core workload."""
    table = generate("core", rows, np.random.default_rng(1))
    sizes = _written(table, folder, "core", others)
    base = str(folder / "core")
    assert Steelpack.open(f"{base}.steelpack").read().equals(table)
    told = ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in sizes.items())
    print(f"core workload, {rows:,} rows: {told}")
    picked = np.sort(np.random.default_rng(2).choice(rows, min(1000, rows // 2), replace=False))
    kept = Steelpack.open(f"{base}.steelpack")
    scans: dict[str, Callable[[], float]] = {
        "steelpack": _timed(lambda: Steelpack.open(f"{base}.steelpack").read()),
        "parquet": _timed(lambda: parquet.read_table(f"{base}.parquet", use_threads=False)),
    }
    takes: dict[str, Callable[[], float]] = {
        "steelpack": _timed(lambda: Steelpack.open(f"{base}.steelpack").take(picked)),
        "steelpack kept open": _timed(lambda: kept.take(picked)),
        "parquet": _timed(
            lambda: parquet.read_table(f"{base}.parquet", use_threads=False).take(picked)
        ),
    }
    wanted = [str(kind) for kind in table.schema.types]
    for form, process in others.items():
        shared = {"schema": f"{base}.arrow", "path": f"{base}.{form}"}
        read = {"do": "read", "columns": None, **shared}
        assert process.ask(read)["types"] == wanted
        scans[form] = _asked(process, read)
        takes[form] = _asked(process, {"do": "take", "rows": picked.tolist(), **shared})
        kept_open = {"do": "take", "kept": True, "rows": picked.tolist(), **shared}
        takes[f"{form} kept open"] = _asked(process, kept_open)
    scanned, taken = _turns(scans, rounds), _turns(takes, rounds)
    for words, found in (("scan", scanned), ("1,000 rows", taken)):
        shown = ", ".join(f"{name} {np.median(s) * 1e3:.1f} ms" for name, s in found.items())
        print(f"  {words}: {shown}")
    checks = [
        Check(
            "2 size over Parquet with dictionary and zstd",
            sizes["steelpack"] / sizes["parquet"],
            1.10,
            "lower",
        ),
        _faster("2 speed of a scan over Parquet", scanned, "parquet", 1.5),
        _faster("3 speed of 1,000 rows over Parquet", taken, "parquet", 10.0),
    ]
    if "vortex" in others:
        checks.append(_faster("2 speed of a scan over Vortex", scanned, "vortex", 1.0))
        checks.append(_faster("3 speed of 1,000 rows over Vortex", taken, "vortex", 1.0))
        ours = "steelpack kept open"
        name = "3 speed of 1,000 rows over Vortex, both kept open"
        checks.append(_faster(name, taken, "vortex kept open", 1.0, ours))
    return checks


def _faster(
    name: str, seconds: dict[str, list[float]], rival: str, bar: float, ours: str = "steelpack"
) -> Check:
    """Return the check of a speed over a rival."""
    spread = ratio(seconds[rival], seconds[ours])
    print(f"  {name}: {spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})")
    return Check(name, spread.median, bar, "higher")


def _findings(folder: Path, rows: int) -> list[Check]:
    """Repeat findings of the paper."""
    low = [item for name in PRESETS for item in preset(name) if item.distinct_ratio < 0.01]
    rng = np.random.default_rng(3)
    table = generate(low[:40], rows, rng)
    path = folder / "ablation"
    plain, coded = (write_as(table, path, option(f"parquet{how} none")) for how in (" plain", ""))
    core = generate("core", rows, rng)
    before, after = (write_as(core, path, option(f"parquet {how}")) for how in ("none", "zstd"))
    held = _saved_where_held(core, path)
    own = [write_as(core, path, option(f"steelpack {how}")) for how in ("never", "auto", "always")]
    print(
        f"dictionaries: {plain / 1e6:.1f} to {coded / 1e6:.1f} MB; zstd over Parquet's: "
        f"{before / 1e6:.1f} to {after / 1e6:.1f} MB; steelpack never, auto, always compressed: "
        + ", ".join(f"{size / 1e6:.1f}" for size in own)
        + " MB"
    )
    zoned, grouped = _pruned(folder, 4 * rows)
    print(f"zone maps: {zoned / 1e3:.0f} kB read, by row groups {grouped / 1e6:.2f} MB")
    return [
        Check("4 bytes without dictionaries over bytes with", plain / coded, 3.0, "higher"),
        Check("4 share that zstd saves of dictionaries", 1 - after / before, 0.35, "lower"),
        Check("4 share that zstd saves of dictionaries that held", held, 0.35, "lower"),
        Check("4 share that zstd saves of a steelpack", 1 - own[2] / own[1], 0.35, "lower"),
        Check("4 bytes read by zone maps over row groups", zoned / grouped, 0.2, "lower"),
    ]


def _saved_where_held(table: pa.Table, path: Path) -> float:
    """Return what zstd saves of columns whose dictionaries did not give way to plain values.

    Past a megabyte of dictionary the writer falls back silently, and its metadata do not say so:
    a column counts where its dictionary takes less than half of its plain bytes.
    """
    sizes = []
    for words in ("parquet plain none", "parquet zstd"):
        write_as(table, path, option(words))
        told = parquet.read_metadata(path)
        groups = [told.row_group(place) for place in range(told.num_row_groups)]
        for side in ("total_uncompressed_size", "total_compressed_size"):
            every = [
                [getattr(group.column(at), side) for group in groups]
                for at in range(len(table.columns))
            ]
            sizes.append(np.array([sum(column) for column in every]))
    plain, _, coded, compressed = sizes
    has_held = coded < plain / 2
    kept = compressed[has_held].sum() / coded[has_held].sum()
    print(f"dictionaries of {has_held.sum()} of {len(has_held)} columns held")
    return float(1 - kept)


def _pruned(folder: Path, rows: int) -> tuple[int, int]:
    """Return bytes that a ten-thousandth of clustered rows takes, by zones and by row groups."""
    rng = np.random.default_rng(4)
    table = pa.table(
        {
            "time": np.sort(rng.integers(0, 1 << 40, rows)),
            "user": rng.integers(0, 1 << 20, rows),
            "price": np.round(rng.lognormal(3, 1, rows), 2),
            "noise": rng.normal(size=rows),
            "shop": pa.array(
                np.array([f"shop {n}" for n in range(500)])[rng.integers(0, 500, rows)]
            ),
        }
    )
    path = folder / "clustered.steelpack"
    write_steelpack(table.to_batches(), path)
    times = table["time"]
    low, high = times[rows // 3].as_py(), times[rows // 3 + rows // 10_000].as_py()
    pack = Steelpack.open(path)
    found = pack.select({"time": (low, high)})
    assert len(found) >= rows // 10_000
    whole = Steelpack.open(path)
    per_group = sum(item["bytes"] for item in whole.told()) / whole.groups
    return pack.pack.checked_bytes, int(per_group)


def _advice(folder: Path, rows: int, *, quick: bool) -> list[Check]:
    """Compare predictions with what is measured on other tables."""
    began_s = time.perf_counter()
    costs = calibrate(folder)
    print(f"calibrated in {time.perf_counter() - began_s:.0f} s")
    sizes, times, picks = [], [], []
    for name, table in _tables(rows, quick=quick).items():
        advice = {item.option: item for item in advise(table, costs)}
        place = folder / "advice"
        place.mkdir(exist_ok=True)
        rng = np.random.default_rng(5)
        measured = {item.option: item for item in bench(table, place, rng, rounds=3)}
        own_sizes = [advice[key].num_bytes / item.num_bytes - 1 for key, item in measured.items()]
        own_times = [advice[key].scan_s / item.scan_s - 1 for key, item in measured.items()]
        print(
            f"{name}: sizes off by {np.median(np.abs(own_sizes)):.1%}, "
            f"times by {np.median(np.abs(own_times)):.0%} (signed {np.median(own_times):+.0%})"
        )
        sizes += own_sizes
        times += own_times
        for rate, latency in _STORAGES.values():
            real = {
                key: item.scan_s + 2 * latency + item.num_bytes / rate
                for key, item in measured.items()
            }
            said = {
                key: item.scan_s + 2 * latency + item.num_bytes / rate
                for key, item in advice.items()
            }
            picks.append(real[min(said, key=said.__getitem__)] / min(real.values()))
    good = float(np.mean(np.array(picks) <= 1.1))
    print(f"{len(sizes)} cells, {len(picks)} picks, the worst {max(picks):.2f} times the best")
    return [
        Check("5 median error of predicted bytes", float(np.median(np.abs(sizes))), 0.1, "lower"),
        Check("5 median error of predicted times", float(np.median(np.abs(times))), 0.25, "lower"),
        Check("5 share of picks within 10 % of the best", good, 0.9, "higher"),
    ]


def _tables(rows: int, *, quick: bool) -> dict[str, pa.Table]:
    """Return tables that no cost was fitted to."""
    names = PRESETS[1:3] if quick else PRESETS[1:]
    found = {name: generate(name, rows, np.random.default_rng(6)) for name in names}
    for path in _REAL if _SHARED.is_dir() and not quick else ():
        found[path] = DataTable.scan(_SHARED / path).collect()[0].combine_chunks()
    assert len(found) * len(OPTIONS) >= (0 if quick else 30)
    return found
