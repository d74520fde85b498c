"""Text that every machine with Python has, as named documents, some of them kept aside."""

from collections.abc import Iterator

from steelyard.data.clean import clean, decode
from steelyard.data.sources import default_sources, list_files

_HELD_OUT = 20
Documents = list[tuple[str, str]]


def machine_text(max_bytes: int) -> tuple[Documents, Documents]:
    """Return documents for the store and for training, and every twentieth that is kept aside."""
    found = list(_documents(max_bytes))
    kept = [item for place, item in enumerate(found) if place % _HELD_OUT]
    return kept, found[::_HELD_OUT]


def _documents(max_bytes: int) -> Iterator[tuple[str, str]]:
    """Yield readable files with a word in them."""
    for file in list_files(default_sources(), max_bytes):
        text = decode(file.path.read_bytes())
        if text is not None and text.strip():
            yield str(file.path), clean(text)
