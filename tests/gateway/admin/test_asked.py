"""Whatever is sent to administration: it answers in its own format, the gateway goes on, and its file stays sound."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import quote

import httpx
import pytest
import requests
import schemathesis
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, Phase, given, settings
from pydantic import BaseModel
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from gateway.admin import http as http_server
from gateway.admin.middleware import MOST_BYTES
from gateway.admin.operations import LazyRouter
from gateway.admin.semp.envelope import WRITTEN, ListAnswer, list_answer
from gateway.admin.semp.paging import LONGEST_TURN_S, PAUSE, WINDOW_S, ListingPace
from tests.gateway.admin.conftest import QUEUES, Api, connect, stop_and_check
from tests.support.chance import times
from tests.support.client import Client
from tests.support.messages import data
from tests.support.publishing import Publishing
from tests.support.running import RunningGateway

# --- Requests that a client of HTTP makes by mistake or to see what happens -----------------------------------------

JSON = {"Content-Type": "application/json"}


def error(answer: Any) -> tuple[int, str, str]:
    """Status, kind and sentence of a refusal."""
    told = answer.json()["meta"]["error"]
    return answer.status_code, told["status"], told["description"]


def answer(sock: socket.socket) -> bytes:
    """Read an answer whose body is a JSON object, as bytes."""
    found = b""
    while not found.endswith(b"}"):
        piece = sock.recv(4_096)
        assert piece, found
        found += piece
    return found


EXPECTED = "The body has to be a JSON object, with Content-Type: application/json."


def test_a_body_that_cannot_be_taken_is_told_what_is_expected(api: Api) -> None:
    """JSON that Python cannot parse is a PARSE_ERROR; a body that is no JSON object is told what is expected."""
    for body, headers, kind, says in (
        (b'{"queueName":"\xff"}', JSON, "PARSE_ERROR", "The body cannot be read as JSON"),
        (b"[" * 100_000, JSON, "PARSE_ERROR", "The body cannot be read as JSON"),
        (b'{"queueName":' + b"1" * 5_000 + b"}", JSON, "PARSE_ERROR", "The body cannot be read as JSON"),
        (b"[]", JSON, "INVALID_PARAMETER", EXPECTED),
        (b'{"queueName":"q"}', {}, "INVALID_PARAMETER", EXPECTED),
        (b'{"queueName":"q"}', {"Content-Type": "text/plain"}, "INVALID_PARAMETER", EXPECTED),
        (b'{"queueName":"%s"}' % (b"x" * 300), JSON, "INVALID_PARAMETER", "this one has 300."),
    ):
        status, found, sentence = error(api.http.post(QUEUES, content=body, headers=headers))
        assert (status, found) == (400, kind), body[:20]
        assert says in sentence
        assert sentence.endswith(".") and not sentence.endswith("..")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_huge_body_is_refused_before_it_is_there(api: Api, chunked: bool) -> None:
    """413 as soon as the announced or received size is too large, without waiting for the rest."""
    head = f"POST {QUEUES} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with connect(api.http) as sock:
        if chunked:
            size = MOST_BYTES + 1
            sock.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n".encode() + b"x" * size)
        else:
            sock.sendall(f"{head}Content-Length: {10**12}\r\n\r\n".encode())
        assert sock.recv(4_096).startswith(b"HTTP/1.1 413 ")
    assert api.http.get("/healthz").status_code == 200


def test_another_method_is_told_which_there_are(api: Api) -> None:
    """405 with all methods of the resource, in the sentence and in `Allow`. Health answers HEAD, too."""
    for path in ("/healthz", "/readyz"):
        head = api.http.head(path)
        assert (head.status_code, head.content) == (200, b"")
    assert error(api.http.get(f"{QUEUES}/q/colour"))[:2] == (404, "NOT_FOUND")
    answer = api.http.put(f"{QUEUES}/q")
    assert answer.headers["Allow"] == "DELETE, GET, PATCH"
    assert error(answer) == (
        405,
        "NOT_SUPPORTED",
        "PUT is not possible here; possible: DELETE, GET, PATCH. See /openapi.json.",
    )


def test_any_name_can_be_made_shown_and_deleted(api: Api) -> None:
    """Names are percent-encoded in paths; any name can be created, shown and deleted."""
    for name in ("a/b", "#q", "é日本", "a b", "a%b", '"q"', "ü" * 100, "%2F", "+"):
        assert api.make("/queues", {"queueName": name})["queueName"] == name
        path = f"/queues/{quote(name, safe='')}"
        assert api.seen(path)["queueName"] == name
        api.delete(path)
        assert api.done("GET", "config", "/queues") == []


def test_one_of_many_who_make_the_same_queue_at_once_makes_it(api: Api) -> None:
    """One request succeeds; the others are told that the queue exists."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(lambda _: api.ask("POST", "config", "/queues", {"queueName": "q"}), range(16))
        )
    assert sorted(answer.status_code for answer in answers) == [200] + 15 * [400]
    assert {error(answer)[1] for answer in answers if answer.status_code == 400} == {"ALREADY_EXISTS"}


