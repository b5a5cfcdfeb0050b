"""The console by keyboard, on a telephone, and in the chosen colours."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.console.conftest import NARROW, Console, Show
from tests.support.client import Client
from tests.support.messages import data
from tests.support.running import RunningGateway


@pytest.fixture(autouse=True)
def filled(client: Client) -> None:
    """Three queues with messages."""
    for name in ("q1", "q2", "q3"):
        client.sender(name).send_all([data(i) for i in range(3)])


def test_all_is_done_by_the_keyboard(console: Console, gateway: RunningGateway) -> None:
    """Skip the navigation, move through the rows of a list, open and leave a dialog, and purge a queue."""
    page = console.open("endpoints")
    expect(page.get_by_role("button", name="q3")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="To the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    page.get_by_role("button", name="q1").focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("button", name="q2")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="q2")).to_be_visible()
    page.get_by_role("tab", name="Consumers").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Messages")).to_be_focused()
    expect(page.get_by_role("tab", name="Messages")).to_have_attribute("aria-selected", "true")
    page.get_by_role("button", name="Purge…").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("button", name="Purge…")).to_be_focused()
    page.keyboard.press("Enter")
    page.get_by_role("dialog").get_by_role("textbox").focus()
    page.keyboard.type("q2")
    page.keyboard.press("Enter")
    expect(page.get_by_text("q2 was purged")).to_be_visible()
    assert gateway.depth("q2") == 0


def test_what_has_the_focus_is_seen(console: Console) -> None:
    """Every element that has the keyboard focus has an outline."""
    page = console.open("endpoints")
    expect(page.get_by_role("button", name="q3")).to_be_visible()
    seen = set()
    for _ in range(19):  # the next is the page's first again, by way of the whole page
        page.keyboard.press("Tab")
        name, style, width = page.evaluate(
            """() => {
                const style = getComputedStyle(document.activeElement);
                return [document.activeElement.textContent.trim(), style.outlineStyle, style.outlineWidth];
            }"""
        )
        assert style != "none" and width != "0px", name
        seen.add(name)
    assert len(seen) > 8


def test_the_colours_that_one_chose_stay(console: Console) -> None:
    """The choice survives a reload of the page; without a choice the system's colours apply."""
    page = console.open("overview")
    background = "getComputedStyle(document.body).backgroundColor"
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    light = page.evaluate(background)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(background)
    assert dark != light
    page.get_by_role("button", name="Colours").click()
    assert page.evaluate(background) == light, "chosen, whatever the system says"
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    assert page.evaluate(background) == light
    page.emulate_media(color_scheme="light")
    page.get_by_role("button", name="Colours").click()
    assert page.evaluate(background) == dark


def test_on_a_telephone_the_navigation_is_behind_a_button(show: Show, gateway: RunningGateway) -> None:
    """The navigation closes once a page is chosen."""
    console = show(gateway, NARROW)
    page = console.open("overview")
    expect(page.get_by_role("heading", level=1, name="Overview")).to_be_visible()
    navigation = page.get_by_role("navigation", name="Pages")
    expect(navigation).to_be_hidden()
    page.get_by_role("button", name="Navigation").click()
    assert console.violations() == []
    navigation.get_by_role("link", name="Endpoints").click()
    expect(page.get_by_role("heading", level=1, name="Endpoints")).to_be_visible()
    expect(navigation).to_be_hidden()
    page.get_by_role("button", name="q1").click()
    expect(page.get_by_role("heading", level=1, name="q1")).to_be_visible()
