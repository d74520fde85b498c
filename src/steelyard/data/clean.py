"""From a file's bytes to clean documents: decode, normalize, cut, drop what teaches nothing."""

import hashlib
import re
import unicodedata
import zlib

__all__ = ["MAX_DOCUMENT_CHARS", "clean", "decode", "fingerprint", "split", "verdict"]

MAX_DOCUMENT_CHARS = 65536
"""Longer texts are cut into several documents, so that one large file still gives training and
held-out text."""

MIN_DOCUMENT_CHARS = 128
MAX_CONTROL_FRACTION = 0.01
MAX_COMPRESSION = 12.0
"""Prose and source text shrink 2- to 6-fold; tables of one value and generated lists far more."""

# C0 controls except tab and newline, DEL, C1 controls, byte-order mark, and the interlinear marks.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ufeff\ufff9-\ufffb]")
_BLANK_LINES = re.compile(r"\n{4,}")


def decode(raw: bytes) -> str | None:
    """Decode UTF-8 text.

    Args:
        raw: a file's bytes.

    Returns:
        The text, or None when the bytes are binary: a zero byte, invalid UTF-8, or more than 1 %
        control characters.
    """
    if b"\0" in raw:
        return None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    # Carriage returns and form feeds are control characters that plain text may have many of.
    spaces = text.count("\r") + text.count("\f")
    controls = sum(1 for _ in _CONTROLS.finditer(text)) - spaces
    return None if controls > MAX_CONTROL_FRACTION * len(text) else text


def clean(text: str) -> str:
    """Bring a text into one form: NFC, line feeds, no control characters, few blank lines.

    At most two blank lines stand in a row.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii():
        text = unicodedata.normalize("NFC", text)
    return _BLANK_LINES.sub("\n\n\n", _CONTROLS.sub("", text)).strip()


def split(text: str, limit: int = MAX_DOCUMENT_CHARS) -> list[str]:
    """Cut a long text at blank lines, else at line ends, else anywhere.

    Args:
        text: text of any length.
        limit: most characters of a piece, at least 2.

    Returns:
        Pieces without blank ends; one when the text is short enough, none when it is blank.
    """
    pieces = []
    start = 0
    while len(text) - start > limit:
        end = text.rfind("\n\n", start + limit // 2, start + limit)
        end = end if end > 0 else text.rfind("\n", start + limit // 2, start + limit)
        end = end if end > 0 else start + limit
        pieces.append(text[start:end])
        start = end
    pieces.append(text[start:])
    return [stripped for piece in pieces if (stripped := piece.strip())]


def verdict(document: str, raw: bytes) -> str:
    """Say why a document is dropped.

    Args:
        document: clean text.
        raw: the document in UTF-8.

    Returns:
        "short" (under 128 characters), "repetitive" (deflate shrinks it more than 12-fold), or an
        empty string to keep it.
    """
    if len(document) < MIN_DOCUMENT_CHARS:
        return "short"
    return "repetitive" if len(raw) > MAX_COMPRESSION * len(zlib.compress(raw, 1)) else ""


def fingerprint(document: str) -> bytes:
    """Return the SHA-256 of a document with all white space made alike.

    Equal fingerprints mean an exact duplicate.
    """
    return hashlib.sha256(" ".join(document.split()).encode()).digest()
