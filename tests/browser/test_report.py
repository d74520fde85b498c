"""Reports as their readers see them: on a phone, a tablet, a desk, on paper, in light and dark."""

import shutil
import subprocess
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from steelyard.laws import chinchilla, fit
from steelyard.laws.fitting.bootstrap import Bootstrap
from steelyard.laws.pictures.report import fit_report
from steelyard.quantity import Check, Forecast, Measurement
from steelyard.runs import Chart, Checks, Column, Facts, Report, Section, Table, Text, charts
from steelyard.runs.report import Cell, fact

pytestmark = pytest.mark.browser

LONG = "A100-SXM4-40GB peaks x assumed efficiencies: matmul 0.62, memory 0.8, link 0.75"


def pair(name: str, forecast: float, measured: float) -> Check:
    said = Forecast.about(name, forecast, relative=0.1, provenance="fitted", source=LONG)
    return Check(said, Measurement(quantity=name, value=measured))


def checks() -> list[Check]:
    return [
        pair("eval.loss", 5.233, 5.363),
        pair("train.step_time", 0.239, 0.24),
        pair("train.peak_memory", 2.81e7, 2.78e7),
        pair("serve.e2e_latency", 0.222, 0.139),
        pair("serve.throughput", 1.08e6, 1.13e9),
    ]


def tables() -> list[Table]:
    heads = [Column("Quantity"), Column("Forecast", align="right")]
    heads += [Column("80 % interval", align="right"), Column("Provenance"), Column("Source")]
    forecast: list[Cell] = ["plan.memory_per_accelerator", "5.233 nats/token"]
    forecast += ["5.015 – 5.445 nats/token", "assumed", LONG]
    many = [Column(f"column_number_{index}", "GFLOP/s") for index in range(14)]
    return [
        Table(heads, [forecast] * 3, "Binding constraint: none."),
        Table([Column("Recipe"), Column("Chosen")], [["Layout", LONG], ["Model", "x" * 90]]),
        Table(many, [[1.5e9] * 14] * 2, "Wider than any page."),
    ]


def everything() -> Report:
    found = checks()
    curves = {"a": ([1e4, 2e4, 3e4], [7.0, 6.0, 5.0]), "b": ([1e4, 3e4], [6.5, 4.5])}
    rates = {"dtype": ["fp32"] * 3, "size": [64, 256, 1024], "flops_per_s": [4e10, 5e10, 6e10]}
    names = [f"{width} wide, 12 layers deep" for width in (128, 256, 512)]
    sections = [
        Section(
            "Forecast against measured",
            [
                Text("Loss **5.233 ± 0.215**, measured **5.363**: `a.long.name.in_code` " * 2),
                Facts([fact(item.forecast, item.forecast.quantity) for item in found]),
                Checks(found),
                Chart(charts.predicted_measured(found), "What was drawn."),
            ],
        ),
        Section("Tables", list(tables())),
        Section(
            "Charts",
            [
                Chart(charts.loss_curves(curves)),
                Chart(charts.matmul_rates(rates)),
                Chart(charts.bars(names, [0.01, 0.2, 1.5], title="Step time", unit="s")),
            ],
        ),
    ]
    return Report("This machine, weighed", f"A processor, {LONG}", sections)


def law() -> Report:
    size, tokens = (
        axis.ravel() for axis in np.meshgrid(np.geomspace(1e6, 1e9, 4), np.geomspace(1e9, 1e11, 4))
    )
    loss = 1.7 + 400 / size**0.34 + 410 / tokens**0.28
    noisy = loss * np.exp(np.random.default_rng(0).normal(0, 0.01, len(loss)))
    fitted = fit(
        chinchilla(), {"parameters": size, "tokens": tokens}, noisy, bootstrap=Bootstrap(count=8)
    )
    return fit_report(fitted, holdout=False)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pages")
    everything().write_html(folder / "everything.html")
    law().write_html(folder / "law.html")
    return folder


@pytest.mark.parametrize("name", ["everything", "law"])
def test_no_text_is_cut_and_axe_finds_nothing(pages, look, name) -> None:
    looks = look(pages / f"{name}.html")
    assert {item.name: item.cut for item in looks if item.cut} == {}
    if all(item.axe is None for item in looks):
        pytest.skip("no axe.min.js: install steelyard[browser] or set STEELYARD_AXE")
    assert {item.name: item.axe for item in looks if item.axe} == {}


