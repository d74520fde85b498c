"""Models that can be trained but not served are refused by the name of their trait."""

import dataclasses

import pytest
from tests.nn.wide_models import WIDE

from steelyard.errors import ConfigError
from steelyard.nn import checkpoint
from steelyard.nn.transformer import build
from steelyard.plan.own import has_engine
from steelyard.serve import LLM
from steelyard.serve.build import make_engine
from steelyard.serve.options import EngineOptions

TRAITS = {
    "xpos": "xpos",
    "retention": "retention",
    "dilated": "dilated",
    "subln": "subln",
    "deepnorm": "norms after the residual add.*embedding_norm",
    "multiway": "multiway",
    "encoder": "kind = 'encoder'",
}


@pytest.mark.parametrize("name", TRAITS)
def test_an_engine_names_what_it_does_not_run(name):
    with pytest.raises(ConfigError, match=f"cannot be served: .*{TRAITS[name]}"):
        LLM(build(WIDE[name]))


@pytest.mark.parametrize("cache", ["full", "sinks"])
def test_a_folder_of_such_a_model_is_refused_too(cache, tmp_path):
    checkpoint.save(build(WIDE["relative"]), tmp_path)
    with pytest.raises(ConfigError, match="tiny cannot be served: position = 'relative'"):
        make_engine(tmp_path, EngineOptions(cache=cache))


def test_a_plan_knows_that_there_is_no_engine():
    assert not has_engine(WIDE["subln"], "fp32", "serve")
    assert has_engine(dataclasses.replace(WIDE["subln"], subln=False), "fp32", "serve")
