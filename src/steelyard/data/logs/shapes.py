"""The shape of a line: its words with numbers, addresses and names of files as wildcards.

Lines of one shape differ in what is a variable at sight, so that there are few shapes even where
there are many lines. A kernel hashes lines with their numbers folded; a line is cut into words only
where its hash is new.
"""

import re
from typing import TYPE_CHECKING, Any

import numpy as np

from steelyard.data.logs.parsers.parsed import WILDCARD
from steelyard.jit import njit

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["MARKS", "Shape", "folded_text", "line_hashes", "shape_of"]

Shape = tuple[str, ...]
"""Words, marks and wildcards in their order; one that follows a blank begins with a blank."""
MARKS = frozenset(":=,()[]{}|;\"<>'")
"""Characters that are words of their own."""
_HOLE = "\1"
_RUN = re.compile(
    r"(?<![A-Za-z0-9])[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![A-Za-z0-9])"
    r"|[A-Za-z0-9]+"
)
_HEX = re.compile(
    r"0[xX][0-9a-fA-F]+|(?=[a-fA-F]*[0-9])[0-9a-fA-F]{6,}|[0-9a-fA-F]{8,}|[^-]{8}-.{27}"
)
_DIGITS = re.compile(r"[0-9]+")
_PLAIN_CHARACTER = r"[^\s:=,()\[\]{}|;\"<>']"
# The query of a URL is not cut at its marks: it has any number of them.
_TOKEN = re.compile(
    rf"(\s*)((?:{_PLAIN_CHARACTER}*:/)?/[^\s:=,()\[\]{{}}|;\"<>'?]*\?[^\s\"<>'|]*"
    rf"|[:=,()\[\]{{}}|;\"<>']|{_PLAIN_CHARACTER}+)"
)
_NUMBER = re.compile(rf"[-+#.]*{_HOLE}[{_HOLE}.%+-]*[A-Za-z%]{{0,2}}")
_MONTHS = "Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec"
_NAMED_TIMES = frozenset([*_MONTHS.split(" "), "Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"])
_SIGNED = re.compile(rf"(?:(?<=_)-)?{_HOLE}")
_EMPTY = frozenset(("()", "[]", "{}", '""', "''"))
_MOST_TOKENS = 512


@njit()
def _is_hex(code: Any) -> Any:
    return 48 <= code <= 57 or 65 <= code <= 70 or 97 <= code <= 102


@njit()
def _is_alnum(code: Any) -> Any:
    return 48 <= code <= 57 or 65 <= code <= 90 or 97 <= code <= 122


@njit()
def _uuid_end(payload: np.ndarray, place: Any, end: Any) -> Any:
    """Return where a UUID that begins at a place ends, 0 where none does."""
    stop = place + 36
    if stop > end or (stop < end and _is_alnum(payload[stop])):
        return 0
    for step in range(36):
        code = payload[place + step]
        if step == 8 or step == 13 or step == 18 or step == 23:
            if code != 45:
                return 0
        elif not _is_hex(code):
            return 0
    return stop


@njit()
def fold_hashes(payload: np.ndarray, offsets: np.ndarray, found: np.ndarray) -> None:
    """Hash lines with each number as one hole and each run of blanks as one blank.

    Args:
        payload: bytes of all lines, uint8.
        offsets: where lines begin, and the end of the last, [lines + 1].
        found: takes the hashes, uint64, [lines].

    Source: Fowler, Noll and Vo 1991 (FNV-1a, 64 bits).
    """
    for row in range(len(found)):
        place, end = np.int64(offsets[row]), np.int64(offsets[row + 1])
        code = np.uint64(0xCBF29CE484222325)
        while place < end:
            byte = payload[place]
            if not _is_alnum(byte):
                if byte == 32 or byte == 9:
                    while place + 1 < end and (payload[place + 1] == 32 or payload[place + 1] == 9):
                        place += 1
                    byte = np.uint8(32)
                code = (code ^ np.uint64(byte)) * np.uint64(0x100000001B3)
                place += 1
                continue
            stop, digits, hexes = place, 0, 0
            while stop < end and _is_alnum(payload[stop]):
                digits += payload[stop] <= 57
                hexes += _is_hex(payload[stop])
                stop += 1
            length = stop - place
            if length == 8 and hexes == 8:
                uuid = _uuid_end(payload, place, end)
                if uuid:
                    stop = uuid
            is_prefixed = (
                length > 2
                and hexes == length - 1
                and payload[place] == 48
                and (payload[place + 1] == 120 or payload[place + 1] == 88)
            )
            is_hex = hexes == length and ((digits > 0 and length >= 6) or length >= 8)
            if is_prefixed or is_hex:
                code = (code ^ np.uint64(1)) * np.uint64(0x100000001B3)
                place = stop
                continue
            was_digit = False
            while place < stop:
                byte = payload[place]
                is_digit = byte <= 57
                if not (is_digit and was_digit):
                    folded = np.uint64(1) if is_digit else np.uint64(byte)
                    code = (code ^ folded) * np.uint64(0x100000001B3)
                was_digit = is_digit
                place += 1
        found[row] = code


def line_hashes(column: "pa.Array") -> np.ndarray:
    """Return the hash of each line of an Arrow column of text, [lines]; no value is missing."""
    import pyarrow as pa

    wide = column.cast(pa.large_string())
    _, offsets, payload = wide.buffers()
    places = np.frombuffer(offsets, np.int64)[wide.offset : wide.offset + len(wide) + 1]
    found = np.empty(len(wide), np.uint64)
    fold_hashes(np.frombuffer(payload or b"", np.uint8), places, found)
    return found


def _folded(run: re.Match[str]) -> str:
    text = run.group()
    return _HOLE if _HEX.fullmatch(text) else _DIGITS.sub(_HOLE, text)


def folded_text(line: str) -> str:
    """Return a line as `fold_hashes` sees it.

    Args:
        line: any text.

    Returns:
        It with each number, hexadecimal word and UUID as one character 1.
    """
    return re.sub("[ \t]+", " ", _RUN.sub(_folded, line))


def shape_of(line: str) -> Shape:
    """Return the shape of a line; lines of one hash have one shape.

    Args:
        line: without its header.

    Returns:
        At most 512 words; the rest of a longer line is one wildcard.
    """
    found: list[str] = []
    for blank, text in _TOKEN.findall(folded_text(line)):
        token = text if text in MARKS else _word(text)
        _add(found, token, " " if blank and found else "")
        if len(found) == _MOST_TOKENS:
            found.append(WILDCARD)
            break
    return tuple(found)


def _word(word: str) -> str:
    """Return a folded word, as a wildcard where it is a number, a path or a dotted name."""
    if _NUMBER.fullmatch(word) or word in _NAMED_TIMES:
        return WILDCARD
    if word.count("/") > 1 or (word[0] == "/" and len(word) > 1):
        return WILDCARD
    if word.count(".") > 1 and ".." not in word:
        return WILDCARD
    return _SIGNED.sub(WILDCARD, word)


def _add(found: list[str], token: str, blank: str) -> None:
    """Add a token; a list of variables, and one word again and again, are one."""
    last = found[-1].lstrip() if found else ""
    if WILDCARD in token and last == token:
        return
    before = found[-2].lstrip() if len(found) > 1 else ""
    if token == before == WILDCARD and last in (":", ","):
        found.pop()
        return
    if last + token in _EMPTY:
        # Brackets with nothing in them are those of a variable that is empty.
        found.append(WILDCARD)
    found.append(blank + token)
