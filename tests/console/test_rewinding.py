"""Rewinding from the time line, present and past replays, copies, and returning dead letters."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from proton import Delivery

from tests.console.conftest import Console, Show
from tests.console.history import NOW_MS, QUEUE, History, three_days
from tests.gateway.admin.conftest import Api
from tests.support.client import Client, Refused, texts
from tests.support.messages import data
from tests.support.running import RunningGateway


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    """A history for this test alone."""
    with three_days(tmp_path) as found:
        yield found


@pytest.fixture
def at_history(show: Show, history: History) -> Console:
    """The console of that gateway, three days after the first message."""
    console = show(history.gateway)
    console.page.clock.set_fixed_time(NOW_MS / 1_000)
    return console


@pytest.fixture
def api(gateway: RunningGateway) -> Iterator[Api]:
    """The administration of `gateway`."""
    api = Api(gateway)
    yield api
    api.http.close()


def begin(page: Page, name: str) -> None:
    """Type the name to confirm in the dialog, and start."""
    dialog = page.get_by_role("dialog")
    button = dialog.get_by_role("button", name=re.compile("^(Rewind|Copy)$"))
    expect(button).to_be_disabled()
    dialog.get_by_label("to confirm").fill(name)
    button.click()


def test_the_overview_leads_to_a_rewind(at_history: Console, history: History) -> None:
    """The overview says how far back one can rewind, and shows the replay under way."""
    page = at_history.open("overview")
    expect(page.get_by_text("You can rewind to")).to_contain_text("13 Nov 00:00")
    expect(page.get_by_text("3 days ago.")).to_contain_text(f"{len(history.messages)} messages")
    page.get_by_role("link", name="13 Nov 00:00").click()
    page.get_by_label("Queue or topic endpoint").fill(QUEUE)
    orders = sum(m.topic.startswith("orders/") for m in history.messages)
    expect(page.locator(".preview").get_by_text(f"{orders} messages", exact=True).first).to_be_visible()
    page.locator(".preview").get_by_role("button", name="Rewind…").click()
    begin(page, QUEUE)
    expect(page.get_by_role("heading", name=f"Replay to {QUEUE}")).to_be_visible()
    at_history.open("overview")
    expect(page.get_by_text("waiting for acknowledgements")).to_be_visible()
    assert at_history.violations() == []


def test_a_queue_is_rewound_from_the_time_line(at_history: Console, history: History) -> None:
    """A queue with a consumer: the page previews the messages, names the consumer to detach, and follows the replay."""
    with Client(history.gateway.url) as client:
        receiver = client.receiver(QUEUE, credit=1_000)
        orders = [m for m in history.messages if m.topic.startswith("orders/")]
        receiver.take_and_accept(len(orders))
        client.wait(lambda: history.gateway.depth(QUEUE) == 0, "all are acknowledged")

        page = at_history.open("log")
        box = page.locator(".timeline-area").bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + 20)
        page.get_by_role("link", name="Rewind from here…").click()
        page.get_by_label("Queue or topic endpoint").fill(QUEUE)
        since = page.evaluate("Date.parse(document.querySelector('#f-start').value)")
        wanted = [m for m in orders if m.time_ms >= since]
        assert 10 < len(wanted) < len(orders)
        preview = page.locator(".preview")
        expect(preview.get_by_text(f"{len(wanted)} messages")).to_be_visible()
        expect(preview.get_by_text("1 consumer is detached")).to_be_visible()
        expect(preview.get_by_text("orders/eu/paid")).to_be_visible()
        assert at_history.violations() == []
        preview.get_by_role("button", name="Rewind…").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert at_history.violations() == []
        begin(page, QUEUE)

        progress = page.locator(".progress")
        expect(progress.get_by_text(f"0 of {len(wanted)} messages acknowledged")).to_be_visible()
        expect(progress.get_by_text(f"{QUEUE} has no consumer")).to_be_visible()
        assert at_history.violations() == []
        with pytest.raises(Refused, match="detach-forced"):
            raise receiver.detached_by_peer()

        again = client.receiver(QUEUE, credit=1_000)
        half = again.take(len(wanted) // 2)
        again.settle(half)
        client.wait(lambda: history.gateway.depth(QUEUE) == len(wanted) - len(half), "a half is acknowledged")
        assert half[0].annotations["x-opt-sequence-number"] == wanted[0].id
        expect(progress.get_by_text(f"{len(half)} of {len(wanted)} messages acknowledged")).to_be_visible()
        again.take_and_accept(len(wanted) - len(half))
        client.wait(lambda: history.gateway.depth(QUEUE) == 0, "all are acknowledged")
        expect(page.get_by_text("complete", exact=True)).to_be_visible()
        expect(page.get_by_text(f"{len(wanted)} messages")).to_be_visible()
        page.get_by_role("link", name="All replays").click()
        expect(page.get_by_role("table", name="Past replays").get_by_text(QUEUE)).to_be_visible()


def test_what_would_be_lost_is_said_and_kept(api: Api, client: Client, console: Console) -> None:
    """Messages on the queue that the log has no longer: the page warns that they would be lost, and can keep them."""
    client.sender("q").send_all([data(i) for i in range(5)])
    api.act("/replayLogs/default/trimLoggedMsgs", {"before": "#4"})
    page = console.open("rewind", query="?target=q&start=%234")
    preview = page.locator(".preview")
    expect(preview.get_by_text("2 messages", exact=True)).to_be_visible()
    expect(preview.get_by_text("5 messages on it now are dropped")).to_be_visible()
    expect(preview.get_by_role("alert")).to_contain_text("3 messages would be lost for good")
    preview.get_by_role("button", name="Rewind…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("alert")).to_contain_text("3 messages would be lost for good")
    dialog.get_by_role("button", name="Leave it").click()
    preview.get_by_label("Keep messages that the log does not have").check()
    expect(preview.get_by_text("3 messages that the log does not have stay")).to_be_visible()
    expect(preview.get_by_role("alert")).to_have_count(0)
    preview.get_by_role("button", name="Rewind…").click()
    begin(page, "q")
    expect(page.locator(".progress").get_by_text("q has no consumer")).to_be_visible()
    receiver = client.receiver("q", credit=10)
    assert texts(receiver.take(5)) == ["0", "1", "2", "3", "4"]


def test_a_start_that_is_not_in_the_log_is_said(at_history: Console) -> None:
    """The page offers the nearest start instead."""
    page = at_history.open("rewind", query=f"?target={QUEUE}&start=2020-01-01T00:00:00Z")
    preview = page.locator(".preview")
    expect(preview.get_by_role("alert")).to_contain_text("before the log")
    preview.get_by_role("button", name="Start at the nearest message that is there").click()
    expect(preview.get_by_text("By topic")).to_be_visible()


def test_a_replay_is_cancelled_or_kept(at_history: Console, history: History) -> None:
    """A cancelled replay leaves none of its messages on the queue; one that is ended early leaves those that came."""
    page = at_history.page
    orders = sum(m.topic.startswith("orders/") for m in history.messages)
    for button, sure, state, left in (
        ("Cancel…", "Cancel the replay", "cancelled", 0),
        ("End here…", "End the replay", "complete", orders),
    ):
        at_history.open("rewind", query=f"?target={QUEUE}&start=beginning")
        page.locator(".preview").get_by_role("button", name="Rewind…").click()
        begin(page, QUEUE)
        page.get_by_role("button", name=button).click()
        page.get_by_role("dialog").get_by_role("button", name=sure).click()
        expect(page.locator(".page-head").get_by_text(state)).to_be_visible()
        assert history.gateway.depth(QUEUE) == left


def test_a_part_of_the_log_is_copied_to_an_address(at_history: Console, history: History) -> None:
    """With a start and an end from the time line; the copy is paused and resumed, and its messages are counted."""
    first, last = history.messages[100], history.messages[199]
    page = at_history.open("rewind", query=f"?to=copy&from={first.time_ms}&until={last.time_ms}")
    page.get_by_label("Address").fill("queue://copies")
    page.get_by_label("Topics").fill("orders/>")
    page.get_by_label("Messages per second, at most").fill("20")
    wanted = [
        m
        for m in history.messages
        if m.topic.startswith("orders/") and first.time_ms <= m.time_ms <= last.time_ms
    ]
    expect(page.locator(".preview").get_by_text(f"{len(wanted)} messages")).to_be_visible()
    assert at_history.violations() == []
    page.locator(".preview").get_by_role("button", name="Copy…").click()
    begin(page, "queue://copies")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator(".page-head").get_by_text("paused")).to_be_visible()
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".page-head").get_by_text("complete")).to_be_visible()
    expect(page.get_by_text(f"{len(wanted)} messages")).to_be_visible()
    assert history.gateway.depth("copies") == len(wanted)


def test_dead_letters_are_sent_back(
    gateway: RunningGateway, api: Api, client: Client, console: Console
) -> None:
    """First one, as a try; then all, after the name is typed. The page counts dead letters by reason and origin."""
    api.make("/queues", {"queueName": "q", "deadMsgQueue": "dead"})
    client.sender("q").send_all([data(f"bill {i}") for i in range(12)])
    receiver = client.receiver("q", credit=12)
    receiver.settle(receiver.take(12), Delivery.REJECTED)
    client.wait(lambda: gateway.depth("dead") == 12, "all are dead")
    page = console.open("dead-letters")
    groups = page.get_by_role("table", name="Dead letters by reason and origin")
    expect(groups.get_by_text("rejected by a consumer")).to_be_visible()
    expect(groups.get_by_role("cell", name="12", exact=True)).to_be_visible()
    letters = page.get_by_role("table", name="Dead letters", exact=True)
    letters.get_by_role("button").first.click()
    expect(page.get_by_label("Body as text")).to_have_text("bill 0")
    assert console.violations() == []
    page.keyboard.press("Escape")
    groups.get_by_role("button", name="Send back…").click()
    page.get_by_role("dialog").get_by_role("button", name="Send 1 back").click()
    expect(page.locator(".page-head").get_by_text("complete")).to_be_visible()
    assert gateway.depth("q") == 1
    console.open("dead-letters")
    page.get_by_role("button", name="Send all back…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="All 11").click()
    dialog.get_by_label("to confirm").fill("dead")
    dialog.get_by_role("button", name="Send all back").click()
    expect(page.locator(".page-head").get_by_text("complete")).to_be_visible()
    assert gateway.depth("q") == 12
    console.open("dead-letters")
    expect(page.get_by_text("No dead letters")).to_be_visible()
