"""`GET /v1/log`: what is in the log comes as lines or events, and what is wrong is a sentence."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from amqp_ext.message.json_message import as_object
from gateway.admin import administered_gateway as http_clients
from gateway.admin.v1 import log
from gateway.app import Gateway
from gateway.config import ReplayLog, Vpn
from gateway.core.errors import ErrorCode, Refused
from gateway.core.replay.starts import Resolved
from tests.gateway.admin.conftest import LOG, Api, Serve, connect, stop_and_check
from tests.support.client import Client
from tests.support.event_source import TYPE, EventSource
from tests.support.messages import APPLICATION_PROPERTIES, data, section
from tests.support.publishing import Publishing
from tests.support.running import PLAIN_HTTP, RunningGateway
from tests.support.waiting import wait_until

EVENTS = {"Accept": TYPE}

STOPPED = Refused(ErrorCode.CONNECTION_FORCED, "the gateway is being stopped")


def lines(api: Api, **query: Any) -> list[Any]:
    """The messages that are answered, as lines; ``start`` is ``from``."""
    if "start" in query:
        query["from"] = query.pop("start")
    answer = api.http.get("/v1/log", params=query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def refused(api: Api, headers: dict[str, str] | None = None, **query: Any) -> Any:
    if "start" in query:
        query["from"] = query.pop("start")
    answer = api.http.get("/v1/log", params=query, headers=headers or {})
    assert answer.status_code == 400, answer.text
    return answer.json()["meta"]["error"]


def raw(api: Api, path: str, *headers: str) -> socket.socket:
    """A request whose answer the test reads itself."""
    sock = connect(api.http)
    host = f"Host: {api.http.base_url.netloc.decode()}"
    sock.sendall("\r\n".join([f"GET {path} HTTP/1.1", host, *headers, "", ""]).encode())
    return sock


def begun(stack: ExitStack, api: Api) -> socket.socket:
    """A reader whose events have begun."""
    sock = stack.enter_context(raw(api, "/v1/log", f"Accept: {TYPE}"))
    wait_for_head(sock)
    return sock


def wait_for_head(sock: socket.socket) -> None:
    """Until the events have begun."""
    seen = b""
    while b"retry: " not in seen:
        piece = sock.recv(4_096)
        assert piece, seen
        seen += piece


def test_history_has_the_name_of_the_replay_that_reads_it(api: Api, client: Client) -> None:
    """As an AMQP reader's has; a selector sees it. A name that nobody could read is refused."""
    client.sender("topic://a/1").send_all([data("one"), data("two")])
    found = lines(api, name="look back")
    assert [one["annotations"] for one in found] == [{"x-opt-replay-name": "look back"}] * 2
    selector = "amqp.annotation.x-opt-replay-name = 'look back'"
    assert lines(api, name="look back", selector=selector) == found
    assert lines(api, name="another", selector=selector) == lines(api, selector=selector) == []
    with EventSource(lambda: f"{api.http.base_url}/v1/log?from=beginning&name=look") as source:
        source.wait(lambda: len(source.messages) == 2, "history came")
        client.sender("topic://a/1").send_all([data("three")])
        source.wait(lambda: len(source.messages) == 3, "what is new came")
        assert [one.get("annotations") for one in source.messages] == [{"x-opt-replay-name": "look"}] * 2 + [
            None
        ]
    assert "name is a text" in refused(api, name=" ")["description"]


