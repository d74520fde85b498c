import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard.data.clean import clean, decode, fingerprint, split, verdict


@pytest.mark.parametrize(
    "raw",
    [b"a\0b", b"\xff\xfea\0", b"\x80abc", b"\x01\x02\x03 some words", "caf\xe9".encode("latin-1")],
)
def test_binary_is_refused(raw):
    assert decode(raw) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain\r\n\ttext\f",
        "Grüße, 世界 🌍",
        "one \x1b escape" + " in a rather long line of text" * 9,
    ],
)
def test_text_is_accepted(text):
    assert decode(text.encode()) == text


def test_a_byte_order_mark_is_dropped():
    assert decode(b"\xef\xbb\xbfhello") == "hello"


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_cleaning_gives_one_form_and_changes_a_clean_text_no_more(text):
    once = clean(text)
    assert unicodedata.is_normalized("NFC", once)
    assert "\r" not in once and "\x07" not in once and "\n\n\n\n" not in once
    assert clean(once) == once


def test_cleaning_example():
    assert clean("\ufeffe\u0301te\x00\x08\r\n\r\n\r\n\r\n\r\nend\r") == "\u00e9te\n\n\nend"


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="ab \n", max_size=300), st.integers(2, 40))
def test_splitting_keeps_every_letter_and_the_limit(text, limit):
    pieces = split(text, limit)
    assert "".join("".join(pieces).split()) == "".join(text.split())
    assert all(0 < len(piece) <= limit for piece in pieces)


def test_splitting_prefers_blank_lines():
    assert split("aaaa\nbbbb\n\ncccc\ndddd", 16) == ["aaaa\nbbbb", "cccc\ndddd"]


def test_verdicts():
    words = " ".join(f"word{n * n}" for n in range(100))
    for document, expected in ((words, ""), ("short", "short"), ("spam " * 1000, "repetitive")):
        assert verdict(document, document.encode()) == expected


def test_fingerprints_see_words_not_spaces():
    assert fingerprint("a  b\nc") == fingerprint("a b c") != fingerprint("ab c")
