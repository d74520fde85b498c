"""Real text with records that are recalled at a distance, by keys that no text has."""

import gzip
import json
from dataclasses import dataclass

import numpy as np
from benchmarks.laws._shared import shared

from steelyard.data.text import default_sources
from steelyard.errors import DataError

__all__ = ["Stream", "real_text", "streams"]

_DEFINE, _RECALL, _SAME, _END = ord("!"), ord("?"), ord("="), ord("\n")
_FIRST_KEY = 128
_NUM_KEYS = 128


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One sequence and where it recalls.

    Attributes:
        tokens: int64 [T] bytes.
        recalls: (first, end) of each recalled payload whose bytes can be known from the record
            alone.
        codes: whether the payload of each recall is a random code (else a passage of text).
    """

    tokens: np.ndarray
    recalls: list[tuple[int, int]]
    codes: list[bool]


def real_text(max_bytes: int = 6_000_000) -> tuple[bytes, str]:
    """Return ASCII text and its name.

    Args:
        max_bytes: most bytes of text.

    Returns:
        Abstracts of papers where the shared data lie, else what every Python installation carries.
    """
    try:
        path = shared("arxiv-abstracts") / "papers.jsonl.gz"
        with gzip.open(path, "rt") as lines:
            pieces = [json.loads(line)["abstract"] for line in lines]
        name = "arxiv-abstracts"
    except (DataError, OSError):
        pieces = []
        name = "default sources"
        for source in default_sources():
            pieces.append(source.read_text(errors="ignore"))
            if sum(map(len, pieces)) > max_bytes:
                break
    text = "\n".join(" ".join(piece.split()) for piece in pieces)
    return text.encode("ascii", "ignore")[:max_bytes], name


def streams(
    text: bytes,
    rng: np.random.Generator,
    count: int,
    length: int,
    *,
    gap: tuple[int, int],
    distance: int = 0,
    aliases: float = 0.0,
) -> list[Stream]:
    """Mix text with records that are recalled later.

    A record is "!", a key byte that no text has, a payload (5 random capitals, or 16 to 32 bytes of
    text) and a line end; a recall is the same with "?" first. An alias is "!", a new key, "=", the
    key of a record or alias and a line end; its recall follows the links to the payload.

    Args:
        text: real text.
        rng: source of all draws.
        count: sequences.
        length: bytes of each.
        gap: shortest and longest text between records.
        distance: a record is recalled when it was last seen at least so many bytes ago.
        aliases: share of the records that name another one.

    Returns:
        The sequences.
    """
    return [_stream(text, rng, length, gap, distance, aliases) for _ in range(count)]


def _stream(
    text: bytes,
    rng: np.random.Generator,
    length: int,
    gap: tuple[int, int],
    distance: int,
    aliases: float,
) -> Stream:
    """Make one sequence."""
    data = bytearray()
    cursor = int(rng.integers(len(text) - length - 64))
    keys = rng.permutation(_NUM_KEYS) + _FIRST_KEY
    records: list[tuple[int, bytes, bool]] = []
    last_seen: list[int] = []
    recalls, codes = [], []
    while len(data) < length:
        kind = rng.random()
        far = [index for index, seen in enumerate(last_seen) if len(data) - seen >= distance]
        if kind < 0.4:
            size = int(rng.integers(gap[0], gap[1] + 1))
            data += text[cursor : cursor + size]
            cursor += size
        elif kind < 0.7 and len(records) < _NUM_KEYS:
            key = bytes([int(keys[len(records)])])
            # Without aliases nothing is drawn for them: the sequences stay what they were.
            if aliases and records and rng.random() < aliases:
                other, payload, is_code = records[int(rng.integers(len(records)))]
                link = bytes([_SAME, other])
                data += bytes([_DEFINE]) + key + link + bytes([_END])
                payload = link + payload
            else:
                is_code = bool(rng.random() < 0.5)
                payload = _payload(text, rng, is_code)
                data += bytes([_DEFINE]) + key + payload + bytes([_END])
            records.append((int(keys[len(records)]), payload, is_code))
            last_seen.append(len(data))
        elif far:
            index = far[int(rng.integers(len(far)))]
            key, payload, is_code = records[index]
            start = len(data) + 2
            data += bytes([_RECALL, key]) + payload + bytes([_END])
            last_seen[index] = len(data)
            if start + len(payload) <= length:
                recalls.append((start, start + len(payload)))
                codes.append(is_code)
    return Stream(
        tokens=np.frombuffer(bytes(data[:length]), dtype=np.uint8).astype(np.int64),
        recalls=recalls,
        codes=codes,
    )


def _payload(text: bytes, rng: np.random.Generator, is_code: bool) -> bytes:
    """Draw what a record holds."""
    if is_code:
        return bytes(rng.integers(ord("A"), ord("Z") + 1, 5).tolist())
    start, size = int(rng.integers(len(text) - 64)), int(rng.integers(16, 33))
    return text[start : start + size].replace(b"\n", b" ")
