from typing import Any

import numpy as np
import pytest
import torch

from steelyard.errors import ConfigError, DataError
from steelyard.serve.sparse.controller import Controller, distance_buckets
from steelyard.serve.sparse.labels import attention_rows, top_labels
from steelyard.serve.sparse.training import (
    ControllerModule,
    balanced_loss,
    mass_loss,
    train_controller,
)


@pytest.fixture(scope="module")
def module(model):
    torch.manual_seed(0)
    made = ControllerModule(model.embedding.weight, 24, 8)
    torch.nn.init.normal_(made.recency)
    return made


def test_the_controller_at_work_equals_the_trained_module(model, module):
    tokens = np.random.default_rng(0).integers(0, 97, (3, 70))
    states = module.export(model.architecture.hidden_size).states(3, 100)
    for place in range(50):
        states.append(np.array([0, 2]), tokens[[0, 2], place])
    found = states.scores(np.array([0, 2]))[[0, 2], :50]
    with torch.inference_mode():
        expected = module(torch.from_numpy(tokens[[0, 2], :50]), torch.tensor([49]))[:, 0]
    assert found == pytest.approx(expected.numpy(), abs=5e-3)
    assert states.lengths.tolist() == [50, 0, 50]
    assert states.bytes_per_token == 16
    states.clear(0)
    states.append(np.array([0]), tokens[0, :1])
    assert (states.keys[0, 0] != states.keys[2, 0]).any() == (tokens[0, 0] != tokens[2, 0])
    assert states.lengths.tolist() == [1, 0, 50]


def test_buckets_rise_with_distance_and_end():
    found = distance_buckets(200_000)
    assert found[0] == 0
    assert (np.diff(found) >= 0).all()
    assert found[-1] == 31


def test_files_come_back_equal_and_wrong_ones_are_refused(model, module, tmp_path):
    controller = module.export(model.architecture.hidden_size)
    path = tmp_path / "controller.safetensors"
    controller.save(path)
    back = Controller.load(path)
    assert (back.gates == controller.gates).all()
    assert (back.recency == controller.recency).all()
    back.refuse_other(97, 32)
    with pytest.raises(ConfigError, match="another model"):
        back.refuse_other(97, 64)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataError, match="cannot be read"):
        Controller.load(path)
    with pytest.raises(DataError, match="cannot be read"):
        Controller.load(tmp_path / "missing.safetensors")
    from safetensors.numpy import save_file

    save_file({"other": np.zeros(1)}, path)
    with pytest.raises(DataError, match="no controller"):
        Controller.load(path)


@pytest.mark.parametrize("aggregation", ["mean", "max"])
def test_attention_rows_equal_explicit_weights(model, aggregation):
    tokens, layers = torch.from_numpy(np.random.default_rng(1).integers(0, 97, (2, 30))), []

    def attend(layer, query, key, value):
        query, key, value = (
            item.transpose(1, 2)
            for item in (query, key.repeat_interleave(2, 2), value.repeat_interleave(2, 2))
        )
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5
        weights = scores.masked_fill(torch.ones(30, 30).triu(1).bool(), -torch.inf).softmax(-1)
        layers.append(weights.mean(1))
        return (weights @ value).transpose(1, 2)

    with torch.inference_mode():
        model.run(tokens, torch.arange(30), attend)
    stacked = torch.stack(layers)
    expected = stacked.mean(0) if aggregation == "mean" else stacked.amax(0)
    found = attention_rows(model, tokens, torch.tensor([3, 17, 29]), aggregation=aggregation)
    assert torch.allclose(found, expected[:, [3, 17, 29]], atol=1e-4)


def test_labels_leave_sinks_and_the_future_out():
    weights = torch.tensor([[[0.5, 0.1, 0.05, 0.2, 0.1, 0.05, 0.0, 0.0]]])
    labels, valid = top_labels(weights, torch.tensor([5]), 2, num_sinks=1)
    assert valid[0, 0].nonzero().flatten().tolist() == [1, 2, 3, 4]
    assert labels.sum() == 2
    assert labels[0, 0, 3]
    everything, _ = top_labels(weights, torch.tensor([5]), 50, num_sinks=1)
    assert (everything == valid).all()


def test_both_kinds_of_pairs_weigh_alike():
    scores, labels, valid = (
        torch.zeros(1, 1, 10),
        torch.zeros(1, 1, 10, dtype=torch.bool),
        torch.ones(1, 1, 10, dtype=torch.bool),
    )
    labels[..., 0] = True
    scores[..., 0] = 100.0
    assert float(balanced_loss(scores, labels, valid)) == pytest.approx(np.log(2) / 2)


def test_scores_that_are_log_attention_are_best():
    weights, valid = (
        torch.tensor([[[0.4, 0.3, 0.2, 0.1, 0.0]]]),
        torch.tensor([[[False, True, True, True, False]]]),
    )
    best = float(mass_loss(weights.log(), weights, valid))
    assert best == pytest.approx(
        -sum(share * np.log(share) for share in (1 / 2, 1 / 3, 1 / 6)), abs=1e-5
    )
    assert float(mass_loss(torch.zeros(1, 1, 5), weights, valid)) == pytest.approx(
        np.log(3), abs=1e-5
    )


@pytest.mark.parametrize("objective", ["labels", "mass"])
def test_training_lowers_the_loss_and_repeats(model, objective):
    rng, losses = np.random.default_rng(2), []
    batches = [rng.integers(0, 97, (2, 48))] * 12
    options: dict[str, Any] = {
        "objective": objective,
        "width": 16,
        "projection": 8,
        "top": 8,
        "num_updates": 12,
        "rows_per_sequence": 48,
    }
    first = train_controller(
        model, batches, **options, progress=lambda update, loss: losses.append(loss)
    )
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    options["num_updates"] = 2
    again = train_controller(model, batches[:2], **options)
    assert (again.key == train_controller(model, batches[:2], **options).key).all()
    first.refuse_other(97, 32)


def test_training_without_usable_text_is_refused(model):
    with pytest.raises(ConfigError, match="no batch"):
        train_controller(model, [])
    with pytest.raises(ConfigError, match="too short"):
        train_controller(model, [np.zeros((1, 5), dtype=np.int64)])