def test_a_list_goes_on_behind_what_was_deleted(api: Api) -> None:
    """The next page begins after the cursor's queue, even if that has been deleted."""
    for number in range(6):
        api.make("/queues", {"queueName": f"q{number}"})
    first = api.ask("GET", "config", "/queues", count=2, select="queueName").json()
    for name in ("q2", "q3"):
        api.delete(f"/queues/{name}")
    rest = api.http.get(first["meta"]["paging"]["nextPageUri"]).json()
    assert [queue["queueName"] for queue in rest["data"]] == ["q4", "q5"]


@pytest.mark.parametrize("said", [b"", b"GET /healthz HTTP/1.1\r\nHost: gate"])
def test_a_client_that_asks_nothing_is_not_waited_for(
    api: Api, monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """A connection without a complete first request is closed; a connection that has sent one in time stays open."""
    monkeypatch.setattr(http_server, "HEAD_S", 0.4)
    with connect(api.http) as asking, connect(api.http) as silent:
        asking.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer(asking).startswith(b"HTTP/1.1 200 ")
        silent.sendall(said)
        assert silent.recv(4_096) == b""
        asking.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer(asking).startswith(b"HTTP/1.1 200 ")


# --- Routes that are made when they are first asked for -------------------------------------------------------------


class Thing(BaseModel):
    """A request body."""

    size: int


def made_answers() -> dict[int | str, dict[str, Any]]:
    return {200: {"model": Thing}, 404: {"description": "of the operation"}}


@pytest.fixture
def router() -> LazyRouter:
    router = LazyRouter(
        "/things",
        tags=["things"],
        answers={404: {"description": "of all"}, 503: {"description": "not now"}},
    )

    @router.operation("POST", "/{name}", None, summary="Send one", responses=made_answers)
    async def send(name: str, body: Thing) -> dict[str, int]:
        return {name: 2 * body.size}

    @router.operation("GET", "/{name}", None)
    async def see(name: str) -> str:
        """See one."""
        return name

    return router


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, threading.Thread]]:
    """The routes that FastAPI has made so far, each with the thread that made it."""
    found: list[tuple[str, threading.Thread]] = []
    init = APIRoute.__init__

    def counted(self: APIRoute, path: str, endpoint: Any, **declared: Any) -> None:
        found.append((f"{min(declared['methods'])} {path}", threading.current_thread()))
        init(self, path, endpoint, **declared)

    monkeypatch.setattr(APIRoute, "__init__", counted)
    return found


def test_a_route_is_made_once_when_it_is_first_asked_for(
    router: LazyRouter, made: list[tuple[str, threading.Thread]]
) -> None:
    """Not when it is declared, nor when another one is called; on a thread, so that the loop is not blocked."""
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.router.routes.extend(router.routes)
    assert made == []

    async def ask() -> list[Any]:
        """Call one route twice and then the other, in a loop on this thread."""
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here", trust_env=False) as http:
            answers = [(await http.post("/things/a", json={"size": size})).json() for size in (1, 2)]
            assert [name for name, _ in made] == ["POST /things/{name}"]
            return [*answers, (await http.get("/things/b")).json()]

    assert asyncio.run(ask()) == [{"a": 2}, {"a": 4}, "b"]
    assert [name for name, _ in made] == ["POST /things/{name}", "GET /things/{name}"]
    assert made[0][1] is not threading.current_thread()


def test_a_route_has_what_the_document_says_of_it(router: LazyRouter) -> None:
    """An operation's own responses override the common ones; its summary is the one given, or its docstring."""
    send, see = (route.documented() for route in router.routes)
    assert send.responses == made_answers() | {503: {"description": "not now"}}
    assert see.responses[404]["description"] == "of all"
    assert [(one.summary, one.description, one.tags) for one in (send, see)] == [
        ("Send one", "", ["things"]),
        ("See one", "", ["things"]),
    ]


# --- Lists wait for live traffic, and for nothing else --------------------------------------------------------------


