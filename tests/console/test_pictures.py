"""The pictures in the guide show what the console shows."""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Page, Route, expect

from gateway.admin.console.routes import STATIC
from tests.console.conftest import Console, Show
from tests.console.history import BEGAN_MS, HOUR_MS, NOW_MS, QUEUE, History, three_days
from tests.gateway.admin.conftest import Api
from tests.support.client import Client

PICTURES: Final = Path(__file__).parents[2] / "docs" / "images"
SHOWN: Final = Path(__file__).with_name("pictures.txt")
"""The content of each picture in words, and the hash of the style sheet: the pixels depend on fonts."""

RENEW: Final = "REWIND_RENEW_PICTURES"
HOW: Final = (
    f"the pictures of docs/guides/console.md are old: {RENEW}=1 python -m pytest -m console {{}}".format(
        "tests/console/test_pictures.py"
    )
)

SIZE: Final = (1120, 700)
SLOTS: Final = 720


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """The history with two points."""
    with three_days(tmp_path_factory.mktemp("pictures")) as found:
        api = Api(found.gateway)
        for name, hour in (("before-release", 34), ("import-done", 58)):
            place = f"#{next(m.id for m in found.messages if m.time_ms >= BEGAN_MS + hour * HOUR_MS)}"
            api.make("/replayPoints", {"replayPointName": name, "start": place})
        api.http.close()
        yield found


def an_hour(route: Route) -> None:
    """An hour of rates, faked, as no test runs that long."""
    published = [
        int(400 + 160 * math.sin(i / 70) + 60 * math.sin(i / 11) + i * 37 % 40) for i in range(SLOTS)
    ]
    data: dict[str, Any] = {
        "intervalMs": 5_000,
        "untilTimeMs": NOW_MS,
        "publishedMsgs": published,
        "publishedBytes": [count * 240 for count in published],
        "settledMsgs": [int(count * (0.4 if i % 120 < 30 else 0.85)) for i, count in enumerate(published)],
        "refusals": [int(i % 211 == 0) for i in range(SLOTS)],
    }
    route.fulfill(json={"data": data, "links": {}, "meta": {}})


def overview(console: Console, _: History) -> None:
    """How far back one can rewind."""
    console.page.route("**/rates", an_hour)
    page = console.open("overview")
    expect(page.get_by_text("You can rewind to")).to_be_visible()
    expect(page.get_by_text("Free disk space")).to_be_visible()
    expect(page.get_by_text("No active alarms")).to_be_visible()
    expect(page.get_by_text("Nothing was refused")).to_be_visible()


def log(console: Console, _: History) -> None:
    """A part of the time line is selected."""
    query = f"?from={BEGAN_MS + 33 * HOUR_MS}&until={BEGAN_MS + 41 * HOUR_MS}"
    page = console.open("log", query=query)
    expect(page.get_by_role("row").nth(5)).to_be_visible()
    expect(page.get_by_role("button", name="Point before-release")).to_be_visible()


def message(console: Console, history: History) -> None:
    """A message next to the list."""
    page = console.open("log", query=f"?msg={history.messages[-4].id}")
    expect(page.get_by_label("Body as JSON")).to_be_visible()
    expect(page.get_by_role("row").nth(5)).to_be_visible()


def rewind(console: Console, _: History) -> None:
    """The preview of a rewind."""
    page = console.open("rewind", query=f"?target={QUEUE}&from={BEGAN_MS + 33 * HOUR_MS}")
    expect(page.get_by_text("By topic")).to_be_visible()
    expect(page.get_by_role("button", name="Point before-release")).to_be_visible()


def replay(console: Console, history: History) -> None:
    """A replay half done."""
    with Client(history.gateway.url) as client:
        api = Api(history.gateway)
        api.act(f"/queues/{QUEUE}/startReplay", {"start": "beginning", "replayName": "again"})
        api.http.close()
        receiver = client.receiver(QUEUE, credit=200)
        receiver.take_and_accept(110)
        wanted = sum(m.topic.startswith("orders/") for m in history.messages)
        client.wait(lambda: history.gateway.depth(QUEUE) == wanted - 110, "some are acknowledged")
        page = console.open("replays", "again")
        expect(page.get_by_text(f"110 of {wanted} messages acknowledged")).to_be_visible()
        expect(page.get_by_text("0/s")).to_be_visible()
        _take(console.page, "replay")


DRAWN: Final[dict[str, Callable[[Console, History], None]]] = {
    "overview": overview,
    "log": log,
    "message": message,
    "rewind": rewind,
    "replay": replay,
}

_shown: dict[str, str] = {}


def _take(page: Page, name: str) -> None:
    """Keep the page's content in words; take the picture if pictures are renewed."""
    _shown[name] = in_words(page.locator("main").aria_snapshot())
    if RENEW in os.environ:
        page.screenshot(path=PICTURES / f"console-{name}.png")


def in_words(snapshot: str) -> str:
    """A page without what differs each time: numbers, times, sizes, the list's rows and the links' targets."""
    text = re.sub(
        r"^ *- row \".*\n(?: +- (?:cell|button|code|text).*\n)*", "", snapshot + "\n", flags=re.MULTILINE
    )
    text = re.sub(r"^ *- /url: .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"rmid1:[-0-9a-f]+", "REPLAY-ID", text)
    text = re.sub(r"\d[\d,.:]*", "0", text)
    text = re.sub(r"\b(bytes?|kB|MB|GB|TB)\b", "SIZE", text)
    text = re.sub(r"(0 (ms|seconds?|minutes?|hours?|days?|weeks?|years?) ?)+", "0 TIME ", text)
    return re.sub(r"\((in 0 TIME|0 TIME ago|now) ?\)", "(TIME)", text)


def test_the_pictures_show_the_console(show: Show, history: History) -> None:
    """Each page has the content that it had when its picture was taken, and the style sheet is the same."""
    for name, draw in DRAWN.items():
        console = show(history.gateway, SIZE, "dark" if name == "message" else "light")
        console.page.clock.install(time=NOW_MS / 1_000 + 30)
        draw(console, history)
        if name not in _shown:
            _take(console.page, name)
        console.context.close()
    style = hashlib.sha256((STATIC / "style.css").read_bytes()).hexdigest()
    found = f"style.css {style}\n" + "".join(f"\n{name}\n{_shown[name]}" for name in DRAWN)
    if RENEW in os.environ:
        SHOWN.write_text(found)
    assert SHOWN.read_text() == found, HOW
    assert all((PICTURES / f"console-{name}.png").is_file() for name in DRAWN), HOW
