import io
import json
import re
from html.parser import HTMLParser

import pytest
from rich.console import Console

from steelyard.errors import DataError
from steelyard.quantity import Check, Forecast, Measurement
from steelyard.runs import Chart, Checks, Column, Facts, Report, Section, Table, Text, charts
from steelyard.runs.drawing import chart_svg, interval_svg, narrowed
from steelyard.runs.report import fact
from steelyard.runs.theme import LIGHT, colour_map
from steelyard.runs.wording import (
    check_words,
    interval_words,
    number_text,
    quantity_words,
    summary_words,
)

EVIL = "<script>alert('x')</script>&\"<b>"


def pair(forecast: float = 2.0, measured: float = 2.1, source: str = "law") -> Check:
    return Check(
        Forecast.about(
            "train.step_time", forecast, relative=0.1, provenance="fitted", source=source
        ),
        Measurement(quantity="train.step_time", value=measured),
    )


def sample(text: str = "plain") -> Report:
    spec = charts.bars([text, "b"], [1.0, 2.0], title=text)
    blocks = [
        Text(f"**bold** {text} [link](https://example.org/a) `code`\n\n- item *one*"),
        Facts([(text, text, "measured"), ("other", "1", "")]),
        Table(
            [Column(text), Column("n", "ms")],
            [[text, 1.5], [None, 2], ["x", float("nan")]],
            caption=text,
        ),
        Checks([pair(source=text), pair(2.0, 9.0)]),
        Chart(spec, caption=text),
        Chart(charts.predicted_measured([pair(), pair(2.0, 9.0)])),
    ]
    return Report(
        text, text, [Section(text, blocks), Section("Second", [Text("x")]), Section("Third", [])]
    )


