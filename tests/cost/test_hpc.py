"""Benchmarks of scientific computing: shares, lists, stencils against slow obvious versions."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

from steelyard import catalog
from steelyard.cli.main import main
from steelyard.cost.hpc.answer import benchmark_forecasts
from steelyard.cost.hpc.lists import hpcg, hpl, listed_clusters
from steelyard.cost.hpc.shares import fit_shares
from steelyard.cost.hpc.stencil import StencilNode, calibrated, grid_of, halo_bytes, step_s
from steelyard.errors import CatalogError, FitError

NODE = StencilNode(
    accelerators=4,
    sites=1e6,
    memory_bytes_per_s=1e12,
    scale_up_bytes_per_s=1e11,
    injection_bytes_per_s=1e10,
)


def run(*arguments):
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    return int(caught.value.code or 0)


def test_features_that_many_machines_support_are_kept_and_others_dropped():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 2))
    shares = 0.7 + 0.1 * features[:, 0] + 0.005 * rng.normal(size=60)
    fit = fit_shares(shares, features)
    assert fit.share([1.0, 0.0]) == pytest.approx(0.8, abs=0.01)
    assert fit.share([-50.0, 0.0]) > 0
    noise = fit_shares(0.7 + 0.05 * rng.normal(size=8), features[:8])
    assert not noise.slopes.any() and noise.share([9.0, 9.0]) == noise.mean


def test_the_interval_is_as_wide_as_machines_left_out_demand():
    shares = [1.0, 1.1, 0.9, 1.2]
    errors = [
        abs(math.log(np.mean([item for item in shares if item != one]) / one)) for one in shares
    ]
    assert fit_shares(shares).log_half_width == pytest.approx(max(errors))
    with pytest.raises(FitError, match="at least 3"):
        fit_shares([0.5, 0.6])


def test_a_cluster_is_forecast_without_its_own_figures():
    own = catalog.cluster("Frontier")
    wrong = dataclasses.replace(own, rmax_flops_per_s=1.0, hpl_power_w=1.0, hpcg_flops_per_s=1.0)
    assert hpl(own).rate == hpl(wrong).rate and hpl(own).power == hpl(wrong).power
    assert hpcg(own) == hpcg(wrong)
    assert own.name not in [
        item.name for item in listed_clusters("rmax_flops_per_s", without=own.name)
    ]


def test_hpl_fills_the_memory_and_takes_two_thirds_of_its_order_cubed():
    own = catalog.cluster("LEONARDO-Booster")
    run_ = hpl(own)
    assert 8 * run_.order**2 == pytest.approx(0.8 * 64e9 * 13824)
    assert run_.duration.value * run_.rate.value == pytest.approx(2 / 3 * run_.order**3)
    assert run_.power and run_.energy
    assert run_.energy.value == pytest.approx(run_.power.value * run_.duration.value * 1.1)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("MegaScale", "MegaScale: rpeak_flops_per_s is empty, but the HPL rate"),
        ("LEONARDO-DCGP", "LEONARDO-DCGP: accelerator is the processor"),
    ],
)
def test_an_empty_field_is_named_with_who_needs_it(name, said):
    with pytest.raises(CatalogError, match=said):
        hpl(catalog.cluster(name))


def test_what_the_record_allows_is_forecast_and_the_rest_has_reasons():
    found = benchmark_forecasts(catalog.cluster("MegaScale"))
    assert list(found.left_out) == ["HPL"] and "HPCG" in found.forecasts
    whole = catalog.cluster("Summit")
    half = benchmark_forecasts(whole, num_nodes=2304)
    assert half.forecasts["HPL"][0].value == pytest.approx(hpl(whole).rate.value / 2)
    assert half.listed == {} and set(benchmark_forecasts(whole).listed) == {
        "hpl.rate",
        "hpl.power",
        "hpcg.rate",
    }
    with pytest.raises(CatalogError, match="has 4,608 nodes, not 9,999"):
        benchmark_forecasts(whole, num_nodes=9999)
    lonely = dataclasses.replace(
        catalog.cluster("LEONARDO-DCGP"), injection_bytes_per_s=0.0, accelerator="TPU-v3"
    )
    unrated = benchmark_forecasts(dataclasses.replace(lonely, rpeak_flops_per_s=0.0))
    assert set(unrated.left_out) == {"HPL", "lattice Boltzmann"}


def test_a_rate_above_the_peak_is_refused(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        '[clusters.mine]\nsite = "bologna"\nyear = 2024\nnum_nodes = 2\n'
        'accelerator = "A100-SXM4-80GB"\naccelerators_per_node = 4\nsource = "us"\n'
        'rpeak_flops_per_s = "1 PFLOP/s"\nrmax_flops_per_s = "2 PFLOP/s"\n'
    )
    with pytest.raises(CatalogError, match="no run is faster than rpeak"):
        catalog.cluster(str(path))


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8, 12, 17, 64, 180, 2475])
def test_grids_hold_all_blocks_and_are_as_cubic_as_can_be(count):
    grid = grid_of(count)
    every = [
        (one, two, count // one // two)
        for one in range(1, count + 1)
        if count % one == 0
        for two in range(1, count // one + 1)
        if count // one % two == 0
    ]
    assert math.prod(grid) == count and max(grid) == min(map(max, every))
    assert sum(grid) == min(sum(item) for item in every if max(item) == max(grid))


@pytest.mark.parametrize("nodes", [1, 2, 4, 8, 12])
@pytest.mark.parametrize("accelerators", [1, 4, 6])
def test_halos_equal_a_count_over_all_faces(nodes, accelerators):
    node = dataclasses.replace(NODE, accelerators=accelerators)
    inner, outer = grid_of(accelerators)[::-1], grid_of(nodes)
    shape = [own * many for own, many in zip(inner, outer, strict=True)]
    outside = within = 0
    for place in itertools.product(*map(range, shape)):
        for axis, side in itertools.product(range(3), (-1, 1)):
            there = list(place)
            there[axis] = (there[axis] + side) % shape[axis]
            homes = [[at // own for at, own in zip(p, inner, strict=True)] for p in (place, there)]
            outside += homes[0] != homes[1]
            within += homes[0] == homes[1] and list(place) != there
    face = node.sites ** (2 / 3) * 40
    out, peers = halo_bytes(node, nodes)
    assert out == pytest.approx(outside * face / nodes)
    assert peers == pytest.approx(within * face / nodes / accelerators)


def test_calibration_finds_what_was_planted():
    true = dataclasses.replace(NODE, network_share=0.6, noise_s=2e-5)
    counts = [1, 2, 4, 8, 16, 32, 64]
    found = calibrated(NODE, counts, step_s(true, counts))
    assert found.network_share == pytest.approx(0.6) and found.noise_s == pytest.approx(2e-5)
    assert step_s(found, 2475) == pytest.approx(step_s(true, 2475))
    with pytest.raises(FitError, match="cannot calibrate a stencil"):
        calibrated(NODE, [1, 2], [1.0, 1.0])


def test_the_verb_answers_and_sets_lists_beside(capsys):
    assert run("cost", "hpc", "--cluster", "LEONARDO-Booster", "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["listed"]["hpl.rate"] == 241.2e15
    assert 0.83 <= answer["forecasts"]["lattice Boltzmann"][0]["value"] <= 0.93
    assert run("cost", "hpc", "--cluster", "MegaScale", "--nodes", "64") == 0
    assert "HPL is left out" in capsys.readouterr().out
    assert run("cost", "hpc", "--cluster", "Summit", "--nodes", "-1") == 2
    assert "--nodes" in capsys.readouterr().err
