"""Messages of the log over HTTP: what a list shows of each, and what a single message shows."""

from __future__ import annotations

import base64
import itertools
import json
import time
from contextlib import AbstractContextManager

import pytest

from amqp_ext.codec import Symbol, UByte
from gateway.admin.v1.log import LISTED_PAUSE_S, MOST_LISTED, ListedEvents
from gateway.config import Limits
from tests.gateway.admin.conftest import LOG, Api, Serve
from tests.support.client import Client
from tests.support.event_source import EventSource
from tests.support.messages import APPLICATION_PROPERTIES, HEADER, PROPERTIES, data, section

# --- Messages of the log over HTTP ----------------------------------------------------------------------------------

MSGS = f"{LOG}/msgs"
HOSTILE = b"<script>alert(1)</script>"
SAID = (
    section(HEADER, [True, UByte(6)])
    + section(PROPERTIES, ["one", None, None, "about", None, "c-1", Symbol("text/html")])
    + section(APPLICATION_PROPERTIES, {"n": 1})
    + data(HOSTILE)
)


def test_a_list_says_what_lists_want(api: Api, client: Client) -> None:
    """Content-type, correlation-id, and whether the content is erased."""
    client.sender("topic://a/b").send_all([SAID, data("x")])
    first, second = api.seen(MSGS)
    assert (first["contentType"], first["correlationId"], first["isErased"]) == ("text/html", "c-1", False)
    assert (second["contentType"], second["correlationId"], second["isErased"]) == (None, None, False)
    api.act(f"{LOG}/redactMsg", {"msgId": [1], "reason": "gone"})
    first, second = api.seen(MSGS, order="oldest")
    assert (first["contentType"], first["isErased"]) == (None, True)
    assert second["isErased"] is False
    found = api.seen(f"{MSGS}/1")
    assert found["isErased"]
    assert found["messageAnnotations"]["x-opt-erased-reason"] == "gone"


def test_one_message_says_all(api: Api, client: Client) -> None:
    """In addition to what a list shows: its sections, and its body as text."""
    client.sender("topic://a/b").send_all([SAID])
    (listed,) = api.seen(MSGS)
    found = api.seen(f"{MSGS}/1")
    assert {name: found[name] for name in listed} == listed
    assert found["header"]["priority"] == 6
    assert found["properties"] == {
        "messageId": "one",
        "subject": "about",
        "correlationId": "c-1",
        "contentType": "text/html",
    }
    assert found["applicationProperties"] == {"n": 1}
    assert found["body"] == {
        "kind": "data",
        "contentType": "text/html",
        "text": HOSTILE.decode(),
        "base64": None,
        "isCut": False,
        "size": len(HOSTILE),
    }
    assert found["malformed"] is None


def test_a_message_can_be_kept_as_a_file_and_is_not_shown(api: Api, client: Client) -> None:
    """Body and encoded message as a download that a browser neither interprets nor runs."""
    client.sender("topic://a/b").send_all([SAID])
    for what, content in (("body", HOSTILE), ("encoded", SAID)):
        answer = api.ask("GET", "monitor", f"{MSGS}/1/{what}")
        assert (answer.status_code, answer.content) == (200, content)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
        assert answer.headers["content-disposition"].startswith("attachment; ")


def test_what_is_not_there_is_said(api: Api, client: Client) -> None:
    """An id that the log never assigned, has trimmed, or has no message for; and the id of another log."""
    client.sender("topic://a").send_all([data(i) for i in range(3)])
    api.act(f"{LOG}/trimLoggedMsgs", {"before": "#3"})
    for path in (f"{MSGS}/4", f"{MSGS}/1", f"{MSGS}/1/body", f"{MSGS}/1/encoded", "/replayLogs/x/msgs/3"):
        assert api.refused("GET", "monitor", path)["status"] == "NOT_FOUND"
    assert "holds ids 3 to 3" in api.why("GET", "monitor", f"{MSGS}/1")
    for name in ("0", "x", str(2**70)):
        assert api.refused("GET", "monitor", f"{MSGS}/{name}")["status"] == "INVALID_PARAMETER"
    assert api.seen(f"{MSGS}/3")["body"]["text"] == "2"


@pytest.mark.parametrize("place", ["9223372036854775808:0", "0:9999999999999999999", "9223372036854775807:1"])
def test_a_forged_cursor_is_no_error_of_ours(api: Api, client: Client, place: str) -> None:
    """A cursor with numbers that no store has begins at the beginning, like any text of another form."""
    client.sender("queue://q").send_all([data("x")])
    api.make("/queues", {"queueName": "values", "kind": "last-value"})
    cursor = base64.urlsafe_b64encode(place.encode()).decode()
    for path in (MSGS, "/queues/q/msgs", "/queues/q/delayedMsgs", "/queues/values/values"):
        for order in ("oldest", "newest"):
            answer = api.ask("GET", "monitor", path, cursor=cursor, order=order)
            assert answer.status_code == 200, (path, answer.text)


def test_a_log_that_is_closed_shows_no_message(api: Api, client: Client) -> None:
    """With egress disabled no message is shown, listed or streamed; the histogram still is."""
    client.sender("topic://a").send_all([data(0)])
    api.change(LOG, {"egressEnabled": False})
    for path in (MSGS, f"{MSGS}/1", f"{MSGS}/1/body", f"{MSGS}/1/encoded", f"{LOG}/live"):
        assert api.refused("GET", "monitor", path)["status"] == "NOT_ALLOWED", path
    assert api.seen(f"{LOG}/histogram")["lastMsgId"] == 1


