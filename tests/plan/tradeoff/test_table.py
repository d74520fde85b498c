import math
import re
import statistics
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.catalog.architecture import Architecture
from steelyard.errors import ConfigError
from steelyard.plan.tradeoff.cells import Measured, MeasurePlan, QualityCell, SpeedCell
from steelyard.plan.tradeoff.configuration import BASELINE
from steelyard.plan.tradeoff.explain import explain
from steelyard.plan.tradeoff.picture import tradeoff_chart
from steelyard.plan.tradeoff.table import effective_tokens, tabulate

ARCH = Architecture(
    name="t",
    hidden_size=64,
    num_layers=2,
    num_heads=2,
    num_kv_heads=2,
    head_dim=32,
    intermediate_size=128,
    vocab_size=256,
    max_positions=256,
)
PLAN = MeasurePlan(
    lengths=(128, 256, 512), reference=(128, 256), memory_bytes=1000, count=10, seeds=(0, 1, 2)
)
YARN = replace(BASELINE, name="yarn", positions="yarn", stretch=2.0)
WINDOW = replace(BASELINE, name="window", cache="window", cache_tokens=32)
FAST = replace(BASELINE, name="fast", weights="int8")
SHARP = replace(BASELINE, name="sharp", score_scale=1.2, weights="int8")


def measured(rows, *, noise=0.01, seed=0):
    """Make cells of (configuration, recall by length, loss, rate, fits) with noise."""
    rng = np.random.default_rng(seed)
    quality, speed = [], []
    for place, (chosen, recall, loss, rate, fits) in enumerate(rows):
        for one in PLAN.seeds:
            shift = 0.01 * one  # the same questions are harder for all
            quality.append(
                QualityCell(
                    configuration=chosen.name,
                    seed=one,
                    accuracy={
                        task: [at - shift for at in recall]
                        for task in ("needle", "recall", "tracking")
                    },
                    loss=[loss + shift] * 3,
                )
            )
        for one in range(PLAN.rounds * (2 if place == 0 else 1)):
            rates = [rate * math.exp(noise * rng.standard_normal()) for _ in PLAN.reference]
            speed.append(
                SpeedCell(
                    configuration=chosen.name,
                    round=one,
                    tokens_per_s=rates,
                    ttft_s=[0.1, 0.2],
                    tpot_s=[0.01, 0.02],
                    fits_tokens=fits,
                    weight_bytes=100.0,
                )
            )
    return Measured(
        model=ARCH,
        plan=PLAN,
        configurations=tuple(row[0] for row in rows),
        quality=tuple(quality),
        speed=tuple(speed),
    )


@pytest.fixture
def table():
    return tabulate(
        measured(
            [
                (BASELINE, [0.9, 0.8, 0.2], 2.0, 100.0, 400.0),
                (YARN, [0.88, 0.79, 0.75], 2.0, 100.0, 400.0),
                (WINDOW, [0.3, 0.1, 0.05], 2.004, 150.0, 1e18),
                (FAST, [0.9, 0.8, 0.2], 2.001, 140.0, 600.0),
                (SHARP, [0.99, 0.9, 0.2], 1.9, 140.0, 600.0),
            ]
        )
    )


def test_moves_are_typed_outside_the_noise_alone(table):
    types = {item.configuration.name: item.move.type for item in table.points}
    assert types == {"dense": "", "yarn": "C", "window": "P", "fast": "P", "sharp": "AP"}
    assert table.point("window").move.signs == (-1, -1, 1)
    assert table.point("dense").move.signs == (0, 0, 0)
    # 400 tokens fit of the 512 that are recalled.
    assert table.point("yarn").context_tokens == pytest.approx(400)
    assert table.violations() == []
    back = table.move("dense", "window")
    assert back.recall.value == pytest.approx(-table.point("window").move.recall.value)
    assert back.signs == (1, 1, -1)


def test_noise_makes_no_moves():
    rows = [(BASELINE, [0.9, 0.8, 0.2], 2.0, 100.0, 600.0)]
    rows += [(FAST, [0.9, 0.8, 0.2], 2.0, 101.0, 600.0)]
    quiet = [
        tabulate(measured(rows, noise=0.05, seed=seed)).point("fast").move.type
        for seed in range(20)
    ]
    assert quiet.count("") >= 18


