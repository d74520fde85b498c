"""The wide search of layouts: against loops over every axis, pinned axes, engines and refusals."""

import itertools
from dataclasses import fields, replace

import numpy as np
import pytest

from steelyard import catalog
from steelyard.catalog.architecture import Architecture
from steelyard.catalog.hardware import Level
from steelyard.cost.layout import RECOMPUTE, SCHEDULES, Layout
from steelyard.cost.roofline import Machine
from steelyard.cost.step import training_step
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan import exports
from steelyard.plan.advice import advise
from steelyard.plan.alternatives import nearest_fit, rejected
from steelyard.plan.changes import nearest_changes
from steelyard.plan.exports import Arrangement, TrainingJob
from steelyard.plan.layout_space import LayoutSpace, layout_columns
from steelyard.plan.layouts import search_layouts
from steelyard.plan.training_search import TrainingSearch
from steelyard.plan.types import layout_words

_DENSE = Architecture(
    name="small",
    hidden_size=512,
    num_layers=6,
    num_heads=8,
    num_kv_heads=4,
    head_dim=64,
    intermediate_size=2048,
    vocab_size=4096,
    max_positions=16384,
)
_MIXED = replace(_DENSE, num_experts=4, experts_per_token=2, moe_intermediate_size=1024)
_ODD = replace(_DENSE, num_layers=7)
_MACHINE = Machine(
    name="made up",
    dtype="bf16",
    peak_flops_per_s=1e14,
    memory_bytes=0.6e9,
    memory_bytes_per_s=1e12,
    accelerators_per_node=4,
    num_nodes=2,
    scale_up_bytes_per_s=1e11,
    injection_bytes_per_s=2e10,
    host_link_bytes_per_s=1e10,
    levels=(
        Level(name="node", members=4, bytes_per_s=1e11),
        Level(name="network", members=2, bytes_per_s=2e10),
    ),
)
_BATCH, _LENGTH = 16, 16384
_JOB = {"counts": [8], "global_batch": _BATCH, "sequence_length": _LENGTH}
_SHARDS = ("weight_shards", "gradient_shards", "optimizer_shards")
_EVERY = [
    item.name for item in fields(Layout) if "bits" not in item.name and "copy" not in item.name
]
_ROW = (*_EVERY, "micro_batch", "accumulation")


def _legal(arch, one):
    """Whether a layout of eight accelerators exists, by rules on plain numbers."""
    replicas = one["data"] * one["context"]
    chunks, stages, steps = one["virtual_stages"], one["pipeline"], one["accumulation"]
    lacking = -arch.num_layers % stages
    stage = one["tensor"] * replicas
    group, size = one["expert"], one["optimizer_shards"]
    width = arch.moe_intermediate_size if arch.num_experts else 0
    return (
        arch.num_heads % one["tensor"] == 0
        and lacking <= (2 if stages > 1 else 0)
        and -arch.num_layers % (stages * chunks) == lacking
        and stages * chunks <= arch.num_layers + 2
        and (chunks == 1 or (stages > 1 and one["schedule"] == 0 and steps % stages == 0))
        and (one["schedule"] == 0 or stages > 1)
        and (one["schedule"] != 2 or steps >= stages)
        and (one["context"] == 1 or _LENGTH % (2 * one["context"] * one["tensor"]) == 0)
        and one["context"] <= _LENGTH // 4096
        and (one["zero_stage"] == 0 or replicas > 1)
        and (one["zero_stage"] < 2 or stages == 1)
        and (size == 0 or (size < replicas and replicas % size == 0 and one["tensor"] * size == 4))
        and (group == 1 or (arch.num_experts > 0 and arch.num_experts % group == 0))
        and stage % group == 0
        and (group % one["tensor"] == 0 or one["tensor"] % group == 0)
        and (group > 1 or width % one["tensor"] == 0)
        and (not one["sequence_parallel"] or one["tensor"] > 1)
    )


