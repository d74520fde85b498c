import datetime

import pytest
from benchmarks.laws._epoch_models import load_models

from steelyard.catalog.market import chip, family_of, price_index, price_observations
from steelyard.errors import CatalogError, DataError


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("a100-40", "NVIDIA A100 SXM4 40 GB"),
        ("A100-SXM4-40GB", "NVIDIA A100 SXM4 40 GB"),
        ("a100", "NVIDIA A100"),
        ("A100-PCIe-40GB", "NVIDIA A100 PCIe"),
        ("H200-SXM5-141GB", "NVIDIA H200 SXM"),
        ("B200-SXM-180GB", "NVIDIA B200"),
        ("TPU-v4", "Google TPU v4"),
        ("NVIDIA Tesla K40t", "NVIDIA Tesla K40t"),
    ],
)
def test_a_chip_is_found_by_whole_words(asked, found):
    assert chip(asked).name == found


def test_unknown_and_ambiguous_chips_list_names():
    with pytest.raises(CatalogError, match="one of 3") as caught:
        chip("h100")
    assert "NVIDIA H100 SXM5 80GB" in caught.value.hint and "GH100" not in caught.value.hint
    with pytest.raises(CatalogError, match="no chip") as caught:
        chip("h1oo")
    assert "NVIDIA H100 PCIe" in caught.value.hint


def test_families_keep_other_chips_out():
    assert family_of("NVIDIA Tesla V100S PCIe 32 GB") == "V100"
    assert family_of("NVIDIA L40S") != family_of("NVIDIA L40")
    assert all("A1000" not in item.chip for item in price_observations("A100"))
    first = next(item for item in price_observations("A100") if item.unit == "server")
    assert first.date == datetime.date(2020, 5, 21) and first.purchase_usd == 24875


def test_the_index_ends_with_its_last_month():
    assert price_index("2024-12") == 119.349 and price_index("2026-01") == price_index("2025-06")
    for month in ("1999-01", "2024-13", "soon"):
        with pytest.raises(CatalogError, match="no price index"):
            price_index(month)


def test_a_table_of_models_is_checked(tmp_path):
    head = (
        "model,organization,publication_date,hardware,base_model,training_compute_flop,"
        "training_chip_hours,training_time_h,hardware_quantity,mfu\n"
    )
    path = tmp_path / "models.csv"
    path.write_text(head + 'a,X,2024-01-02,"NVIDIA A100,NVIDIA V100",,1e20,,,8,\nb,,,,,,,,,\n')
    (model,) = load_models(path)
    assert model.chips == ("NVIDIA A100", "NVIDIA V100") and model.chip_hours is None
    assert (model.flop, model.num_chips, model.is_fine_tune) == (1e20, 8.0, False)
    path.write_text(head + "a,X,2024-01-02,,,much,,,,\n")
    with pytest.raises(DataError, match="row 2: training_compute_flop 'much'"):
        load_models(path)
    path.write_text("model\na\n")
    with pytest.raises(DataError, match="lacks the columns"):
        load_models(path)
