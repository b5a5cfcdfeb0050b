"""
Administrators at work over HTTP while something is measured: they copy the log, list queues, purge one, trim the log,
and have consoles open; each again and again, on a thread of its own.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import quote
from urllib.request import Request, urlopen

from tests.bench.processes import LoadFailed

COPY_SECONDS = 600
"""How long one copy may take."""

LOOK_SECONDS = 0.1
"""Seconds from one question how far it is to the next. A hundred of them a second cost publishers beside them more than
the copy does: each takes some milliseconds of the loop's processor."""


class Copying:
    """
    From the beginning of a ``with`` block until the first copy that is over at its end, or later.

    Args:
        topic: What is copied, all that the log has of it.
        target: Where to.
        rate: Messages a second at most; None for no bound.
    """

    def __init__(self, admin: str, topic: str, target: str, rate: float | None = None) -> None:
        self._root = f"{admin}/SEMP/v2"
        self._body = {"subscriptions": [topic], "target": target, "rate": rate}
        self._error: Exception | None = None
        self._is_ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copying", daemon=True)
        self.rate = 0.0
        """Messages copied in a second, while one copy or the next was under way."""

    def __enter__(self) -> Copying:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_ending.set()
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def _run(self) -> None:
        copied, seconds = 0, 0.0
        try:
            while not (copied and self._is_ending.is_set()):
                started = time.perf_counter()
                copied += self.copy()
                seconds += time.perf_counter() - started
        except Exception as error:
            self._error = error
        else:
            self.rate = copied / seconds

    def copy(self) -> int:
        """One copy, from its beginning to its end: how many messages."""
        name = self._ask("PUT", "action", "/replayLogs/default/startCopy", self._body)["replayName"]
        until = time.monotonic() + COPY_SECONDS
        while time.monotonic() < until:
            record = self._ask("GET", "monitor", f"/replays/{quote(name)}")
            if record["state"] == "complete":
                return int(record["sentMsgCount"])
            if record["state"] != "running":
                break
            time.sleep(LOOK_SECONDS)
        raise LoadFailed(f"a copy is {record['state']}: {record['outcome']}")

    def _ask(self, method: str, tree: str, path: str, body: Any = None) -> dict[str, Any]:
        request = Request(
            f"{self._root}/{tree}/msgVpns/default{path}",
            json.dumps(body).encode() if body is not None else None,
            {"Content-Type": "application/json"},
            method=method,
        )
        with urlopen(request, timeout=COPY_SECONDS) as answer:
            found: dict[str, Any] = json.load(answer)["data"]
        return found


PAGE = 100


class Listing:
    """From the beginning of a ``with`` block to its end; an error ends the run at the end of the block."""

    def __init__(self, admin: str) -> None:
        self._url = f"{admin}/SEMP/v2/monitor/msgVpns/default/queues?count={PAGE}"
        self._is_wanted = True
        self._listed = 0
        self._started = time.perf_counter()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="listing", daemon=True)

    def __enter__(self) -> Listing:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_wanted = False
        self._thread.join()
        self.rate = self._listed / (time.perf_counter() - self._started)
        if self._error is not None and kind is None:
            raise self._error

    def _run(self) -> None:
        try:
            while self._is_wanted:
                self._listed += self._list_all()
        except Exception as error:
            self._error = error

    def _list_all(self) -> int:
        count, url = 0, self._url
        while url and self._is_wanted:
            with urlopen(url) as answer:
                page = json.load(answer)
            count += len(page["data"])
            url = (page["meta"].get("paging") or {}).get("nextPageUri", "")
        return count


PURGE_SECONDS = 300
"""How long the gateway may take."""


@dataclass(frozen=True, slots=True)
class Purged:
    """What a purge came to."""

    count: int
    milliseconds: float
    """From the request to the answer, which comes when it is durable."""


def wake(admin: str) -> None:
    """Have the gateway load what answers administrators: it does so with the first request, which is not measured."""
    with urlopen(f"{admin}/readyz", timeout=PURGE_SECONDS) as answer:
        answer.read()


