"""Requests that a client of HTTP makes by mistake or to see what happens: what it is told."""

from __future__ import annotations

import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from gateway.admin import http as http_server
from gateway.admin.middleware import MOST_BYTES
from tests.gateway.admin.conftest import Api

QUEUES = "/SEMP/v2/config/msgVpns/default/queues"
JSON = {"Content-Type": "application/json"}


def error(answer: Any) -> tuple[int, str, str]:
    """Status, kind and sentence of a refusal."""
    told = answer.json()["meta"]["error"]
    return answer.status_code, told["status"], told["description"]


def answer(sock: socket.socket) -> bytes:
    """An answer whose body is an object, as it came."""
    found = b""
    while not found.endswith(b"}"):
        piece = sock.recv(4_096)
        assert piece, found
        found += piece
    return found


@pytest.mark.parametrize(
    "body",
    [b'{"queueName":"\xff"}', b"[" * 100_000, b'{"queueName":' + b"1" * 5_000 + b"}"],
    ids=["no UTF-8", "deep", "a long number"],
)
def test_a_body_that_cannot_be_read_is_told_to_be_one(api: Api, body: bytes) -> None:
    """What Python's JSON fails on is the body's mistake, and not a resource that is not there."""
    status, kind, sentence = error(api.http.post(QUEUES, content=body, headers=JSON))
    assert (status, kind) == (400, "PARSE_ERROR")
    assert "no JSON" in sentence


@pytest.mark.parametrize("headers", [{}, {"Content-Type": "text/plain"}, JSON])
def test_a_body_that_is_no_object_is_told_what_is_expected(api: Api, headers: dict[str, str]) -> None:
    """A list, or an object that is not said to be JSON, is answered with what to send and how."""
    body = b"[]" if headers == JSON else b'{"queueName":"q"}'
    _, _, sentence = error(api.http.post(QUEUES, content=body, headers=headers))
    assert sentence == "A JSON object is expected as body, with Content-Type: application/json."


def test_a_sentence_ends_once(api: Api) -> None:
    """What another part of the gateway says with a full stop gets no second one."""
    _, _, sentence = error(api.http.post(QUEUES, json={"queueName": "x" * 300}))
    assert sentence.endswith("this one has 300.")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_huge_body_is_refused_before_it_is_there(api: Api, chunked: bool) -> None:
    """Who announces too much, or sends it piece by piece, has the answer without sending the rest."""
    url = urlsplit(str(api.http.base_url))
    head = f"POST {QUEUES} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection((url.hostname or "", url.port or 0)) as sock:
        sock.settimeout(20)
        if chunked:
            size = MOST_BYTES + 1
            sock.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n".encode() + b"x" * size)
        else:
            sock.sendall(f"{head}Content-Length: {10**12}\r\n\r\n".encode())
        assert sock.recv(4_096).startswith(b"HTTP/1.1 413 ")
    assert api.http.get("/healthz").status_code == 200


def test_another_method_is_told_which_there_are(api: Api) -> None:
    """All of a resource's methods are named, in the sentence and in `Allow`."""
    answer = api.http.put(f"{QUEUES}/q")
    assert answer.headers["Allow"] == "DELETE, GET, PATCH"
    assert error(answer) == (
        405,
        "NOT_SUPPORTED",
        "PUT is nothing to do here; DELETE, GET, PATCH may be. See /openapi.json.",
    )


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_can_be_asked_without_a_body(api: Api, path: str) -> None:
    """HEAD is answered as GET is, with nothing behind it."""
    answer = api.http.head(path)
    assert (answer.status_code, answer.content) == (200, b"")


@pytest.mark.parametrize("name", ["a/b", "#q", "é日本", "a b", "a%b", '"q"', "ü" * 100, "%2F", "+"])
def test_any_name_can_be_made_shown_and_deleted(api: Api, name: str) -> None:
    """Whatever has to be percent-encoded in a path is the name that it was made with."""
    assert api.done("POST", "config", "/queues", {"queueName": name})["queueName"] == name
    path = f"/queues/{quote(name, safe='')}"
    assert api.done("GET", "monitor", path)["queueName"] == name
    api.done("DELETE", "config", path)
    assert api.done("GET", "config", "/queues") == []


def test_a_topic_endpoint_has_no_exception_for_its_topic(api: Api) -> None:
    """It would attract nothing: neither is it made with one, nor is its topic changed to one."""
    made = {"topicEndpointName": "te", "topic": "!a"}
    assert "is an exception" in api.refused("POST", "config", "/topicEndpoints", made)["description"]
    api.done("POST", "config", "/topicEndpoints", {**made, "topic": "a/>"})
    refused = api.refused("PATCH", "config", "/topicEndpoints/te", {"topic": "!a"})
    assert "is an exception" in refused["description"]


def test_one_of_many_who_make_the_same_queue_at_once_makes_it(api: Api) -> None:
    """The others are told that it is there."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda _: api.ask("POST", "config", "/queues", {"queueName": "q"}), range(16))
        )
    assert sorted(answer.status_code for answer in answers) == [200] + 15 * [400]
    assert {error(answer)[1] for answer in answers if answer.status_code == 400} == {"ALREADY_EXISTS"}


def test_a_list_goes_on_behind_what_was_deleted(api: Api) -> None:
    """A cursor at a queue that is gone leads to the next one that is there."""
    for number in range(6):
        api.done("POST", "config", "/queues", {"queueName": f"q{number}"})
    first = api.ask("GET", "config", "/queues", count=2, select="queueName").json()
    for name in ("q2", "q3"):
        api.done("DELETE", "config", f"/queues/{name}")
    rest = api.http.get(first["meta"]["paging"]["nextPageUri"]).json()
    assert [queue["queueName"] for queue in rest["data"]] == ["q4", "q5"]


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nHost: gate"])
def test_a_client_that_asks_nothing_is_not_waited_for(
    api: Api, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """A connection whose first request does not come is closed; one that asked in time is not."""
    monkeypatch.setattr(http_server, "HEAD_S", 1.0)
    url = urlsplit(str(api.http.base_url))
    where = (url.hostname or "", url.port or 0)
    with socket.create_connection(where) as asking, socket.create_connection(where) as silent:
        for sock in (asking, silent):
            sock.settimeout(20)
        asking.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer(asking).startswith(b"HTTP/1.1 200 ")
        silent.sendall(said)
        assert silent.recv(4_096) == b""
        asking.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer(asking).startswith(b"HTTP/1.1 200 ")
