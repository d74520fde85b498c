"""The server's own pages: one to try the model on, and a reference of the API.

They are whole in themselves: a policy forbids the browser to load, frame or run anything else, and
names the page's own style and script by their hashes.
"""

import base64
import hashlib
import html
import json
import re
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from steelyard import __version__
from steelyard.serve.front.api.openapi import schema

__all__ = ["HTML", "chat_page", "docs_page", "page_headers"]

HTML = b"text/html; charset=utf-8"

_HERE = Path(__file__).parent
_HOST = re.compile(r"[A-Za-z0-9._\-]{1,253}(:\d{1,5})?|\[[0-9a-fA-F:.]{2,45}\](:\d{1,5})?")
_CURL = """curl $base/chat/completions \\
  -H 'Content-Type: application/json' \\$key
  -d '{"model": "$model", "messages": [{"role": "user", "content": "Hello"}]}'"""
_KEY = """
  -H "Authorization: Bearer $API_KEY" \\"""
_PYTHON = """from openai import OpenAI

client = OpenAI(base_url="$base", api_key="$key")
messages = [{"role": "user", "content": "Hello"}]
answer = client.chat.completions.create(model="$model", messages=messages)
print(answer.choices[0].message.content)"""


def chat_page(model: str, host: str, *, keyed: bool) -> bytes:
    """Return the page to try the model on.

    Args:
        model: name of the model; a page of a server with keys does not tell it.
        host: address as the browser knows it, its `Host` header.
        keyed: whether requests need a key.

    Returns:
        HTML.
    """
    # The header is the client's own word: what is no address is not put into a page.
    base = f"http://{host if _HOST.fullmatch(host) else '127.0.0.1:8000'}/v1"
    shown = "MODEL" if keyed else model
    # A name may hold what ends a string of a shell or of JSON.
    inside = json.dumps(shown, ensure_ascii=False)[1:-1]
    curl = Template(_CURL).substitute(
        base=base, model=inside.replace("'", "'\\''"), key=_KEY if keyed else ""
    )
    python = Template(_PYTHON).substitute(
        base=base, model=inside, key="YOUR KEY" if keyed else "none"
    )
    body = _filled(
        "chat.html",
        shown="a model" if keyed else model,
        base=base,
        curl=curl,
        python=python,
        version=__version__,
        hidden="" if keyed else "hidden",
    )
    known = "" if keyed else model
    return _page(
        "Steelyard" if keyed else f"{model} · Steelyard", body, _read("script.html"), known, keyed
    )


@cache
def docs_page() -> bytes:
    """Return the reference of the API, made of its OpenAPI description."""
    api = json.loads(schema())
    parts = [
        "<header><p class=mark>Steelyard</p><h1>API reference</h1>",
        "<p class=soft>The server speaks the OpenAI API. Fields that are not listed are ignored; "
        "those that would change the answer but cannot be honored are refused with status 400 and "
        "the field's name in <code>error.param</code>.</p>",
        '<nav aria-label="Pages"><a href="/">Try the model</a>'
        '<a href="/openapi.json">OpenAPI description</a></nav></header><main>',
    ]
    posts = {path: item["post"] for path, item in api["paths"].items() if "post" in item}
    parts += [_operation(api, path, what) for path, what in posts.items()]
    gets = {path: item["get"]["summary"] for path, item in api["paths"].items() if "get" in item}
    errors = {
        status: item["description"]
        for status, item in posts["/v1/completions"]["responses"].items()
        if status != "200"
    }
    parts += [_listing("Questions about the server", ("GET", "Answer"), gets)]
    parts += [_listing("Errors", ("Status", "Meaning"), errors)]
    parts += [f"</main><footer>Steelyard {__version__}.</footer>"]
    return _page("API reference · Steelyard", "\n".join(parts), "", "", False)


