"""Training with linear maps in eight bits, by the recipe's `dtype`."""

from dataclasses import replace

import pytest
import torch

from steelyard.nn import checkpoint
from steelyard.train.trainer import train


def test_fp8_run_stays_near_bf16_resumes_and_saves_a_plain_model(config, source, tmp_path):
    config = replace(config, steps=24, eval_every=0, checkpoint_every=8)
    plain = train(replace(config, dtype="bf16"), source, tmp_path / "bf16")
    whole = train(replace(config, dtype="fp8"), source, tmp_path / "whole")
    assert whole.losses != plain.losses
    assert whole.eval_loss == pytest.approx(plain.eval_loss, rel=0.02)

    def stop(progress) -> None:
        if progress.step == 13:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        train(replace(config, dtype="fp8"), source, tmp_path / "parts", on_step=stop)
    assert train(replace(config, dtype="fp8"), source, tmp_path / "parts").losses == whole.losses
    model = checkpoint.load(whole.model)
    assert not [item for item in model.modules() if type(item).__name__ == "Float8Linear"]
    assert torch.isfinite(model(torch.zeros(1, 4, dtype=torch.long))).all()
