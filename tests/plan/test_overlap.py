"""Overlap of operations: cuts, order, shares, the search, kernels' tables, and two cores."""

import gzip
import itertools
import json
from dataclasses import replace

import numpy as np
import polars
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard import catalog
from steelyard.cost import Machine
from steelyard.cost.step_time import ServeStepTime
from steelyard.errors import BackendError, CatalogError, ConfigError, DataError
from steelyard.plan.overlap import (
    InterferenceTable,
    Operation,
    OperationGraph,
    PairTiming,
    Rewrite,
    TokenTimes,
    published_interference,
    search,
)
from steelyard.plan.overlap.kernel_times import MeasuredKernels, RooflineKernels
from steelyard.plan.overlap.layers import ServedBatch, serving_layer
from steelyard.plan.overlap.nano import cut
from steelyard.plan.overlap.order import shortest_order
from steelyard.plan.overlap.processor import decoding_layer
from steelyard.plan.overlap.running import PieceLinks, run_pieces
from steelyard.plan.overlap.search import without_overlap
from steelyard.plan.overlap.threads import measured_graph, profile, run_in_turn, run_schedule, tried


def _operation(name, resource, seconds, after=(), after_layer=(), tokens=256):
    kinds = {"compute": "gemm", "memory": "decode_attention", "network": "collective"}
    times = TokenTimes(tokens=(tokens,), seconds=(seconds,))
    half = TokenTimes(tokens=(tokens // 2, tokens), seconds=(seconds / 2, seconds))
    return Operation(
        name=name,
        kind=kinds[resource],
        resource=resource,
        times=half if tokens > 1 else times,
        after=after,
        after_layer=after_layer,
    )


def _layer(num_layers=8):
    """A layer whose two resources work equally long, so that two pieces can take turns."""
    return OperationGraph(
        tokens=256,
        operations=(
            _operation("product", "compute", 1.0, after_layer=("attention",)),
            _operation("attention", "memory", 1.0, after=("product",)),
        ),
        num_layers=num_layers,
    )


FREE = InterferenceTable(
    curves={"gemm": ((0.5, 1.0),), "decode_attention": ((0.5, 1.0),)}, device="without interference"
)
ZERO_SUM = InterferenceTable(
    curves={"gemm": ((0.5, 0.5),), "decode_attention": ((0.5, 0.5),)}, device="of one resource"
)


def test_two_pieces_take_turns_where_operations_do_not_slow_each_other():
    found = search(_layer(), FREE, 2)
    # In turn 2 s a layer; overlapped 1 s, and half a second at each end.
    assert found.sequential_s == pytest.approx(16)
    assert found.iteration_s == pytest.approx(8.5, rel=0.02)
    assert found.is_overlapped
    assert found.gain == pytest.approx(16 / found.iteration_s)


def test_nothing_is_overlapped_where_it_cannot_win():
    found = search(_layer(), ZERO_SUM, 2)
    assert not found.is_overlapped
    assert found.iteration_s == found.sequential_s
    assert found.gain == 1
    assert "reaches" in found.why


def test_a_schedule_keeps_dependencies_resources_and_shares():
    found = search(_layer(), published_interference(), 4, seed=1)
    start, end = found.start_s, found.end_s
    for place, item in enumerate(found.pieces):
        assert all(end[other] <= start[place] + 1e-12 for other in item.after)
        beside = [
            other
            for other in range(len(found.pieces))
            if start[other] <= start[place] + 1e-12 < end[other]
        ]
        assert sum(found.shares[other] for other in beside) <= 1 + 1e-6
        resources = [found.pieces[other].operation.resource for other in beside]
        assert len(set(resources)) == len(resources)


def test_a_timeline_has_a_task_for_each_piece():
    found = search(_layer(), FREE, 2)
    timeline = found.timeline()
    assert len(timeline.graph.tasks) == len(found.pieces)
    assert timeline.time_s == pytest.approx(found.end_s.max())
    assert found.busy("compute") <= 1


def test_the_same_seed_gives_the_same_schedule():
    one, other = (search(_layer(), published_interference(), seed=3) for _ in range(2))
    assert np.array_equal(one.start_s, other.start_s)


def _slow_order(seconds, before, resource):
    """Try all orders: each next operation starts as early as it can."""
    best = float("inf")
    for order in itertools.permutations(range(len(seconds))):
        if any(order.index(one) > order.index(place) for place in order for one in before[place]):
            continue
        free, end = {}, {}
        for place in order:
            at = max([free.get(resource[place], 0.0), *(end[one] for one in before[place])])
            end[place] = free[resource[place]] = at + seconds[place]
        best = min(best, *[max(end.values())])
    return best


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_the_order_is_the_shortest_of_all(data):
    count = data.draw(st.integers(1, 6))
    seconds = [data.draw(st.integers(1, 9)) / 4 for _ in range(count)]
    resource = [data.draw(st.sampled_from("abc")) for _ in range(count)]
    before = [
        tuple(sorted(data.draw(st.sets(st.integers(0, place - 1), max_size=2)))) if place else ()
        for place in range(count)
    ]
    start = shortest_order(seconds, before, resource, max_nodes=100_000)
    end = max(a + b for a, b in zip(start, seconds, strict=True))
    assert end == pytest.approx(_slow_order(seconds, before, resource))


def test_the_order_is_that_of_a_mixed_integer_program():
    from scipy.optimize import Bounds, LinearConstraint, milp

    pieces = cut(_layer(2), {"product": (128,), "attention": (128,)}, 2)
    seconds = [item.alone_s for item in pieces]
    count, big = len(pieces), sum(seconds)
    pairs = [
        (one, other)
        for one, other in itertools.combinations(range(count), 2)
        if pieces[one].operation.resource == pieces[other].operation.resource
    ]
    size = count + 1 + len(pairs)
    rows, lows = [], []

    def at_least(low, **terms):
        row = np.zeros(size)
        for name, value in terms.items():
            row[int(name[1:])] = value
        rows.append(row)
        lows.append(low)

    for place, item in enumerate(pieces):
        at_least(seconds[place], **{f"x{count}": 1, f"x{place}": -1})
        for other in item.after:
            at_least(seconds[other], **{f"x{place}": 1, f"x{other}": -1})
    for row, (one, other) in enumerate(pairs):
        chosen = f"x{count + 1 + row}"
        at_least(seconds[one] - big, **{f"x{other}": 1, f"x{one}": -1, chosen: -big})
        at_least(seconds[other], **{f"x{one}": 1, f"x{other}": -1, chosen: big})
    lower, upper = np.zeros(size), np.full(size, np.inf)
    upper[count + 1 :] = 1
    solved = milp(
        c=np.eye(size)[count],
        constraints=LinearConstraint(np.array(rows), lb=np.array(lows)),
        integrality=np.array([0] * (count + 1) + [1] * len(pairs)),
        bounds=Bounds(lower, upper),
    )
    start = shortest_order(
        seconds, [item.after for item in pieces], [item.operation.resource for item in pieces]
    )
    assert max(np.add(start, seconds)) == pytest.approx(solved.fun)


def test_pieces_depend_where_their_tokens_meet():
    pieces = cut(_layer(), {"product": (128,), "attention": (128,)}, 2)
    named = {(item.layer, item.words): item for item in pieces}
    second = named[0, "attention 128-256"]
    assert [pieces[place].words for place in second.after] == ["product 128-256"]
    following = named[1, "product 0-128"]
    assert [(pieces[one].layer, pieces[one].words) for one in following.after] == [
        (0, "attention 0-128")
    ]


def test_full_shares_run_one_after_the_other():
    pieces = cut(_layer(), {}, 2)
    links = PieceLinks.of(pieces)
    ones = np.ones(len(pieces))
    start, end = run_pieces(
        links.resource, links.counts, links.edges, np.arange(4.0), ones, links.alone_s
    )
    assert np.array_equal(start[1:], end[:-1])


def test_rewrites_take_the_place_of_what_they_replace():
    graph = _layer()
    other = _operation("two products", "compute", 0.5, after_layer=("attention",))
    free = OperationGraph(
        tokens=256,
        operations=graph.operations,
        rewrites=(Rewrite(replaces=("product",), by=(other,)),),
        num_layers=4,
    )
    found = search(free, FREE, 2)
    assert "two products" in [item.name for item in found.graph.operations]
    assert found.iteration_s < search(graph, FREE, 2).iteration_s
    with pytest.raises(ConfigError, match="not in the graph"):
        free.rewritten(Rewrite(replaces=("nothing",), by=(other,)))


def test_bad_graphs_are_refused():
    one = _operation("one", "compute", 1.0, after=("two",))
    two = _operation("two", "memory", 1.0, after=("one",))
    with pytest.raises(ConfigError, match="cycle: one, two"):
        search(OperationGraph(tokens=256, operations=(one, two)), FREE)
    with pytest.raises(ConfigError, match="waits for two, which is not"):
        search(OperationGraph(tokens=256, operations=(one,)), FREE)
    with pytest.raises(ConfigError, match="called two"):
        search(OperationGraph(tokens=256, operations=(two, two)), FREE)
    with pytest.raises(ConfigError, match="3 tokens cannot be cut into 4"):
        search(OperationGraph(tokens=3, operations=_layer().operations), FREE)
    with pytest.raises(ConfigError, match="no entry for decode_attention"):
        search(_layer(), InterferenceTable(curves={"gemm": ()}, device="half"))
    with pytest.raises(ConfigError, match="rising tokens"):
        TokenTimes(tokens=(2, 1), seconds=(1.0, 1.0))
    with pytest.raises(ConfigError, match="must rise"):
        InterferenceTable(curves={"gemm": ((0.5, 0.6), (0.7, 0.4))}, device="bent")


def test_pairs_make_a_table_by_their_medians():
    pairs = [
        PairTiming(
            kind="gemm",
            other="decode_attention",
            performance=value,
            other_performance=0.9,
            setting="a core each",
        )
        for value in (0.5, 0.6, 0.7)
    ]
    table = InterferenceTable.from_pairs(pairs, device="test")
    assert table.points("gemm") == {0.6: 0.6, 1.0: 1.0}
    assert list(table.points("decode_attention")) == pytest.approx([0.4, 1.0])
    assert list(table.points("decode_attention").values()) == [0.9, 1.0]


def test_the_published_table_is_monotone_and_above_its_share():
    table = published_interference()
    for kind in table.curves:
        assert all(share <= speed <= 1 for share, speed in table.points(kind).items())


def test_a_serving_layer_has_the_published_operations():
    machine = Machine.from_accelerator(catalog.accelerator("A100-SXM4-80GB"))
    arch = catalog.architecture_by_name("llama-2-70b")
    batch = ServedBatch(tokens=2048, prompt_tokens=512, output_tokens=512)
    assert (batch.decoding, batch.context) == (1024, 768)
    graph = serving_layer(arch, RooflineKernels(machine=machine), batch, tensor_parallel=8)
    assert [item.name for item in graph.ordered()] == [
        "qkv",
        "decode_attention",
        "prefill_attention",
        "out",
        "out_all_reduce",
        "up",
        "down",
        "down_all_reduce",
    ]
    assert graph.num_layers == 80
    alone = serving_layer(arch, RooflineKernels(machine=machine), batch)
    assert not alone.rewrites
    assert all(item.resource != "network" for item in alone.operations)
    with pytest.raises(ConfigError, match="do not divide"):
        serving_layer(arch, RooflineKernels(machine=machine), batch, tensor_parallel=7)
    with pytest.raises(ConfigError, match="experts"):
        mixture = catalog.architecture_by_name("mixtral-8x7b")
        serving_layer(mixture, RooflineKernels(machine=machine), batch)
    with pytest.raises(ConfigError, match="at least 1, 0 and 1"):
        ServedBatch(tokens=0, prompt_tokens=1, output_tokens=1)
    with pytest.raises(CatalogError, match="scale_up"):
        lonely = Machine.from_accelerator(catalog.accelerator("L40S"))
        serving_layer(arch, RooflineKernels(machine=lonely), batch, tensor_parallel=8)


def _tables(folder):
    """Write tables of an accelerator whose times are products of the sizes."""
    sizes = list(itertools.product((128, 256), (64, 128), (64, 128)))
    polars.DataFrame(
        [
            {"dtype": "bfloat16", "m": m, "n": n, "k": k, "latency_ms": m * n * k / 1e6}
            for m, n, k in sizes
        ]
    ).write_csv(folder / "x_gemm.csv")
    heads = {"num_heads": 8, "num_key_value_heads": 1, "head_dim": 128}
    polars.DataFrame(
        [
            heads | {"batch_size": b, "context_len": c, "latency_ms": b * c / 1e4}
            for b, c in ((16, 100), (16, 200), (32, 100), (32, 200))
        ]
    ).write_csv(folder / "x_decode_attention.csv")
    polars.DataFrame(
        [heads | {"batch_size": b, "prompt_len": 64, "latency_ms": b * 0.1} for b in (1, 2)]
    ).write_csv(folder / "x_prefill_attention.csv")
    polars.DataFrame(
        [
            {"collective": name, "num_gpus": 8, "elements": size, "latency_ms": size / 1e6}
            for name in ("all_reduce", "all_gather")
            for size in (1000, 2000)
        ]
    ).write_csv(folder / "x_nccl.csv")
    for path in folder.glob("x_*.csv"):
        path.with_suffix(".csv.gz").write_bytes(gzip.compress(path.read_bytes()))


def test_measured_kernels_interpolate_and_refuse(tmp_path):
    _tables(tmp_path)
    kernels = MeasuredKernels.load(tmp_path, "x")
    assert kernels.product_s(128, 64, 128) == pytest.approx(128 * 64 * 128 / 1e9)
    assert kernels.product_s(192, 96, 64) == pytest.approx(192 * 96 * 64 / 1e9)
    assert kernels.decode_s(24, 150, 8, 1) == pytest.approx(24 * 150 / 1e7)
    assert kernels.decode_s(16, 400, 8, 1) == pytest.approx(16 * 400 / 1e7)
    assert kernels.prefill_s(4, 64, 8, 1) == pytest.approx(0.4 / 1e3)
    assert kernels.collective_s("all_reduce", 1500, 8) == pytest.approx(1.5e-6)
    with pytest.raises(DataError, match="4 devices"):
        kernels.collective_s("all_reduce", 1500, 4)
    with pytest.raises(DataError, match="16 heads"):
        kernels.decode_s(1, 1, 16, 1)
    with pytest.raises(DataError, match="y_gemm"):
        MeasuredKernels.load(tmp_path, "y")


def _small():
    return replace(
        catalog.architecture_by_name("llama-2-7b"),
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        intermediate_size=128,
    )


def _in_proportion(graph):
    """Replace measured times, which vary, by some for which overlap pays."""
    seconds = {"compute": 1.0, "memory": 4.0}
    operations = [
        replace(
            item,
            times=TokenTimes(
                tokens=(8, 32), seconds=(seconds[item.resource] / 4, seconds[item.resource])
            ),
        )
        for item in graph.operations
    ]
    return replace(graph, operations=tuple(operations))


def test_a_schedule_on_two_cores_computes_what_operations_in_turn_do():
    results = []
    for overlapped in (True, False):
        work = decoding_layer(
            _small(), tokens=32, context=64, generator=torch.Generator().manual_seed(0)
        )
        graph = _in_proportion(measured_graph(work, tokens=32, unit=8, num_layers=2))
        table = InterferenceTable(
            curves={"gemm": ((0.5, 1.0),), "decode_attention": ((0.5, 1.0),)}, device="hopeful"
        )
        if overlapped:
            found = search(graph, table, 2)
            assert found.is_overlapped
            assert len(run_schedule(found, work, rounds=2)) == 2
        else:
            assert len(run_in_turn(graph, 2, work, rounds=2)) == 2
        # The stream that layers work on is the last operation's result.
        stream = work[-1].work.__closure__
        tensors = [
            cell.cell_contents for cell in stream if isinstance(cell.cell_contents, torch.Tensor)
        ]
        results.append(max(tensors, key=lambda item: item.shape[1] == 64))
    assert torch.allclose(results[0], results[1], rtol=1e-4, atol=1e-6)


def test_a_schedule_that_is_not_faster_is_not_taken():
    work = decoding_layer(
        _small(), tokens=32, context=64, generator=torch.Generator().manual_seed(0)
    )
    graph = measured_graph(work, tokens=32, unit=8, num_layers=2)
    for item in graph.operations:
        each = np.array(item.times.seconds) / np.array(item.times.tokens)
        # A smaller piece never has cheaper tokens.
        assert (np.diff(each) <= 1e-12).all()
    found = search(_in_proportion(graph), FREE, 2)
    chosen = tried(found, graph, work, rounds=1)
    assert chosen is found or not chosen.is_overlapped
    alone = without_overlap(found, graph, "as a test says")
    assert alone.gain == 1
    assert alone.why == "as a test says"
    assert tried(alone, graph, work) is alone


def test_a_profile_has_every_kind_and_refuses_other_devices():
    work = decoding_layer(
        _small(), tokens=16, context=32, generator=torch.Generator().manual_seed(0)
    )
    table = profile(work, tokens=16)
    assert set(table.curves) == {"gemm", "decode_attention"}
    assert table.provenance == "measured"
    with pytest.raises(BackendError, match="not on cuda"):
        profile(work, "cuda", tokens=16)
    with pytest.raises(ConfigError, match="another resource"):
        profile(work[:1], tokens=16)


def test_step_times_with_a_schedule_are_shorter_by_its_gain():
    arch = catalog.architecture_by_name("llama-2-7b")
    machine = Machine.from_accelerator(catalog.accelerator("A100-SXM4-80GB"))
    found = search(_layer(), FREE, 2)
    plain = ServeStepTime.from_roofline(arch, machine)
    nano = ServeStepTime.from_roofline(arch, machine, nano=found)
    assert np.allclose(np.array(plain.coefficients) / found.gain, nano.coefficients)
    assert nano.source.endswith("overlapped")


def test_the_verb_prints_schedule_and_reasons(capsys, tmp_path):
    from steelyard.cli.plan.overlap import overlap

    arguments = {"model": "llama-2-7b", "machine": "A100-SXM4-80GB", "batch": 256, "max_nano": 2}
    overlap(**arguments, trace=tmp_path / "trace.json")
    told = capsys.readouterr().out
    assert "decode_attention" in told
    assert "assumed" in told
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    overlap(**arguments, json=True, gemm="260 TFLOP/s")
    values = json.loads(capsys.readouterr().out)
    assert values["gain"] >= 1
    assert values["optimum_tokens_per_s_per_device"] > values["tokens_per_s_per_device"]
    with pytest.raises(ConfigError, match="--timings"):
        overlap(model="llama-2-7b", machine="this-machine", tensor=2)
