import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from steelyard.errors import BackendError, ConfigError, DataError, StoreError
from steelyard.files import exclusive
from steelyard.train import TrainResult
from steelyard.train.trainer import train


class StopError(Exception):
    pass


def stop_at(step: int):
    def on_step(progress) -> None:
        if progress.step == step:
            raise StopError

    return on_step


def test_loss_falls_and_the_result_adds_up(config, source, tmp_path):
    result = train(
        replace(config, steps=40, checkpoint_every=0, learning_rate=0.02),
        source,
        tmp_path,
        peak_flops_per_s=1e12,
    )
    assert result.losses[0] == pytest.approx(
        math.log(64) + 0.4 / 2, rel=0.05
    )  # near uniform, logits of variance 0.4
    assert result.losses[-1] < result.losses[0] - 0.3
    assert result.tokens == result.tokens_run == 40 * 4 * 16
    assert [step for step, _ in result.eval_losses] == [6, 12, 18, 24, 30, 36, 40]
    assert result.bits_per_byte == pytest.approx(result.eval_loss / math.log(2) / 2)
    assert result.mfu == pytest.approx(result.flops / result.tokens * result.tokens_per_s / 1e12)
    assert 0 < result.step_time_s < result.total_time_s
    assert {item.quantity for item in result.measurements()} >= {
        "eval.loss",
        "train.step_time",
        "train.peak_memory",
        "train.mfu",
    }


def test_finished_run_is_returned_not_trained(config, source, tmp_path):
    first = train(config, source, tmp_path)
    again = train(config, source, tmp_path, on_step=stop_at(1))
    assert again == first == TrainResult.load(tmp_path)
    moved = tmp_path.with_name("moved")
    tmp_path.rename(moved)
    loaded = TrainResult.load(moved)
    assert loaded and loaded.checkpoint.exists() and loaded.model.is_dir()


@pytest.mark.parametrize("stop", [1, 4, 7, 11])
def test_resumed_run_has_the_same_bits(config, source, tmp_path, stop):
    whole = train(config, source, tmp_path / "whole")
    with pytest.raises(StopError):
        train(config, source, tmp_path / "parts", on_step=stop_at(stop))
    parts = train(config, source, tmp_path / "parts")
    assert parts.losses == whole.losses and parts.eval_losses == whole.eval_losses
    assert (tmp_path / "parts/model/model.safetensors").read_bytes() == (
        tmp_path / "whole/model/model.safetensors"
    ).read_bytes()


def test_saved_model_gives_the_final_loss(config, source, tmp_path):
    from steelyard.nn import checkpoint
    from steelyard.train.evaluate import evaluate, heldout_windows

    result = train(config, source, tmp_path)
    windows = heldout_windows(source.heldout_tokens, 16, 512)
    assert evaluate(checkpoint.load(result.model), windows, batch_size=8) == pytest.approx(
        result.eval_loss, rel=1e-5
    )


def test_accumulation_changes_nothing_but_rounding(config, source, tmp_path):
    whole = train(config, source, tmp_path / "whole")
    split = train(replace(config, accumulation=4), source, tmp_path / "split")
    np.testing.assert_allclose(split.losses, whole.losses, rtol=2e-3)


