"""The server's own pages: whole in themselves and safe."""

import base64
import hashlib
import re

import pytest

from steelyard import __version__
from steelyard.serve.front.gateway.pages import chat_page


def hash_of(text):
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_fetches_nothing_and_its_policy_allows_only_its_own_parts(chat_server, path):
    answer = chat_server.client.get(path)
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
    policy, text = answer.headers["content-security-policy"], answer.text
    assert policy.startswith("default-src 'none'") and "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy and "connect-src 'self'" in policy
    for tag in ("style", "script"):
        for part in re.findall(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL):
            assert f"'sha256-{hash_of(part)}'" in policy
    # No attribute holds a style or a script of its own, and none names another server.
    assert not re.search(r"\son\w+=|\sstyle=|<script [^>]*src|<link [^>]*href=.https?:", text)
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)


def test_the_page_names_address_model_and_a_command(chat_server):
    text = chat_server.client.get("/").text
    host = chat_server.url.removeprefix("http://")
    assert f"curl http://{host}/v1/chat/completions" in text
    assert "{&quot;model&quot;: &quot;tiny&quot;" in text and 'data-keyed="no"' in text
    hostile = chat_server.client.get("/", headers={"host": 'x"><script>alert(1)</script>'}).text
    assert "alert(1)" not in hostile and "curl http://127.0.0.1:8000/v1" in hostile


def test_names_cannot_break_out_of_the_page():
    text = chat_page("a'b\"<i>$x", "[::1]:8000", keyed=False).decode()
    assert (
        "<i>" not in text and "http://[::1]:8000/v1" in text and "a&#x27;b&quot;&lt;i&gt;$x" in text
    )


def test_a_page_of_a_server_with_keys_asks_for_one_and_keeps_the_model_to_itself():
    text = chat_page("secret-model", "127.0.0.1:8000", keyed=True).decode()
    assert "secret-model" not in text and 'data-keyed="yes"' in text
    assert "Authorization: Bearer $API_KEY" in text
    assert re.search(r'<div class="keyed" id="keyed" *>', text)


def test_the_reference_names_every_field_and_path(chat_server):
    text = chat_server.client.get("/docs").text
    api = chat_server.client.get("/openapi.json").json()
    for path in api["paths"]:
        assert path in text
    for name in ("ChatBody", "ResponseBody", "CompletionBody", "EmbeddingBody"):
        for field, part in api["components"]["schemas"][name]["properties"].items():
            assert f"<code>{field}</code>" in text
            assert part["description"], (name, field)


def test_the_version_is_told_as_vllm_tells_it(chat_server):
    found = chat_server.client.get("/version").json()
    assert found.pop("kernel") in ("native", "numba", "torch")
    assert found == {"version": __version__, "weights": "fp32", "speculate": "ngram"}
    metrics = chat_server.client.get("/metrics").text
    assert "steelyard_drafted_tokens" in metrics and "steelyard_accepted_tokens" in metrics
