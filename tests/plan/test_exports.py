"""Exports: what engines are told is what was planned, and what they lack is refused."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard import catalog
from steelyard.config import to_plain
from steelyard.cost.layout import Layout
from steelyard.errors import ConfigError, InfeasibleError
from steelyard.plan import exports
from steelyard.plan.exports import Arrangement, TrainingJob
from steelyard.plan.types import Plan
from steelyard.quantity import Forecast

_POWERS = st.sampled_from((1, 2, 4, 8))
_ARCH = catalog.architecture_by_name("llama-3.1-8b")


def _job(arrangement, arch=_ARCH):
    return TrainingJob(
        architecture=arch,
        arrangement=arrangement,
        sequence_length=4096,
        steps=1000,
        learning_rate=3e-4,
        dtype="bf16",
        per_node=8,
    )


@st.composite
def _arrangements(draw):
    """Draw layouts of 32 layers, as the three engines have them."""
    pipeline, tensor = draw(st.sampled_from((1, 2, 4))), draw(_POWERS)
    layout = Layout(
        data=draw(_POWERS) * 8,
        tensor=tensor,
        pipeline=pipeline,
        context=draw(st.sampled_from((1, 2))),
        virtual_stages=draw(st.sampled_from((1, 2, 4))) if pipeline > 1 else 1,
        zero_stage=draw(st.sampled_from((0, 1, 2, 3))),
        sequence_parallel=tensor > 1 and draw(st.booleans()),
        recompute=draw(st.sampled_from(("none", "selective", "full"))),
    )
    return Arrangement(
        layout=layout, micro_batch=draw(_POWERS), accumulation=draw(st.integers(1, 16))
    )


@given(_arrangements())
def test_what_is_read_back_was_written(wanted):
    """An engine either says what it lacks, or its settings are read as the same layout."""
    job = _job(wanted)
    readers = {
        exports.to_megatron: exports.read_megatron,
        exports.to_torchtitan: lambda text: exports.read_torchtitan(text, num_layers=32),
        exports.to_own: lambda recipe: exports.read_own(
            recipe, processes=wanted.layout.num_accelerators
        ),
    }
    for write, read in readers.items():
        try:
            written = write(job)
        except InfeasibleError as error:
            assert "cannot run this plan" in str(error)
            continue
        assert read(written) == wanted


def test_megatron_says_what_its_users_would():
    """A plan of 512 GPUs in the flags of Megatron-LM's own scripts."""
    layout = Layout(
        data=8, tensor=8, pipeline=8, zero_stage=1, sequence_parallel=True, recompute="full"
    )
    text = exports.to_megatron(_job(Arrangement(layout=layout, micro_batch=2, accumulation=16)))
    words = shlex.split(text)
    for flag, value in (
        ("--nnodes", "64"),
        ("--nproc-per-node", "8"),
        ("--tensor-model-parallel-size", "8"),
        ("--pipeline-model-parallel-size", "8"),
        ("--global-batch-size", "256"),
        ("--num-query-groups", "8"),
        ("--recompute-granularity", "full"),
    ):
        assert words[words.index(flag) + 1] == value
    assert "--use-distributed-optimizer" in words
    assert "--data-parallel-size" not in words


def test_command_lines_of_others_are_read():
    """Flags with "=", underscores, comments and line ends are read; wrong numbers are named."""
    read = exports.read_megatron(
        "torchrun --nnodes=2 --nproc_per_node 8 pretrain_gpt.py \\\n"
        " --tensor-model-parallel-size 4 # inside a node\\\n"
        " \n --micro-batch-size 1 --global-batch-size 16"
    )
    assert (read.layout.data, read.layout.tensor, read.accumulation) == (4, 4, 4)
    with pytest.raises(ConfigError, match="--nproc-per-node is ''"):
        exports.read_megatron("pretrain_gpt.py --micro-batch-size 1 --global-batch-size 16")
    with pytest.raises(ConfigError, match="do not fill"):
        exports.read_megatron(
            "--nproc-per-node 6 --tensor-model-parallel-size 4 "
            "--micro-batch-size 1 --global-batch-size 16"
        )
    with pytest.raises(ConfigError, match="cannot be read"):
        exports.read_megatron("--nproc-per-node '8")


def test_what_an_engine_lacks_is_named_at_once():
    """Layouts and models beyond an engine are refused with all of their reasons."""
    layout = Layout(data=8, pipeline=2, schedule="zero-bubble", zero_stage=3, weight_shards=2)
    with pytest.raises(InfeasibleError) as caught:
        exports.to_megatron(_job(Arrangement(layout=layout)))
    for word in ("zero-bubble", "ZeRO stage 3 under pipeline", "weight_shards = 2"):
        assert word in str(caught.value)
    gemma = catalog.architecture_by_name("gemma-2-2b")
    with pytest.raises(InfeasibleError, match="logit_softcap"):
        exports.to_megatron(_job(Arrangement(layout=Layout(data=8)), gemma))
    with pytest.raises(ConfigError, match="per_node is 8"):
        _job(Arrangement(layout=Layout(data=12)))


def test_skypilot_rents_what_the_plan_says():
    """The task names nodes, accelerators and the forecast, and runs the exported command."""
    layout = Layout(data=2, tensor=8, zero_stage=1)
    arrangement = Arrangement(layout=layout, micro_batch=1, accumulation=4)
    job = _job(arrangement)
    choice = to_plain(layout) | {
        "architecture": to_plain(_ARCH),
        "accelerator": "H100-SXM5-80GB",
        "micro_batch": 1,
        "accumulation": 4,
        "sequence_length": 4096,
        "steps": 1000,
        "learning_rate": 3e-4,
        "dtype": "bf16",
    }
    told = Forecast.about(
        "train.total_time", 7200.0, relative=0.2, provenance="derived", source="a test"
    )
    plan = Plan(choice=choice, forecasts=[told], unknown={"run.cost": "no price is known"})
    assert TrainingJob.of(choice, per_node=8) == job
    text = exports.to_skypilot(plan, job, exports.to_megatron(job))
    assert 'accelerators: "H100:8"' in text
    assert "num_nodes: 2" in text
    assert "#   train.total_time: 2 h" in text
    assert "unknown, no price is known" in text
    assert '--node-rank "$SKYPILOT_NODE_RANK"' in text
    choice["accelerator"] = "SN40L"
    with pytest.raises(ConfigError, match="SN40L"):
        exports.to_skypilot(plan, job, "")
    del choice["steps"]
    with pytest.raises(ConfigError, match="lacks steps"):
        TrainingJob.of(choice, per_node=8)