def test_training_follows_a_plain_loop(config, source, tmp_path):
    from steelyard.nn.transformer import build

    config = replace(
        config, schedule="1-sqrt", cooldown_steps=0, warmup_steps=0, clip=0.0, weight_decay=0.0
    )
    model = build(config.architecture, seed=config.seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, betas=config.betas, weight_decay=0.0
    )
    expected = []
    for step in range(config.steps):
        tokens = torch.from_numpy(source.batch(step, 4, 16, config.seed))
        log_probabilities = model(tokens[:, :-1]).log_softmax(-1)
        loss = -log_probabilities.gather(-1, tokens[:, 1:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())
    np.testing.assert_allclose(train(config, source, tmp_path).losses, expected, rtol=1e-4)


def test_bf16_is_close_to_fp32(config, source, tmp_path):
    fp32 = train(config, source, tmp_path / "fp32")
    bf16 = train(replace(config, dtype="bf16"), source, tmp_path / "bf16")
    assert bf16.losses != fp32.losses
    np.testing.assert_allclose(bf16.losses, fp32.losses, rtol=0.03)


def test_diverged_run_stops_with_advice(config, source, tmp_path, monkeypatch):
    from steelyard.train import trainer

    plain = trainer.F.cross_entropy
    calls = []

    def poisoned(logits, targets, **options):
        calls.extend([1] * (logits.shape[-1] == config.architecture.vocab_size))
        return plain(logits, targets, **options) * (float("nan") if len(calls) == 5 else 1.0)

    monkeypatch.setattr(trainer.F, "cross_entropy", poisoned)
    with pytest.raises(ConfigError, match="loss of step 5 is nan") as caught:
        train(config, source, tmp_path)
    assert "lower learning_rate" in caught.value.hint
    monkeypatch.undo()
    assert train(config, source, tmp_path) == TrainResult.load(tmp_path)


def test_damaged_checkpoint_is_named_and_its_removal_falls_back(config, source, tmp_path):
    whole = train(config, source, tmp_path / "whole")
    with pytest.raises(StopError):
        train(config, source, tmp_path / "run", on_step=stop_at(9))
    path = tmp_path / "run" / "step-00000008.safetensors"
    payload = bytearray(path.read_bytes())
    payload[len(payload) // 2] ^= 8
    path.write_bytes(payload)
    with pytest.raises(DataError, match=r"step-00000008\.safetensors is damaged") as caught:
        train(config, source, tmp_path / "run")
    assert "from step 4" in caught.value.hint
    path.unlink()
    assert train(config, source, tmp_path / "run").losses == whole.losses


def test_another_run_in_the_folder_is_refused(config, source, tmp_path):
    train(config, source, tmp_path)
    with pytest.raises(ConfigError, match=r"config\.learning_rate is 0\.005, now 0\.01"):
        train(replace(config, learning_rate=0.01), source, tmp_path)
    source.num_tokens -= 1
    with pytest.raises(ConfigError, match=r"data\.num_tokens"):
        train(config, source, tmp_path)


def test_a_folder_older_than_a_field_of_the_architecture_is_still_its_run(config, source, tmp_path):
    first = train(config, source, tmp_path)
    claim = json.loads((tmp_path / "config.json").read_text())
    del claim["config"]["architecture"]["deepnorm"]
    (tmp_path / "config.json").write_text(json.dumps(claim))
    assert train(config, source, tmp_path) == first


def test_start_from_must_fit(config, source, tmp_path):
    first = train(config, source, tmp_path / "first")
    with pytest.raises(ConfigError, match="already stands at step 12"):
        train(config, source, tmp_path / "same", start_from=first.checkpoint)
    with pytest.raises(ConfigError, match="trained 64 tokens a step"):
        train(
            replace(config, steps=20, batch_size=8),
            source,
            tmp_path / "batch",
            start_from=first.checkpoint,
        )
    wider = replace(config.architecture, hidden_size=48)
    with pytest.raises(DataError, match="does not fit"):
        train(
            replace(config, steps=20, architecture=wider),
            source,
            tmp_path / "wide",
            start_from=first.checkpoint,
        )


def test_two_trainers_do_not_share_a_folder(tmp_path):
    with (
        exclusive(tmp_path),
        pytest.raises(StoreError, match="another process"),
        exclusive(tmp_path, wait_s=0.1),
    ):
        pass


def test_missing_device_is_refused(config, source, tmp_path):
    with pytest.raises(BackendError, match="cannot be used"):
        train(replace(config, device="cuda:99"), source, tmp_path)


def test_unwritable_folder_is_refused(config, source, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot write"):
        train(config, source, tmp_path / "file" / "run")
