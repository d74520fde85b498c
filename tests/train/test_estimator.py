"""The loop on modules of other shapes than decoders: regression, two towers, forecasts."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from steelyard.errors import ConfigError, DataError
from steelyard.train import EstimatorConfig, EstimatorResult
from steelyard.train.callback import Callback
from steelyard.train.estimator import Estimator
from steelyard.train.evaluate import mean_loss


class StopError(Exception):
    pass


def stop_at(step):
    def on_step(progress):
        if progress.step == step:
            raise StopError

    return on_step


class Regression:
    """A dropout network on noisy points, with batch statistics: a tuple of tensors."""

    def __init__(self):
        torch.manual_seed(0)
        self.module = nn.Sequential(
            nn.Linear(4, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1)
        )

    def batch(self, index):
        generator = torch.Generator().manual_seed(index)
        x = torch.randn(16, 4, generator=generator)
        noise = 0.1 * torch.randn(16, generator=generator)
        return x, x[:, 0] * x[:, 1].sign() + noise

    @staticmethod
    def loss(module, batch):
        x, y = batch
        return F.mse_loss(module(x)[:, 0], y)


class Towers(nn.Module):
    """Two encoders that meet in one space, with a temperature."""

    def __init__(self):
        super().__init__()
        self.query, self.item = nn.Linear(6, 8), nn.EmbeddingBag(32, 8)
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, queries, items):
        left, right = self.query(queries), self.item(items)
        return self.scale.exp() * F.normalize(left, dim=-1) @ F.normalize(right, dim=-1).T


class Contrastive:
    """Pairs of a vector and the words that made it: a dict of tensors."""

    def __init__(self):
        torch.manual_seed(1)
        self.module = Towers()
        self.table = torch.randn(32, 6)

    def batch(self, index):
        items = torch.randint(0, 32, (16, 3), generator=torch.Generator().manual_seed(index))
        return {"queries": self.table[items].mean(1), "items": items}

    @staticmethod
    def loss(module, batch):
        logits = module(**batch)
        return F.cross_entropy(logits, torch.arange(len(logits)))


class Forecaster(nn.Module):
    """A recurrent network that asks for an auxiliary loss."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.GRU(1, 8, batch_first=True), nn.Linear(8, 2)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, series):
        hidden, _ = self.cell(series[..., None])
        mean, spread = self.head(hidden).unbind(-1)
        return mean, F.softplus(spread) + 1e-3, 1e-3 * spread.square().mean()


class Series:
    """Sines of random phase: one tensor."""

    def __init__(self):
        torch.manual_seed(2)
        self.module = Forecaster()

    def batch(self, index):
        phase = torch.rand(16, 1, generator=torch.Generator().manual_seed(index))
        return torch.sin(6.28 * phase + torch.arange(13) / 3)

    @staticmethod
    def loss(module, batch):
        mean, spread, auxiliary = module(batch[:, :-1])
        return -torch.distributions.Normal(mean, spread).log_prob(batch[:, 1:]).mean(), auxiliary


TOYS = [Regression, Contrastive, Series]
CONFIG = EstimatorConfig(
    steps=16,
    batch_size=16,
    accumulation=2,
    learning_rate=0.02,
    checkpoint_every=6,
    eval_every=8,
    threads=1,
)


def fit(toy, directory, config=CONFIG, **options):
    made = toy()
    evaluate = mean_loss(made.loss, [made.batch(1000 + index) for index in range(3)])
    estimator = Estimator(made.module, made.loss, config, evaluate=evaluate)
    return estimator, estimator.fit(made, directory, **options)


