"""The API's own description, derived from the bodies it takes."""

import textwrap
from functools import cache
from typing import Any

import msgspec

from steelyard import __version__
from steelyard.serve.front.api.bodies import ChatBody, CompletionBody, EmbeddingBody
from steelyard.serve.front.api.responses import ResponseBody

__all__ = ["schema"]

_POSTS = {
    "/v1/chat/completions": (ChatBody, "Continue a conversation"),
    "/v1/completions": (CompletionBody, "Complete prompts"),
    "/v1/responses": (ResponseBody, "Answer a text or a list of items"),
    "/v1/embeddings": (EmbeddingBody, "Return vectors of texts"),
}
_GETS = {
    "/v1/models": "List the model",
    "/version": "Tell the version",
    "/health": "Tell whether the engine takes requests",
    "/metrics": "Counters and histograms in Prometheus' text format",
    "/openapi.json": "This description",
}
_ERRORS = {
    "400": "The request is wrong; `error.param` names the field",
    "401": "The API key is missing or wrong",
    "404": "There is no such model",
    "413": "The body is too long",
    "429": "Too many requests or tokens; `Retry-After` says when to try again",
    "503": "The engine is starting, or the server shuts down",
}


@cache
def schema() -> bytes:
    """Return the OpenAPI 3.1 description as JSON."""
    kinds = [kind for kind, _ in _POSTS.values()]
    bodies, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    _describe(components)
    paths: dict[str, Any] = {
        path: {"get": {"summary": text, "responses": _responses(text)}}
        for path, text in _GETS.items()
    }
    for (path, (_, text)), body in zip(_POSTS.items(), bodies, strict=True):
        content = {"application/json": {"schema": body}}
        paths[path] = {
            "post": {
                "summary": text,
                "requestBody": {"required": True, "content": content},
                "responses": _responses(text),
            }
        }
    model = {"name": "model", "in": "path", "required": True, "schema": {"type": "string"}}
    paths["/v1/models/{model}"] = {
        "get": {
            "summary": "Return one model",
            "parameters": [model],
            "responses": _responses("The model"),
        }
    }
    info = {
        "title": "Steelyard",
        "version": __version__,
        "description": "OpenAI-compatible serving.",
    }
    return msgspec.json.encode(
        {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": components}}
    )


def _describe(components: dict[str, Any]) -> None:
    """Move what docstrings say of attributes to the fields they are of."""
    bases = {kind.__name__: kind.__mro__[1].__doc__ or "" for kind, _ in _POSTS.values()}
    for name, part in components.items():
        own = part.get("description", "")
        known = _attributes(bases.get(name, "")) | _attributes(own)
        part["description"] = " ".join(own.partition("Attributes:")[0].split())
        for field, kind in part.get("properties", {}).items():
            if field in known:
                kind["description"] = known[field][:1].upper() + known[field][1:]


def _attributes(text: str) -> dict[str, str]:
    """Return what a docstring says of each attribute."""
    found, name = dict[str, str](), ""
    for line in textwrap.dedent(text.partition("Attributes:")[2]).strip().splitlines():
        words = line
        # A line that is not indented begins an attribute, the others go on with it.
        if not line.startswith(" "):
            name, _, words = line.partition(":")
        found[name] = f"{found.get(name, '')} {words.strip()}".strip()
    return found


def _responses(text: str) -> dict[str, Any]:
    """Return the answers a path may have."""
    return {"200": {"description": text}} | {
        status: {"description": words} for status, words in _ERRORS.items()
    }
