"""Bodies checked while they are decoded."""

import re
from typing import Any, TypeVar

import msgspec

from steelyard.serve.front.api.bodies import ChatBody, CompletionBody, EmbeddingBody
from steelyard.serve.front.api.errors import ApiError
from steelyard.serve.front.api.responses import ResponseBody

__all__ = ["decode_body"]

_Body = TypeVar("_Body", CompletionBody, ChatBody, EmbeddingBody, ResponseBody)
_PLACE = re.compile(r"^(?P<what>.*?)(?: - at `\$(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(\w+)`")
_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind)
    for kind in (CompletionBody, ChatBody, EmbeddingBody, ResponseBody)
}


def decode_body(data: bytes, kind: type[_Body]) -> _Body:
    """Decode and check a JSON body.

    Args:
        data: bytes of the body.
        kind: class of the body expected.

    Returns:
        The body.

    Raises:
        ApiError: 400 with the field at fault.
    """
    try:
        return _DECODERS[kind].decode(data)
    except msgspec.ValidationError as error:
        # msgspec names the place as " - at `$.field`" at the end of its message.
        found = _PLACE.match(str(error))
        what, path = (found["what"], found["path"] or "") if found else (str(error), "")
        missing = _MISSING.search(what)
        param = path.lstrip(".") or (missing[1] if missing else None)
        raise ApiError(400, f"{param or 'body'}: {what}", param=param) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from error