@cache
def page_headers() -> list[tuple[bytes, bytes]]:
    """Return the headers of every page: what the browser may do with it."""
    style = _hash(_between(_read("page.html"), "style"))
    script = _hash(_between(_read("script.html"), "script"))
    policy = (
        f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return [
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
        (b"cross-origin-opener-policy", b"same-origin"),
        (b"cache-control", b"no-cache"),
    ]


def _operation(api: dict[str, Any], path: str, what: dict[str, Any]) -> str:
    """Return one path of the API with the fields of its body."""
    name = re.sub(r"[^a-z0-9]+", "-", path.lower()).strip("-")
    body = _resolved(api, what["requestBody"]["content"]["application/json"]["schema"])
    required = body.get("required", [])
    rows = [
        f"<tr><th scope=row><code>{html.escape(field)}</code>"
        f"{' <span class=soft>required</span>' if field in required else ''}</th>"
        f"<td>{html.escape(_kind(api, part))}</td>"
        f"<td>{_prose(part.get('description', ''))}</td></tr>"
        # What must be there comes first.
        for field, part in sorted(
            body["properties"].items(), key=lambda item: item[0] not in required
        )
    ]
    return (
        f'<section aria-labelledby="{name}"><h2 id="{name}"><code>POST {html.escape(path)}</code>'
        f"</h2><p>{html.escape(what['summary'])}.</p>"
        "<table class=fields><thead><tr><th scope=col>Field</th><th scope=col>Value</th>"
        f"<th scope=col>Meaning</th></tr></thead><tbody>{''.join(rows)}</tbody></table></section>"
    )


def _listing(title: str, heads: tuple[str, str], items: dict[str, str]) -> str:
    """Return a table of names and what they mean."""
    name = title.partition(" ")[0].lower()
    head = "".join(f"<th scope=col>{text}</th>" for text in heads)
    rows = [
        f"<tr><th scope=row><code>{html.escape(key)}</code></th><td>{_prose(text)}</td></tr>"
        for key, text in items.items()
    ]
    return (
        f'<section aria-labelledby="{name}"><h2 id="{name}">{title}</h2>'
        f"<table class='fields two'><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody>"
        "</table></section>"
    )


def _prose(text: str) -> str:
    """Return a docstring's words with what stands in backticks as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


def _resolved(api: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Follow a reference."""
    name = part.get("$ref", "").rpartition("/")[2]
    return api["components"]["schemas"][name] if name else part


def _kind(api: dict[str, Any], part: dict[str, Any]) -> str:
    """Return what values a field takes, in words."""
    if "anyOf" in part:
        kinds = [_kind(api, item) for item in part["anyOf"] if item.get("type") != "null"]
        return " or ".join(dict.fromkeys(kinds))
    if "$ref" in part:
        inner = _resolved(api, part)
        return "object with " + ", ".join(inner.get("properties", {}))
    if "enum" in part:
        return " or ".join(json.dumps(item) for item in part["enum"])
    kind = part.get("type", "any")
    if kind == "array":
        inner = _kind(api, part.get("items", {}))
        return "list of " + re.sub(r"(text|number|object|list)(?= or |$)", r"\1s", inner)
    low = part.get("minimum", part.get("exclusiveMinimum"))
    high = part.get("maximum", part.get("exclusiveMaximum"))
    # A bound that only keeps numbers inside their type tells a reader nothing.
    bounds = f", {low} to {high}" if low is not None and (high or 2**31) < 2**31 else ""
    words = {"integer": "whole number", "string": "text", "boolean": "true or false"}
    return f"{words.get(kind, kind)}{bounds}"


def _page(title: str, body: str, script: str, model: str, keyed: bool) -> bytes:
    """Return a whole page."""
    page = Template(_read("page.html")).substitute(
        title=html.escape(title),
        model=html.escape(model),
        keyed="yes" if keyed else "no",
        body=body,
        script=script,
    )
    return page.encode()


def _filled(name: str, **values: str) -> str:
    """Fill a part of a page; values are escaped."""
    return Template(_read(name)).substitute(
        {key: html.escape(value) for key, value in values.items()}
    )


@cache
def _read(name: str) -> str:
    """Read a part of a page."""
    return (_HERE / name).read_text(encoding="utf-8")


def _between(text: str, tag: str) -> str:
    """Return what stands between the tags, as the browser hashes it."""
    return text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]


def _hash(text: str) -> str:
    """Return the name of a text in a policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
