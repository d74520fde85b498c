import io
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from steelyard.quantity import Forecast, Measurement, check
from steelyard.runs import Checks, Report, Section
from steelyard.runs.grid import GridColumn, grid

WORDS = st.text("abcxyz-_0123456789", min_size=1, max_size=30)
CELLS = st.lists(WORDS, max_size=6).map(" ".join)


@given(
    st.integers(1, 5).flatmap(
        lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=1, max_size=6)
    ),
    st.integers(1, 140),
)
def test_no_word_is_cut_or_broken_at_any_width(rows, width):
    columns = [GridColumn(head=f"head{index}") for index in range(len(rows[0]))]
    shown = re.split(r"\s+", grid(columns, rows, width).plain)
    for row in rows:
        for cell in row:
            assert all(word in shown for word in cell.split())


@given(st.integers(20, 200))
def test_columns_of_high_rank_leave_first_and_lines_keep_the_width(width):
    columns = [GridColumn(head="name"), *(GridColumn(head=f"c{n}", rank=n) for n in range(1, 6))]
    shown = grid(columns, [["identifier", *["0123456789"] * 5]], width).plain.splitlines()
    assert all(len(line) <= width for line in shown)
    heads = shown[0].split()
    assert heads == ["name", "c1", "c2", "c3", "c4", "c5"][: len(heads)]


def test_a_number_stays_with_its_unit():
    columns = [GridColumn(head="what"), GridColumn(head="interval", right=True)]
    shown = grid(columns, [["a.quantity", "2.073 nats/token .. 2.285 nats/token"]], 34).plain
    assert "2.073 nats/token ..\n" in shown
    assert "  2.285 nats/token" in shown


def test_full_width_is_one_line_per_row():
    columns = [GridColumn(head="name"), GridColumn(head="words")]
    shown = grid(columns, [["a", "many words " * 50]] * 3, 4096).plain.splitlines()
    assert len(shown) == 4


def test_a_grid_without_heads_has_no_head_line():
    assert grid([GridColumn(), GridColumn()], [["a", "b"]], 80).plain == "a  b"


def test_checks_name_every_quantity_at_any_width():
    said = Forecast.about(
        "plan.memory_per_accelerator", 3.2e9, relative=0.2, provenance="derived", source="shape"
    )
    seen = Measurement(quantity="plan.memory_per_accelerator", value=3.3e9)
    page = Report("Checks", "", [Section("", [Checks(check([said], [seen]))])])
    for width in range(30, 130, 5):
        console = Console(width=width, file=io.StringIO())
        page.print(console)
        shown = console.file.getvalue()
        assert "plan.memory_per_accelerator" in shown
        assert "3.3" in shown
        assert "inside" in shown
