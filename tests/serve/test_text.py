import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from steelyard.errors import ConfigError, DataError
from steelyard.serve.front.text import TextCodec, TextStream


def byte_tokenizer():
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def test_stop_strings_end_the_text_before_them():
    codec = TextCodec()
    stream = TextStream(codec, ["3 4", "9"])
    shown = [stream.push(token) for token in (1, 3, 5, 3, 4, 7)]
    assert "".join(shown) == "1 3 5 "
    assert stream.stopped
    assert shown[1] == " "  # "3" may be the beginning of a stop string
    whole = TextStream(codec, ["3 4"])
    assert "".join([whole.push(3), whole.finish()]) == "3"


def test_a_codec_reads_a_model_folder(tmp_path):
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"eos_token_id": [7, 3]}')
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if "
        "add_generation_prompt %}!{% endif %}"
    )
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    codec = TextCodec.load(tmp_path)
    assert codec.end_tokens == (3, 7)
    assert codec.encode_chat([{"role": "user", "content": "ab"}]) == codec.encode("<user>ab!")
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match="not a tokenizer"):
        TextCodec.load(tmp_path)
    with pytest.raises(ConfigError, match="no tokenizer"):
        TextCodec().encode("words")


def test_a_template_may_refuse_a_conversation():
    codec = TextCodec(
        byte_tokenizer(), chat_template="{{ raise_exception('roles must alternate') }}"
    )
    with pytest.raises(ConfigError, match="roles must alternate"):
        codec.encode_chat([{"role": "user", "content": "a"}])


def test_characters_of_several_tokens_come_whole_and_pieces_are_their_bytes():
    codec = TextCodec(byte_tokenizer())
    tokens = codec.encode("aé€ z")
    stream = TextStream(codec, [])
    shown = [stream.push(token) for token in tokens]
    assert "".join(shown) == codec.decode(tokens) == "aé€ z"
    assert "�" not in "".join(shown)
    assert b"".join(codec.piece_bytes(token) for token in tokens) == "aé€ z".encode()
    assert codec.piece(codec.encode(" ")[0]) == " "
    assert codec.piece_bytes(10**6) == b""


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 255), max_size=12))
def test_no_byte_is_lost_whatever_a_model_says(tokens):
    codec = TextCodec(byte_tokenizer())
    stream = TextStream(codec, [])
    shown = "".join([*(stream.push(token) for token in tokens), stream.finish()])
    assert shown == codec.decode(tokens)
    assert stream.finish() == ""
