"""One pass over a text against the separate ones: EL2N, noise scale, duplicates; then pruning."""

import json

import numpy as np
import polars as pl
import pytest
import torch
import torch.nn.functional as F

from steelyard.cli.data.pruning import prune as prune_text
from steelyard.cli.data.pruning import score
from steelyard.data import text
from steelyard.data.difficulty import el2n
from steelyard.data.pruning import prune_documents
from steelyard.data.shard_documents import document_spans, document_texts, keep_documents
from steelyard.data.shards import TokenShards
from steelyard.data.sketch.minhash import MinHasher
from steelyard.data.sketch.near_duplicates import duplicate_roots, text_signatures
from steelyard.errors import ConfigError, DataError
from steelyard.nn import checkpoint
from steelyard.nn.transformer import build
from steelyard.train.measure.document_costs import document_costs

_LENGTH, _PART = 48, 8


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Few short documents, one of which stands twice with a word changed."""
    folder = tmp_path_factory.mktemp("documents")
    rng = np.random.default_rng(1)
    words = [f"w{number}" for number in range(400)]
    (folder / "sources").mkdir()
    drawn = [" ".join(rng.choice(words, 600)) for _ in range(24)]
    for number, lines in enumerate(drawn):
        (folder / "sources" / f"{number:02d}.txt").write_text(lines)
    text.prepare([folder / "sources"], folder / "shards", vocab_size=300, heldout_fraction=0.1)
    whole = TokenShards(folder / "shards")
    spans = document_spans(whole)
    # The second of a pair is what preparation would have dropped: it is written in by hand.
    twice = np.array([0, 0, *range(1, len(spans))])
    twin = folder / "twin"
    keep_documents(whole, np.arange(len(spans)), twin)
    tokens = np.concatenate(
        [whole.train_tokens[0][spans.start[row] : spans.stop[row]] for row in twice]
    )
    (twin / "train-00000.bin").write_bytes(tokens.astype("<u2").tobytes())
    manifest = json.loads((twin / "manifest.json").read_text())
    manifest["train"][0]["tokens"] = len(tokens)
    (twin / "manifest.json").write_text(json.dumps(manifest))
    return TokenShards(twin, check=False)


@pytest.fixture(scope="module")
def module(shards):
    from steelyard.catalog.architecture import Architecture

    arch = Architecture(
        name="atom",
        hidden_size=32,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=16,
        intermediate_size=64,
        vocab_size=shards.vocab_size,
        max_positions=64,
    )
    return build(arch, seed=0)


@pytest.fixture(scope="module")
def costs(module, shards):
    return document_costs(module, shards, sequence_length=_LENGTH, batch_size=3, part_size=_PART)


def test_columns_equal_the_separate_passes(module, shards, costs):
    spans = document_spans(shards)
    assert len(spans) == shards.manifest.documents + 1
    tokens = shards.train_tokens[0].astype(np.int64)
    assert int(costs.tokens.sum()) == len(tokens)
    texts = [*document_texts(shards, spans)]
    roots = duplicate_roots(text_signatures(texts, MinHasher(), lambda: None))
    assert costs.duplicate_of.tolist() == roots.tolist() and roots[1] == 0
    # Tokens of the first part, whose sequences are one after the other.
    rows = np.arange(_PART)[:, None] * _LENGTH + np.arange(_LENGTH + 1)
    window = torch.from_numpy(tokens[rows])
    gradients, errors = [], []
    for row in window:
        module.zero_grad()
        logits = module(row[None, :-1])[0]
        F.cross_entropy(logits, row[1:]).backward()
        gradients.append(torch.cat([item.grad.flatten() for item in module.parameters()]))
        errors.append(el2n(logits.detach().numpy(), row[1:].numpy()))
    whole = torch.stack(gradients).double()
    noise = float(whole.var(0).sum())
    signal = float(whole.mean(0).square().sum()) - noise / _PART
    assert spans.stop[0] > 0 and spans.stop[0] > _PART * _LENGTH
    few = replace_tokens(shards, tokens[: _PART * _LENGTH + 1])
    found = document_costs(module, few, sequence_length=_LENGTH, batch_size=3, part_size=_PART)
    assert found.el2n[0] == pytest.approx(np.mean(errors), rel=1e-5)
    assert found.gradient_norm[0] == pytest.approx(float(whole.norm(dim=1).mean()), rel=1e-4)
    if signal > 0:
        assert found.noise_scale[0] == pytest.approx(noise / signal, rel=1e-3)
    else:
        assert np.isnan(found.noise_scale[0])


def replace_tokens(shards, tokens):
    """Return the same shards with other tokens to train on."""
    few = TokenShards(shards.directory, check=False)
    few.train_tokens = [tokens.astype(np.uint16)]
    return few


def test_pruning_takes_the_table_and_keeps_documents_whole(shards, costs, tmp_path):
    table = costs.columns()
    kept = prune_documents(table, keep=0.5)
    assert 1 not in kept and len(kept) == round(0.5 * len(costs.tokens))
    hardest = np.sort(np.argsort(-costs.el2n[costs.duplicate_of == table["document"]])[: len(kept)])
    assert len(hardest) == len(kept)
    folder = TokenShards(keep_documents(shards, kept, tmp_path / "kept"))
    assert folder.num_tokens == int(costs.tokens[kept].sum())
    before, after = document_spans(shards), document_spans(folder)
    every = [*document_texts(shards, before)]
    assert [*document_texts(folder, after)] == [every[row] for row in kept]
    with pytest.raises(ConfigError, match="holds token shards already"):
        keep_documents(shards, kept, tmp_path / "kept")
    with pytest.raises(DataError, match="cannot be kept"):
        keep_documents(shards, np.array([999]), tmp_path / "other")
    with pytest.raises(ConfigError, match="no column loss"):
        prune_documents(
            {name: table[name] for name in ("document", "duplicate_of")}, keep=0.5, by="loss"
        )


def test_commands_score_and_prune(module, shards, tmp_path, capsys):
    checkpoint.save(module, tmp_path / "model")
    data = tmp_path / "data"
    keep_documents(shards, np.arange(20), data)
    score(str(tmp_path / "model"), data=data, out=tmp_path / "costs.parquet", sequence_length=16)
    assert "20 documents scored, 1 near duplicates" in capsys.readouterr().out
    table = pl.read_parquet(tmp_path / "costs.parquet")
    assert table.columns[:2] == ["document", "shard"] and len(table) == 20
    prune_text(data, scores=tmp_path / "costs.parquet", keep=0.25, out=tmp_path / "few", json=True)
    assert json.loads(capsys.readouterr().out)["documents"] == 5
    assert TokenShards(tmp_path / "few").heldout_tokens.tolist() == shards.heldout_tokens.tolist()


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"scores": "none.parquet", "keep": 0.5}, DataError, "no such file"),
        ({"scores": "costs.csv", "keep": 0.5}, ConfigError, "no column document"),
        ({"scores": "costs.csv", "keep": 5.0}, ConfigError, r"keep = 5\.0"),
    ],
)
def test_what_cannot_prune_is_refused_in_words(given, error, words, shards, tmp_path):
    keep_documents(shards, np.arange(4), tmp_path / "data")
    (tmp_path / "costs.csv").write_text("el2n\n.5\n")
    given = given | {"scores": tmp_path / given["scores"]}
    with pytest.raises(error, match=words):
        prune_text(tmp_path / "data", out=tmp_path / "few", **given)
    assert not (tmp_path / "few").exists()