def _loops(arch):
    """Return every layout of eight accelerators, those that never win among them."""
    powers = (1, 2, 4)
    found = []
    for tensor, pipeline, context in itertools.product(powers, range(1, 8), powers):
        data, rest = divmod(8, tensor * pipeline * context)
        if rest:
            continue
        for micro, stage, chunks, order, expert, size, code, split in itertools.product(
            (1, 2, 4, 8), range(4), range(1, 8), range(3), powers, (0, 2, 4), (0, 2), (0, 1)
        ):
            steps = round(_BATCH / (data * micro))
            if steps < 1 or not 0.75 <= steps * data * micro / _BATCH <= 1.25:
                continue
            if size and not stage:
                continue
            least = {"weight_shards": 3, "gradient_shards": 2, "optimizer_shards": 1}
            one = {name: size if stage >= least[name] else 0 for name in _SHARDS}
            one |= {"data": data, "tensor": tensor, "pipeline": pipeline, "context": context}
            one |= {"expert": expert, "virtual_stages": chunks, "schedule": order}
            one |= {"zero_stage": stage, "recompute": code, "sequence_parallel": split}
            one |= {"offload_optimizer": 0, "offload_activations": 0}
            one |= {"micro_batch": micro, "accumulation": steps}
            if _legal(arch, one):
                found.append([one[name] for name in _ROW])
    return np.array(found)


def _costs(arch, rows):
    """Return seconds and bytes of rows of settings."""
    columns = dict(zip(_ROW, rows.T, strict=True))
    cost = training_step(
        arch,
        machine=_MACHINE,
        micro_batch=columns["micro_batch"],
        accumulation=columns["accumulation"],
        sequence_length=_LENGTH,
        layout=Layout(**{name: columns[name] for name in _EVERY}),
    )
    return cost.time_s / cost.tokens, np.asarray(cost.memory.total)


@pytest.mark.parametrize("arch", [_DENSE, _MIXED, _ODD], ids=["dense", "experts", "odd layers"])
def test_the_search_leaves_out_only_what_never_wins(arch):
    search = search_layouts(arch, _MACHINE, **_JOB)
    mine = np.stack([search.column(name) for name in _ROW], axis=1).astype(int)
    every = _loops(arch)
    listed, known = {tuple(row) for row in mine.tolist()}, {tuple(row) for row in every.tolist()}
    assert len(listed) == len(mine)
    assert listed <= known
    assert len(known) > 2 * len(listed)
    seconds, memory = _costs(arch, every)
    own_s, own_bytes = 1 / search.tokens_per_s, search.memory_bytes
    # The fastest searched one of at most as many bytes is at least as fast as each that was left.
    order = np.argsort(own_bytes, kind="stable")
    best_s = np.minimum.accumulate(own_s[order])
    place = np.searchsorted(own_bytes[order], memory * (1 + 1e-9), side="right") - 1
    assert (place >= 0).all()
    assert (best_s[place] <= seconds * (1 + 1e-9)).all()
    fits = memory <= search.limit_bytes
    assert 0 < fits.sum() < len(fits)
    best = search.best(search.fits)
    assert own_s[best] == pytest.approx(seconds[fits].min(), rel=1e-9)


@pytest.mark.parametrize(
    ("axis", "value"),
    [
        ("data", 2),
        ("tensor", 4),
        ("pipeline", 3),
        ("context", 2),
        ("expert", 4),
        ("virtual_stages", 3),
        ("zero_stage", 1),
        ("micro_batch", 2),
        ("schedule", "zero-bubble"),
        ("recompute", "full"),
    ],
)
def test_a_pinned_axis_restricts_the_search_to_its_value(axis, value):
    how = _JOB | ({"counts": [6]} if axis == "pipeline" else {})
    free = search_layouts(_MIXED, _MACHINE, **how)
    pinned = search_layouts(_MIXED, _MACHINE, **how, space=LayoutSpace(**{axis: (value,)}))
    code = {"schedule": SCHEDULES, "recompute": RECOMPUTE}.get(axis)
    wanted = code.index(value) if code else value
    keeps = free.column(axis) == wanted
    if axis == "schedule":  # without a pipeline there is no order
        keeps |= free.column("pipeline") == 1
    rows = [np.stack([item.column(name) for name in _ROW], axis=1) for item in (free, pinned)]
    found = {tuple(row) for row in rows[1].tolist()}
    # What never wins otherwise may be all that is left.
    assert {tuple(row) for row in rows[0][keeps].tolist()} <= found
    assert keeps.any()
    allowed = {wanted, 0} if axis == "schedule" else {wanted}
    assert {*pinned.column(axis).tolist()} <= allowed


