import subprocess
import sys
from dataclasses import replace

import pytest
from tests.made_rates import made_rates

from steelyard import catalog
from steelyard.cost import Machine, resident_serving_memory, resident_training_memory
from steelyard.errors import BackendError
from steelyard.plan import idle
from steelyard.plan.fit import place
from steelyard.plan.layouts import search_layouts
from steelyard.plan.own import has_engine, own_choice
from steelyard.plan.placement_why import placement_chain
from steelyard.plan.rates import Load

RECORD = catalog.accelerator("Xeon-8480+")
HERE = Machine(
    name="this-machine",
    dtype="fp32",
    peak_flops_per_s=1e11,
    memory_bytes=RECORD.memory_bytes,
    memory_bytes_per_s=1e10,
    fused=False,
    provenance="measured",
    engine_process_bytes=3e8,
    trainer_process_bytes=2e8,
)
MEASURED = {"fp32": HERE, "bf16": replace(HERE, dtype="bf16")}


def here(model, measured=MEASURED, **how):
    return place(catalog.architecture_by_name(model), [(RECORD, measured)], **how)


def test_a_calibrated_machine_serves_with_the_own_engine():
    arch = catalog.architecture_by_name("smollm-135m")
    wide, narrow = (here("smollm-135m", weights=(kind,), users=2)[0] for kind in ("fp32", "bf16"))
    for item in (wide, narrow):
        dtype = "fp32" if item is wide else "bf16"
        assert item.memory == resident_serving_memory(
            arch, sequences=2, context=4096, dtype=dtype, process_bytes=3e8
        )
    assert wide.memory.packed > 0.9 * wide.memory.weights
    assert narrow.memory.packed == wide.memory.packed / 2
    assert wide.memory.kv_cache == 2 * narrow.memory.kv_cache


def test_a_calibrated_machine_trains_with_the_own_trainer_which_recomputes_nothing():
    arch = catalog.architecture_by_name("gpt2")
    for kind in ("fp32", "bf16"):
        found = here("gpt2", use="train", weights=(kind,), context=512)
        assert [item.memory for item in found] == [
            resident_training_memory(
                arch, batch=1, sequence_length=512, accumulation=2, dtype=kind, process_bytes=2e8
            )
        ]


def test_what_the_package_cannot_run_is_marked_and_counted_as_elsewhere():
    # Experts are served, but not by the kernels whose rates and memory are known.
    for model, how in (
        ("gpt2", {"weights": ("int4",), "use": "lora"}),
        ("gpt2", {"weights": ("fp8",)}),
        ("gpt2", {"weights": ("bf16",), "use": "lora"}),
    ):
        found = here(model, **how)[0]
        assert found.has_engine == (model == "mixtral-8x7b")
        assert found.memory.process == 0 and found.tokens_per_s
        assert found.tokens_per_s.low < found.tokens_per_s.value < found.tokens_per_s.high
    assert has_engine(catalog.architecture_by_name("gpt2"), "bf16", "train")
    # Experts run, but not in the kernels that were calibrated: they are counted as elsewhere.
    found = here("mixtral-8x7b", weights=("bf16",))[0]
    assert found.has_engine and found.memory.process == 0 and found.tokens_per_s


def test_a_machine_whose_kernels_were_calibrated_is_forecast_as_the_server_chooses():
    measured = {name: replace(item, engine=made_rates()) for name, item in MEASURED.items()}
    arch = catalog.architecture_by_name("smollm-135m")
    choice = own_choice(arch, Load(use="serve", context=512, users=4), measured["fp32"])
    found = {item.weights: item for item in here("smollm-135m", measured, context=512, users=4)}
    assert choice.weights == "bf16" and choice.stored == "bf16"
    for item in choice.candidates:
        placed = found[item.weights]
        assert placed.has_engine and placed.tokens_per_s.value == 4 / item.step_tpot.value
        chain = placement_chain(arch, RECORD, measured, placed, context=512, users=4)
        assert chain[-1].value == placed.tokens_per_s.value
    assert found["int4"].memory.packed < found["int8"].memory.packed < found["bf16"].memory.packed
    # Without calibrated kernels, and for what the engine does not run, the roofline stands.
    assert own_choice(arch, Load(use="train", context=512, users=1), measured["fp32"]) is None
    assert own_choice(arch, Load(use="serve", context=512, users=1), HERE) is None


def test_published_machines_have_no_process_of_ours():
    assert here("gpt2", measured={}, weights=("bf16",))[0].memory.process == 0


def test_a_plan_for_a_calibrated_machine_counts_its_trainer():
    arch = catalog.architecture_by_name("gpt2")
    how = {"counts": [1], "global_batch": 8, "sequence_length": 256}
    own = search_layouts(arch, HERE, **how)
    assert set(own.layout.recompute.tolist()) == {0}
    assert set(
        search_layouts(arch, replace(HERE, trainer_process_bytes=0.0), **how).layout.recompute
    ) == {
        0,
        2,
    }
    for index, (batch, steps) in enumerate(zip(own.micro_batch, own.accumulation, strict=True)):
        expected = resident_training_memory(
            arch,
            batch=int(batch),
            sequence_length=256,
            accumulation=int(steps),
            process_bytes=2e8,
        )
        assert own.memory_bytes[index] == pytest.approx(expected.total)


def test_an_idle_process_that_fails_says_which(monkeypatch):
    def refuse(command, **_):
        raise subprocess.CalledProcessError(3, command)

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(BackendError, match="idle engine's memory"):
        idle.idle_bytes()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="bounds are of torch on Linux")
def test_idle_processes_hold_a_few_hundred_megabytes():
    found = idle.idle_bytes()
    assert set(found) == {"engine_process_bytes", "trainer_process_bytes"}
    assert all(1e8 < value < 2e9 for value in found.values())
