"""Looking records up: names, sources, the user's folder, and every way a record can be broken."""

import re

import pytest

from steelyard import catalog
from steelyard.catalog.records import KINDS
from steelyard.catalog.validate import CONFIDENCES
from steelyard.errors import CatalogError

_GET = {
    "architectures": catalog.architecture_by_name,
    "accelerators": catalog.accelerator,
    "clusters": catalog.cluster,
    "sites": catalog.site,
    "datacenters": catalog.datacenter,
    "storage": catalog.storage_tier,
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("STEELYARD_HOME", str(tmp_path))
    (tmp_path / "catalog").mkdir()
    return tmp_path / "catalog"


@pytest.mark.parametrize(
    ("kind", "least"),
    [
        ("accelerators", 30),
        ("clusters", 12),
        ("sites", 8),
        ("datacenters", 4),
        ("storage", 5),
        ("architectures", 25),
    ],
)
def test_every_record_loads_with_source_and_confidence(kind, least, folder):
    assert len(catalog.names(kind)) >= least
    for name in catalog.names(kind):
        record = _GET[kind](name)
        assert record.name == name
        assert record.source and record.confidence in CONFIDENCES


def test_names_differ_in_more_than_case_and_punctuation(folder):
    for kind in KINDS:
        plain = [
            "".join(c for c in name.lower() if c.isalnum() or c == ".")
            for name in catalog.names(kind)
        ]
        assert len(set(plain)) == len(plain)


def test_numbers_are_si_and_one_way(folder):
    a100 = catalog.accelerator("A100-SXM4-80GB")
    assert (a100.memory_bytes, a100.memory_bytes_per_s, a100.tdp_w) == (80e9, 2039e9, 400.0)
    assert a100.peak_flops_per_s["bf16"] == 312e12
    assert a100.scale_up_bytes_per_s == 300e9
    assert catalog.accelerator("Gaudi2").scale_up_bytes_per_s == 300e9
    assert catalog.accelerator("H100-SXM5-80GB").scale_up_bytes_per_s == 450e9
    assert "fp8" not in a100.peak_flops_per_s


def test_clusters_stand_on_known_accelerators_and_sites(folder):
    for name in catalog.names("clusters"):
        cluster = catalog.cluster(name)
        catalog.accelerator(cluster.accelerator)
        catalog.site(cluster.site)
    assert catalog.cluster("LEONARDO-Booster").num_accelerators == 13824
    assert catalog.cluster("Frontier").num_accelerators == 75264


@pytest.mark.parametrize("spelling", ["h100-sxm5-80gb", "H100 SXM5 80GB", "H100_SXM5_80GB"])
def test_spelling_does_not_matter(spelling, folder):
    assert catalog.accelerator(spelling).name == "H100-SXM5-80GB"


@pytest.mark.parametrize(
    ("get", "wrong", "near"),
    [
        (catalog.accelerator, "A100", "A100-SXM4-80GB"),
        (catalog.architecture_by_name, "lama-2-7b", "llama-2-7b"),
        (catalog.cluster, "leonardo", "LEONARDO-Booster"),
        (catalog.site, "bolonia", "bologna"),
        (catalog.accelerator, "gpt2", "one of the architectures"),
        (catalog.site, "", "steelyard catalog list sites"),
    ],
)
def test_a_wrong_name_lists_near_ones(get, wrong, near, folder):
    with pytest.raises(CatalogError, match="named") as caught:
        get(wrong)
    assert near in caught.value.hint


def test_a_cluster_at_an_unknown_place_gets_the_worlds_average(folder):
    (folder / "mine.toml").write_text(
        '[clusters.Alps]\nsite = "a cellar"\n[sites.home]\ncountry = "X"\npue = 1.3\n'
    )
    assert catalog.site_of(catalog.cluster("Alps")).name == "world-average"
    assert catalog.site_of(catalog.cluster("Selene")).name == "us-west"
    home = catalog.site("home")
    assert home.price_usd_per_kwh == home.carbon_g_per_kwh == 0.0


def test_unknown_kind_is_refused():
    with pytest.raises(CatalogError, match="unknown kind") as caught:
        catalog.names("gpus")
    assert "accelerators" in caught.value.hint


def test_this_machine_asks_for_a_calibration(folder):
    with pytest.raises(CatalogError, match="not calibrated") as caught:
        catalog.accelerator("this-machine")
    assert "steelyard calibrate" in caught.value.hint
    assert "this-machine" not in catalog.names("accelerators")


def test_user_file_overrides_single_fields(folder):
    (folder / "prices.toml").write_text(
        '[accelerators."h100-sxm5-80gb"]\nprice_usd_per_hour = 2.5\n'
    )
    record = catalog.accelerator("H100-SXM5-80GB")
    assert record.price_usd_per_hour == 2.5
    assert record.price_date == ""
    assert record.memory_bytes == 80e9
    assert "price_usd_per_hour from" in record.source and "whitepaper" in record.source
    (folder / "prices.toml").write_text(
        '[accelerators."H100-SXM5-80GB"]\nprice_usd_per_hour = 3.125\n'
    )
    assert catalog.accelerator("H100-SXM5-80GB").price_usd_per_hour == 3.125
    (folder / "prices.toml").unlink()
    assert catalog.accelerator("H100-SXM5-80GB").price_usd_per_hour == 6.88


def test_user_file_adds_records_with_units(folder):
    (folder / "mine.toml").write_text(
        '[accelerators.mine]\nvendor = "me"\nkind = "gpu"\nyear = 2026\npeak_flops_per_s = { bf16 '
        '= "1 PFLOP/s" }\n'
        'memory_bytes = "64 GiB"\nmemory_bytes_per_s = 2e12\n'
        '[clusters.our-rack]\nsite = "here"\nyear = 2026\nnum_nodes = 4\naccelerator = '
        '"mine"\naccelerators_per_node = 8\n'
    )
    mine = catalog.accelerator("mine")
    assert (mine.memory_bytes, mine.peak_flops_per_s["bf16"]) == (64 * 2**30, 1e15)
    assert mine.source.startswith("user file") and mine.confidence == "medium"
    assert catalog.cluster("our-rack").num_accelerators == 32
    assert catalog.names("accelerators")[-1] == "mine"


_GOOD = (
    'vendor = "me"\nkind = "gpu"\nyear = 2026\nmemory_bytes = 1e9\nmemory_bytes_per_s = '
    "1e9\npeak_flops_per_s = { fp32 = 1e12 }\n"
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[accelerators.x]\n" + _GOOD.replace("memory_bytes = 1e9", "memory_bytes = -1"),
            "'memory_bytes' is -1",
        ),
        (
            "[accelerators.x]\n" + _GOOD.replace("memory_bytes = 1e9", 'memory_bytes = "80 GX"'),
            "memory_bytes",
        ),
        (
            "[accelerators.x]\n" + _GOOD.replace("{ fp32 = 1e12 }", "{ fp32 = 0 }"),
            "peak_flops_per_s.*fp32.*: 0",
        ),
        ("[accelerators.x]\n" + _GOOD.replace("{ fp32 = 1e12 }", "{ }"), "peak_flops_per_s"),
        ("[accelerators.x]\n" + _GOOD + "memory_size = 5\n", "memory_size"),
        ("[accelerators.x]\n" + _GOOD.replace("year = 2026\n", ""), "year"),
        ("[accelerators.x]\n" + _GOOD.replace("2026", '"new"'), "year"),
        ("[accelerators.x]\n" + _GOOD + 'confidence = "sure"\n', "'confidence' is 'sure'"),
        ("[accelerators.x]\n" + _GOOD + 'source = ""\n', "source"),
        ("[accelerators]\nx = 3\n", "must hold tables"),
        ("[gpus.x]\n" + _GOOD, r"unknown table \[gpus\]"),
        ("[accelerators.x\n", "cannot read"),
    ],
)
def test_a_broken_record_names_file_and_field(text, says, folder):
    (folder / "broken.toml").write_text(text)
    with pytest.raises(CatalogError, match=says) as caught:
        catalog.accelerator("x")
    assert "broken.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("table", "get", "says"),
    [
        (
            '[sites.x]\ncountry = "X"\npue = 0.9\nprice_usd_per_kwh = 0.1\ncarbon_g_per_kwh = 1\n',
            catalog.site,
            "pue",
        ),
        (
            '[sites.x]\ncountry = "X"\npue = nan\nprice_usd_per_kwh = 0.1\ncarbon_g_per_kwh = 1\n',
            catalog.site,
            "pue",
        ),
        ('[clusters.Alps]\naccelerator = "H1000"\n', lambda _: catalog.cluster("Alps"), "H1000"),
        ("[clusters.Alps]\nnum_nodes = 0\n", lambda _: catalog.cluster("Alps"), "num_nodes"),
        (
            "[architectures.gpt2]\nnum_kv_heads = 5\n",
            lambda _: catalog.architecture_by_name("gpt2"),
            "does not divide",
        ),
        (
            "[architectures.gpt2]\nnum_experts = 4\n",
            lambda _: catalog.architecture_by_name("gpt2"),
            "experts_per_token",
        ),
        (
            "[architectures.gpt2]\nhidden_size = 0\n",
            lambda _: catalog.architecture_by_name("gpt2"),
            "hidden_size",
        ),
        (
            '[architectures.gpt2]\nmlp = "relu6"\n',
            lambda _: catalog.architecture_by_name("gpt2"),
            "mlp",
        ),
    ],
)
def test_contradictions_are_refused(table, get, says, folder):
    (folder / "broken.toml").write_text(table)
    with pytest.raises(CatalogError, match=says):
        get("x")