def test_what_never_wins_is_tried_where_it_is_asked_for():
    asked = {
        "schedule": LayoutSpace(schedule=("gpipe",), pipeline=(2,)),
        "sequence_parallel": LayoutSpace(sequence_parallel=(False,), tensor=(4,)),
        "zero_stage": LayoutSpace(zero_stage=(2,), pipeline=(2,)),
        "recompute": LayoutSpace(recompute=("selective",)),
        "tensor": LayoutSpace(tensor=(8,)),
        "offload_optimizer": LayoutSpace(offload_optimizer=(True,)),
    }
    wanted = dict.fromkeys(asked, 1) | {"zero_stage": 2, "tensor": 8, "sequence_parallel": 0}
    for axis, space in asked.items():
        found = search_layouts(_DENSE, _MACHINE, **_JOB, space=space)
        assert {*found.column(axis).tolist()} == {wanted[axis]}, axis
    # Whole inputs of layers wait in host memory, so all else is computed again.
    moved = LayoutSpace(offload_activations=(False, True))
    found = search_layouts(_DENSE, _MACHINE, **_JOB, space=moved)
    away = found.column("offload_activations") == 1
    assert away.any()
    assert {*found.column("recompute")[away].tolist()} == {2}
    nowhere = replace(_MACHINE, host_link_bytes_per_s=0.0)
    assert (
        not search_layouts(_DENSE, nowhere, **_JOB, space=moved).column("offload_activations").any()
    )


def test_groups_of_a_size_per_state_are_nested():
    free = search_layouts(_DENSE, _MACHINE, **_JOB)
    wide = search_layouts(_DENSE, _MACHINE, **_JOB, space=LayoutSpace(shard_groups="per-state"))
    sizes = np.stack([wide.column(name) for name in _SHARDS], axis=1)
    stage, every = wide.column("zero_stage"), wide.column("data") * wide.column("context")
    sharded = stage[:, None] >= np.array([3, 2, 1])
    held = np.where(sharded, np.where(sizes, sizes, every[:, None]), 1)
    assert (np.diff(held, axis=1) >= 0).all()
    assert (held[:, 0] < held[:, 1]).any()
    assert wide.tokens_per_s.max() >= free.tokens_per_s.max()
    plain = search_layouts(_DENSE, _MACHINE, **_JOB, space=LayoutSpace(shard_groups="all"))
    assert not plain.column("optimizer_shards").any()


def _written(engine, job):
    """Whether an engine's export accepts a job, and reads it back as the same layout."""
    write = getattr(exports, f"to_{engine}")
    try:
        text = write(job)
    except InfeasibleError:
        return False
    if engine == "megatron":
        read = exports.read_megatron(text)
    elif engine == "torchtitan":
        read = exports.read_torchtitan(text, num_layers=job.architecture.num_layers)
    else:
        read = exports.read_own(text, processes=job.num_accelerators)
    wanted = job.arrangement
    if engine == "torchtitan" and wanted.layout.pipeline == 1:
        wanted = replace(wanted, layout=replace(wanted.layout, schedule=read.layout.schedule))
    assert read == wanted
    return True


@pytest.mark.parametrize("engine", ["megatron", "torchtitan", "own"])
@pytest.mark.parametrize("arch", [_DENSE, _MIXED, _ODD], ids=["dense", "experts", "odd layers"])
def test_an_engine_is_given_exactly_what_it_runs(engine, arch):
    space = LayoutSpace(shard_groups="per-state", sequence_parallel=(True, False))
    every = search_layouts(arch, _MACHINE, **_JOB, space=space)
    able = search_layouts(arch, _MACHINE, **_JOB, space=replace(space, engine=engine))
    rows = [np.stack([item.column(name) for name in _ROW], axis=1) for item in (every, able)]
    runs = {tuple(row) for row in rows[1].tolist()}
    rng = np.random.default_rng(3)
    drawn = rng.choice(len(rows[0]), 150, replace=False).tolist()
    among = [index for index, row in enumerate(rows[0].tolist()) if tuple(row) in runs]
    for index in [*drawn, *rng.choice(among, min(50, len(among)), replace=False).tolist()]:
        choice = every.choice(index)
        layout = Layout(**{name: choice[name] for name in _EVERY})
        batch = {name: choice[name] for name in ("micro_batch", "accumulation")}
        job = TrainingJob(
            architecture=arch,
            arrangement=Arrangement(layout=layout, **batch),
            sequence_length=_LENGTH,
            steps=10,
            learning_rate=1e-3,
            dtype="bf16",
            per_node=4,
        )
        assert _written(engine, job) == (tuple(rows[0][index].tolist()) in runs), choice