@pytest.mark.parametrize(
    "css",
    [
        "table{min-width:60rem}",
        ".fact .value{display:block;width:2rem;overflow:hidden;white-space:nowrap}",
        ".chart svg{overflow:hidden}.chart svg>g{transform:translateX(-40px)}",
    ],
)
def test_cut_text_would_be_found(tmp_path, look, css) -> None:
    path = tmp_path / "broken.html"
    path.write_text(everything().to_html().replace("</style>", f"{css}</style>"))
    assert [item for item in look(path, widths=(820,), sheets=()) if item.cut]


@pytest.mark.parametrize("width", [390, 820, 1300])
def test_each_row_shows_its_verdict(pages, open_page, width) -> None:
    with open_page(pages / "everything.html", width) as view:
        boxes = [item.bounding_box() for item in view.locator(".checks .verdict").all()]
        rows = view.locator(".checks tbody tr").all()
        cards = [item.bounding_box() for item in rows]
        heads = view.get_by_role("columnheader", name="Verdict").count()
        cells = view.get_by_role("row", name="train.step_time").first.get_by_role("cell").count()
    assert len(boxes) == len(cards) == len(checks())
    for box, card in zip(boxes, cards, strict=True):
        assert card["x"] <= box["x"]
        assert box["x"] + box["width"] <= card["x"] + card["width"] <= width
        assert card["y"] <= box["y"] < card["y"] + card["height"]
    # A card still is a table's row to a screen reader.
    assert heads == 1
    assert cells == 4


def test_on_a_phone_a_row_is_a_card_and_charts_are_drawn_for_it(pages, open_page) -> None:
    with open_page(pages / "everything.html", 390) as view:
        heights = [item.bounding_box()["height"] for item in view.locator(".checks tr").all()[1:]]
        drawn = view.locator(".drawing svg:visible").all()
        sizes = [item.bounding_box()["width"] for item in drawn]
        text = view.locator(".drawing svg:visible text").first.bounding_box()["height"]
    assert min(heights) > 100
    assert len(sizes) == 4
    assert max(sizes) <= 390
    assert text > 8  # letters as large as on the page, not a page's drawing made small


def test_dark_page_has_dark_charts(pages, open_page) -> None:
    lightness = """name => [...document.querySelectorAll(name)].filter(it => it.checkVisibility())
      .map(it => getComputedStyle(it)[it.closest("svg") ? "fill" : "backgroundColor"]
        .match(/\\d+/g).slice(0, 3).reduce((a, b) => a + +b, 0) / 3)"""
    for scheme, is_dark in (("light", False), ("dark", True)):
        with open_page(pages / "everything.html", 1300, color_scheme=scheme) as view:
            cards = view.evaluate(lightness, ".chart .card")
            words = view.evaluate(lightness, ".drawing text")
        assert all((value < 80) == is_dark for value in cards)
        assert all((value > 130) == is_dark for value in words)


def test_a_chart_answers_the_pointer_under_its_content_policy(pages, open_page) -> None:
    with open_page(pages / "everything.html", 1300) as view:
        wrong = []
        view.on("pageerror", lambda error: wrong.append(str(error)))
        view.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        place = view.locator(".drawing.page").first
        before = place.inner_html()
        place.hover()
        view.wait_for_function(
            "old => document.querySelector('.page').innerHTML !== old", arg=before
        )
        box = place.locator("svg").bounding_box()
        point = view.locator(".page .mark-symbol path").first
        point.hover(force=True)
        view.wait_for_selector("#vg-tooltip-element.visible")
    assert wrong == []
    assert box["x"] + box["width"] <= 1300


@pytest.mark.parametrize(("sheet", "width_pt"), [("A4", 595), ("Letter", 612)])
def test_paper_holds_every_verdict(pages, open_page, tmp_path, sheet, width_pt) -> None:
    reader = shutil.which("pdftotext")
    if reader is None:
        pytest.skip("no pdftotext (poppler-utils) on this machine")
    path = tmp_path / "report.pdf"
    with open_page(pages / "everything.html", 1300) as view:
        view.pdf(path=str(path), format=sheet, print_background=True)
    text = subprocess.run([reader, "-bbox", str(path), "-"], capture_output=True, check=True)
    words = [
        (item.text, float(item.attrib["xMin"]), float(item.attrib["xMax"]))
        for item in ElementTree.fromstring(text.stdout).iter("{http://www.w3.org/1999/xhtml}word")
    ]
    verdicts = [word for word in words if word[0] in ("inside", "outside")]
    assert len(verdicts) >= len(checks()) + 2  # and those of the chart's legend
    assert [word for word in words if word[1] < 20 or word[2] > width_pt - 20] == []
