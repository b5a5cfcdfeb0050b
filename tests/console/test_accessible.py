"""Every page, light and dark, wide and narrow: axe finds nothing, and nothing hangs over the edge."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.console.conftest import NARROW, WIDE, Console, Show
from tests.support.client import Client
from tests.support.messages import data
from tests.support.running import RunningGateway

DETAILS = (
    *(
        f"#/default/endpoints/queues/q?tab={tab}"
        for tab in ("consumers", "messages", "subscriptions", "limits")
    ),
    "#/default/endpoints/queues/q?tab=messages&msg=1",
    "#/default/endpoints/topicEndpoints/te?tab=subscriptions",
    "#/default/clients/%231",
    "#/default/clients/%23999",
    "#/default/log?msg=1",
)
"""What the pages show of one thing."""

OF_COLOURS = ("color-contrast", "link-in-text-block")
"""Rules of axe that look at colours, which are all that is different in the dark."""

GROUND = "getComputedStyle(document.body).backgroundColor"


def pages_of(console: Console) -> list[tuple[str, str]]:
    """The pages that the navigation names, with their addresses."""
    links = console.page.get_by_role("navigation", name="Pages").locator("a").all()
    return [(link.inner_text(), link.get_attribute("href") or "") for link in links]


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_every_page_is_for_everybody(
    show: Show, gateway: RunningGateway, client: Client, size: tuple[int, int]
) -> None:
    """Who reads by a screen reader, or on a telephone; of a gateway with something in it."""
    client.sender("q").send_all([data(i) for i in range(20)])
    client.sender("topic://a/b").send_all([data(i) for i in range(20)])
    client.receiver("q")
    client.receiver("topic://a/>", name="te", durable=True)
    wide = show(gateway)
    wide.load()
    expect(wide.page.get_by_role("navigation", name="Pages")).to_be_visible()
    pages = pages_of(wide)
    assert pages
    console = show(gateway, size)
    found = {}
    for title, address in [*pages, *((address, address) for address in DETAILS)]:
        page = console.page
        page.goto(f"{console.url}/{address}")
        expect(page.get_by_role("heading", level=1).first).to_be_visible()
        expect(page.get_by_text("Loading…")).to_have_count(0)
        problems = console.violations()
        light = page.evaluate(GROUND)
        page.emulate_media(color_scheme="dark")
        assert page.evaluate(GROUND) != light
        problems += console.violations(*OF_COLOURS)
        page.emulate_media(color_scheme="light")
        over = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        if over > 0:
            problems.append(f"{over} pixels hang over")
        if problems:
            found[title] = problems
    assert found == {}