class Page(HTMLParser):
    """Collects tags, and everything that could make a browser load or run something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "srcset", "data", "action", "poster") or (
                name in ("href", "xlink:href") and tag != "a"
            ):
                self.loads.append(f"{tag} {name}={value}")
            if name.startswith("on"):
                self.handlers.append(f"{tag} {name}")


def test_json_round_trip() -> None:
    report = Report(
        "t",
        "s",
        [
            Section(
                "a",
                [
                    *sample().sections[0].blocks[:2],
                    Checks([pair()]),
                    Table([Column("x")], [[1], [True], [None]]),
                ],
            )
        ],
    )
    assert Report.from_json(report.to_json()) == report
    check = json.loads(report.to_json())["sections"][0]["blocks"][2]["checks"][0]
    assert check["covered"] is True
    assert check["relative_error"] == pytest.approx(-0.1 / 2.1)
    with pytest.raises(DataError, match="not a report"):
        Report.from_json("{}")


def test_html_loads_nothing() -> None:
    html = sample().to_html()
    page = Page(html)
    assert page.loads == []
    assert page.handlers == []
    assert not {"link", "iframe", "img", "object", "embed", "base", "form"} & set(page.tags)
    head = html[: html.index("</style>")]
    assert "@import" not in head
    assert "url(" not in head
    for address in re.findall(
        r'https?://[^"\s<]+', re.sub(r'<script type="text/plain".*?</script>', "", html, flags=re.S)
    ):
        assert address in (
            "http://www.w3.org/2000/svg",
            "http://www.w3.org/1999/xlink",
            "https://example.org/a",
        )


def test_html_escapes_all_text() -> None:
    clean, dirty = Page(sample("plain").to_html()), Page(sample(EVIL).to_html())
    assert dirty.tags.count("script") == clean.tags.count("script") == 4
    assert dirty.tags.count("b") == 0
    assert "alert('x')</script>" not in sample(EVIL).to_html()


def test_links_take_only_web_addresses() -> None:
    html = Report(
        "t", "", [Section("", [Text("[x](javascript:alert(1)) [y](https://ok.example)")])]
    ).to_html()
    assert 'href="javascript' not in html
    assert '<a href="https://ok.example"' in html


def test_a_report_without_charts_carries_no_script() -> None:
    html = Report("t", "", [Section("a", [Text("x")])]).to_html()
    assert "<script" not in html
    assert len(html) < 40_000


def test_html_is_the_same_each_time_and_written_whole(tmp_path) -> None:
    report = sample()
    report.write_html(tmp_path / "out" / "report.html")
    assert (tmp_path / "out" / "report.html").read_text() == report.to_html()


def test_every_chart_color_has_a_dark_twin() -> None:
    known = {color.lower() for color in colour_map()}
    specs = [
        charts.predicted_measured([pair(), pair(2.0, 9.0)]),
        charts.loss_curves({"a": ([1, 2], [3.0, 2.0]), "b": ([1, 2], [3.0, 2.0])}),
        charts.bars(["a"], [1e9], title="t", unit="byte/s"),
        charts.matmul_rates(
            {
                "dtype": ["fp32", "fp32"],
                "size": [64, 128],
                "flops_per_s": [1e9, 2e9],
                "spread": [0.1, 0.1],
            }
        ),
    ]
    for spec in specs:
        svg = chart_svg(spec)
        used = {color.lower() for color in re.findall(r'(?:fill|stroke)="(#[0-9a-fA-F]+)"', svg)}
        assert used - {"#000", "#fff"} <= known
        assert LIGHT["ink"] in used


def test_drawings_of_one_page_share_no_ids() -> None:
    html = sample().to_html()
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))


def test_a_broken_chart_is_refused() -> None:
    with pytest.raises(DataError, match="cannot be drawn"):
        chart_svg({"mark": "no such mark", "data": {"values": []}, "encoding": 3})


def test_charts_refuse_ragged_and_missing_columns() -> None:
    with pytest.raises(DataError, match="'flops_per_s' is missing"):
        charts.matmul_rates({"dtype": ["fp32"], "size": [64]})
    with pytest.raises(DataError, match="different lengths"):
        charts.bars(["a", "b"], [1.0], title="t")


def test_long_curves_are_thinned_to_means() -> None:
    spec = charts.loss_curves({"a": (range(10_000), [float(i % 2) for i in range(10_000)])})
    rows = next(iter(spec["datasets"].values())) if "datasets" in spec else spec["data"]["values"]
    assert len(rows) == 400
    assert all(abs(row["y"] - 0.5) < 0.05 for row in rows)


@pytest.mark.parametrize("width", [60, 80, 160])
def test_console_shows_every_value(width: int) -> None:
    out = io.StringIO()
    sample("[red]name").print(Console(file=out, width=width, force_terminal=False))
    text = out.getvalue()
    for words in (
        "[red]name",
        "bold",
        "measured",
        "train.step_time",
        "inside",
        "outside",
        "1.500",
        "drawn in the HTML report",
    ):
        assert words in text
    assert ("●" in text) == (width == 160)


def test_table_rows_must_fit_the_head() -> None:
    with pytest.raises(DataError, match="row 1 has 1 cells"):
        Table([Column("a"), Column("b")], [[1, 2], [1]])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1234567.0, "1,234,567"),
        (1.5, "1.500"),
        (0.01234567, "0.01235"),
        (12345.6, "12,346"),
        (3.2e-7, "3.200e-7"),
        (float("nan"), "–"),
    ],
)
def test_number_text(value: float, text: str) -> None:
    assert number_text(value) == text


def test_words() -> None:
    assert interval_words(0.312, 0.356, "s") == "312 – 356 ms"
    assert interval_words(0.9, 1.2, "s") == "900 ms – 1.2 s"
    assert interval_words(512, 512, "count") == "512"
    assert summary_words([]) == ""
    assert summary_words([pair()]).startswith("1 of 1 measured values lies inside")
    assert fact(pair().forecast) == ("train.step_time", "2 s", "fitted")
    assert fact(pair().measurement, "Step") == ("Step", "2.1 s", "measured")


@pytest.mark.parametrize(
    ("values", "unit", "words"),
    [
        ((2440.0, 2590.0, 2510.0), "token/s", ("2.44k – 2.59k tokens/s", "2.51k tokens/s")),
        # The value rounds to the upper end: all three get another digit.
        ((2440.0, 2513.0, 2510.0), "token/s", ("2.44k – 2.513k tokens/s", "2.51k tokens/s")),
        ((1.0601e18, 1.0603e18, 1.0602e18), "FLOP", ("1.0601 – 1.0603 EFLOP", "1.0602 EFLOP")),
        ((0.9996, 1.0, 0.9999), "s", ("999.6 ms – 1 s", "999.9 ms")),
        # Equal stays equal, and digits beyond the seventh are noise.
        ((5.0, 6.0, 5.0), "s", ("5 – 6 s", "5 s")),
        ((5.0, 6.0, 5.0 + 1e-12), "s", ("5 – 6 s", "5 s")),
        ((2000.2, 2000.8, 2000.4), "USD", ("$2,000 – $2,001", "$2,000")),
    ],
)
def test_a_value_that_rounds_to_its_intervals_end_gets_another_digit(values, unit, words) -> None:
    assert quantity_words(values[0], values[1], unit, values[2]) == words


def test_a_check_shows_on_which_side_of_the_end_it_fell() -> None:
    said = Forecast(
        quantity="serve.throughput",
        value=108.0,
        low=105.0,
        high=112.6,
        provenance="simulated",
        source="x",
    )
    check = Check(said, Measurement(quantity="serve.throughput", value=113.2))
    forecast, interval, measured, _, verdict = check_words(check)
    assert (interval, measured, verdict) == ("105 – 112.6 tokens/s", "113.2 tokens/s", "outside")
    assert forecast == "108 tokens/s"


def test_a_phone_gets_narrow_charts_with_panels_one_below_the_other() -> None:
    panel = {"mark": "point", "width": 260}
    wide = {"hconcat": [panel, panel], "columns": 2, "title": "x"}
    narrow = narrowed(wide)
    assert [item["width"] for item in narrow["vconcat"]] == [296, 296]
    assert "hconcat" not in narrow
    assert panel["width"] == 260
    note = {"mark": {"type": "text", "fontStyle": "italic"}}
    assert narrowed({"layer": [panel, note], "width": 800})["layer"] == [panel]


def test_interval_drawing_survives_edge_values() -> None:
    for low, middle, high, value in (
        (1, 1, 1, 1),
        (0, 1, 2, 1e9),
        (-3, -2, -1, -2),
        (0, 0, float("inf"), 1),
    ):
        assert "nan" not in interval_svg(low, middle, high, value)