def test_history_is_what_a_reader_with_amqp_gets(api: Api, client: Client) -> None:
    """Each message as `rewind tail --json` prints what an AMQP reader is delivered, in order, and no other."""
    client.sender("topic://a/1").send_all(
        [data("one"), section(APPLICATION_PROPERTIES, {"n": 2}) + data(b"\xff")]
    )
    client.sender("topic://b/1").send_all([data("other")])
    client.sender("q").send_all([data("to a queue")])
    reader = client.receiver("log://>?replay-start=beginning")
    wanted = [json.loads(json.dumps(as_object(bytes(message.raw)))) for message in reader.drain()]
    assert lines(api) == wanted
    assert [message["offset"] for message in wanted] == [1, 2, 3, 4]
    assert [one["body"] for one in lines(api, subscribe="a/>")] == ["one", {"base64": "/w=="}]
    assert [one["offset"] for one in lines(api, subscribe=["a/>", "#queue/q"])] == [1, 2, 4]
    assert [one["offset"] for one in lines(api, start="#2", until="#3")] == [2, 3]
    assert [one["offset"] for one in lines(api, start=wanted[1]["replayId"])] == [3, 4]
    assert [one["offset"] for one in lines(api, selector="n = 2")] == [2]
    assert [one["offset"] for one in lines(api, limit=3)] == [1, 2, 3]
    assert [one["offset"] for one in lines(api, start="last:2")] == [3, 4]
    assert [one["offset"] for one in lines(api, start="last:1", subscribe="a/>")] == [2]
    assert lines(api, start="live") == []
    client.close()
    stop_and_check(api, client)


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"start": "yesterday"}, "INVALID_PARAMETER"),
    ({"start": "#99"}, "NOT_ALLOWED"),
    ({"start": "rmid1:00000-00000000001-00000000-00000001"}, "NOT_ALLOWED"),
    ({"start": "point:none"}, "NOT_ALLOWED"),
    ({"until": "then"}, "INVALID_PARAMETER"),
    ({"missing": "x"}, "INVALID_PARAMETER"),
    ({"subscribe": ["a", ""]}, "INVALID_PARAMETER"),
    ({"subscribe": ["a"] * 17}, "INVALID_PARAMETER"),
    ({"selector": "n ="}, "INVALID_PARAMETER"),
    ({"limit": 0}, "INVALID_PARAMETER"),
    ({"limit": "x"}, "INVALID_PARAMETER"),
    ({"vpn": "none"}, "NOT_FOUND"),
)


def test_what_cannot_be_read_is_a_sentence(api: Api) -> None:
    """In the shape of the other resources, with the code that is Solace's; no stream is begun, nor begun again."""
    for query, status in WRONG:
        error = refused(api, **query)
        assert error["status"] == status, query
        assert error["description"].strip()
        assert refused(api, headers=EVENTS, **query)["status"] == status
    for last in ("", "x", "-1", "1.5", "9" * 19, "9" * 30):
        refused(api, headers={**EVENTS, "Last-Event-ID": last})


def test_a_log_that_is_off_is_refused(serve: Serve) -> None:
    """With the replay error that an AMQP client is told."""
    api = serve(Vpn(replay_log=ReplayLog(enabled=False)))
    error = refused(api)
    assert (error["replayError"], error["subcode"]) == ("disabled", 134)


def test_events_go_on_live_without_a_gap(api: Api, gateway: RunningGateway) -> None:
    """
    History, then live, under load; a browser that is cut off again and again has each message once, and a page that
    came before the first message misses none.
    """
    base = str(api.http.base_url)
    with EventSource(lambda: f"{base}/v1/log?subscribe=load/>") as early:
        early.wait(lambda: early.last_event_id == "0", "connected")
        with Publishing(gateway.url, "topic://load/1", "topic://other", limit=30_000) as publishing:
            publishing.wait_for(2_000)
            with EventSource(lambda: f"{base}/v1/log?subscribe=load/>&from=beginning") as late:
                for more in range(5):
                    late.wait(lambda: len(late.events) > more * 500, "it goes on")  # noqa: B023
                    early.cut()
                    late.cut()
                publishing.stop()
                wanted = [one["offset"] for one in lines(api, subscribe="load/>")]
                for source in (early, late):
                    source.wait(lambda: len(source.events) >= len(wanted), "all came")  # noqa: B023
    for source in (early, late):
        assert [int(id_) for kind, id_, _ in source.events if kind == "message"] == wanted
        assert [one["offset"] for one in source.messages] == wanted
        assert source.connections > 1


def test_events_that_end_say_so(api: Api, client: Client) -> None:
    """An event for the page, and no content for a browser that connects again all the same."""
    client.sender("q").send_all([data(i) for i in range(3)])
    answer = api.http.get("/v1/log?from=%231&until=%232", headers=EVENTS)
    assert answer.text.endswith("event: end\nid: 2\ndata: {}\n\n")
    again = api.http.get("/v1/log?from=%231&until=%232", headers={**EVENTS, "Last-Event-ID": "2"})
    assert (again.status_code, again.text) == (204, "")
    limited = api.http.get("/v1/log?from=%231&limit=2", headers=EVENTS)
    assert limited.text.endswith("event: end\nid: 2\ndata: {}\n\n")
    after = api.http.get("/v1/log?until=now", headers={**EVENTS, "Last-Event-ID": "2"})
    assert "id: 3\ndata: " in after.text


def test_silence_is_broken_and_moves_the_place(
    api: Api, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A comment now and then; with it the id below which nothing is to come, though nothing of it was for the page."""
    monkeypatch.setattr(log, "HEARTBEAT_S", 0.01)
    client.sender("topic://other").send_all([data(i) for i in range(5)])
    with api.http.stream("GET", "/v1/log?subscribe=rare&from=beginning", headers=EVENTS) as answer:
        seen = ""
        for piece in answer.iter_text():
            seen += piece
            if seen.count(":\nid: 5\n\n") >= 2:
                break
    assert "data:" not in seen


def test_a_stream_that_breaks_off_ends_with_an_error(api: Api, client: Client) -> None:
    """
    As a line where the client is stopped, as an event where the log is trimmed under it; a browser that comes again is
    refused then, and stops.
    """
    client.sender("topic://t/1").send_all([data("x" * 10_000) for _ in range(3_000)])
    client.cut()
    api.restart()  # so that history comes from the file

    def broken(break_off: Callable[[], None], headers: dict[str, str]) -> tuple[str, Any]:
        """All that came of a stream that was broken off while it came, and the error at its end."""
        with (
            httpx.Client(base_url=api.http.base_url, **PLAIN_HTTP) as http,
            http.stream("GET", "/v1/log?from=beginning&until=%23999999", headers=headers) as answer,
        ):
            pieces = answer.iter_text()
            seen = next(pieces)
            assert seen
            break_off()
            seen += "".join(pieces)
        error = json.loads(seen.rstrip("\n").rpartition("\n")[2].removeprefix("data: "))["error"]
        assert error["condition"]
        return seen, error

    def stop() -> None:
        api.gateway.call(lambda running: [c.stop(STOPPED) for c in running._admin_server.clients])  # type: ignore[union-attr]

    def trim() -> None:
        api.act(f"{LOG}/trimLoggedMsgs", {"before": "live"})
        wait_until(lambda: api.seen(LOG)["firstMsgId"] > 2_999, "trimmed")

    broken(stop, {})
    seen, error = broken(trim, EVENTS)
    assert "event: error\ndata: " in seen
    assert error["replayError"] == "message-unavailable"
    last = [line for line in seen.splitlines() if line.startswith("id: ")][-1]
    assert api.http.get("/v1/log", headers={**EVENTS, "Last-Event-ID": last[4:]}).status_code == 400


def test_a_client_that_does_not_read_costs_bounded_memory(
    api: Api, client: Client, gateway: RunningGateway
) -> None:
    """Its reader stops after what the sockets and one piece hold; others go on; and it has all once it reads."""
    client.sender("topic://big").send_all([data(b"x" * 20_000) for _ in range(2_000)])
    with raw(api, "/v1/log?from=beginning&until=now", "Connection: close") as sock:
        held = gateway.call

        def position() -> int:
            (feed,) = held(lambda running: list(running.vpns["default"].readers.log_feeds))
            return int(feed.position)

        wait_until(lambda: held(lambda running: running.vpns["default"].readers.log_feeds), "it reads")
        wait_until(lambda: position() > 50, "it has begun")
        stood: list[int] = []
        wait_until(lambda: stood.append(position()) or stood[-20:].count(stood[-1]) == 20, "it stands")  # type: ignore[func-returns-value]
        assert position() < 1_500
        (shown,) = [one for one in api.seen("/clients", count=100) if one["clientName"].startswith("http-")]
        assert shown["heldBytes"] <= 3 * log.PIECE_BYTES, "a piece that is written, and one that is ready"
        assert len(lines(api, limit=5)) == 5
        found = b""
        while piece := sock.recv(1 << 20):
            found += piece
    assert found.count(b'"offset":') == 2_000
    assert found.endswith(b"\r\n0\r\n\r\n")


def test_readers_are_counted_and_ended_as_other_clients_are(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are listed among the clients, disconnected by name, refused beyond the bound, and gone at the end."""
    monkeypatch.setattr(http_clients, "MOST_CLIENTS_PER_USER", 2)
    api = serve()
    with ExitStack() as stack:
        one, _ = (begun(stack, api) for _ in range(2))  # one after the other, so that the first is `one`
        shown = api.seen("/clients")
        assert [found["clientUsername"] for found in shown] == ["anonymous"] * 2
        third = api.http.get("/v1/log")
        assert third.status_code == 429
        assert third.json()["meta"]["error"]["status"] == "NOT_ALLOWED"
        api.act(f"/clients/{shown[0]['clientName']}/disconnect", {})
        wait_until(lambda: len(api.seen("/clients")) == 1, "it is gone")
        assert lines(api) == []
        ended = one.recv(4_096)
        assert b"event: error" in ended
    wait_until(lambda: not api.seen("/clients"), "both are gone")
    api.gateway.stop()


def test_a_stop_of_the_gateway_does_not_wait_for_readers(api: Api, gateway: RunningGateway) -> None:
    """They are told, and their connections end."""
    with raw(api, "/v1/log", f"Accept: {TYPE}") as sock:
        wait_for_head(sock)
        gateway.stop()
        rest = b""
        while piece := sock.recv(4_096):
            rest += piece
    assert b"the gateway is being stopped" in rest


def test_who_asks_while_the_gateway_stops_is_told_to_come_again(
    api: Api, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 503, as nothing is wrong with the request: whether it came before the stop, or since."""
    asked = threading.Event()

    def hold(running: Gateway) -> asyncio.Event:
        log, stopped = running.vpns["default"].log, asyncio.Event()
        resolve = log.resolve_start

        async def resolve_later(*given: Any) -> Resolved:
            asked.set()
            await stopped.wait()
            return await resolve(*given)

        monkeypatch.setattr(log, "resolve_start", resolve_later)
        return stopped

    def stop(running: Gateway) -> None:
        assert running._admin_server is not None and running._admin_server.clients is not None
        running._admin_server.clients.stop(STOPPED)
        stopped.set()

    stopped = gateway.call(hold)
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(api.http.get, "/v1/log")
        assert asked.wait(20)
        gateway.call(stop)
        answers = [
            under_way.result(),
            api.http.get("/v1/log"),
            api.http.post("/v1/publish?address=q", content="{}"),
        ]
    for answer in answers:
        assert answer.status_code == 503, answer.text
        assert answer.json()["meta"]["error"]["description"] == STOPPED.text


def test_what_was_erased_is_shown_as_its_marker(api: Api, client: Client) -> None:
    """Its place, its time and the reason are there, and nothing of what it said, whether it was read before or not."""
    client.sender("topic://a").send_all([data(f"secret {number}") for number in range(3)])
    assert "secret 1" in api.http.get("/v1/log").text
    api.act(f"{LOG}/redactMsg", {"msgId": [2], "reason": "asked to"})
    first, second, third = lines(api)
    assert (first["body"], second["body"], third["body"]) == ("secret 0", None, "secret 2")
    assert second["annotations"]["x-opt-erased-reason"] == "asked to"
    assert (second["offset"], second["topic"]) == (2, "a")
    assert "secret 1" not in api.http.get("/v1/log?from=beginning&until=now", headers=EVENTS).text


def test_readers_of_a_message_vpn_that_is_disabled_are_ended(api: Api) -> None:
    """As its AMQP clients are; and none is let in."""
    config = "/SEMP/v2/config/msgVpns"
    assert api.http.post(config, json={"msgVpnName": "other"}).status_code == 200
    with raw(api, "/v1/log?vpn=other", f"Accept: {TYPE}") as sock:
        wait_for_head(sock)
        assert api.http.patch(f"{config}/other", json={"enabled": False}).status_code == 200
        rest = b""
        while not rest.endswith(b"\r\n0\r\n\r\n"):
            rest += sock.recv(4_096)
    assert b"event: error" in rest
    assert b"was disabled" in rest
    assert refused(api, vpn="other")["status"] == "NOT_ALLOWED"
    assert api.http.post("/v1/publish?vpn=other&address=q", content="{}").status_code == 400
