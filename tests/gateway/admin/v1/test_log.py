"""History and publishing over HTTP: `GET /v1/log` and `POST /v1/publish`."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from amqp_ext.message.json_message import as_object
from gateway.admin import administered_gateway as http_clients
from gateway.admin.v1 import log
from gateway.admin.v1 import publish as publishing
from gateway.app import Gateway
from gateway.config import Limits, ReplayLog, Vpn
from gateway.config.vpn import Queue
from gateway.core.errors import ErrorCode, Refused
from gateway.core.replay.starts import Resolved
from tests.gateway.admin.conftest import LOG, Api, Serve, connect, stop_and_check
from tests.support.client import Client, texts
from tests.support.event_source import TYPE, EventSource
from tests.support.messages import APPLICATION_PROPERTIES, data, section
from tests.support.publishing import Publishing
from tests.support.running import PLAIN_HTTP, RunningGateway
from tests.support.waiting import wait_until

# --- `GET /v1/log`: messages of the log as lines or events; errors are sentences --------------------------------------

EVENTS = {"Accept": TYPE}

STOPPED = Refused(ErrorCode.CONNECTION_FORCED, "the gateway is being stopped")


def asked(api: Api, headers: dict[str, str] | None = None, **query: Any) -> httpx.Response:
    """The response to a reader; the parameter ``start`` is sent as ``from``."""
    if "start" in query:
        query["from"] = query.pop("start")
    return api.http.get("/v1/log", params=query, headers=headers or {})


def lines(api: Api, **query: Any) -> list[Any]:
    """The messages that are answered, as lines."""
    answer = asked(api, **query)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def refused(api: Api, headers: dict[str, str] | None = None, **query: Any) -> Any:
    answer = asked(api, headers, **query)
    assert answer.status_code == 400, answer.text
    return answer.json()["meta"]["error"]


def raw(api: Api, path: str, *headers: str) -> socket.socket:
    """Send a request on a socket; the test reads the answer."""
    sock = connect(api.http)
    host = f"Host: {api.http.base_url.netloc.decode()}"
    sock.sendall("\r\n".join([f"GET {path} HTTP/1.1", host, *headers, "", ""]).encode())
    return sock


def begun(stack: ExitStack, api: Api) -> socket.socket:
    """A reader that has received its first event."""
    sock = stack.enter_context(raw(api, "/v1/log", f"Accept: {TYPE}"))
    wait_for_head(sock)
    return sock


def wait_for_head(sock: socket.socket) -> None:
    """Wait until the events have begun."""
    seen = b""
    while b"retry: " not in seen:
        piece = sock.recv(4_096)
        assert piece, seen
        seen += piece


def test_history_has_the_name_of_the_replay_that_reads_it(api: Api, client: Client) -> None:
    """Historical messages have the replay's name, and selectors see it; live ones do not. Blank is refused."""
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
    """Each line is what `rewind tail --json` prints for the same message read with AMQP, in order, and no other."""
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
    """In the format of other resources, with Solace's status; an event stream does not begin, nor resume."""
    for query, status in WRONG:
        error = refused(api, **query)
        assert error["status"] == status, query
        assert error["description"].strip()
        assert refused(api, headers=EVENTS, **query)["status"] == status
    for last in ("", "x", "-1", "1.5", "9" * 19, "9" * 30):
        refused(api, headers={**EVENTS, "Last-Event-ID": last})


def test_a_parameter_that_is_not_known_is_refused(api: Api) -> None:
    """A misspelt limit is not ignored: the sentence names what may be there; what is missing, it names once."""
    error = refused(api, form="10m")
    allowed = "from, limit, missing, name, selector, subscribe, until, vpn"
    assert error["description"] == f"Unknown parameter 'form'; allowed here: {allowed}."
    for query, sentence in (
        ({"address": "q", "adress": "r"}, "Unknown parameter 'adress'; allowed here: address, vpn."),
        ({}, "The attribute 'address' is missing."),
    ):
        answer = api.http.post("/v1/publish", params=query, content='{"body":"x"}')
        assert (answer.status_code, answer.json()["meta"]["error"]["description"]) == (400, sentence)


