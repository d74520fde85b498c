"""Two towers by InfoNCE: against the definition, in chunks, over processes, in the loop."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.spawn import spawn

from steelyard.catalog import Architecture
from steelyard.errors import ConfigError, DataError
from steelyard.nn.towers import Tower, TowerPair, load_tower, save_tower
from steelyard.nn.transformer import build
from steelyard.train import EstimatorConfig
from steelyard.train.contrastive import ContrastiveLoss, info_nce, pair_batch, same_texts
from steelyard.train.estimator import Estimator

ARCH = Architecture(
    name="tiny",
    num_layers=2,
    hidden_size=16,
    num_heads=2,
    num_kv_heads=2,
    head_dim=8,
    intermediate_size=32,
    vocab_size=40,
    max_positions=12,
)


def _pair(seed: int = 0, *, shared: bool = False, pooling: str = "last") -> TowerPair:
    towers = [
        Tower(
            build(ARCH, seed=seed + n), 8, pooling="mean" if pooling == "mean" else "last", seed=n
        )
        for n in range(2)
    ]
    return TowerPair(towers[0], towers[0] if shared else towers[1])


def _batch(size: int = 10, hard: int = 1, seed: int = 0) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    queries = torch.randint(0, 40, (size, 6), generator=draw)
    documents = torch.randint(0, 40, (size, 1 + hard, 9), generator=draw)
    documents[:, 0, :6] = (queries + 1) % 40
    lengths = torch.randint(3, 7, (size,), generator=draw)
    document_lengths = torch.randint(6, 10, (size, 1 + hard), generator=draw)
    keys = torch.arange(size * (1 + hard)).reshape(size, 1 + hard)
    return pair_batch((queries, lengths), (documents, document_lengths), keys)


def _gradients(module: nn.Module) -> list[torch.Tensor]:
    return [part.grad.clone() for part in module.parameters() if part.grad is not None]


def test_the_loss_is_its_definition() -> None:
    torch.manual_seed(1)
    queries, documents = (F.normalize(torch.randn(n, 5), dim=-1) for n in (4, 7))
    own = torch.tensor([2, 0, 6, 3])
    masked = torch.zeros(4, 7, dtype=torch.bool)
    masked[0, 1] = masked[2, 6] = True  # the second is its own document, which always counts
    found = info_nce(queries, documents, own, temperature=0.1, masked=masked)
    for row in range(4):
        scores = [
            float(queries[row] @ documents[n]) / 0.1
            for n in range(7)
            if n == own[row] or not masked[row, n]
        ]
        mine = float(queries[row] @ documents[own[row]]) / 0.1
        expected = torch.tensor(scores).logsumexp(0) - mine
        assert float(found[row]) == pytest.approx(float(expected), rel=1e-5)


def test_near_answers_are_no_negatives_under_a_margin() -> None:
    queries = torch.tensor([[1.0, 0.0]])
    documents = F.normalize(torch.tensor([[1.0, 0.2], [1.0, 0.25], [0.0, 1.0]]), dim=-1)
    own = torch.tensor([0])
    without = info_nce(queries, documents[[0, 2]], own, temperature=0.1)
    found = info_nce(queries, documents, own, temperature=0.1, margin=0.05)
    torch.testing.assert_close(found, without)


def test_copies_are_found_by_their_keys() -> None:
    found = same_texts(torch.tensor([3, 5]), torch.tensor([5, 3, 3]))
    assert found.tolist() == [[False, True, True], [True, False, False]]


@pytest.mark.parametrize("chunk", [1, 3, 7, 64])
@pytest.mark.parametrize("shared", [False, True])
def test_chunks_have_the_gradients_of_the_whole_batch(chunk: int, shared: bool) -> None:
    module, batch = _pair(shared=shared), _batch()
    whole = ContrastiveLoss()(module, batch)
    whole.backward()
    expected = _gradients(module)
    module.zero_grad()
    found = ContrastiveLoss(chunk=chunk)(module, batch)
    found.backward()
    assert found.item() == pytest.approx(whole.item(), abs=1e-6)
    for one, other in zip(_gradients(module), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_chunks_draw_the_dropout_of_the_first_pass() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(3, 4)

        def forward(self, tokens: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
            return F.normalize(self.map(F.dropout(tokens.float(), 0.5)), dim=-1)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.queries, self.documents = Noisy(), Noisy()

    module = Both()
    batch = _batch(6, 0)
    batch["queries"], batch["documents"] = batch["queries"][:, :3], batch["documents"][:, :, :3]
    torch.manual_seed(3)
    loss = ContrastiveLoss(chunk=2)(module, batch)
    after = torch.rand(1)
    loss.backward()
    found = _gradients(module)
    module.zero_grad()
    torch.manual_seed(3)
    vectors = [
        torch.cat([tower(side[at : at + 2], side) for at in range(0, 6, 2)])
        for tower, side in (
            (module.queries, batch["queries"]),
            (module.documents, batch["documents"][:, 0]),
        )
    ]
    expected = info_nce(vectors[0], vectors[1], torch.arange(6), temperature=0.05).mean()
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.equal(after, torch.rand(1))
    for one, other in zip(found, _gradients(module), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_padding_changes_no_vector() -> None:
    for pooling in ("last", "mean"):
        tower = _pair(pooling=pooling).queries
        tokens, lengths = torch.randint(0, 40, (3, 8)), torch.tensor([3, 8, 5])
        found = tower(tokens, lengths)
        for row, length in enumerate(lengths.tolist()):
            alone = tower(tokens[row : row + 1, :length], torch.tensor([length]))
            torch.testing.assert_close(found[row : row + 1], alone, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.norm(dim=1), torch.ones(3))


def _one_of_two(rank: int, folder: str) -> None:
    """Compute half of a batch, and leave the gradients of the mean over both."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=2)
    module, batch = _pair(), _batch()
    half = {name: part[rank * 5 : rank * 5 + 5] for name, part in batch.items()}
    for chunk in (0, 2):
        module.zero_grad()
        ContrastiveLoss(chunk=chunk)(module, half).backward()
        found = _gradients(module)
        for part in found:
            dist.all_reduce(part)
            part /= 2
        torch.save(found, f"{folder}/{rank}-{chunk}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes_have_the_gradients_of_the_whole_batch(tmp_path: Path) -> None:
    spawn(_one_of_two, (str(tmp_path),), nprocs=2)
    module = _pair()
    ContrastiveLoss()(module, _batch()).backward()
    for rank in range(2):
        for chunk in (0, 2):
            found = torch.load(tmp_path / f"{rank}-{chunk}.pt")
            for one, other in zip(found, _gradients(module), strict=True):
                torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


class _Source:
    def batch(self, index: int, /) -> dict[str, torch.Tensor]:
        return _batch(12, 0, seed=index)


def test_the_loop_trains_towers_in_chunks_as_in_one(tmp_path: Path) -> None:
    results = []
    for chunk in (0, 5):
        config = EstimatorConfig(steps=12, batch_size=12, learning_rate=3e-3, threads=1)
        estimator = Estimator(_pair(), ContrastiveLoss(chunk=chunk), config)
        results.append(estimator.fit(_Source(), tmp_path / str(chunk)))
    losses = [[float(value) for value in result.losses] for result in results]
    assert losses[0] == pytest.approx(losses[1], abs=2e-3)
    assert losses[0][-1] < losses[0][0]


def test_towers_come_back_from_their_folder(tmp_path: Path) -> None:
    tower = _pair().queries.eval()
    save_tower(tower, tmp_path / "tower")
    again = load_tower(tmp_path / "tower")
    tokens, lengths = torch.randint(0, 40, (3, 8)), torch.tensor([3, 8, 5])
    torch.testing.assert_close(again(tokens, lengths), tower(tokens, lengths))
    (tmp_path / "tower" / "tower.json").unlink()
    with pytest.raises(DataError, match="no tower"):
        load_tower(tmp_path / "tower")


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match="first token"):
        Tower(build(ARCH), 8, pooling="first")
    with pytest.raises(ConfigError, match="0 numbers"):
        Tower(build(ARCH), 0)
    with pytest.raises(ConfigError, match="8 numbers, documents 4"):
        TowerPair(Tower(build(ARCH), 8), Tower(build(ARCH), 4))
    with pytest.raises(ConfigError, match="temperature 0"):
        ContrastiveLoss(temperature=0)
    batch = _batch()
    with pytest.raises(DataError, match="keys"):
        pair_batch(
            (batch["queries"], batch["query_lengths"]),
            (batch["documents"], batch["document_lengths"]),
            batch["keys"][:, 0],
        )
