"""
A browser's EventSource: connects, reads events, and connects again with the id of the last one.

Source: HTML Standard, section 9.2.6 (interpreting an event stream), and 9.2.3 for what ends it.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import httpx

from tests.support.client import WAIT_SECONDS
from tests.support.running import PLAIN_HTTP

TYPE = "text/event-stream"
RETRY_SECONDS = 0.02
"""Pause before a failed connection is made again, whatever the server has asked for."""


class EventSource:
    """
    Reads events on a thread of its own from the beginning of a ``with`` block until its end.

    Args:
        url: Returns the URL; called for each connection, as a restarted gateway may have another port.
    """

    def __init__(self, url: Callable[[], str], **more: Any) -> None:
        self._url = url
        self._more = more
        self._closed = threading.Event()
        self._is_cut = threading.Event()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="event-source")
        self._http: httpx.Client | None = None
        self.last_event_id = ""
        self.events: list[tuple[str, str, str]] = []
        """The type, id and data of each event."""
        self.connections = 0
        self.status: int | None = None
        """The HTTP status of an answer that ended the event source."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading."""
        self._closed.set()
        self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()

    def cut(self) -> None:
        """Break the connection when the next piece arrives."""
        self._is_cut.set()

    def wait(self, holds: Callable[[], object], what: str) -> None:
        """Wait until ``holds`` returns something true; it is called after each event and each connection."""
        with self._changed:
            assert self._changed.wait_for(holds, WAIT_SECONDS), (what, self.events[-3:], self.status)

    @property
    def messages(self) -> list[Any]:
        """The contents of the message events."""
        return [json.loads(data) for kind, _, data in self.events if kind == "message"]

    @property
    def is_open(self) -> bool:
        """Whether it reads, or will reconnect and read on."""
        return self._thread.is_alive() and self.status is None

    def _run(self) -> None:
        while not self._closed.is_set():
            with suppress(httpx.HTTPError):
                self._connect()
            if self.status is not None:
                break
            self._closed.wait(RETRY_SECONDS)
        with self._changed:
            self._changed.notify_all()

    def _connect(self) -> None:
        headers = {"Accept": TYPE}
        if self.last_event_id:
            headers["Last-Event-ID"] = self.last_event_id
        # A short read timeout, so that the thread notices soon when it has been closed.
        timeout = httpx.Timeout(5, read=0.5)
        with (
            httpx.Client(**PLAIN_HTTP | {"timeout": timeout}, **self._more) as http,
            http.stream("GET", self._url(), headers=headers) as answer,
        ):
            if answer.status_code != 200 or not answer.headers["content-type"].startswith(TYPE):
                self.status = answer.status_code
                return
            with self._changed:
                self.connections += 1
                self._changed.notify_all()
            self._interpret(answer)

    def _interpret(self, answer: httpx.Response) -> None:
        rest, kind, data, last_id = b"", "", "", self.last_event_id
        for piece in answer.iter_raw():
            if self._closed.is_set():
                return
            if self._is_cut.is_set():
                self._is_cut.clear()
                raise httpx.ReadError("cut")
            *lines, rest = (rest + piece).split(b"\n")
            with self._changed:
                for raw in lines:
                    line = raw.decode()
                    if not line:
                        self.last_event_id = last_id
                        if data:
                            self.events.append((kind or "message", last_id, data.removesuffix("\n")))
                        kind = data = ""
                        continue
                    field, _, value = line.partition(":")
                    value = value.removeprefix(" ")
                    if field == "event":
                        kind = value
                    elif field == "data":
                        data += value + "\n"
                    elif field == "id":
                        last_id = value
                self._changed.notify_all()
