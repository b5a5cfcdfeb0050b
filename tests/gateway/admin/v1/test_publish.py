"""`POST /v1/publish`: lines become messages that are durable when the answer comes, and each that is wrong is named."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.admin.v1 import publish as publishing
from gateway.config import Limits, ReplayLog, Vpn
from gateway.config.vpn import Queue
from tests.gateway.admin.conftest import Api, Serve, connect, stop_and_check
from tests.support.client import Client, texts
from tests.support.running import RunningGateway
from tests.support.waiting import wait_until


def publish(
    api: Api, body: str | bytes | Iterator[bytes], address: str = "topic://a/1", status: int = 200
) -> Any:
    answer = api.http.post("/v1/publish", params={"address": address}, content=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def test_lines_go_in_and_come_out_by_amqp(api: Api, client: Client) -> None:
    """To a queue that is made by it, with what each line says; and what the log shows can be published again."""
    lines = [
        '{"body":"one","properties":{"n":1},"messageId":"m"}',
        "",
        '{"body":{"base64":"/w=="}}',
        '{"body":[1]}',
    ]
    answer = publish(api, "\r\n".join(lines), "queue://orders")
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
    both = [json.loads(line) for line in api.http.get("/v1/log").text.splitlines()]
    assert [one["topic"] for one in both] == ["#queue/orders"] * 3 + ["again"] * 3
    own = ("offset", "replayId", "enqueuedTime", "topic", "replayEnd")
    said = [{key: value for key, value in one.items() if key not in own} for one in both]
    assert said[:3] == said[3:]
    receiver.close()
    stop_and_check(api, client)


def test_each_line_that_is_wrong_is_named_and_the_others_are_taken(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its number, the reason and the AMQP condition; the first hundred of many."""
    monkeypatch.setattr(publishing, "MOST_LINE_BYTES", 1_000)
    lines = ['{"body":"1"}', "{", '{"boddy":1}', json.dumps({"body": "x" * 2_000}), '{"body":"5"}']
    answer = publish(api, "\n".join(lines), status=400)
    assert (answer["data"]["accepted"], answer["data"]["refused"]) == (2, 3)
    assert [(one["line"], one["condition"], one["status"]) for one in answer["data"]["errors"]] == [
        (2, "amqp:decode-error", "PARSE_ERROR"),
        (3, "amqp:decode-error", "PARSE_ERROR"),
        (4, "amqp:link:message-size-exceeded", "NOT_ALLOWED"),
    ]
    assert "line 2" in answer["meta"]["error"]["description"]
    assert [json.loads(line)["body"] for line in api.http.get("/v1/log").text.splitlines()] == ["1", "5"]
    many = publish(api, "x\n" * 500, status=400)["data"]
    assert (many["refused"], len(many["errors"])) == (500, publishing.MOST_ERRORS)


def test_an_address_that_cannot_be_sent_to_is_a_sentence(api: Api) -> None:
    """Before anything of the body is read."""
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
    """A quota that is reached, a message that nobody takes, one that is too large, a Message VPN that is not there."""
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


def test_many_lines_in_pieces_of_any_size_are_all_taken_in_order(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines and windows broken anywhere, long ones among them; what is read ahead is bounded."""
    monkeypatch.setattr(publishing, "WINDOW_BYTES", 50_000)
    lines = [
        json.dumps({"body": f"{number}:" + "x" * (40_000 if number % 50 == 0 else 20)})
        for number in range(1_000)
    ]
    whole = "\n".join(lines).encode()
    sizes = [1, 7, 1_000, 30_000, 65_536, 3]

    def pieces() -> Iterator[bytes]:
        at = turn = 0
        while at < len(whole):
            size = sizes[turn % len(sizes)]
            yield whole[at : at + size]
            at, turn = at + size, turn + 1

    assert publish(api, pieces())["data"]["accepted"] == 1_000
    found = [json.loads(line)["body"].partition(":")[0] for line in api.http.get("/v1/log").text.splitlines()]
    assert found == [str(number) for number in range(1_000)]


def half(api: Api) -> socket.socket:
    """A request whose body has one line and the beginning of another."""
    sock = connect(api.http)
    head = "POST /v1/publish?address=q HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n\r\n"
    sock.sendall(head.encode() + b'{"body":"came"}\n{"bo')
    return sock


def test_of_a_body_that_ends_in_the_middle_what_came_is_kept(
    api: Api, client: Client, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not go on, which the client is told, or the client leaves: nothing is held for it any more."""
    with half(api):
        wait_until(lambda: gateway.depth("q") == 1, "it came")
    monkeypatch.setattr(publishing, "SILENCE_S", 0.2)
    with half(api) as sock:
        assert sock.recv(4_096).startswith(b"HTTP/1.1 408")
    assert texts(client.receiver("q").drain()) == ["came", "came"]
    wait_until(lambda: len(api.seen("/clients")) == 1, "they are gone")
    assert gateway.call(lambda running: running.ledger.process.held_bytes) < 100_000
    stop_and_check(api, client)


def test_a_foreign_page_and_a_foreign_name_are_turned_away(api: Api) -> None:
    """As from all of the administration's address: no page from elsewhere publishes or reads."""
    for headers, status in (({"Origin": "http://evil.example"}, 403), ({"Host": "evil.example"}, 421)):
        assert api.http.post("/v1/publish?address=q", content="{}", headers=headers).status_code == status
        assert api.http.get("/v1/log", headers=headers).status_code == status
    own = {"Origin": str(api.http.base_url).rstrip("/")}
    answer = api.http.post("/v1/publish?address=q", content="{}", headers=own)
    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers
