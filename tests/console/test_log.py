"""The log's page: time line, list, single messages, and live messages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from gateway.config import User
from tests.console.conftest import Console, Show, Start
from tests.console.history import BEGAN_MS, HOUR_MS, NOW_MS, History, three_days
from tests.console.test_shell import USERS, sign_in
from tests.gateway.admin.conftest import HASH
from tests.support.client import Client
from tests.support.messages import data
from tests.support.running import RunningGateway

MOST_ROWS = 5_000
"""The most rows of the list that a test collects."""

PIECE = 20_000
"""The number of ids that the list searches first if few messages match."""

KEPT = 4_000
"""The number of rows that one can scroll through before the list loads more and drops the first ones."""


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """The tests do not change it."""
    with three_days(tmp_path_factory.mktemp("history")) as found:
        yield found


@pytest.fixture
def log(show: Show, history: History) -> Console:
    """The log's page, three days after the first message."""
    console = show(history.gateway)
    console.page.clock.set_fixed_time(NOW_MS / 1_000)
    console.open("log")
    expect(rows(console.page).first).to_be_visible()
    return console


def rows(page: Page) -> Locator:
    """The rows of the list that are in the document."""
    return page.get_by_role("region", name="Messages of the log").locator("tbody tr:not(.spacer)")


def ids(page: Page) -> list[int]:
    """The ids of the rows in the document, in order."""
    return [int(text) for text in rows(page).locator("td.mono").all_inner_texts()]


def all_ids(page: Page, last: int, most: int = MOST_ROWS) -> list[int]:
    """
    The ids of all rows, collected by scrolling from the top to the end of the list or past ``most`` rows.

    Args:
        last: The id of the last row, which may have to be loaded.
    """
    found: list[int] = page.evaluate(
        """async ([last, most]) => {
            const box = document.querySelector(".log-table .table-box");
            const found = new Set();
            const isCovered = () => {
                const { bottom, height } = box.getBoundingClientRect();
                const spacers = [...box.querySelectorAll("tr.spacer")].map((row) => row.getBoundingClientRect());
                return spacers.every((row) => row.bottom <= bottom - height + 30 || row.top >= bottom);
            };
            for (let top = 0; found.size < most; top = Math.min(top + box.clientHeight - 60, box.scrollHeight)) {
                box.scrollTop = top;
                do {
                    await new Promise((resolve) => requestAnimationFrame(resolve));
                } while (!isCovered());
                for (const cell of box.querySelectorAll("tbody tr:not(.spacer) td.mono")) {
                    found.add(Number(cell.textContent));
                }
                if (found.has(last) && top >= box.scrollHeight - box.clientHeight) break;
            }
            return [...found];
        }""",
        [last, most],
    )
    return found


def query(page: Page) -> dict[str, str]:
    """The query of the list in the page's address."""
    found = parse_qs(urlsplit(page.url).fragment.partition("?")[2])
    return {name: values[0] for name, values in found.items()}


def drag(page: Page, begin: float, end: float) -> None:
    """Drag over a part of the time line; ``begin`` and ``end`` are fractions of its width."""
    box = page.locator(".timeline-area").bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * begin, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * (begin + end) / 2, middle)
    page.mouse.move(box["x"] + box["width"] * end, middle)
    page.mouse.up()


def test_the_newest_come_first_or_the_oldest(log: Console, history: History) -> None:
    """Scrolling shows the whole log, from the newest message, and in the other order from the oldest."""
    known = [message.id for message in history.messages]
    assert ids(log.page)[0] == known[-1]
    assert all_ids(log.page, known[0]) == known[::-1]
    log.page.get_by_role("button", name="Oldest first").click()
    expect(rows(log.page).first.locator("td.mono")).to_have_text("1")
    assert all_ids(log.page, known[-1]) == known


def test_topics_and_a_selector_choose(log: Console, history: History) -> None:
    """A topic pattern and a selector filter the list; an invalid selector is refused."""
    page = log.page
    page.get_by_label("Topics").fill("orders/eu/>")
    page.get_by_label("Selector").fill("attempt = 1")
    page.get_by_role("button", name="Filter").click()
    wanted = [m.id for m in history.messages if m.topic.startswith("orders/eu/") and (m.id - 1) % 2 == 1]
    expect(rows(page).first.locator("td.mono")).to_have_text(str(wanted[-1]))
    assert all_ids(page, wanted[0]) == wanted[::-1]
    page.get_by_label("Selector").fill("attempt = ")
    page.get_by_role("button", name="Filter").click()
    expect(page.get_by_role("alert")).to_contain_text("selector")


def test_a_part_of_the_time_line_is_dragged(log: Console, history: History) -> None:
    """The list then has exactly the messages between the selected edges."""
    page = log.page
    drag(page, 0.3, 0.5)
    expect(page.get_by_role("slider", name="Until")).to_be_visible()
    said = query(page)
    since, until = int(said["from"]), int(said["until"])
    assert 20 * HOUR_MS > until - since > 10 * HOUR_MS
    wanted = [m.id for m in history.messages if since <= m.time_ms <= until]
    expect(rows(page).first.locator("td.mono")).to_have_text(str(wanted[-1]))
    assert all_ids(page, wanted[0]) == wanted[::-1]
    page.get_by_role("slider", name="From").press("ArrowLeft")
    assert int(query(page)["from"]) < since, "an edge is moved with the keyboard"


def test_a_click_on_the_time_line_is_a_start(log: Console, history: History) -> None:
    """The oldest row is then the first message since that time."""
    page = log.page
    page.get_by_role("button", name="Oldest first").click()
    box = page.locator(".timeline-area").bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] * 0.62, box["y"] + 20)
    expect(page.get_by_role("slider", name="From")).to_be_visible()
    since = int(query(page)["from"])
    first = next(m.id for m in history.messages if m.time_ms >= since)
    expect(rows(page).first.locator("td.mono")).to_have_text(str(first))
    assert "until" not in query(page)
    page.get_by_label("Go to").fill("#99999")  # an offset that does not exist
    page.get_by_role("button", name="Go", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("99999")


def test_what_the_archive_alone_has_is_tinted(log: Console, history: History) -> None:
    """Messages in the archive alone can be replayed; they are not in the list, which begins with the log."""

    def archived(route: Route) -> None:
        answer = route.fetch().json()
        answer["data"] |= {"fromTimeMs": BEGAN_MS - 24 * HOUR_MS, "firstMsgId": -500_000_000}
        answer["data"]["archive"] = {"oldestMsgId": -500_000_000, "oldestTimeMs": BEGAN_MS - 12 * HOUR_MS}
        route.fulfill(json=answer)

    log.page.route("**/histogram?*", archived)
    log.page.get_by_role("button", name="Oldest first").click()
    log.page.reload()
    tinted, striped = log.page.get_by_title("Only in the archive"), log.page.get_by_title("No longer there")
    expect(tinted).to_be_visible()
    expect(striped).to_be_visible()
    assert [one.bounding_box()["width"] > 50 for one in (tinted, striped)] == [True, True]  # type: ignore[index]
    expect(rows(log.page).first.locator("td.mono")).to_have_text("1")
    log.page.get_by_role("button", name="Newest first").click()
    expect(rows(log.page).first.locator("td.mono")).to_have_text(str(history.messages[-1].id))
    assert all_ids(log.page, 1) == [message.id for message in reversed(history.messages)]
    assert log.violations() == []


@pytest.mark.parametrize("text", ["#300", "300", "2026-11-14 12:00", "match:JMSMessageID = 'm-299'"])
def test_one_goes_to_a_place(log: Console, history: History, text: str) -> None:
    """The list continues in both directions: earlier rows are loaded while one scrolls up."""
    page = log.page
    wanted = 300
    if text.startswith("2026"):
        noon = BEGAN_MS + 36 * HOUR_MS
        wanted = next(m.id for m in history.messages if m.time_ms >= noon)
    page.get_by_label("Go to").fill(text)
    page.get_by_role("button", name="Go", exact=True).click()
    expect(rows(page).locator("td.mono").get_by_text(str(wanted), exact=True)).to_be_visible()
    page.wait_for_function(
        """newest => {
            const box = document.querySelector(".log-table .table-box");
            box.scrollTop = 0;
            return box.querySelector("tbody tr:not(.spacer) td.mono")?.textContent === String(newest);
        }""",
        arg=history.messages[-1].id,
    )
    assert all_ids(page, 1) == [m.id for m in reversed(history.messages)]


def test_a_message_shows_all_it_says(log: Console, history: History) -> None:
    """Sections, and the body as JSON, in hex and as a download; Escape closes it, and its address shows it again."""
    page = log.page
    rows(page).nth(2).get_by_role("button").click()
    drawer = page.get_by_role("complementary")
    number = history.messages[-3].id - 1
    expect(drawer.get_by_text(f"order-{40_000 + number // 3}")).to_be_visible()
    expect(drawer.get_by_text("application/json", exact=True)).to_be_visible()
    body = drawer.get_by_label("Body as JSON")
    expect(body).to_contain_text(f'"order": {40_000 + number // 3}')
    assert log.violations() == []
    drawer.get_by_role("button", name="Hex").click()
    expect(drawer.get_by_label("Body in hex")).to_contain_text("000000  7b 22 6f 72 64 65 72 22")
    with page.expect_download() as download:
        drawer.get_by_role("link", name="Body").click()
    assert Path(download.value.path()).read_text().startswith('{"order"')
    page.reload()
    expect(drawer.get_by_label("Body as JSON")).to_be_visible()
    page.keyboard.press("Escape")
    expect(drawer).to_have_count(0)


def test_messages_with_one_correlation_id_are_found(log: Console, history: History) -> None:
    """A link in one of the messages leads to all of them."""
    page = log.page
    rows(page).nth(4).get_by_role("button").click()
    page.get_by_role("link", name="Same correlation-id").click()
    number = history.messages[-5].id - 1
    wanted = [m.id for m in history.messages if (m.id - 1) // 3 == number // 3]
    expect(rows(page)).to_have_count(len(wanted))
    page.get_by_role("button", name="Close").click()
    assert ids(page) == wanted[::-1]


def test_newer_messages_are_told_of(gateway: RunningGateway, client: Client, console: Console) -> None:
    """The list does not change until the user asks for the newer messages."""
    sender = client.sender("topic://a")
    sender.send_all([data(i) for i in range(5)])
    page = console.open("log")
    expect(rows(page)).to_have_count(5)
    sender.send_all([data(i) for i in range(3)])
    newer = page.get_by_role("button", name="3 newer messages")
    expect(newer).to_be_visible()
    expect(rows(page)).to_have_count(5)
    newer.click()
    expect(rows(page)).to_have_count(8)


def test_a_rare_message_is_looked_for_a_piece_at_a_time(
    gateway: RunningGateway, client: Client, console: Console
) -> None:
    """Results appear while the search goes on; it can be stopped and continued."""
    client.sender("topic://rare").send_all([data("first")])
    client.sender("topic://often").send_all([data(i) for i in range(PIECE + 1_000)])
    client.sender("topic://rare").send_all([data("last")])
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    console.page.route("**/msgs?*lastMsgId=1002*", hold, times=1)
    page = console.open("log", query="?topic=rare")
    expect(page.get_by_text("Searching: as far as #1,002")).to_be_visible()
    assert ids(page) == [PIECE + 1_002]
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Searched as far as #1,002")).to_be_visible()
    held[0].abort()
    page.get_by_role("button", name="Continue").click()
    expect(rows(page).last.locator("td.mono")).to_have_text("1")
    expect(page.get_by_text("as far as")).to_have_count(0)


def test_a_point_is_made_and_taken_away(start: Start, show: Show) -> None:
    """A signed-in user makes and deletes points; the session's token is sent with each request."""
    gateway = start(users={**USERS, "cy": User(password=HASH)})
    with Client(gateway.url, user=("cy", "secret")) as client:
        client.sender("topic://a").send_all([data(i) for i in range(30)])
    console = show(gateway)
    page = console.open("log")
    sign_in(console, "ann")
    rows(page).nth(10).get_by_role("button").click()
    page.get_by_role("complementary").get_by_role("button", name="Create point").click()
    page.get_by_role("dialog").get_by_label("Name").fill("before release")
    page.get_by_role("dialog").get_by_role("button", name="Create").click()
    expect(page.get_by_role("status").get_by_text("was created")).to_be_visible()
    page.get_by_role("button", name="Points").click()
    dialog = page.get_by_role("dialog", name="Replay points")
    expect(dialog.get_by_text("before release")).to_be_visible()
    assert console.violations() == []
    dialog.get_by_role("button", name="Delete before release").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete", exact=True).click()
    expect(dialog.get_by_text("No replay points yet")).to_be_visible()
    dialog.get_by_role("button", name="Create point").click()
    page.get_by_role("dialog").get_by_label("Name").fill("now")
    page.get_by_role("dialog").get_by_role("button", name="Create").click()
    expect(page.get_by_role("status").get_by_text("The point now was created")).to_be_visible()


def test_a_message_is_erased(gateway: RunningGateway, client: Client, console: Console) -> None:
    """The user types the offset and a reason; the message's page then says so, and the content is gone."""
    client.sender("topic://a").send_all([data("secret")])
    page = console.open("log")
    rows(page).first.get_by_role("button").click()
    drawer = page.get_by_role("complementary")
    drawer.get_by_role("button", name="Erase…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("1 message would be erased")).to_be_visible()
    dialog.get_by_label("Reason").fill("asked by ann")
    dialog.get_by_label("I know").check()
    button = dialog.get_by_role("button", name="Erase", exact=True)
    expect(button).to_be_disabled()
    dialog.get_by_label("to confirm").fill("1")
    button.click()
    expect(drawer.get_by_text("The content was erased")).to_contain_text("asked by ann")
    expect(drawer.get_by_text("secret")).to_have_count(0)


def test_messages_come_live_in_order_and_within_bounds(client: Client, console: Console) -> None:
    """
    At thousands of messages a second, none is missing or out of order, and the page keeps a bounded number of rows.
    """
    client.sender("topic://before").send_all([data(i) for i in range(10)])
    page = console.open("log", query="?live=1")
    expect(rows(page)).to_have_count(10)
    expect(page.get_by_text("Live: messages")).to_be_visible()
    sender = client.sender("topic://live")
    for _ in range(20):
        sender.send_all([data(i) for i in range(500)])
        seen = ids(page)
        assert seen == list(range(seen[0], seen[0] - len(seen), -1))
        assert page.locator(".log-table tr").count() < 120
    newest = 10_010
    expect(rows(page).first.locator("td.mono")).to_have_text(str(newest))
    page.get_by_role("button", name="Pause").click()
    kept = all_ids(page, 0, KEPT)
    assert len(kept) >= KEPT
    assert kept == list(range(newest, newest - len(kept), -1))
    heap = page.evaluate("performance.memory.usedJSHeapSize")
    assert heap < 64 << 20


def test_the_tail_is_paused_by_scrolling(gateway: RunningGateway, client: Client, console: Console) -> None:
    """The rows that the user reads stay in place; after a resume, no message is missing."""
    sender = client.sender("topic://a")
    sender.send_all([data(i) for i in range(200)])
    page = console.open("log", query="?live=1")
    expect(rows(page).first.locator("td.mono")).to_have_text("200")
    page.locator(".log-table .table-box").evaluate("box => box.scrollTop = 900")
    expect(page.get_by_role("button", name="Resume")).to_be_visible()
    before = ids(page)
    sender.send_all([data(i) for i in range(50)])
    expect(page.get_by_text("up to 50 newer messages")).to_be_visible()
    assert ids(page) == before
    page.get_by_role("button", name="Resume").click()
    expect(rows(page).first.locator("td.mono")).to_have_text("250")
    assert all_ids(page, 1) == list(range(250, 0, -1))
    # With the oldest first, the list stays at its end, as a terminal does.
    console.open("log", query="?live=1&order=oldest")
    expect(rows(page).last.locator("td.mono")).to_have_text("250")
    sender.send_all([data(i) for i in range(100)])
    expect(rows(page).last.locator("td.mono")).to_have_text("350")
    expect(rows(page).last).to_be_in_viewport()


def test_live_goes_on_when_the_gateway_comes_back(
    gateway: RunningGateway, client: Client, console: Console
) -> None:
    """The live list continues with the message after the last one shown."""
    client.sender("topic://a").send_all([data(i) for i in range(20)])
    page = console.open("log", query="?live=1")
    expect(rows(page).first.locator("td.mono")).to_have_text("20")
    client.cut()
    gateway.stop()
    expect(page.get_by_text("The gateway does not answer")).to_be_visible()
    gateway.start()
    with Client(gateway.url) as again:
        again.sender("topic://a").send_all([data(i) for i in range(20)])
        expect(rows(page).first.locator("td.mono")).to_have_text("40")
    assert all_ids(page, 1) == list(range(40, 0, -1))
    console.faults.clear()  # the browser logs the broken connection


@pytest.mark.parametrize(("refused", "status"), [("live", 503), ("default", 429), ("histogram", 503)])
def test_live_begins_once_a_gateway_can_that_could_not_at_first(
    client: Client, console: Console, refused: str, status: int
) -> None:
    """While any of its requests is refused, the page says why; it tries again until the gateway answers."""
    sentence = "the gateway is being stopped"
    asked = re.compile(rf"/{refused}(\?|$)")
    client.sender("topic://a").send_all([data(i) for i in range(20)])
    page = console.page
    page.route(asked, lambda route: refuse(route, status, sentence))
    console.open("log", query="?live=1")
    problem = page.locator(".table-problem").get_by_text(sentence)
    expect(problem).to_be_visible()
    page.unroute(asked)
    expect(problem).to_have_count(0)
    client.sender("topic://a").send_all([data(i) for i in range(20)])
    expect(rows(page).first.locator("td.mono")).to_have_text("40")
    assert all_ids(page, 1) == list(range(40, 0, -1))


def test_live_that_is_refused_for_good_is_not_asked_for_again(console: Console) -> None:
    """The page shows the refusal, and sends no further request for live messages."""
    page = console.page
    page.clock.install()
    page.route("**/live", lambda route: refuse(route, 400, "you may not"))
    console.open("log", query="?live=1")
    expect(page.get_by_text("you may not")).to_be_visible()
    with page.expect_request(re.compile("/histogram")):
        page.clock.fast_forward("01:00")
    expect(page.get_by_text("you may not")).to_be_visible()
    assert sum(url.endswith("/live") for url in console.asked) == 1


def refuse(route: Route, status: int, sentence: str) -> None:
    """Answer a request with a refusal as a gateway does."""
    route.fulfill(status=status, json={"meta": {"error": {"description": sentence}}})