def purge(admin: str, queue: str) -> Purged:
    """Drop what lies on a queue."""
    url = f"{admin}/SEMP/v2/action/msgVpns/default/queues/{queue}/deleteMsgs"
    request = Request(url, b"{}", {"Content-Type": "application/json"}, method="PUT")
    started = time.perf_counter()
    with urlopen(request, timeout=PURGE_SECONDS) as answer:
        count = json.load(answer)["data"]["deletedMsgCount"]
    return Purged(count, (time.perf_counter() - started) * 1000)


TRIM_SECONDS = 300
"""How long the gateway may take."""


class Trimming:
    """From the beginning of a ``with`` block; its end waits for the answer, and raises what went wrong."""

    def __init__(self, admin: str) -> None:
        self._root = f"{admin}/SEMP/v2"
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="trimming", daemon=True)
        self.rate = 0.0
        """Ids trimmed in a second, once it is done."""

    def __enter__(self) -> Trimming:
        self._first = self._log("GET", "monitor", "")["firstMsgId"]
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.join()
        if self._error is not None and kind is None:
            raise self._error

    @property
    def is_done(self) -> bool:
        """Whether the gateway has answered."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        started = time.perf_counter()
        try:
            first = self._log("PUT", "action", "/trimLoggedMsgs", {"before": "live"})["firstMsgId"]
        except Exception as error:
            self._error = error
        else:
            self.rate = (first - self._first) / (time.perf_counter() - started)

    def _log(self, method: str, tree: str, path: str, body: Any = None) -> dict[str, Any]:
        url = f"{self._root}/{tree}/msgVpns/default/replayLogs/default{path}"
        request = Request(
            url,
            json.dumps(body).encode() if body is not None else None,
            {"Content-Type": "application/json"},
            method=method,
        )
        with urlopen(request, timeout=TRIM_SECONDS) as answer:
            found: dict[str, Any] = json.load(answer)["data"]
        return found


VPN = "/SEMP/v2/monitor/msgVpns/default"
LOG = f"{VPN}/replayLogs/default"
POLLED = {
    LOG: 2.0,
    f"{VPN}/alarms": 2.0,
    f"{VPN}/replays": 2.0,
    f"{VPN}/rates": 5.0,
    f"{VPN}/refusals": 5.0,
    f"{LOG}/plan": 10.0,
    f"{LOG}/histogram?buckets=200": 10.0,
}
"""What an overview asks for, and how often, in seconds."""

TICK_S = 1.0
PIECE_BYTES = 64 * 1024


class Consoles:
    """So many from the beginning of a ``with`` block to its end; an error ends the run at the end of the block."""

    def __init__(self, admin: str, count: int) -> None:
        self._admin = admin
        self._over = threading.Event()
        self._error: Exception | None = None
        self._open = threading.Barrier(2 * count + 1)
        self.tailed_bytes = 0
        """What came on live tails."""
        works = (self._poll, self._tail)
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in works * count
        ]

    def __enter__(self) -> Consoles:
        for thread in self._threads:
            thread.start()
        self._open.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._error is not None and kind is None:
            raise self._error

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._error = error
            self._open.abort()

    def _poll(self) -> None:
        due = dict.fromkeys(POLLED, 0.0)
        now, is_first = 0.0, True
        while not self._over.is_set():
            for path, at in due.items():
                if at <= now:
                    with urlopen(self._admin + path) as answer:
                        answer.read()
                    due[path] = now + POLLED[path]
            if is_first:
                self._open.wait()
                is_first = False
            self._over.wait(TICK_S)
            now += TICK_S

    def _tail(self) -> None:
        with urlopen(f"{self._admin}{LOG}/live") as events:
            self._open.wait()
            # Once nothing is published, what comes next is a heartbeat, within seconds.
            while not self._over.is_set():
                piece = events.read1(PIECE_BYTES)
                if not piece:
                    break
                self.tailed_bytes += len(piece)
