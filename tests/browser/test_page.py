"""The server's pages in a browser: chats at any width, nothing cut, nothing that axe finds."""

import os
import re

import pytest
from tests.browser.conftest import WIDTHS
from tests.serve.conftest import chat_folder, chat_server, serving

__all__ = ["chat_folder", "chat_server", "serving"]

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_nothing_is_cut_and_axe_finds_nothing(look, chat_server, path):
    for found in look(chat_server.url + path):
        assert found.cut == [], found.name
        assert not found.axe, found.name


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
    assert told == [] and all(url.startswith(chat_server.url) for url in asked)
    context.close()


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