def test_binary_user_file_is_refused(folder):
    (folder / "noise.toml").write_bytes(bytes(range(256)))
    with pytest.raises(CatalogError, match=r"noise\.toml"):
        catalog.names("sites")


def test_every_price_has_its_month_and_source():
    for name in catalog.names("accelerators"):
        record = catalog.accelerator(name)
        for price, month, source in (
            (record.price_usd_per_hour, record.price_date, record.price_source),
            (record.purchase_usd, record.purchase_date, record.purchase_source),
        ):
            assert not price or (re.fullmatch(r"20\d\d-[01]\d", month) and source), name


def test_reading_from_storage_costs_what_the_list_says(folder):
    tiers = [catalog.storage_tier(name) for name in ("s3-standard", "s3-infrequent-access")]
    # A terabyte by ten thousand requests, out of the region; the sums are done by hand.
    costs = [tier.read_usd(1e12, 10_000, leaves=True) for tier in tiers]
    assert costs == pytest.approx([0.004 + 90.0, 0.01 + 100.0])
    assert tiers[0].read_usd(1e12, 10_000, leaves=False) == pytest.approx(0.004)
    assert tiers[0].first_byte_s == 0.15


def test_storage_with_a_negative_price_is_refused(folder):
    (folder / "mine.toml").write_text(
        '[storage.tape]\nvendor = "x"\nusd_per_gb_month = -1\nleast_days = -2\n'
    )
    with pytest.raises(CatalogError, match="usd_per_gb_month") as caught:
        catalog.storage_tier("tape")
    assert "least_days" in str(caught.value)