class World:
    """A clock that advances when the pace sleeps, and live traffic by that clock."""

    def __init__(self, live: Callable[[float], bool]) -> None:
        self.now = 0.0
        self.activity = 0
        self._live = live
        self.pace = ListingPace(lambda: self.activity, lambda: self.now, self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.pass_by(seconds)

    def pass_by(self, seconds: float) -> None:
        self.activity += self._live(self.now)
        self.now += seconds

    async def page(self, seconds: float) -> float:
        """Take this long for a page; return the pause after it."""
        async with self.pace.page():
            self.pass_by(seconds)
            ended = self.now
        return self.now - ended


def test_beside_live_traffic_a_page_is_followed_by_a_pause_and_nowhere_else() -> None:
    """The pause is a multiple of the time that the page took, or of the longest turn if that is shorter."""
    world = World(lambda now: False)
    assert [asyncio.run(world.page(0.01)) for _ in range(5)] == [0.0] * 5
    world = World(lambda now: True)
    assert asyncio.run(world.page(0.004)) == pytest.approx(0.004 * PAUSE)
    assert asyncio.run(world.page(3.0)) == pytest.approx(LONGEST_TURN_S * PAUSE)


def test_the_pauses_of_all_lists_follow_each_other() -> None:
    """Lists that run at the same time share the pauses: together they get no more of the loop than one."""
    world = World(lambda now: True)

    async def both() -> list[float]:
        first, second = world.pace.page(), world.pace.page()
        await first.__aenter__()
        await second.__aenter__()
        world.pass_by(0.004)
        await first.__aexit__(None, None, None)
        began = world.now
        await second.__aexit__(None, None, None)
        return [began, world.now]

    began, ended = asyncio.run(both())
    assert began == pytest.approx(0.004 * (1 + PAUSE))
    assert ended >= began + 0.004 * PAUSE - 1e-9


def test_a_pause_ends_with_live_traffic() -> None:
    """Once there is no live traffic for a window."""
    world = World(lambda now: now < 0.1)
    assert asyncio.run(world.page(LONGEST_TURN_S)) <= 0.1 - LONGEST_TURN_S + 2 * WINDOW_S + 1e-9
    assert asyncio.run(world.page(LONGEST_TURN_S)) == 0.0


# --- Administration while a publisher goes on at full speed ---------------------------------------------------------


def test_a_queue_is_made_and_replayed_while_publishing_runs(
    api: Api, client: Client, gateway: RunningGateway
) -> None:
    """Created, purged and replayed under load, the queue has every message of its topic once, and in order."""
    with Publishing(gateway.url, "topic://a/1", limit=8_000) as publishing:
        publishing.wait_for(500)
        api.make_queue("q", "a/>")
        publishing.wait_for(1_000)
        assert api.act("/queues/q/previewReplay", {})["msgCount"] >= 1_000
        api.act("/queues/q/deleteMsgs", {})
        for i in range(20):
            api.make("/queues", {"queueName": f"other{i}"})
        assert len(api.seen("/queues", count=500)) == 21
        api.act("/queues/q/startReplay", {})
        assert api.http.get("/metrics").status_code == 200
    ids = [received.id for received in client.receiver("q").drain(9_000)]
    assert ids == list(range(1, publishing.next + 1))


def test_a_long_page_is_written_in_turns_of_the_loop() -> None:
    """Other tasks run in between. The result is one JSON page, also with names that are not ASCII."""

    async def written() -> tuple[ListAnswer, int]:
        turns = 0

        def turn() -> None:
            nonlocal turns
            turns += 1
            loop.call_soon(turn)

        loop = asyncio.get_running_loop()
        loop.call_soon(turn)
        scope = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "headers": []}
        return await list_answer(Request({**scope, "server": ("here", 80)}), page, "next", 5_000), turns

    page = [{"queueName": f"é{number}", "count": number, "owner": None} for number in range(1_000)]
    found, turns = asyncio.run(written())
    assert turns >= len(page) // WRITTEN - 1
    content = json.loads(found.body)
    assert content["data"] == page
    assert content["links"] == []
    assert content["meta"]["count"] == 5_000
    assert content["meta"]["paging"]["cursorQuery"] == "next"


# --- The OpenAPI document, and whatever schemathesis makes of it ------------------------------------------------------


@schemathesis.serializer("application/x-ndjson")
def lines(_context: Any, value: Any) -> bytes:
    """Send what schemathesis generates for a text body unchanged."""
    return str(value).encode("utf-8", "replace")


EXAMPLES = times(6, 180)
"""Requests for each operation: hundreds in all; nightly, ten thousand for each."""

TEXTS = (
    "#3",
    "10m",
    "rmid1:00000-00000000000-00000000-00000003",
    "match:a = 1",
    "!a",
    "#1",
    "é",
    "a/>",
    "q",
    "\0",
)
"""Names, topics and positions that may be valid, which a generator would hardly find."""

