"""What ends when a client of HTTP leaves before it has its answer."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi import HTTPException, Request

from gateway.admin.semp.resources import while_waiting
from gateway.vpn.administration import Administration
from gateway.vpn.log import LoggedMessages
from store.ports import LogPage
from store.sqlite.reader import SqliteReader
from tests.gateway.admin.conftest import Api
from tests.support.client import WAIT_SECONDS, Client
from tests.support.messages import data


def request_of(messages: asyncio.Queue[dict[str, Any]]) -> Request:
    """A request of a client that says `messages`."""
    return Request({"type": "http", "headers": []}, messages.get)


def test_work_is_cancelled_when_the_client_leaves() -> None:
    """A search that would never end is cancelled as soon as the client's connection is gone."""

    async def leave() -> bool:
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        messages.put_nowait({"type": "http.request", "body": b""})
        ended, begun = asyncio.Event(), asyncio.Event()

        async def search() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        waiting = asyncio.ensure_future(while_waiting(request_of(messages), search()))
        await begun.wait()
        messages.put_nowait({"type": "http.disconnect"})
        with pytest.raises(HTTPException, match="left"):
            await waiting
        await asyncio.wait_for(ended.wait(), 10)
        return ended.is_set()

    assert asyncio.run(leave())


def test_a_client_that_waits_has_the_answer_or_the_error() -> None:
    """What the work returns or raises reaches the one who waits for it."""

    async def stay() -> None:
        async def answer() -> int:
            return 7

        async def refuse() -> int:
            raise ValueError("no")

        assert await while_waiting(request_of(asyncio.Queue()), answer()) == 7
        with pytest.raises(ValueError, match="no"):
            await while_waiting(request_of(asyncio.Queue()), refuse())

    asyncio.run(stay())


def address_of(api: Api) -> tuple[str, int]:
    """Where the administration listens."""
    url = urlsplit(str(api.http.base_url))
    return url.hostname or "", url.port or 0


@pytest.mark.parametrize("reset", [False, True])
def test_a_search_of_the_log_ends_with_its_connection(
    api: Api, client: Client, monkeypatch: pytest.MonkeyPatch, reset: bool
) -> None:
    """
    A client that closes its socket, or breaks it off, while the log is searched for a message that is not there, ends
    the search; the gateway answers others as before.
    """
    client.sender("q").send_all([data(0)])
    begun, ended = threading.Event(), threading.Event()
    search, log_page = Administration.logged_messages, SqliteReader.log_page

    async def watched(*arguments: Any) -> LoggedMessages:
        try:
            return await search(*arguments)
        finally:
            ended.set()

    def endless(reader: SqliteReader, position: int, end: int, patterns: Any, *, held: bool) -> LogPage:
        begun.set()
        return log_page(reader, position, end, patterns, held=held)._replace(rows=[], position=position)

    monkeypatch.setattr(Administration, "logged_messages", watched)
    monkeypatch.setattr(SqliteReader, "log_page", endless)
    with socket.create_connection(address_of(api)) as sock:
        path = "/SEMP/v2/monitor/msgVpns/default/replayLogs/default/msgs?topic=a"
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert begun.wait(WAIT_SECONDS)
        assert not ended.is_set()
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert ended.wait(WAIT_SECONDS)
    monkeypatch.undo()
    assert api.done("GET", "monitor", "/replayLogs/default/msgs", topic="a") == []
    assert len(api.done("GET", "monitor", "/replayLogs/default/msgs")) == 1


def test_a_preview_ends_with_its_connection(
    api: Api, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was asked for in a body ends as well when nobody waits for it any more."""
    client.sender("q").send_all([data(0)])
    begun, ended = threading.Event(), threading.Event()

    async def endless(*arguments: Any, **more: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(Administration, "preview", endless)
    with socket.create_connection(address_of(api)) as sock:
        path = "/SEMP/v2/action/msgVpns/default/queues/q/previewReplay"
        head = f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
        sock.sendall(f"{head}Content-Type: application/json\r\n\r\n{{}}".encode())
        assert begun.wait(WAIT_SECONDS)
        assert not ended.is_set()
    assert ended.wait(WAIT_SECONDS)
