import csv
from pathlib import Path

import pytest

from steelyard import catalog
from steelyard.catalog.parameters import count_parameters
from steelyard.cost.weights import WEIGHT_TYPES, stored_bytes
from steelyard.plan.fit import USES, place

TABLE = Path(__file__).parents[1] / "golden" / "published_fits.csv"
PUBLISHED = list(csv.DictReader(TABLE.read_text().splitlines()))


def on(model, accelerator, **how):
    return place(
        catalog.architecture_by_name(model), [(catalog.accelerator(accelerator), {})], **how
    )


@pytest.mark.parametrize(
    "row", PUBLISHED, ids=lambda row: "-".join(list(row.values())[:5]).replace(" ", "")
)
def test_published_statements_of_what_fits_come_out(row):
    found = on(
        row["model"],
        row["accelerator"],
        use=row["use"],
        weights=(row["weights"],),
        counts=(int(row["count"]),),
        context=int(row["context"]),
        users=int(row["users"]),
    )
    assert found[0].fits == (row["fits"] == "yes")


def test_weights_take_their_bytes_and_quantized_tables_sixteen_bits():
    arch = catalog.architecture_by_name("llama-3-8b")
    count = count_parameters(arch)
    tables = count.embedding + count.head
    for name, per_weight in (("fp32", 4.0), ("bf16", 2.0), ("int8", 1.0), ("int4", 0.5625)):
        wanted = count.non_embedding * per_weight + tables * max(per_weight, 2.0)
        assert stored_bytes(arch, WEIGHT_TYPES[name]) == pytest.approx(wanted)


def test_memory_falls_with_narrower_weights_and_more_accelerators():
    kinds = ("fp32", "bf16", "int8", "int4")
    sizes = {
        (item.weights, count): item.memory.total
        for count in (1, 2, 4)
        for item in on("llama-2-7b", "H200-SXM5-141GB", weights=kinds, counts=(count,))
    }
    for count in (1, 2, 4):
        falling = [sizes[name, count] for name in kinds]
        assert falling == sorted(falling, reverse=True)
    for name in kinds:
        assert sizes[name, 1] > sizes[name, 2] > sizes[name, 4]


def test_decoding_reads_the_weights_once_for_all_users():
    one, many = (
        on("llama-2-7b", "A100-SXM4-80GB", weights=("bf16",), context=512, users=users)[0]
        for users in (1, 8)
    )
    assert one.bound == "bandwidth"
    assert 6 < many.tokens_per_s.value / one.tokens_per_s.value <= 8


def test_adapters_train_in_less_memory_and_time_than_all_weights():
    whole = on("llama-2-7b", "H200-SXM5-141GB", use="train", weights=("bf16",))[0]
    adapters = on("llama-2-7b", "H200-SXM5-141GB", use="lora", weights=("bf16",))[0]
    assert adapters.memory.total < whole.memory.total / 2
    assert adapters.tokens_per_s.value > 1.2 * whole.tokens_per_s.value


@pytest.mark.parametrize("use", USES)
def test_placements_that_fit_come_first_and_the_cheapest_leads(use):
    arch = catalog.architecture_by_name("llama-3-8b")
    records = [(catalog.accelerator(name), {}) for name in ("T4", "A100-SXM4-80GB", "L4")]
    found = place(arch, records, use=use, site=catalog.site("world-average"), counts=(1, 2))
    fits = [item.fits for item in found]
    assert fits == sorted(fits, reverse=True)
    money = [item.usd_per_million for item in found if item.usd_per_million is not None]
    assert money == sorted(money)
    assert all((item.tokens_per_s is None) or item.fits for item in found)


def test_a_chip_without_links_stays_alone():
    found = on("llama-2-70b", "Xeon-8480+", weights=("fp32",))
    assert found[0].count == 1