def test_what_stands_in_the_way_is_named():
    run = TrainingSearch(
        arch=_DENSE,
        machine=replace(_MACHINE, memory_bytes=0.4e9),
        num_nodes=2,
        per_node=4,
        tokens=1e9,
        global_batch=_BATCH,
        sequence_length=2048,
        deadline_s=1e9,
        counts=(8,),
        space=LayoutSpace(tensor=(1,), pipeline=(1,), context=(1,), zero_stage=(0,)),
    )
    with pytest.raises(InfeasibleError, match=r"with tensor 1 and pipeline 1.* zero stage 0"):
        _ = run.found
    names = [item.name for item in nearest_changes(run)]
    for start in ("tensor ", "pipeline ", "zero stage "):
        assert any(item.startswith(start) and " in place of " in item for item in names), names
    assert "optimizer states in host memory" in names
    # What is said to fit does.
    freed = replace(run, space=run.space.freed("zero_stage"))
    assert freed.found.fits.any()


def test_reasons_reach_the_new_axes():
    search = search_layouts(_MIXED, _MACHINE, **_JOB)
    chosen = search.best(search.fits)
    reasons = " ".join(item.reason for item in rejected(search, chosen, {8: chosen}, 1e9, 1e9))
    for axis in ("context", "expert", "schedule", "virtual_stages"):
        assert f"another {axis}:" in reasons
    over = np.flatnonzero(~search.fits)
    found = {nearest_fit(search, int(index))[0] for index in over[:: max(1, len(over) // 40)]}
    assert found & {"context and data", "expert", "virtual_stages", "schedule"}


def test_variants_of_one_layout_are_one_candidate():
    search = search_layouts(_DENSE, _MACHINE, **_JOB)
    advice = advise(search, _DENSE, _MACHINE, most=10_000)
    kinds = {
        tuple(advice.search.choice(int(place))[name] for name in _ROW if name not in _VARIANTS)
        for place in advice.order
    }
    assert len(kinds) == len(advice.order) < search.fits.sum()
    assert advice.order[0] == search.best(search.fits) or search.tokens_per_s[
        advice.order[0]
    ] == pytest.approx(search.tokens_per_s[search.fits].max())
    parts = {probe.name.partition(" of ")[0] for probe in advice.probes()}
    assert parts


_VARIANTS = {"virtual_stages", "schedule", "offload_optimizer", "offload_activations", *_SHARDS}


def test_words_say_what_is_unusual():
    choice = search_layouts(_MIXED, _MACHINE, **_JOB).choice(0)
    plain = choice | {"data": 8, "tensor": 1, "pipeline": 1, "context": 1, "expert": 1}
    plain |= {"virtual_stages": 1, "schedule": "1f1b", "zero_stage": 1, "optimizer_shards": 0}
    said = layout_words(plain)
    assert said.startswith("8 = 8 data x 1 tensor x 1 pipeline, ZeRO 1, micro-batch ")
    wide = plain | {"pipeline": 2, "context": 2, "expert": 4, "virtual_stages": 3, "tensor": 2}
    wide |= {"optimizer_shards": 2, "offload_optimizer": True, "sequence_parallel": False}
    for words in ("x 2 context", "3 chunks", "experts over 4", "groups of 2", "in host memory"):
        assert words in layout_words(wide)
    assert "weight over 2, gradient over all" in layout_words(
        wide | {"zero_stage": 3, "weight_shards": 2, "optimizer_shards": 0}
    )


def test_impossible_values_are_refused_at_once():
    with pytest.raises(ConfigError, match=r"(?s)tensor is .*zero_stage is .*schedule is "):
        LayoutSpace(tensor=(0,), zero_stage=(4,), schedule=("some",))
    assert LayoutSpace().words == ""
    assert (
        LayoutSpace(virtual_stages=(2,), zero_stage=(0, 1)).words
        == "chunks 2 and zero stage 0 or 1"
    )


def test_published_layouts_are_in_the_space():
    """Llama 3 405B: 126 layers on 16 stages, the first and last of which have one less
    (arXiv 2407.21783, table 4)."""
    arch = catalog.architecture_by_name("llama-3.1-405b")
    cluster = catalog.cluster("Llama3-24k-RoCE")
    machine = Machine.from_accelerator(catalog.accelerator(cluster.accelerator), cluster=cluster)
    for context, data, length, batch in ((1, 64, 8192, 2048), (16, 8, 131072, 128)):
        count = 8 * 16 * context * data
        columns = layout_columns(
            arch,
            machine,
            counts=[count],
            global_batch=batch,
            sequence_length=length,
            space=LayoutSpace(),
        )
        same = (columns["tensor"] == 8) & (columns["pipeline"] == 16)
        assert (same & (columns["context"] == context) & (columns["data"] == data)).any()
