"""A GGUF file is served and found as the folder of a model is."""

import gguf
import pytest
import torch
from tests.nn.gguf_files import write_model
from tests.serve.conftest import TEMPLATE
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from steelyard.catalog.architecture import Architecture
from steelyard.cli.models import find_model
from steelyard.errors import ConfigError
from steelyard.nn.transformer import build
from steelyard.serve.client.local import server_for

SHAPE = {
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "tied_embeddings": False,
}


@pytest.fixture(scope="module")
def tokenizer():
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=270, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator(["the tests that answer the tests"], trainer)
    made.add_special_tokens(["<|endoftext|>"])
    return made


@pytest.fixture(scope="module")
@torch.no_grad()
def pair(tokenizer, tmp_path_factory):
    """A model with wide weights, so that greedy outputs vary, and its file."""
    size = tokenizer.get_vocab_size()
    model = build(Architecture(name="tiny", vocab_size=size, max_positions=512, **SHAPE), seed=3)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.mul_(6.0)

    def vocabulary(writer):
        tokens = [tokenizer.id_to_token(token) for token in range(size)]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types([1] * (size - 1) + [3])
        pairs = [
            f"{token[:cut]} {token[cut:]}"
            for token in tokens[256:-1]
            for cut in range(1, len(token))
            if {token[:cut], token[cut:]} <= set(tokens)
        ]
        writer.add_token_merges(pairs)
        writer.add_eos_token_id(size - 1)
        writer.add_chat_template(TEMPLATE)

    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_model(path, "llama", model, gguf.GGMLQuantizationType.Q8_0, vocabulary)
    return model.eval(), path


@torch.no_grad()
def greedy(model, tokens, count):
    """The slow obvious version: a full forward for every token."""
    made = list(tokens)
    while len(made) < len(tokens) + count:
        made.append(int(model(torch.tensor([made]))[0, -1].argmax()))
    return made[len(tokens) :]


@pytest.mark.slow  # a server's process; engines on such codes are tested in test_stored.py
def test_a_served_file_answers_as_its_model_does(pair, tokenizer, serving):
    model, path = pair
    asked = {"max_tokens": 12, "temperature": 0, "model": "tiny", "ignore_eos": True}
    question = "the tests"
    # Exactly the file's numbers: by itself Q8_0 is served with rows in bytes.
    with serving(path, "--pool", "4MiB", "--weights", "fp32") as server:
        plain = server.post(prompt=question, **asked).json()
        chat = server.post(
            "/v1/chat/completions", messages=[{"role": "user", "content": question}], **asked
        ).json()
    ids = tokenizer.encode(question).ids
    assert plain["usage"]["prompt_tokens"] == len(ids) < len(question)
    assert plain["choices"][0]["text"] == tokenizer.decode(greedy(model, ids, 12))
    ids = tokenizer.encode(f"u:{question}\na:").ids
    assert chat["choices"][0]["message"]["content"] == tokenizer.decode(greedy(model, ids, 12))


def test_a_file_is_found_by_its_path_and_others_are_refused(pair, tmp_path):
    assert find_model(str(pair[1])).names == ("tiny",)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ConfigError, match="is a file, and not GGUF"):
        find_model(str(tmp_path / "notes.txt"))
    with (
        pytest.raises(ConfigError, match="no model folder"),
        server_for(str(tmp_path / "notes.txt")),
    ):
        pass
