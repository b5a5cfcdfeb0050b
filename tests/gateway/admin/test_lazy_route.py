"""Routes that are made when they are first asked for."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI, HTTPException
from fastapi.routing import APIRoute
from pydantic import BaseModel

from gateway.admin.operations import LazyRoute, LazyRouter, openapi_document


class Thing(BaseModel):
    """What is sent."""

    size: int


class Sent(BaseModel):
    """What is answered."""

    twice: int


def refuse_thirteen(size: int = 0) -> None:
    """A dependency that refuses."""
    if size == 13:
        raise HTTPException(403)


def made_answers() -> dict[int | str, dict[str, Any]]:
    return {200: {"model": Sent}, 404: {"description": "of the operation"}}


@pytest.fixture
def router() -> LazyRouter:
    router = LazyRouter(
        "/things",
        tags=["things"],
        dependencies=[Depends(refuse_thirteen)],
        answers={404: {"description": "of all"}, 503: {"description": "not now"}},
    )

    @router.operation("POST", "/{name}", None, summary="Send one", responses=made_answers)
    async def send(name: str, body: Thing) -> dict[str, int]:
        return {name: 2 * body.size}

    @router.operation("GET", "/{name}", None, summary="See one")
    async def see(name: str) -> str:
        return name

    return router


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, threading.Thread]]:
    """Routes of FastAPI that were made, each with the thread."""
    found: list[tuple[str, threading.Thread]] = []
    init = APIRoute.__init__

    def counted(self: APIRoute, path: str, endpoint: Any, **declared: Any) -> None:
        found.append((f"{min(declared['methods'])} {path}", threading.current_thread()))
        init(self, path, endpoint, **declared)

    monkeypatch.setattr(APIRoute, "__init__", counted)
    return found


def served(router: LazyRouter) -> FastAPI:
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None)
    app.router.routes.extend(router.routes)
    return app


def ask(app: FastAPI, *requests: tuple[str, str, Any]) -> list[httpx.Response]:
    """Requests one after the other, in a loop on this thread."""

    async def all_of_them() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here", trust_env=False) as http:
            return [await http.request(method, path, json=body) for method, path, body in requests]

    return asyncio.run(all_of_them())


def test_a_route_is_made_once_when_it_is_first_asked_for(
    router: LazyRouter, made: list[tuple[str, threading.Thread]]
) -> None:
    """Neither when it is declared nor for another one's sake; and on a thread, as the loop has others to serve."""
    app = served(router)
    assert made == []
    answers = ask(app, *[("POST", "/things/a", {"size": size}) for size in (1, 2)])
    assert [answer.json() for answer in answers] == [{"a": 2}, {"a": 4}]
    assert [name for name, _ in made] == ["POST /things/{name}"]
    assert made[0][1] is not threading.current_thread()
    assert ask(app, ("GET", "/things/b", None))[0].json() == "b"
    assert [name for name, _ in made] == ["POST /things/{name}", "GET /things/{name}"]


def test_it_is_a_route_of_fastapi(router: LazyRouter) -> None:
    """Dependencies, bodies that are wrong, methods that it has not: all as with FastAPI's own."""
    answers = ask(
        served(router),
        ("POST", "/things/a?size=13", {"size": 1}),
        ("GET", "/things/a?size=13", None),
        ("HEAD", "/things/a", None),
        ("GET", "/things", None),
        ("POST", "/things/a", {"size": "x"}),
    )
    assert [answer.status_code for answer in answers] == [403, 403, 405, 404, 422]
    assert answers[-1].json()["detail"][0]["loc"] == ["body", "size"]


def test_the_document_has_all_that_is_declared(router: LazyRouter) -> None:
    """Answers too, which nothing else needs: an operation's own go before those of all."""
    document = openapi_document(served(router))
    send = document["paths"]["/things/{name}"]["post"]
    assert (send["summary"], send["tags"]) == ("Send one", ["things"])
    answer = send["responses"]["200"]["content"]["application/json"]["schema"]
    assert answer["$ref"] == "#/components/schemas/Sent"
    assert send["responses"]["404"]["description"] == "of the operation"
    assert send["responses"]["503"]["description"] == "not now"
    assert set(document["components"]["schemas"]) >= {"Thing", "Sent"}
    see = document["paths"]["/things/{name}"]["get"]["responses"]
    assert see["404"]["description"] == "of all"


def test_answers_are_made_for_the_document_alone(router: LazyRouter) -> None:
    """What serves has none of them."""
    (send, _) = router.routes
    assert isinstance(send, LazyRoute)
    ask(served(router), ("POST", "/things/a", {"size": 1}))
    assert send._made is not None
    assert send._made.responses == {}
    assert set(send.documented().responses) == {200, 404, 503}
