"""Folders of quantized weights: budgets, atomicity, refusals, and what is measured."""

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.catalog.architecture import Architecture
from steelyard.cli.main import main
from steelyard.errors import CapacityError, ConfigError, DataError, InfeasibleError, StoreError
from steelyard.files import exclusive, read_json
from steelyard.nn import checkpoint
from steelyard.nn.quantizing.layer import MATRICES, StoredType
from steelyard.nn.quantizing.sensitivity import Sensitivity
from steelyard.nn.transformer import build
from steelyard.serve.quantize import staging
from steelyard.serve.quantize.allocation import Choice, choose_types
from steelyard.serve.quantize.job import quantize
from steelyard.serve.quantize.mixture import Mixture, _allocated
from steelyard.serve.quantize.options import QuantizeOptions
from steelyard.serve.quantize.shrinkage import shrunk

SMALL = Architecture(
    name="small",
    hidden_size=64,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    intermediate_size=96,
    vocab_size=61,
    max_positions=32,
    tied_embeddings=False,
)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A model without a tokenizer, beside a text of token ids that it finds likely."""
    folder = tmp_path_factory.mktemp("quantize") / "model"
    model = build(SMALL).eval()
    checkpoint.save(model, folder)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 61, (40 * 32,), generator=generator).tolist()
    (folder.parent / "text.txt").write_text(" ".join(map(str, ids)))
    return folder


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def asked(source, **more):
    return QuantizeOptions(calibrate=source.parent / "text.txt", threads=1, **more)


def test_the_best_of_all_methods_is_written_and_loads(source, tmp_path, one_thread, capsys):
    words = ["serve", "quantize", str(source), "--calibrate", str(source.parent / "text.txt")]
    out = tmp_path / "made"
    with pytest.raises(SystemExit) as ended:
        main([*words, "--out", str(out), "--json", "--threads", "1"])
    assert ended.value.code == 0
    said = json.loads(capsys.readouterr().out)
    assert set(said["tried"]) == {"nearest", "awq", "gptq", "awq+gptq"}
    assert said["method"] == min(said["tried"], key=said["tried"].get)
    assert said["losses_before"].keys() == said["losses_after"].keys() == {"text", "own"}
    assert [item["types"]["qkv"] for item in said["layers"]] == ["int4", "int4"]
    assert said["bytes_after"] < said["bytes_before"]
    assert read_json(out / staging.RECORD) == said
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    checkpoint.load(out)
    with pytest.raises(ConfigError, match="quantized already"):
        quantize(out, tmp_path / "again", asked(source))


def test_a_memory_budget_and_a_loss_budget_choose_types(source, tmp_path, one_thread):
    model = checkpoint.load(source)
    matrices = sum(item.nbytes for item in model.layers.parameters() if item.ndim == 2)
    # Between what int4 and what int8 alone would take.
    budget = sum(item.nbytes for item in model.parameters()) - matrices + matrices * 85 // 400
    options = asked(source, weights="mixed", memory_bytes=budget, method="nearest")
    result = quantize(source, tmp_path / "memory", options)
    # Shapes of packed matrices are stored too, 16 bytes each.
    assert result.bytes_after <= budget + 16 * 14
    kinds = {kind for layer in result.layers for kind in layer.types.values()}
    assert len(kinds) > 1
    (check,) = result.checks
    assert check.forecast.low <= check.forecast.value <= check.forecast.high
    assert check.measurement.value == pytest.approx(result.losses_after["text"])
    options = dataclasses.replace(options, memory_bytes=0, max_loss=1e-9)
    result = quantize(source, tmp_path / "loss", options)
    assert result.checks[0].forecast.low <= result.losses_before["text"] + 1e-9
    with pytest.raises(InfeasibleError, match="fewest bytes"):
        quantize(source, tmp_path / "none", asked(source, weights="mixed", memory_bytes=10**4))


def test_a_run_that_is_cut_leaves_the_old_folder_and_is_gone_on_with(source, tmp_path, one_thread):
    out = tmp_path / "made"
    quantize(source, out, asked(source, weights="int8"))
    old = (out / "model.safetensors").read_bytes()
    done = []

    def cut(share, words):
        done.append(words)
        if "layer 1" in words:
            raise KeyboardInterrupt

    options = asked(source, method="gptq")
    with pytest.raises(KeyboardInterrupt):
        quantize(source, out, options, advance=cut)
    assert (out / "model.safetensors").read_bytes() == old
    stage = tmp_path / ".made.quantizing"
    first = stage / "layers" / "gptq" / "layer-00000.safetensors"
    written = first.stat().st_mtime_ns
    seen = []
    quantize(source, out, options, advance=lambda *_: seen.append(first.stat().st_mtime_ns))
    assert set(seen) == {written}  # not made again
    assert (out / "model.safetensors").read_bytes() != old and not stage.exists()
    # What another choice has left is not taken.
    with pytest.raises(KeyboardInterrupt):
        quantize(source, out, options, advance=cut)
    quantize(source, out, dataclasses.replace(options, group=32))
    assert checkpoint.load(out).architecture.num_layers == 2


@pytest.mark.slow
def test_a_killed_run_leaves_the_old_folder(source, tmp_path):
    out = tmp_path / "made"
    quantize(source, out, asked(source, weights="int8"))
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    words = [sys.executable, "-m", "steelyard", "serve", "quantize", str(source)]
    words += ["--calibrate", str(source.parent / "text.txt"), "--out", str(out), "--threads", "1"]
    ends = []
    for wait_s in (0.05, 0.2, 0.5, 1.0):
        process = subprocess.Popen(words, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        stage = tmp_path / ".made.quantizing"
        while process.poll() is None and not (stage / "job.json").exists():
            time.sleep(0.01)
        time.sleep(wait_s)
        os.kill(process.pid, signal.SIGKILL)
        ends.append(process.wait())
        now = {path.name: path.read_bytes() for path in out.iterdir()}
        assert now == before or ends[-1] == 0
    assert -signal.SIGKILL in ends
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0
    assert checkpoint.load(out) and not stage.exists()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"weights": "int2"}, "weights"),
        ({"group": 48}, "group"),
        ({"method": "gptq"}, "needs --calibrate"),
        ({"memory_bytes": 5}, "needs --weights mixed"),
        ({"weights": "mixed"}, "--memory or --max-loss"),
        ({"weights": "mixed", "memory_bytes": 5, "max_loss": 0.1}, "not both"),
        ({"weights": "int8", "zero_points": True}, "--zero-points needs"),
        ({"max_loss": -0.1}, "max_loss"),
    ],
)
def test_options_that_do_not_fit_are_refused(given, said):
    with pytest.raises(ConfigError, match=said):
        QuantizeOptions(**given)


def test_what_cannot_be_done_is_refused_before_work(source, tmp_path, monkeypatch):
    out = tmp_path / "made"
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "precious.txt").write_text("kept")
    with pytest.raises(ConfigError, match="not written by this command"):
        quantize(source, tmp_path / "other", asked(source))
    with pytest.raises(ConfigError, match="not written by this command"):
        quantize(source, source, asked(source))
    (tmp_path / "few.txt").write_text("1 2 3")
    with pytest.raises(DataError, match="needs at least"):
        quantize(source, out, QuantizeOptions(calibrate=tmp_path / "few.txt"))
    (tmp_path / "wild.txt").write_text("99 " * 2000)
    with pytest.raises(DataError, match="token 99"):
        quantize(source, out, QuantizeOptions(calibrate=tmp_path / "wild.txt"))
    with exclusive(tmp_path / ".made.quantizing"), pytest.raises(StoreError, match="another"):
        monkeypatch.setattr("steelyard.files.time.sleep", lambda _: None)
        monkeypatch.setattr("steelyard.files.time.monotonic", itertools.count(0, 9).__next__)
        quantize(source, out, asked(source))
    monkeypatch.undo()
    monkeypatch.setattr(staging, "memory_bytes", lambda _: 1e5)
    with pytest.raises(CapacityError, match="of memory are needed"):
        quantize(source, out, asked(source))
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(staging.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(CapacityError, match="beside"):
        quantize(source, out, asked(source))
    assert not out.exists() and (tmp_path / "other" / "precious.txt").read_text() == "kept"


@st.composite
def parts_on_hulls(draw):
    """Choices whose gains per byte fall, as those of a convex hull do."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        size, loss, part = draw(st.integers(1, 9)), draw(st.integers(60, 90)) / 10, {}
        rate = 4.0
        for name in ("int4", "int8", "plain"):
            part[name] = Choice(size, loss)
            more = draw(st.integers(1, 9))
            rate *= draw(st.floats(0.05, 0.8))
            size, loss = size + more, loss - rate * more / 20
        found.append(part)
    return found