def test_events_go_on_live_without_a_gap(api: Api, gateway: RunningGateway) -> None:
    """
    Under load, history is followed by live messages. A browser that reconnects again and again has each message once,
    and a reader that connected before the first message misses none.
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
    """An `end` event; a browser that reconnects all the same gets 204."""
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
    """A comment now and then, with the id up to which nothing matched, so that a reconnect does not search it again."""
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
    As a line when the client is stopped, as an event when the log is trimmed under it; a browser that reconnects is
    then refused.
    """
    client.sender("topic://t/1").send_all([data("x" * 10_000) for _ in range(3_000)])
    client.cut()
    api.restart()  # so that history is read from the file

    def broken(break_off: Callable[[], None], headers: dict[str, str]) -> tuple[str, Any]:
        """Break a stream off while it is sent; return all that was received, and the error at its end."""
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
    """The reader stops once the socket's buffers and two pieces are full; others go on; nothing is missing."""
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
    """They are listed as clients, can be disconnected, and are limited in number for each user."""
    monkeypatch.setattr(http_clients, "MOST_CLIENTS_PER_USER", 2)
    api = serve()
    with ExitStack() as stack:
        one, _ = (begun(stack, api) for _ in range(2))  # one after the other, so that `one` is the first
        shown = api.seen("/clients")
        assert [found["clientUsername"] for found in shown] == ["anonymous"] * 2
        third = api.http.get("/v1/log")
        assert third.status_code == 429
        assert third.json()["meta"]["error"]["status"] == "NOT_ALLOWED"
        api.act(f"/clients/{shown[0]['clientId'].replace('#', '%23')}/disconnect", {})
        wait_until(lambda: len(api.seen("/clients")) == 1, "it is gone")
        assert lines(api) == []
        ended = one.recv(4_096)
        assert b"event: error" in ended
    wait_until(lambda: not api.seen("/clients"), "both are gone")
    api.gateway.stop()


def test_a_stop_of_the_gateway_does_not_wait_for_readers(api: Api, gateway: RunningGateway) -> None:
    """They get an error event, and their connections end."""
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
    """503 for a request that was in progress when the gateway stopped, and for later ones."""
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
    """The marker has offset, topic and reason, and nothing of the content, also if the message was read before."""
    client.sender("topic://a").send_all([data(f"secret {number}") for number in range(3)])
    assert "secret 1" in api.http.get("/v1/log").text
    api.act(f"{LOG}/redactMsg", {"msgId": [2], "reason": "asked to"})
    first, second, third = lines(api)
    assert (first["body"], second["body"], third["body"]) == ("secret 0", None, "secret 2")
    assert second["annotations"]["x-opt-erased-reason"] == "asked to"
    assert (second["offset"], second["topic"]) == (2, "a")
    assert "secret 1" not in api.http.get("/v1/log?from=beginning&until=now", headers=EVENTS).text


def test_readers_of_a_message_vpn_that_is_disabled_are_ended(api: Api) -> None:
    """They are ended as AMQP clients are, and new ones are refused."""
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


# --- `POST /v1/publish`: lines become messages, which are durable when the answer comes -------------------------------


def publish(
    api: Api, body: str | bytes | Iterator[bytes], address: str = "topic://a/1", status: int = 200
) -> Any:
    answer = api.http.post("/v1/publish", params={"address": address}, content=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_lines_go_in_and_come_out_by_amqp(api: Api, client: Client) -> None:
    """Each line is published to a queue, which is created; lines that `GET /v1/log` shows can be published again."""
    said = [
        '{"body":"one","properties":{"n":1},"messageId":"m"}',
        "",
        '{"body":{"base64":"/w=="}}',
        '{"body":[1]}',
    ]
    answer = publish(api, "\r\n".join(said), "queue://orders")
    assert answer["data"] == {"accepted": 3, "refused": 0, "errors": []}
    receiver = client.receiver("orders")
    first, second, third = receiver.drain()
    assert first.text == "one"
    assert first.header is not None
    assert first.header[0] is True
    assert b"\xa1\x01n" in first.bare
    assert second.bare.endswith(b"\xa0\x01\xff")
    assert third.bare.startswith(b"\x00\x53\x77")
    receiver.settle([first, second, third])
    shown = api.http.get("/v1/log").text
    assert publish(api, shown, "topic://again")["data"]["accepted"] == 3
    both = lines(api)
    assert [one["topic"] for one in both] == ["#queue/orders"] * 3 + ["again"] * 3
    own = ("offset", "replayId", "enqueuedTime", "topic", "replayEnd")
    shared = [{key: value for key, value in one.items() if key not in own} for one in both]
    assert shared[:3] == shared[3:]
    receiver.close()
    stop_and_check(api, client)


def test_each_line_that_is_wrong_is_named_and_the_others_are_taken(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With line number, reason and AMQP condition; of many, the first hundred."""
    monkeypatch.setattr(publishing, "MOST_LINE_BYTES", 1_000)
    said = ['{"body":"1"}', "{", '{"boddy":1}', json.dumps({"body": "x" * 2_000}), '{"body":"5"}']
    answer = publish(api, "\n".join(said), status=400)
    assert (answer["data"]["accepted"], answer["data"]["refused"]) == (2, 3)
    assert [(one["line"], one["condition"], one["status"]) for one in answer["data"]["errors"]] == [
        (2, "amqp:decode-error", "PARSE_ERROR"),
        (3, "amqp:decode-error", "PARSE_ERROR"),
        (4, "amqp:link:message-size-exceeded", "NOT_ALLOWED"),
    ]
    assert "line 2" in answer["meta"]["error"]["description"]
    assert [one["body"] for one in lines(api)] == ["1", "5"]
    many = publish(api, "x\n" * 500, status=400)["data"]
    assert (many["refused"], len(many["errors"])) == (500, publishing.MOST_ERRORS)


def test_an_address_that_cannot_be_sent_to_is_a_sentence(api: Api) -> None:
    """It is refused before the body is read."""
    for address, status in (
        ("log://>", "NOT_ALLOWED"),
        ("$cbs", "NOT_ALLOWED"),
        ("topic://", "INVALID_PARAMETER"),
        ("ftp://x", "INVALID_PARAMETER"),
        ("topic://#queue/none", "NOT_FOUND"),
        ("none?create=never", "NOT_FOUND"),
        ("topic://" + "x" * 300, "INVALID_PARAMETER"),
    ):
        assert publish(api, '{"body":"x"}', address, 400)["meta"]["error"]["status"] == status, address


def test_what_amqp_is_refused_is_refused_here(serve: Serve) -> None:
    """
    A full queue, a topic without endpoints, a message too large, an unknown Message VPN, and a log that is disabled.
    """
    vpn = Vpn(
        replay_log=ReplayLog(enabled=False),
        queues={"small": Queue(quota_messages=2)},
    )
    api = serve(vpn, limits=Limits(max_message_bytes=1_000, max_annotations_bytes=100))
    full = publish(api, '{"body":"x"}\n' * 4, "small", 400)["data"]
    assert (full["accepted"], full["refused"]) == (2, 2)
    assert {one["condition"] for one in full["errors"]} == {"amqp:resource-limit-exceeded"}
    for body, address, condition in (
        ('{"body":"x"}', "topic://nobody", "amqp:not-found"),
        (json.dumps({"body": "x" * 2_000}), "topic://a", "amqp:link:message-size-exceeded"),
        (json.dumps({"annotations": {"x-opt-a": "x" * 200}}), "topic://a", "amqp:resource-limit-exceeded"),
    ):
        errors = publish(api, body, address, 400)["data"]["errors"]
        assert [one["condition"] for one in errors] == [condition]
    gone = api.http.post("/v1/publish", params={"address": "q", "vpn": "none"}, content="{}")
    assert gone.json()["meta"]["error"]["status"] == "NOT_FOUND"
    error = refused(api)  # with the replay error that an AMQP client gets
    assert (error["replayError"], error["subcode"]) == ("disabled", 134)


def test_many_lines_in_pieces_of_any_size_are_all_taken_in_order(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines and windows may be split anywhere, and may be long; what is read ahead is limited."""
    monkeypatch.setattr(publishing, "WINDOW_BYTES", 50_000)
    said = [
        json.dumps({"body": f"{number}:" + "x" * (40_000 if number % 50 == 0 else 20)})
        for number in range(1_000)
    ]
    whole = "\n".join(said).encode()
    sizes = [1, 7, 1_000, 30_000, 65_536, 3]

    def pieces() -> Iterator[bytes]:
        at = turn = 0
        while at < len(whole):
            size = sizes[turn % len(sizes)]
            yield whole[at : at + size]
            at, turn = at + size, turn + 1

    assert publish(api, pieces())["data"]["accepted"] == 1_000
    found = [one["body"].partition(":")[0] for one in lines(api)]
    assert found == [str(number) for number in range(1_000)]


def half(api: Api) -> socket.socket:
    """A request whose body has one whole line and the beginning of another."""
    sock = connect(api.http)
    head = "POST /v1/publish?address=q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n"
    sock.sendall(head.encode() + b'{"body":"came"}\n{"bo')
    return sock


def test_of_a_body_that_ends_in_the_middle_what_came_is_kept(
    api: Api, client: Client, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Complete lines are published. If the client leaves, or is silent too long (408), its memory is freed."""
    with half(api):
        wait_until(lambda: gateway.depth("q") == 1, "it came")
    monkeypatch.setattr(publishing, "SILENCE_S", 0.2)
    with half(api) as sock:
        assert sock.recv(4_096).startswith(b"HTTP/1.1 408")
    assert texts(client.receiver("q").drain()) == ["came", "came"]
    wait_until(lambda: len(api.seen("/clients")) == 1, "they are gone")
    assert gateway.call(lambda running: running.ledger.process.held_bytes) < 100_000
    stop_and_check(api, client)