# --- Copies of logged messages on a deep queue, of which only a window is in memory ---------------------------------


@pytest.mark.parametrize("has_priorities", [False, True])
def test_copies_take_their_places_in_a_deep_queue(serve: Serve, has_priorities: bool) -> None:
    """Copies of the oldest, of ids that are on disk only, and of the newest messages: each is delivered once, by id."""
    api = serve(limits=Limits(endpoint_window=20, read_page_rows=10))
    api.make_queue("q", "a", respectMsgPriorityEnabled=has_priorities)
    with Client(api.gateway.url) as client:
        for _ in range(100):
            client.sender("topic://a").send_all([data("lies there")])
            client.sender("topic://b").send_all([data("copied")])
        first = client.receiver("q", credit=2)
        taken = [received.id for received in first.take(2)]
        logged = api.seen(f"{LOG}/msgs", topic="b", count=1000)
        copied = [one for one in logged if one["msgId"] in (2, 4, 40, 100, 180, 198, 200)]
        for one in reversed(copied):
            wanted = {"replicationGroupMsgId": one["replicationGroupMsgId"]}
            api.act("/queues/q/copyMsgFromReplayLog", wanted)
        assert api.queue("q")["spooledMsgCount"] == 107
        first.close()
        found = [received.id for received in client.receiver("q").drain()]
    assert taken == [1, 3]
    assert found == sorted([*range(1, 200, 2), *(one["msgId"] for one in copied)])


# --- Messages of the log as they come, for a page -------------------------------------------------------------------

LIVE = "/SEMP/v2/monitor/msgVpns/default/replayLogs/default/live"


def events(api: Api, query: str = "") -> AbstractContextManager[EventSource]:
    return EventSource(lambda: f"{str(api.http.base_url).rstrip('/')}{LIVE}{query}")


def rows(source: EventSource) -> list[dict[str, object]]:
    """The messages of all events, in order."""
    assert all(kind == "msgs" for kind, _, _ in source.events)
    return list(itertools.chain.from_iterable(json.loads(text) for _, _, text in source.events))


def ids(source: EventSource) -> list[object]:
    return [row["msgId"] for row in rows(source)]


def test_what_is_published_comes_as_a_list_has_it(api: Api, client: Client) -> None:
    """Messages that match the request, from now on."""
    sender = client.sender("topic://a/1")
    sender.send_all([data("before")])
    with events(api, "?subscribe=a/>&subscribe=!a/2&selector=n%20%3E%201") as source:
        source.wait(lambda: source.last_event_id, "it has begun")
        assert source.last_event_id == "1"
        sender.send_all(section(APPLICATION_PROPERTIES, {"n": n}) + data("x") for n in range(4))
        client.sender("topic://a/2").send_all([section(APPLICATION_PROPERTIES, {"n": 9}) + data("x")])
        source.wait(lambda: len(rows(source)) >= 2, "both have come")
        assert rows(source) == api.seen(MSGS, start="#4", until="#5")


def test_it_may_begin_in_the_past(api: Api, client: Client) -> None:
    """From any id, and then live."""
    sender = client.sender("topic://a")
    sender.send_all(data(i) for i in range(1_200))
    with events(api, "?start=%23101") as source:
        source.wait(lambda: len(rows(source)) >= 1_100, "the past has come")
        sender.send_all([data("now")])
        source.wait(lambda: len(rows(source)) >= 1_101, "what is new has come")
        assert ids(source) == list(range(101, 1_202))
        assert max(len(json.loads(text)) for _, _, text in source.events) <= MOST_LISTED
        # An event's id is that of its last message: a browser resumes after it.
        assert [int(last) for _, last, _ in source.events] == [
            json.loads(text)[-1]["msgId"] for _, _, text in source.events
        ]


def test_events_come_no_more_often_than_their_pause(
    api: Api, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages that come within the pause are in the next event: each once and in order, also over a reconnect."""
    assert 1 / LISTED_PAUSE_S <= 20
    monkeypatch.setattr(ListedEvents, "pause_s", 0.5)
    sender = client.sender("topic://a")
    with events(api) as source:
        source.wait(lambda: source.connections, "it has begun")
        sender.send_all([data("at once")])
        source.wait(lambda: source.events, "what comes after a silence comes at once")
        began = time.monotonic()
        for i in range(40):
            sender.send_all([data(i)])  # each is committed before the next is sent
            if i == 20:
                source.cut()
        source.wait(lambda: len(rows(source)) >= 41, "all have come")
        assert ids(source) == [*range(1, 42)]
        # Each connection may begin with an immediate event.
        assert len(source.events) <= source.connections + 1 + (time.monotonic() - began) / 0.5
        assert source.connections >= 2


def test_what_is_wrong_is_said_before_it_begins(api: Api) -> None:
    """In the format of all refusals."""
    for query in ("?start=then", "?selector=n%20%3D", "?subscribe=", "?start=%2399"):
        answer = api.http.get(f"{LIVE}{query}")
        assert answer.status_code == 400, query
        assert answer.json()["meta"]["error"]["description"]
    assert api.http.get(LIVE, headers={"Last-Event-ID": "x"}).status_code == 400
    assert api.http.get(LIVE.replace("Logs/default", "Logs/x")).status_code == 400
