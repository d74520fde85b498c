"""Tokenizers made of GGUF fields cut text as the models' own tokenizers do."""

import itertools
import json

import gguf
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.nn.gguf_files import LLAMA, close, new_writer
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, trainers
from tokenizers import pre_tokenizers as pre

from steelyard.errors import ConfigError, DataError
from steelyard.nn.gguf.splitting import SPLITTERS
from steelyard.nn.gguf.vocabulary import read_vocabulary
from steelyard.serve.front.text import TextCodec

CORPUS = [
    "The quick brown fox doesn't jump over 12345 lazy dogs, they've SAID; it's 3.14!",
    "  Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.\n\n\tNaïve café, Ünïcode",
    "def main(args):\n    return {'a': 1, \"b\": [2, 3]}  # comment\r\n\r\n" * 2,
    "机器学习 模型 和 数据。日本語のテキスト ひらがな カタカナ 😀 🎉 123 4567 89",
] * 3
TEXTS = st.one_of(
    st.text(max_size=40),
    st.lists(st.sampled_from(" ".join(CORPUS[:4]).split(" ")), max_size=8).map(" ".join),
    st.text(alphabet="aAbB '\n\r\t 12３é漢😀.,!stdl", max_size=30),
)

# The pre-tokenizers as the models' own `tokenizer.json` have them.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
ORIGINALS = {
    "gpt-2": [pre.ByteLevel(add_prefix_space=False)],
    "smollm": [pre.Digits(individual_digits=True), pre.ByteLevel(add_prefix_space=False)],
    "llama-bpe": [
        pre.Split(Regex(LLAMA3), "isolated"),
        pre.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
    "qwen2": [
        pre.Split(Regex(QWEN2), "isolated"),
        pre.ByteLevel(add_prefix_space=False, use_regex=False),
    ],
}


def original(name):
    """A tokenizer of the kind, trained on the corpus, with special tokens and one of its own."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama-bpe"))
    tokenizer.pre_tokenizer = pre.Sequence(ORIGINALS[name])
    tokenizer.decoder = decoders.ByteLevel()
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    alphabet = sorted(pre.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    return tokenizer


def write_vocabulary(path, name, tokenizer, extra=lambda writer: None):
    """Write a byte-level tokenizer as llama.cpp's converter does."""
    stored = json.loads(tokenizer.to_str())
    size = tokenizer.get_vocab_size()
    tokens = [tokenizer.id_to_token(token) for token in range(size)]
    types = np.full(size, gguf.TokenType.NORMAL)
    for added in stored["added_tokens"]:
        own = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
        types[added["id"]] = own
    writer = new_writer(path, "llama", LLAMA)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_list(tokens)
    writer.add_token_types(types.tolist())
    writer.add_token_merges([" ".join(pair) for pair in stored["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.token_to_id("<|begin_of_text|>"))
    writer.add_eos_token_id(tokenizer.token_to_id("<|end_of_text|>"))
    extra(writer)
    close(writer)


@pytest.fixture(scope="module", params=ORIGINALS)
def pair(request, tmp_path_factory):
    """An original tokenizer and the one read from a GGUF file of its fields."""
    wanted = original(request.param)
    path = tmp_path_factory.mktemp("vocabulary") / "m.gguf"
    write_vocabulary(path, request.param, wanted)
    return request.param, wanted, read_vocabulary(path)


def test_byte_level_vocabularies_cut_as_the_originals(pair):
    name, wanted, found = pair
    begin = [wanted.token_to_id("<|begin_of_text|>")] if name == "llama-bpe" else []

    @given(text=TEXTS)
    @example(text="it's<|im_end|> <tool>x <|begin_of_text|>\n  a")
    @example(text=CORPUS[1])
    @settings(max_examples=150, deadline=None)
    def check(text):
        ids = wanted.encode(text).ids
        assert found.tokenizer.encode(text, add_special_tokens=False).ids == ids
        assert found.tokenizer.encode(text).ids == begin + ids
        for special in (True, False):
            assert found.tokenizer.decode(ids, special) == wanted.decode(ids, special)

    check()
    ends = {wanted.token_to_id(text) for text in ("<|end_of_text|>", "<|im_end|>")}
    assert set(found.end_tokens) == ends
    assert found.named == {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}


def pieces():
    """Pieces with scores, the letters they are made of, and all bytes for other letters."""
    tokens, scores = ["<unk>", "<s>", "</s>"], [0.0] * 3
    tokens += [f"<0x{byte:02X}>" for byte in range(256)]
    scores += [0.0] * 256
    words = {"▁" + word for text in CORPUS[:3] for word in text.split()}
    parts = {word[:cut] for word in words for cut in range(1, 9)}
    parts |= {word[-cut:] for word in words for cut in (1, 2, 3)} | {"▁▁", "▁▁▁", "▁▁▁▁"}
    generator = np.random.default_rng(0)
    for rank, part in enumerate(sorted(part for part in parts if len(part) > 1)):
        tokens.append(part)
        # Scores are the ranks in which pieces were merged; no two are equal.
        scores.append(-float(generator.integers(2) * 5000 + rank + 1))
    letters = sorted({letter for text in CORPUS[:3] for letter in text if letter > " "} | {"▁"})
    kept = [letter for letter in letters if letter not in tokens]
    types = [gguf.TokenType.UNKNOWN, *[gguf.TokenType.CONTROL] * 2]
    types += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * (len(tokens) + len(kept) - 259)
    return tokens + kept, scores + [-1e9] * len(kept), types


TOKENS, SCORES, TYPES = pieces()


def merged_by_score(text):
    """The slow obvious version: join the neighbours of the best score until none are left.

    Source: `llm_tokenizer_spm` of llama.cpp; Kudo and Richardson 2018 (arXiv 1808.06226).
    """
    ids = {token: index for index, token in enumerate(TOKENS)}
    parts = list(("▁" + text.replace(" ", "▁")) if text else "")
    while True:
        pairs = [
            (-SCORES[ids[a + b]], at)
            for at, (a, b) in enumerate(itertools.pairwise(parts))
            if ids.get(a + b, 0) >= 259
        ]
        if not pairs:
            break
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return [
        token
        for part in parts
        for token in ([ids[part]] if part in ids else [3 + byte for byte in part.encode()])
    ]


def write_pieces(
    path,
    *,
    family="llama",
    tokens=TOKENS,
    scores=SCORES,
    types=TYPES,
    extra=lambda writer: None,
):
    writer = new_writer(path, family, LLAMA)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types([int(kind) for kind in types])
    extra(writer)
    close(writer)


@pytest.fixture(scope="module")
def sentence_pieces(tmp_path_factory):
    path = tmp_path_factory.mktemp("pieces") / "m.gguf"
    write_pieces(path)
    return read_vocabulary(path)


@given(text=TEXTS.filter(lambda text: "<" not in text))
@example(text="  two  spaces   and more    ")
@example(text="漢字 and 😀\n")
@settings(max_examples=200, deadline=None)
def test_sentence_pieces_are_merged_by_score(sentence_pieces, text):
    tokenizer = sentence_pieces.tokenizer
    assert tokenizer.encode(text, add_special_tokens=False).ids == merged_by_score(text)
    ids = tokenizer.encode(text).ids
    assert ids[0] == 1
    assert tokenizer.decode(ids) == text


def test_special_pieces_are_never_cut_and_found_again(sentence_pieces):
    tokenizer = sentence_pieces.tokenizer
    assert tokenizer.encode("<s>quick</s>", add_special_tokens=False).ids[0] == 1
    assert sentence_pieces.end_tokens == (2,)
    assert sentence_pieces.named == {"bos_token": "<s>", "eos_token": "</s>"}


def test_special_pieces_of_phi3_swallow_the_spaces_after_them(tmp_path):
    write_pieces(
        tmp_path / "m.gguf",
        family="phi3",
        tokens=[*TOKENS, "<|user|>"],
        scores=[*SCORES, 0.0],
        types=[*TYPES, gguf.TokenType.CONTROL],
    )
    tokenizer = read_vocabulary(tmp_path / "m.gguf").tokenizer
    quick = tokenizer.encode("quick", add_special_tokens=False).ids
    found = tokenizer.encode("<|user|> \nquick", add_special_tokens=False).ids
    assert found == [len(TOKENS), *quick]
    assert len(tokenizer.encode("<s> \nquick", add_special_tokens=False).ids) > len(found)


def test_runs_of_spaces_of_gemma_are_tokens(tmp_path):
    # Its converter writes them as the spaces they stand for.
    write_pieces(
        tmp_path / "m.gguf",
        family="gemma",
        tokens=[*TOKENS, "     "],
        scores=[*SCORES, 0.0],
        types=[*TYPES, gguf.TokenType.USER_DEFINED],
        extra=lambda writer: writer.add_add_space_prefix(False),
    )
    tokenizer = read_vocabulary(tmp_path / "m.gguf").tokenizer
    ids = tokenizer.encode("a     b", add_special_tokens=False).ids
    assert ids == [TOKENS.index("a"), len(TOKENS), TOKENS.index("b")]
    assert tokenizer.decode(ids) == "a     b"


def test_a_codec_of_a_file_knows_template_and_special_tokens(tmp_path):
    def extra(writer):
        writer.add_chat_template(
            "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
        )
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)

    wanted = original("qwen2")
    write_vocabulary(tmp_path / "m.gguf", "qwen2", wanted, extra)
    codec = TextCodec.load(tmp_path / "m.gguf")
    ids = wanted.encode("<|begin_of_text|>quick fox<|end_of_text|>").ids
    assert codec.encode("quick fox") == ids
    assert codec.encode_chat([{"role": "user", "content": "quick fox"}]) == ids
    assert b"".join(map(codec.piece_bytes, ids[1:-1])) == b"quick fox"


def test_grammars_follow_a_tokenizer_of_a_file(tmp_path):
    from steelyard.serve.running.grammar import Grammars

    wanted = original("gpt-2")
    write_vocabulary(tmp_path / "m.gguf", "gpt-2", wanted)
    codec = TextCodec.load(tmp_path / "m.gguf")
    grammars = Grammars(codec.tokenizer, wanted.get_vocab_size(), codec.end_tokens)
    grammars.check("regex:[a-c]+")
    with pytest.raises(ConfigError):
        grammars.check("regex:[a-c")


def test_a_file_without_a_vocabulary_takes_token_ids(tmp_path):
    close(new_writer(tmp_path / "m.gguf", "llama", LLAMA))
    codec = TextCodec.load(tmp_path / "m.gguf")
    assert codec.tokenizer is None
    assert codec.encode("3 4") == [3, 4]


def test_every_splitter_is_accepted(tmp_path):
    wanted = original("gpt-2")
    for name in filter(None, SPLITTERS):
        write_vocabulary(tmp_path / "m.gguf", name, wanted)
        tokenizer = read_vocabulary(tmp_path / "m.gguf").tokenizer
        for text in CORPUS[:4]:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            assert tokenizer.decode(ids) == normalizers.NFC().normalize_str(text)


BAD = {
    "kind": ({"model": "bert"}, ConfigError, "kind 'bert' is not supported"),
    "splitter": ({"pre": "own"}, ConfigError, "pre-tokenizer 'own'"),
    "twice": ({"tokens": ["a", "b", "a"]}, DataError, "token 'a' comes twice"),
    "long": ({"tokens": ["a" * 1025]}, DataError, "more than 1024 letters"),
    "merge": ({"merges": ["a c"]}, DataError, "make no tokenizer"),
    "no merges": ({"merges": None}, DataError, "merges' is missing"),
    "types": ({"token_type": [1]}, DataError, "1 values for 3 tokens"),
    "bos": ({"bos_token_id": 3}, DataError, "bos_token_id is 3, of 3 tokens"),
    "numbers for texts": ({"tokens": [1, 2]}, DataError, "not of type list"),
    "scores": (
        {"model": "llama", "merges": None, "scores": [0.0, 1.0, float("nan")]},
        DataError,
        "not finite",
    ),
    "no scores": ({"model": "llama", "merges": None}, DataError, "scores' is missing"),
}


@pytest.mark.parametrize(("change", "error", "words"), BAD.values(), ids=BAD)
def test_bad_vocabularies_are_refused_in_words(change, error, words, tmp_path):
    fields = {"model": "gpt2", "pre": "gpt-2", "tokens": ["a", "b", "ab"], "merges": ["a b"]}
    writer = new_writer(tmp_path / "m.gguf", "llama", LLAMA)
    for name, value in (fields | change).items():
        if isinstance(value, list):
            writer.add_array(f"tokenizer.ggml.{name}", value)
        elif isinstance(value, int):
            writer.add_uint32(f"tokenizer.ggml.{name}", value)
        elif value is not None:
            writer.add_string(f"tokenizer.ggml.{name}", value)
    close(writer)
    with pytest.raises(error, match=words):
        read_vocabulary(tmp_path / "m.gguf")
