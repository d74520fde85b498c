"""The pages made from data: papers, benchmarks, quantities and the reference.

`python docs/generate.py` writes them. As a hook of MkDocs this file also builds the navigation from
the pages that exist.
"""

import json
from pathlib import Path
from typing import Any

from steelyard import laws, papers
from steelyard.quantity import QUANTITIES

DOCS = Path(__file__).parent
ROOT = DOCS.parent
SOURCE = ROOT / "src" / "steelyard"
FLOORS = (
    "catalog",
    "runs",
    "cost",
    "laws",
    "nn",
    "sim",
    "data",
    "train",
    "serve",
    "plan",
    "weigh",
    "cli",
)
GROUND = (
    "errors",
    "units",
    "quantity",
    "config",
    "files",
    "frames",
    "parallel",
    "native",
    "jit",
    "papers",
)


def rooms() -> list[str]:
    """List the rooms that exist, lowest floor first."""
    found = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
    return sorted(found, key=lambda room: FLOORS.index(room) if room in FLOORS else len(FLOORS))


def write(name: str, text: str) -> None:
    """Write a page if it changed: a server that watches the folder would rebuild the site."""
    path = DOCS / name
    path.parent.mkdir(exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    cells = ((cell.replace("|", "\\|") for cell in line) for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in cells)


def papers_page() -> str:
    """Return the page of papers: where each is, and how far."""
    found = papers.load()
    counts = ", ".join(
        f"{sum(paper.state == state for paper in found)} {state}"
        for state in ("works", "partly", "planned")
    )
    text = (
        f"# Papers\n\nThe {len(found)} papers behind the package: {counts}. *works* means that "
        f"its benchmark meets the bars it names.\n"
    )
    for room in sorted({paper.room for paper in found}):
        rows = [
            [
                f"[{paper.title}]({paper.url}), {paper.venue}",
                *(f"`{cell}`" if cell else "" for cell in (paper.object, paper.benchmark)),
                paper.state,
            ]
            for paper in found
            if paper.room == room
        ]
        text += f"\n## {room}\n\n" + table(["paper", "object", "benchmark", "state"], rows)
    return text


def benchmarks_page() -> str:
    """Return the page of stored results of full runs."""
    text = (
        "# Benchmarks\n\nResults of full runs; `python -m benchmarks NAME` repeats one. A "
        "missed bar is shown as it was measured.\n"
    )
    results = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    if not results:
        return text + "\nNo full run is stored yet.\n"
    for path in results:
        result: dict[str, Any] = json.loads(path.read_text())
        machine = result["machine"]
        memory_gib = machine["memory_bytes"] / 2**30
        text += (
            f"\n## {result['benchmark']}\n\n{result['date']}, {machine['processor']}, "
            f"{machine['cores']} cores, {memory_gib:.0f} GiB, "
        )
        text += (
            ", ".join(f"{name} {version}" for name, version in result["versions"].items()) + "\n\n"
        )
        rows = [
            [
                check["name"],
                "not a number" if check["value"] is None else f"{check['value']:.4g}",
                f"{'at least' if check['better'] == 'higher' else 'at most'} {check['bar']:.4g}",
                "ok" if check["ok"] else "**missed**",
            ]
            for check in result["checks"]
        ]
        text += table(["check", "measured", "bar", ""], rows)
    return text


def quantities_page() -> str:
    """Return the page that defines every quantity."""
    rows = [
        [f"`{item.name}`", item.unit, item.better, item.definition] for item in QUANTITIES.values()
    ]
    text = (
        "# Quantities\n\nForecasts, simulations and measurements use these names, so they "
        "cannot mean different things.\n\n"
    )
    return text + table(["name", "unit", "better", "definition"], rows)


def laws_map() -> str:
    """Return the names of the room of laws: those of every question, then those of each."""
    own = sorted(set(laws.__all__) - {*laws.QUESTIONS})
    rows = [["`laws`", ", ".join(f"`{name}`" for name in own)]]
    for question in laws.QUESTIONS:
        names = getattr(laws, question).__all__
        rows.append([f"`laws.{question}`", ", ".join(f"`{name}`" for name in sorted(names))])
    return table(["module", "names"], rows)


def reference_page(module: str, title: str) -> str:
    """Return a room's page of the reference, with one entry per public module."""
    package = SOURCE / module
    if not package.is_dir():
        return f"# {title}\n\n::: steelyard.{module}\n"
    text = f"# {title}\n\n::: steelyard.{module}\n    options:\n      members: false\n"
    if module == "laws":
        text += "\n" + laws_map()
    for path in sorted(package.rglob("*.py")):
        # A module of a question only passes names on; the map lists them.
        is_front = module == "laws" and path.parent == package and path.stem in laws.QUESTIONS
        if not (path.stem.startswith("_") or is_front):
            text += f"\n::: steelyard.{'.'.join(path.relative_to(SOURCE).with_suffix('').parts)}\n"
    return text


def room_entry(room: str) -> dict[str, Any]:
    """Return a room's place in the navigation: its page, then those of its folder by heading.

    "How it works" stands before the rest.
    """
    pages = sorted(
        (DOCS / "rooms" / room).glob("*.md"),
        key=lambda page: (page.stem != "how-it-works", page.stem),
    )
    if not pages:
        return {room: f"rooms/{room}.md"}
    headed = [
        {page.read_text().partition("\n")[0].removeprefix("# "): str(page.relative_to(DOCS))}
        for page in pages
    ]
    return {room: [{"Overview": f"rooms/{room}.md"}, *headed]}


def generate() -> None:
    """Write all generated pages."""
    write("papers.md", papers_page())
    write("benchmarks.md", benchmarks_page())
    write("quantities.md", quantities_page())
    wanted = [*GROUND, *rooms()]
    for module in wanted:
        write(f"reference/{module}.md", reference_page(module, module))
    for path in (DOCS / "reference").glob("*.md"):
        if path.stem not in wanted:
            path.unlink()


def on_config(config: Any) -> Any:
    """Build the navigation; called by MkDocs."""
    generate()
    written = [room_entry(room) for room in rooms() if (DOCS / "rooms" / f"{room}.md").exists()]
    config.nav = [
        {"Home": "index.md"},
        {"Quickstart": "quickstart.md"},
        {"Tutorial": "tutorial.md"},
        {"Trainings replayed": "replay.md"},
        {"Rooms": written},
        {
            "Evidence": [
                {"Papers": "papers.md"},
                {"Benchmarks": "benchmarks.md"},
                {"Trainings replayed": "replay.md"},
                {"Quantities": "quantities.md"},
            ]
        },
        {"Reference": [{name: f"reference/{name}.md"} for name in (*GROUND, *rooms())]},
    ]
    return config


if __name__ == "__main__":
    generate()
