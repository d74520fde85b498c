"""`steelyard papers`: the papers behind the package and how far each is."""

import cyclopts

from steelyard.cli.output import Switch, print_json
from steelyard.papers import Paper, select
from steelyard.runs.grid import GridColumn, grid
from steelyard.runs.screen import screen

app = cyclopts.App(
    name="papers",
    help="List the papers behind the package, what implements each, and how far it is.\n\n"
    "Example: steelyard papers --room serve",
)

_STATES = ("works", "partly", "planned")


@app.default
def papers(*, room: str = "", state: str = "", json: Switch = False) -> None:
    """List the papers behind the package, what implements each, and how far it is.

    Example: steelyard papers --room serve

    Args:
        room: room whose papers to list, such as "serve"; all when empty.
        state: state of the papers to list: works, partly or planned; all when empty.
        json: print JSON instead of a table.
    """
    chosen = select(room=room, state=state)
    print_json(chosen) if json else _print_table(chosen)


def _print_table(chosen: list[Paper]) -> None:
    """Print a line per paper, and a count per state."""
    columns = [
        GridColumn(head="paper", style="bold"),
        GridColumn(head="room"),
        GridColumn(head="state"),
        GridColumn(head="benchmark"),
        GridColumn(head="object", rank=1),
        GridColumn(head="title", rank=2),
    ]
    rows = [
        [
            item.key,
            item.room,
            item.state,
            item.benchmark,
            item.object,
            f"{item.title} ({item.venue})",
        ]
        for item in chosen
    ]
    console = screen()
    console.print(grid(columns, rows, console.width), soft_wrap=True)
    counts = {state: sum(paper.state == state for paper in chosen) for state in _STATES}
    console.print(", ".join(f"{count} {state}" for state, count in counts.items()), style="dim")
