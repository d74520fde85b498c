from dataclasses import replace

import pytest
import torch
from torch._dynamo.exc import TorchDynamoException

from steelyard.errors import ConfigError, SteelyardWarning
from steelyard.train.compilation import CompiledLoss
from steelyard.train.pace import RunPace, choose_compile
from steelyard.train.trainer import train


def test_a_run_goes_on_without_a_compiler_that_fails(monkeypatch):
    def broken(loss, dynamic):
        def run(*_):
            raise TorchDynamoException("no C++ compiler found\nand more")

        return run

    monkeypatch.setattr(torch, "compile", broken)
    loss = CompiledLoss(lambda module, batch: module(batch).sum())
    module, batch = torch.nn.Linear(2, 1), torch.ones(3, 2)
    with pytest.warns(SteelyardWarning, match="goes on without it: no C\\+\\+ compiler found$"):
        first = loss(module, batch)
    assert loss(module, batch) == first == module(batch).sum()


def test_what_is_open_is_timed_and_what_is_measured_inside_modules_stays_open(
    config, source, tmp_path, monkeypatch
):
    with pytest.raises(ConfigError, match="nothing was timed"):
        train(replace(config, compile="auto"), source, tmp_path / "run")
    with pytest.raises(ConfigError, match="looks into modules"):
        replace(config, compile=True, measure=("noise-scale-norm-layers",))
    times = {True: (1.0, 30.0), False: (1.5, 3.0)}

    def timed(short, *_):
        step_s, overhead_s = times[short.compile]
        return RunPace(step_s=step_s, save_s=0, evaluation_s=0, overhead_s=overhead_s)

    monkeypatch.setattr("steelyard.train.pace.time_few_steps", timed)
    open_run = replace(config, compile="auto")
    # 12 steps do not earn the compiler's 27 seconds; 100 do.
    assert choose_compile(open_run, tmp_path, train)[0].compile is False
    assert choose_compile(replace(open_run, steps=100), tmp_path, train)[0].compile is True


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_losses_agree_and_come_again_bit_for_bit(config, source, tmp_path):
    plain = train(config, source, tmp_path / "plain")
    fast = [
        train(replace(config, compile=True), source, tmp_path / name) for name in ("one", "two")
    ]
    assert fast[0].losses == fast[1].losses
    assert fast[0].losses == pytest.approx(plain.losses, rel=1e-5)