@settings(max_examples=30, deadline=None)
@given(parts=parts_on_hulls(), share=st.floats(0, 1))
def test_chosen_types_keep_the_budget_and_are_near_the_best(parts, share):
    low = sum(part["int4"].num_bytes for part in parts)
    high = sum(part["plain"].num_bytes for part in parts)
    budget = low + share * (high - low)

    def total(names, field):
        return sum(getattr(part[name], field) for part, name in zip(parts, names, strict=True))

    chosen = choose_types(parts, most_bytes=budget)
    assert total(chosen, "num_bytes") <= budget
    every = list(itertools.product(*parts))
    best = min(total(names, "loss") for names in every if total(names, "num_bytes") <= budget)
    # Greedy steps along the hull are off by less than one step, the largest that is left out.
    step = max(part["int4"].loss - part["plain"].loss for part in parts)
    assert best - 1e-9 <= total(chosen, "loss") <= best + step
    loss = total(chosen, "loss")
    again = choose_types(parts, most_loss=loss + 1e-9)
    assert total(again, "loss") <= loss + 1e-9
    fewest = min(
        total(names, "num_bytes") for names in every if total(names, "loss") <= loss + 1e-9
    )
    step = max(part["plain"].num_bytes - part["int4"].num_bytes for part in parts)
    assert fewest <= total(again, "num_bytes") <= fewest + step