def test_a_single_technique_that_gains_everywhere_is_reported_as_a_finding():
    rows = [
        (BASELINE, [0.8, 0.7, 0.1], 2.0, 100.0, 600.0),
        (FAST, [0.95, 0.9, 0.85], 1.9, 200.0, 900.0),
        (SHARP, [0.95, 0.9, 0.85], 1.9, 200.0, 900.0),
    ]
    found = tabulate(measured(rows)).violations()
    assert [item.configuration.name for item in found] == ["fast"]


def test_the_front_holds_what_no_other_beats(table):
    front = table.front()
    goals = [(item.context_tokens, item.recall, item.tokens_per_s) for item in table.points]
    for item, row in zip(table.points, goals, strict=True):
        is_beaten = any(
            other != row and all(a >= b for a, b in zip(other, row, strict=True)) for other in goals
        )
        assert (item in front) != is_beaten


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
    st.floats(0.05, 0.95),
    st.floats(0.01, 0.5),
)
def test_effective_context_rises_with_recall_and_falls_with_the_threshold(recall, share, more):
    lengths = (128, 256, 512)
    found = effective_tokens(lengths, recall, share)
    assert 0 <= found <= 512
    assert effective_tokens(lengths, [at + more for at in recall], share) >= found - 1e-6
    assert effective_tokens(lengths, recall, share + more) <= found + 1e-6


def test_effective_context_is_read_between_lengths():
    assert effective_tokens((100, 400), (1.0, 0.0), 0.5) == pytest.approx(200)
    assert effective_tokens((100, 400), (1.0, 0.9), 0.5) == 400
    assert effective_tokens((100, 400), (0.1, 0.0), 0.5) == pytest.approx(20)


def test_each_number_of_the_sentences_follows_from_the_cells(table):
    said = explain(table, "window", "dense")
    cells = [cell for cell in table.measured.quality if cell.configuration == "window"]
    recall = statistics.fmean(
        at for cell in cells for row in cell.accuracy.values() for at in row[:2]
    )
    loss = statistics.fmean(at for cell in cells for at in cell.loss[:2])
    assert f"{recall:.1%} of the answers" in said[1] and f"{loss:.3f} nats" in said[2]
    rates = [
        statistics.geometric_mean(cell.tokens_per_s)
        for cell in table.measured.speed
        if cell.configuration == "window"
    ]
    base = [
        statistics.geometric_mean(cell.tokens_per_s)
        for cell in table.measured.speed
        if cell.configuration == "dense"
    ][: PLAN.rounds]
    factor = math.exp(statistics.fmean(math.log(a / b) for a, b in zip(rates, base, strict=True)))
    assert f"{factor:.2f} times" in said[3]
    assert "pays with context and accuracy" in said[4]
    # The trap: recall is gone, and the loss says nothing.
    assert re.search(r"loss on text does not show it.* (\d+) of 100 answers are lost", said[5])
    with pytest.raises(ConfigError, match="no configuration 'x'"):
        explain(table, "x", "dense")


def test_a_model_that_answers_nothing_is_refused():
    rows = [(item, [0.02, 0.02, 0.02], 5.0, 9.0, 9.0) for item in (BASELINE, FAST)]
    made = measured(rows)
    blank = tuple(
        replace(cell, accuracy={task: [0.0] * 3 for task in cell.accuracy}) for cell in made.quality
    )
    with pytest.raises(ConfigError, match="answers none of the questions"):
        tabulate(replace(made, quality=blank))
    with pytest.raises(ConfigError, match="kept is 0"):
        tabulate(made, kept=0)


def test_plans_without_repeats_are_refused():
    with pytest.raises(ConfigError, match="2 different seeds"):
        replace(PLAN, seeds=(0, 0, 1))
    with pytest.raises(ConfigError, match="rounds"):
        replace(PLAN, rounds=2)
    with pytest.raises(ConfigError, match="reference"):
        replace(PLAN, reference=(100,))
    with pytest.raises(ConfigError, match="lengths"):
        replace(PLAN, lengths=(256, 128))


def test_the_picture_holds_every_configuration_and_its_band(table):
    rows = [row for rows in tradeoff_chart(table)["datasets"].values() for row in rows]
    names = {item.configuration.name for item in table.points}
    assert {row["name"] for row in rows} == names
    for row in rows:
        assert "rate" not in row or row["rate_low"] <= row["rate"] <= row["rate_high"]
