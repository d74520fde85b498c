import math

import pytest

from steelyard import catalog
from steelyard.plan.which import ServingGoal, which_for_serving, which_for_training

SITE = catalog.site("world-average")
NAMES = ("T4", "A100-SXM4-80GB", "H100-SXM5-80GB", "MI300X", "Xeon-8480+")
RECORDS = [catalog.accelerator(name) for name in NAMES]
ARCH = catalog.architecture_by_name("llama-3-8b")


def by_name(found):
    return {item.accelerator: item for item in found}


def test_training_is_ranked_by_money_and_the_rest_say_why_not():
    found = which_for_training(ARCH, RECORDS, tokens=1e11, count=16, site=SITE)
    able = [item for item in found if item.count]
    money = [item.value("run.cost") for item in able]
    assert money == sorted(money)
    assert not found[0].reason
    assert all(item.reason for item in found[1:])
    ratio = able[1].value("run.cost") / able[0].value("run.cost")
    assert f"{ratio:.3g}x the money" in able[1].reason


def test_a_model_too_large_says_what_it_needs():
    arch = catalog.architecture_by_name("llama-3.1-405b")
    found = by_name(which_for_training(arch, RECORDS, tokens=1e11, count=8, site=SITE))
    assert "does not fit: needs" in found["T4"].reason
    assert found["T4"].count == 0


def test_an_unknown_rent_leaves_the_money_out():
    unknown = next(item for item in RECORDS if not item.price_usd_per_hour)
    found = by_name(which_for_training(ARCH, RECORDS, tokens=1e10, count=16, site=SITE))
    assert math.isinf(found[unknown.name].value("run.cost"))
    assert "no rent is known" in found[unknown.name].reason


def test_serving_keeps_both_limits():
    goal = ServingGoal(rate_per_s=50, ttft_s=0.5, tpot_s=0.03)
    for item in which_for_serving(ARCH, RECORDS, goal, site=SITE):
        if item.count:
            assert item.value("serve.ttft") <= goal.ttft_s
            assert item.value("serve.tpot") <= goal.tpot_s
        else:
            assert item.reason


@pytest.mark.parametrize("tighter", [{"tpot_s": 0.02}, {"rate_per_s": 400.0}])
def test_more_work_or_a_tighter_limit_never_takes_fewer(tighter):
    plain = {"rate_per_s": 100.0, "tpot_s": 0.1}
    loose = by_name(which_for_serving(ARCH, RECORDS, ServingGoal(**plain), site=SITE))
    tight = by_name(which_for_serving(ARCH, RECORDS, ServingGoal(**plain | tighter), site=SITE))
    for name, item in tight.items():
        assert not item.count or item.count >= loose[name].count


def test_quantized_weights_need_no_more_accelerators():
    goal = ServingGoal(rate_per_s=10)
    arch = catalog.architecture_by_name("llama-3-70b")
    wide = by_name(which_for_serving(arch, RECORDS, goal, site=SITE, weights="bf16"))
    narrow = by_name(which_for_serving(arch, RECORDS, goal, site=SITE, weights="int4"))
    a100 = "A100-SXM4-80GB"
    assert 0 < narrow[a100].count <= wide[a100].count