def test_changes_are_drawn_to_those_of_their_kind_as_far_as_chance_explains_them():
    rng = np.random.default_rng(4)
    true = np.linspace(0.0, 0.06, 6)
    noise = rng.normal(0, 0.1, (6, 16))
    quiet = {(i, "qkv", "int4"): torch.from_numpy(true[i] + noise[i] / 100) for i in range(6)}
    loud = {(i, "up", "int4"): torch.from_numpy(true[i] + noise[i]) for i in range(6)}
    plain = {(i, "up", "plain"): torch.zeros(16, dtype=torch.float64) for i in range(6)}
    found = shrunk(quiet | loud | plain)
    assert [found[key] for key in quiet] == pytest.approx(true, abs=2e-3)
    means = np.array([float(loud[key].mean()) for key in loud])
    drawn = np.array([found[key] for key in loud])
    assert drawn.mean() == pytest.approx(means.mean())
    assert np.square(drawn - true).sum() < np.square(means - true).sum()
    assert all(found[key] == 0 for key in plain)


def test_a_choice_is_forecast_by_sequences_that_did_not_make_it(source):
    # Nothing changes any loss but by chance: the least of such changes is far below zero.
    rng = np.random.default_rng(0)
    model = checkpoint.load(source)
    matrices = [(layer, name) for layer in range(len(model.layers)) for name in MATRICES]
    kinds = {"int4": 10, "int8": 20, "plain": 40}
    found = [
        Sensitivity(
            layer=layer,
            matrix=name,
            kind=kind,
            num_bytes=size,
            losses=torch.from_numpy(rng.normal(0, 1e-3, 16) * (kind != "plain")),
        )
        for layer, name in matrices
        for kind, size in kinds.items()
    ]
    others = sum(item.nbytes for item in model.state_dict().values()) - 40 * len(matrices)
    options = QuantizeOptions(weights="mixed", memory_bytes=others + 20 * len(matrices))
    zeros = torch.zeros(16, dtype=torch.float64)

    def added(types, more=0.0):
        """What changes of single matrices add up to, and more."""
        parts = [i.losses for i in found if types[i.layer][i.matrix] == i.kind != "plain"]
        return sum(parts, start=zeros) + (more if parts else 0.0)

    mixture = _allocated(found, model, options, added)
    rises = np.array(mixture.rises)
    assert abs(rises.mean()) < 3 * rises.std(ddof=1) / np.sqrt(16)
    # Those that chose seem to lose less by it than others do.
    assert added(mixture.types).mean() < rises.mean()
    # What is more than the sum is found by rounding all of them.
    more = _allocated(found, model, options, lambda types: added(types, 0.5))
    assert np.array(more.rises) == pytest.approx(rises + 0.5)


def test_a_forecast_widens_with_few_sequences():
    types: tuple[dict[str, StoredType], ...] = ({"qkv": "int4"},)
    many = Mixture(types=types, rises=tuple([0.01, 0.03] * 20)).forecast(2.0, 40)
    few = Mixture(types=types, rises=(0.01, 0.03)).forecast(2.0, 4)
    assert many.value == few.value == pytest.approx(2.02)
    assert few.high - few.low > many.high - many.low > 0.005
