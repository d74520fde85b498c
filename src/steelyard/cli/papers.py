"""`steelyard papers`: the papers behind the package and how far each is."""

import cyclopts

from steelyard.cli.output import Switch, print_json
from steelyard.papers import Paper, select

app = cyclopts.App(
    name="papers",
    help="List the papers behind the package, what implements each, and how far it is.",
)

_COLORS = {"works": "green", "partly": "yellow", "planned": "dim"}


@app.default
def papers(*, room: str = "", state: str = "", json: Switch = False) -> None:
    """List the papers behind the package, what implements each, and how far it is.

    Args:
        room: room whose papers to list, such as "serve"; all when empty.
        state: state of the papers to list: works, partly or planned; all when empty.
        json: print JSON instead of a table.
    """
    chosen = select(room=room, state=state)
    print_json(chosen) if json else _print_table(chosen)


def _print_table(chosen: list[Paper]) -> None:
    """Print the papers and a count per state."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    counts = {state: sum(paper.state == state for paper in chosen) for state in _COLORS}
    table = Table(
        caption=", ".join(f"{count} {state}" for state, count in counts.items()),
        caption_justify="left",
    )
    for column in ("paper", "room", "state"):
        table.add_column(column, no_wrap=True)
    table.add_column("title, object, benchmark", ratio=1)
    for paper in chosen:
        lines = [escape(f"{paper.title} ({paper.venue})")]
        lines += [f"[cyan]{escape(paper.object)}[/]"] if paper.object else []
        lines += (
            [f"[dim]python -m benchmarks {escape(paper.benchmark)}[/]"] if paper.benchmark else []
        )
        table.add_row(
            escape(paper.key),
            paper.room,
            f"[{_COLORS[paper.state]}]{paper.state}[/]",
            "\n".join(lines),
        )
    Console().print(table)
