"""Writes the six workloads of `generate` from real tables.

Run it by python -m benchmarks.data._format_presets FOLDER, with the folder of shared data.

Each family's columns are put in the order of their kind and ratio of distinct values, and twenty
are taken at even distances. Tables of less than a thousand rows are left out.
"""

import csv
import sys
from dataclasses import asdict, replace
from pathlib import Path

from steelyard.data.formats import ColumnProperties, PropertiesFold
from steelyard.data.table import DataTable
from steelyard.errors import SteelyardError

FAMILIES = {
    "bi": (
        "movietweetings-100k/*.csv*",
        "movielens-latest-small/*.csv*",
        "epoch-training-costs/*.csv",
        "spot-instance-traces/*.csv*",
    ),
    "classic": ("molecules/*.csv*", "huawei-coldstart/*.csv*", "chexmask-shapes/*.csv*"),
    "geo": ("datacenter-site/weather/*.csv*", "datacenter-site/carbon/*.csv*"),
    "log": ("loghub-2k/*_structured.csv*", "llm-traces/*.csv*", "cloud-metrics-nab/*.csv*"),
    "ml": (
        "scaling-runs/*.csv",
        "lr-batch-sweep/*.csv",
        "routed-lm-curves/*.csv*",
        "openclip-scaling/*.csv",
        "gpu-kernel-timings/*gemm*",
        "perfcastdb-spr/*.csv",
    ),
}
COLUMNS, LEAST_ROWS = 20, 1000
OUT = Path(__file__).parents[2] / "src/steelyard/data/formats/presets.csv"


def columns_of(folder: Path, patterns: tuple[str, ...]) -> list[ColumnProperties]:
    """Return the properties of all columns of a family."""
    found = []
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        try:
            folded = DataTable.scan(path).fold(PropertiesFold())
        except SteelyardError as error:
            print(f"left out: {error}")
            continue
        owner = path.name.split(".")[0]
        for item in folded.results["properties"]:
            if item.rows >= LEAST_ROWS and item.kind != "other" and item.null_ratio < 1:
                found.append(replace(item, name=f"{owner} {item.name}"))
    return found


def spread(columns: list[ColumnProperties]) -> list[ColumnProperties]:
    """Return twenty columns at even distances."""
    order = sorted(columns, key=lambda item: (item.kind, item.distinct_ratio, item.name))
    return [order[int((place + 0.5) * len(order) / COLUMNS)] for place in range(COLUMNS)]


def main(folder: Path) -> None:
    """Write the workloads."""
    families = {name: columns_of(folder, patterns) for name, patterns in FAMILIES.items()}
    families["core"] = [item for name in FAMILIES for item in families[name]]
    with OUT.open("w", newline="") as file:
        file.write("# Columns of real tables by the profile of steelyard.data.formats.\n")
        names = list(asdict(families["bi"][0]))
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["preset", *names])
        for name, columns in families.items():
            print(name, len(columns))
            for item in spread(columns):
                values = asdict(item).values()
                writer.writerow(
                    [name, *(f"{v:.6g}" if isinstance(v, float) else v for v in values)]
                )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
