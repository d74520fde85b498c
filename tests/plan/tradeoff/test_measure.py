from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from steelyard.errors import ConfigError
from steelyard.nn.transformer import build
from steelyard.plan.tradeoff.cells import MeasurePlan, QualityCell, SpeedCell
from steelyard.plan.tradeoff.configuration import BASELINE
from steelyard.plan.tradeoff.measure import measure
from steelyard.plan.tradeoff.running import Bench, weight_bytes
from steelyard.plan.tradeoff.tasks import TASKS, Template, draw_texts
from steelyard.serve.scoring import bounded_losses, engine_losses
from steelyard.serve.sparse.policies import Full, Window

TEMPLATE = Template(define="!{key}{value}\n", ask="?{key}", alias="!{key}={other}\n", key_length=2)
PLAN = MeasurePlan(
    lengths=(112, 160),
    reference=(112,),
    memory_bytes=400_000,
    count=2,
    texts=2,
    documents=1,
    asks=2,
    output_tokens=2,
    template=TEMPLATE,
)
TEXT = np.random.default_rng(0).integers(97, 123, 4000)
BEGINS = np.arange(256) == 101
CHOSEN = [BASELINE, replace(BASELINE, name="window", cache="window", cache_tokens=16)]


def encode(text):
    return list(text.encode())


def run(tiny, folder, chosen=CHOSEN, **options):
    return measure(
        tiny,
        chosen,
        replace(PLAN, **options),
        text=TEXT,
        encode=encode,
        begins=BEGINS,
        folder=folder,
    )


def test_losses_of_the_engine_are_those_of_the_forward(tiny):
    rows = TEXT[:128].reshape(2, 64)
    wanted = [
        F.cross_entropy(
            tiny(torch.from_numpy(row)[None])[0, :-1], torch.from_numpy(row[1:]), reduction="none"
        )
        .detach()
        .numpy()
        for row in rows
    ]
    for found, plain in zip(engine_losses(tiny, list(rows)), wanted, strict=True):
        assert found == pytest.approx(plain, abs=1e-4)
    for found, plain in zip(engine_losses(tiny, list(rows), last=7), wanted, strict=True):
        assert found == pytest.approx(plain[-7:], abs=1e-4)
    assert bounded_losses(tiny, Full(), rows, 9) == pytest.approx(
        np.stack(wanted)[:, -9:], abs=1e-4
    )
    assert not np.allclose(bounded_losses(tiny, Window(8), rows, 9), np.stack(wanted)[:, -9:])


def test_a_killed_measurement_goes_on_and_ends_with_the_same_cells(tiny, tmp_path, monkeypatch):
    calls = []

    def called(name, chosen, number):
        calls.append((name, chosen.name, number))
        if len(calls) == 9:
            raise KeyboardInterrupt

    def quality(self, chosen, seed):
        called("quality", chosen, seed)
        accuracy = {task: [0.5, 0.25] for task in TASKS}
        return QualityCell(
            configuration=chosen.name, seed=seed, accuracy=accuracy, loss=[1.0 + seed, 2.0]
        )

    def speed(self, chosen, repeat):
        called("speed", chosen, repeat)
        return SpeedCell(
            configuration=chosen.name,
            round=repeat,
            tokens_per_s=[10.0 + repeat],
            ttft_s=[1.0],
            tpot_s=[1.0],
            fits_tokens=100.0,
            weight_bytes=1.0,
        )

    monkeypatch.setattr(Bench, "quality", quality)
    monkeypatch.setattr(Bench, "speed", speed)
    with pytest.raises(KeyboardInterrupt):
        run(tiny, tmp_path)
    first = calls[:8]
    found = run(tiny, tmp_path)
    assert not set(first) & set(calls[9:])
    assert len(found.quality) == 6 and len(found.speed) == 9
    assert found.quality[0].configuration == "dense"
    assert run(tiny, tmp_path) == found and len(calls) == 9 + 15 - 8
    # Another plan, or other weights, are measured anew.
    run(tiny, tmp_path, count=1)
    assert len(calls) == 16 + 15
    run(build(tiny.architecture, seed=2), tmp_path)
    assert len(calls) == 16 + 30


def test_the_same_seed_finds_the_same_answers(tiny):
    bench = Bench(model=tiny, text=TEXT, encode=encode, begins=BEGINS, plan=PLAN)
    assert bench.quality(CHOSEN[1], 2) == bench.quality(CHOSEN[1], 2)


def test_memory_is_the_same_for_all_and_what_does_not_fit_is_not_served(tiny):
    bench = Bench(model=tiny, text=TEXT, encode=encode, begins=BEGINS, plan=PLAN)
    narrow = replace(BASELINE, name="kv", kv_dtype="int8")
    dense, kv = (bench.speed(item, 0).fits_tokens for item in (BASELINE, narrow))
    room = PLAN.memory_bytes - weight_bytes(tiny, "fp32")
    assert dense == pytest.approx(room / 256, abs=16)
    assert 3 < kv / dense <= 4
    bench.plan = replace(PLAN, memory_bytes=int(weight_bytes(tiny, "fp32")) + 9000)
    assert bench.speed(BASELINE, 0).tokens_per_s == [0.0]
    bench.plan = replace(PLAN, memory_bytes=1000)
    assert bench.speed(BASELINE, 0).tokens_per_s == [0.0]


def test_names_have_to_differ(tiny, tmp_path):
    with pytest.raises(ConfigError, match="2 configurations, 1 names"):
        run(tiny, tmp_path, [BASELINE, replace(BASELINE, token_budget=64)])


def test_texts_are_shortened_like_prompts(tiny):
    bench = Bench(model=tiny, text=TEXT, encode=encode, begins=BEGINS, plan=PLAN)
    item = draw_texts(160, 1, text=TEXT, seed=0)[0]
    short = replace(BASELINE, name="s", prompt="selective", prompt_kept=0.5)
    assert len(bench._prompt(short, item)) <= 0.5 * len(item.context) + len(item.question)
    cell = bench.quality(short, 0)
    assert all(np.isfinite(cell.loss)) and set(cell.accuracy) == {"needle", "recall", "tracking"}