@pytest.mark.parametrize("toy", TOYS)
def test_a_module_of_any_shape_learns_and_resumes_with_the_same_bits(toy, tmp_path):
    whole, result = fit(toy, tmp_path / "whole")
    assert result.eval_losses[-1][1] < result.eval_losses[0][1]
    assert result.tokens == 16 * 16 and result.tokens_per_s > 0
    for stop in (3, 9):
        with pytest.raises(StopError):
            fit(toy, tmp_path / "parts", on_step=stop_at(stop))
    parts, again = fit(toy, tmp_path / "parts")
    assert again.losses == result.losses and again.eval_losses == result.eval_losses
    for one, two in zip(
        whole.module.state_dict().values(), parts.module.state_dict().values(), strict=True
    ):
        assert torch.equal(one, two)


def test_a_finished_folder_gives_its_result_and_weights(tmp_path):
    trained, first = fit(Regression, tmp_path, data={"version": 1})
    loaded, again = fit(Regression, tmp_path, on_step=stop_at(1), data={"version": 1})
    assert again == first == EstimatorResult.load(tmp_path)
    x, _ = Regression().batch(0)
    assert torch.equal(loaded.module.eval()(x), trained.module.eval()(x))
    with pytest.raises(ConfigError, match=r"config\.seed is 0, now 1"):
        fit(Regression, tmp_path, replace(CONFIG, seed=1), data={"version": 1})
    with pytest.raises(ConfigError, match=r"data\.version is 1, now 2"):
        fit(Regression, tmp_path, data={"version": 2})


def test_a_run_goes_on_from_the_weights_it_began_with(tmp_path):
    config = replace(CONFIG, steps=6, checkpoint_every=0)
    whole = fit(Regression, tmp_path / "whole", config)[1]
    made = Regression()
    estimator = Estimator(made.module, made.loss, config)
    with pytest.raises(StopError):
        estimator.fit(made, tmp_path / "parts", on_step=stop_at(4))
    # The module is no longer what it was.
    assert estimator.fit(made, tmp_path / "parts").losses == whole.losses


def test_auxiliary_losses_train_but_are_not_reported(tmp_path):
    made = Series()
    plain, auxiliary = made.loss(made.module, made.batch(0))
    (plain + auxiliary).backward()
    expected = made.module.head.weight.grad.clone()

    class Keep(Callback):
        name = "keep"

        def before_update(self, state):
            self.gradient = state.module.head.weight.grad.clone()

    config, keep = replace(CONFIG, steps=1, accumulation=1), Keep()
    result = Estimator(made.module, made.loss, config, callbacks=[keep]).fit(made, tmp_path)
    assert result.losses[0] == pytest.approx(plain.item(), rel=1e-6)
    assert result.eval_loss is None
    torch.testing.assert_close(keep.gradient, expected)


def test_batches_of_a_wrong_size_are_refused(tmp_path):
    made = Contrastive()
    with pytest.raises(DataError, match="holds 16 examples, but batch_size is 8"):
        Estimator(made.module, made.loss, replace(CONFIG, batch_size=8)).fit(made, tmp_path)
    made.batch = lambda index: (torch.zeros(4), torch.zeros(3))
    with pytest.raises(DataError, match=r"tensors of \[3, 4\] examples"):
        Estimator(made.module, made.loss, CONFIG).fit(made, tmp_path / "odd")


def test_an_old_checkpoint_goes_on_in_the_order_it_began(tmp_path):
    import json

    made, config = Series(), replace(CONFIG, accumulation=8, checkpoint_every=6)
    with pytest.raises(StopError):
        Estimator(made.module, made.loss, config).fit(made, tmp_path, on_step=stop_at(6))
    record = tmp_path / "step-00000006.json"
    plain = json.loads(record.read_text())
    assert plain["scalars"].pop("gradient_groups") == "tree"
    record.write_text(json.dumps(plain))
    estimator = Estimator(made.module, made.loss, config)
    result = estimator.fit(made, tmp_path)
    kept = json.loads((tmp_path / "step-00000016.json").read_text())
    assert kept["scalars"]["gradient_groups"] == "one"
    tree = fit(Series, tmp_path / "tree", config)[1]
    assert result.losses[:6] == tree.losses[:6]
    assert result.losses != tree.losses and result.losses == pytest.approx(tree.losses, rel=1e-4)