CHECKS: Any = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.mark.timeout(300)  # hundreds of requests, some of which search the log
def test_requests_of_schemathesis_find_no_mistake(api: Api, client: Client) -> None:
    """
    No request is answered with 5xx, or with an answer that the document does not describe. Afterwards the gateway is
    healthy and its store sound.
    """
    client.sender("q").send_all([data(i) for i in range(20)])
    api.make("/topicEndpoints", {"topicEndpointName": "te", "topic": "a/>"})
    schema = schemathesis.openapi.from_dict(api.http.get("/openapi.json").json())
    schema.config.update(base_url=str(api.http.base_url))
    named = {"vpn": "default", "name": "q", "log": "default", "topic": "a", "client": "nobody", "message": 1}
    seen: Counter[int] = Counter()
    with requests.Session() as session:
        session.trust_env = False
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.path.endswith("/live"):
                continue  # its answer does not end

            @settings(
                max_examples=EXAMPLES,
                derandomize=True,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy())
            def ask(case: Any) -> None:
                # Random names match nothing, so half of the requests name objects that exist.
                if sum(seen.values()) % 2:
                    for parameter in case.path_parameters or ():
                        case.path_parameters[parameter] = named[parameter]
                    if "/topicEndpoints/" in case.path:
                        case.path_parameters["name"] = "te"
                # Random texts are no valid positions or addresses, so a third of the bodies get some.
                if sum(seen.values()) % 3 == 0 and isinstance(case.body, dict):
                    for at, (key, value) in enumerate(case.body.items(), sum(seen.values())):
                        case.body[key] = TEXTS[at % len(TEXTS)] if isinstance(value, str) else value
                answer = case.call(session=session)
                seen[answer.status_code] += 1
                case.validate_response(answer, checks=CHECKS)

            ask()
    assert sum(seen.values()) >= 350, seen
    # 404: a name such as `.`, which HTTP clients normalize out of the path.
    assert set(seen) <= {200, 400, 404}, seen
    assert seen[200] > 100, seen
    stop_and_check(api, client)


def documented(document: dict[str, Any], path: str, method: str = "get") -> dict[str, Any]:
    """The documented properties of `data` in an operation's answer."""

    def resolved(schema: dict[str, Any]) -> dict[str, Any]:
        reference = schema.get("$ref")
        if reference is None:
            return schema
        found: dict[str, Any] = document["components"]["schemas"][reference.rpartition("/")[2]]
        return found

    answer = document["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
    shown = resolved(resolved(answer)["properties"]["data"])
    shown = resolved(shown.get("items", shown))
    assert shown["additionalProperties"] is False, path
    properties: dict[str, Any] = shown["properties"]
    return properties


def test_every_attribute_that_is_shown_is_documented_with_its_type_and_no_other(
    api: Api, client: Client
) -> None:
    """Each resource shows exactly the attributes that the document lists, and each of them has a type."""
    client.sender("q").send_all([data(0), data(1)])
    client.receiver("q")
    api.make("/queues/q/subscriptions", {"subscriptionTopic": "q/>"})
    api.make("/topicEndpoints", {"topicEndpointName": "te", "topic": "a/>"})
    client.sender("topic://a/1").send_all([data(2)])
    client.receiver("topic://a/>", name="te", durable=True)
    api.make("/replayPoints", {"replayPointName": "p"})
    api.act("/topicEndpoints/te/startReplay", {"replayName": "q"})
    topics = "/replayLogs/default/topicFilterSubscriptions"
    api.make(topics, {"topicFilterSubscription": "a/>"})
    document = api.http.get("/openapi.json").json()
    seen = 0
    for path, operations in document["paths"].items():
        if "get" not in operations or not path.startswith("/SEMP"):
            continue
        if "application/json" not in operations["get"]["responses"]["200"]["content"]:
            continue
        name = "te" if "/topicEndpoints" in path else "q"
        message = 3 if name == "te" else 1
        url = path.format(
            vpn="default", log="default", name=name, message=message, client=client.connection.container
        )
        asked = {"topic": "q/1", "action": "consume", "address": "topic://a/>"}
        required = {
            one["name"]
            for one in operations["get"].get("parameters", ())
            if one["in"] == "query" and one["required"]
        }
        query = {key: asked[key] for key in required}
        answer = api.http.get(url, params=query).json()["data"]
        properties = documented(document, path)
        for shown in answer if isinstance(answer, list) else [answer]:
            assert set(shown) == set(properties), path
            seen += 1
        for attribute, schema in properties.items():
            assert {"type", "const", "enum", "anyOf", "$ref"} & set(schema), (path, attribute)
    assert seen >= 20
    assert documented(document, "/SEMP/v2/monitor/msgVpns/{vpn}/queues/{name}")["spooledMsgCount"] == {
        "title": "Spooledmsgcount",
        "type": "integer",
    }
    started = documented(document, "/SEMP/v2/action/msgVpns/{vpn}/queues/{name}/startReplay", "put")
    assert set(api.act("/queues/q/startReplay", {})) == set(started)
