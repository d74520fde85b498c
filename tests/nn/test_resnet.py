"""Residual and plain convolutional networks, and batch norm over parts."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from steelyard.errors import ConfigError
from steelyard.nn.convnet import ConvNet
from steelyard.nn.ghost import GhostBatchNorm2d
from steelyard.nn.resnet import ResNet


def images(count=12, channels=3, size=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, channels, size, size, generator=generator)


@pytest.mark.parametrize(("depth", "parameters"), [(14, 175_258), (20, 272_474)])
def test_depth_counts_layers_with_weights(depth, parameters):
    model = ResNet(depth)
    beside = [item for item in model.modules() if isinstance(item, (nn.Conv2d, nn.Linear))]
    shortcuts = sum(isinstance(item, nn.Conv2d) and item.kernel_size == (1, 1) for item in beside)
    assert len(beside) - shortcuts == depth
    assert sum(item.numel() for item in model.parameters()) == parameters
    assert model(images()).shape == (12, 10)


def test_blocks_start_as_the_identity_and_the_classifier_small():
    model = ResNet(14, in_channels=1, seed=3).eval()
    x = torch.relu(images(channels=16))
    block = model.stages[0][0]
    assert torch.equal(block(x), x)
    assert model.fc.weight.std().item() == pytest.approx(0.01, rel=0.1)
    conv = model.stages[1][1].conv2.weight
    assert conv.std().item() == pytest.approx((2 / (32 * 9)) ** 0.5, rel=0.05)
    open_blocks = ResNet(14, in_channels=1, zero_init_residual=False, seed=3).eval()
    assert not torch.equal(open_blocks.stages[0][0](x), x)


def test_a_seed_fixes_the_weights_and_leaves_the_global_generator():
    torch.manual_seed(0)
    one = ResNet(8, seed=1)
    torch.manual_seed(1)
    other = ResNet(8, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert not torch.equal(one.conv.weight, ResNet(8, seed=2).conv.weight)


def test_a_batch_is_normed_as_workers_would_norm_their_parts():
    x = images(12, 4)
    ghost, plain = GhostBatchNorm2d(4, 3), nn.BatchNorm2d(4)
    found = ghost(x)
    parts, means, variances = [], [], []
    for part in x.split(3):
        worker = nn.BatchNorm2d(4)
        parts.append(worker(part))
        means.append(worker.running_mean)
        variances.append(worker.running_var)
    assert torch.equal(found, torch.cat(parts))
    torch.testing.assert_close(ghost.running_mean, torch.stack(means).mean(0))
    torch.testing.assert_close(ghost.running_var, torch.stack(variances).mean(0))
    assert not torch.allclose(found, plain(x), atol=1e-3)
    whole = GhostBatchNorm2d(4, 12)
    assert torch.equal(whole(x), nn.BatchNorm2d(4)(x))
    assert torch.equal(ghost.eval()(x[:5]), ghost(x)[:5])


def test_gradients_of_a_batch_are_the_mean_of_its_workers():
    x, labels = images(16), torch.arange(16) % 10
    model = ResNet(8, ghost_size=8, zero_init_residual=False)
    F.cross_entropy(model(x), labels).backward()
    found = [item.grad.clone() for item in model.parameters()]
    model.zero_grad()
    for part, wanted in zip(x.split(8), labels.split(8), strict=True):
        (F.cross_entropy(model(part), wanted) / 2).backward()
    for ours, item in zip(found, model.parameters(), strict=True):
        torch.testing.assert_close(ours, item.grad, rtol=1e-4, atol=1e-6)


def test_what_cannot_be_built_or_normed_is_refused():
    with pytest.raises(ConfigError, match="depth is 18, but must be 6 n \\+ 2"):
        ResNet(18)
    with pytest.raises(ConfigError, match="num_classes = 0"):
        ResNet(8, num_classes=0)
    with pytest.raises(ConfigError, match="widths = 0"):
        ConvNet(widths=())
    with pytest.raises(ConfigError, match="ghost_size is 1"):
        GhostBatchNorm2d(4, 1)
    with pytest.raises(ConfigError, match="a batch of 12 images"):
        ResNet(8, ghost_size=8)(images())


@pytest.mark.parametrize("make", [ConvNet, lambda **sizes: ResNet(8, **sizes)])
def test_they_learn_which_quarter_is_bright(make):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(128, 1, 8, 8, generator=generator) * 0.3
    labels = torch.arange(128) % 4
    for row, label in enumerate(labels.tolist()):
        x[row, 0, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 1.5
    model = make(in_channels=1, num_classes=4)
    assert model.features(x).shape[0] == 128
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    losses = []
    for _ in range(12):
        loss = F.cross_entropy(model(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.95 * losses[0]
