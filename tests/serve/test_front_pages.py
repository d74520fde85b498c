"""The server's own pages: whole in themselves, safe, and usable in a browser of any width."""

import base64
import hashlib
import os
import re
import shutil

import pytest

from steelyard import __version__
from steelyard.serve.front.gateway.pages import chat_page

WIDTHS = (390, 820, 1300)
BEYOND = """() => [...document.querySelectorAll("body *")]
  .map(item => item.getBoundingClientRect())
  .filter(box => box.width && (box.right > innerWidth + 1 || box.left < -1)).length"""


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
    assert chat_server.client.get("/version").json() == {"version": __version__}


@pytest.fixture(scope="module")
def browser():
    library = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium on this machine")
    with library.sync_playwright() as driver:
        words = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        started = driver.chromium.launch(executable_path=program, args=words)
        yield started
        started.close()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_a_browser_chats_by_keyboard_alone_at_any_width(browser, chat_server, width, scheme):
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=scheme, base_url=chat_server.url
    )
    page, told, asked = context.new_page(), [], []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto("/")
    page.get_by_label("Your message").focus()
    page.keyboard.type("hello")
    page.keyboard.press("Enter")
    page.get_by_text(re.compile(r"\d+ tokens in")).wait_for(timeout=60_000)
    assert page.locator(".turn").count() == 2
    assert not page.locator("#keyed").is_visible()
    page.get_by_label("Your message").fill("x" * 9000)
    page.keyboard.press("Enter")
    page.get_by_text("your message alone does not fit the model's context of 4096").wait_for()
    assert page.locator(".turn").count() == 2
    told[:] = [text for text in told if "status of 400" not in text]
    for path in ("/", "/docs"):
        page.goto(path)
        boxes = page.evaluate(BEYOND)
        assert boxes == 0, f"{boxes} elements of {path} reach beyond {width} px"
    assert told == [] and all(url.startswith(chat_server.url) for url in asked)
    context.close()


@pytest.mark.slow
def test_a_browser_gives_its_key_and_learns_the_model(browser, chat_folder, serving, monkeypatch):
    monkeypatch.setitem(os.environ, "KEYS", "open-sesame")
    with serving(chat_folder, "--api-key-env", "KEYS") as server:
        page = browser.new_page(base_url=server.url)
        page.goto("/")
        page.get_by_label("API key").fill("wrong")
        page.get_by_label("Your message").fill("hello")
        page.get_by_role("button", name="Send").click()
        page.get_by_text("the API key is missing or wrong").wait_for()
        assert page.get_by_label("Your message").input_value() == "hello"
        page.get_by_label("API key").fill("open-sesame")
        page.get_by_role("button", name="Send").click()
        page.get_by_text(re.compile(r"\d+ tokens in")).wait_for(timeout=60_000)
        assert '"model": "tiny"' in page.locator("#curl").text_content()
        assert page.evaluate("() => localStorage.length + document.cookie.length") == 0
