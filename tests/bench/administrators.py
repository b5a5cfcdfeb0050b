"""Administrators at work over HTTP during a measurement: they copy, list, purge and trim, and have consoles open."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

from tests.bench.processes import LoadFailed
from tests.support.administration import Administration

COPY_SECONDS = 600
"""The time-out of one copy."""

LOOK_SECONDS = 0.1
"""Pause between two requests for a copy's state. At a hundred a second these requests would slow publishers down more
than the copy does: each takes the loop some milliseconds of processor time."""

LOG = "replayLogs/default"
PAGE = 100

Work = Callable[[threading.Event], Any]
"""Work that continues until the event is set; returns its result."""


@contextmanager
def beside(*works: Work) -> Iterator[list[Future[Any]]]:
    """Do these on a thread each until the end of the block, then wait for them; raises the first error."""
    over = threading.Event()
    with ThreadPoolExecutor(len(works)) as threads:
        under_way = [threads.submit(work, over) for work in works]
        try:
            yield under_way
        finally:
            over.set()
            for one in under_way:
                one.result()


def copy(admin: str, topic: str, target: str, rate: float | None = None) -> float:
    """Copy all messages of a topic from the log, at most ``rate`` a second; returns the messages copied in a second."""
    with Administration(admin) as administration:
        body = {"subscriptions": [topic], "target": target, "rate": rate}
        name = quote(administration.act(f"{LOG}/startCopy", body)["replayName"])
        began = time.perf_counter()
        record = administration.monitor(f"replays/{name}")
        while record["state"] == "running" and time.perf_counter() - began < COPY_SECONDS:
            time.sleep(LOOK_SECONDS)
            record = administration.monitor(f"replays/{name}")
        if record["state"] != "complete":
            raise LoadFailed(f"a copy is {record['state']}: {record['outcome']}")
        return float(record["sentMsgCount"] / (time.perf_counter() - began))


def copying(admin: str, topic: str, target: str) -> Work:
    """Copy it again and again, at least once."""

    def work(over: threading.Event) -> None:
        copy(admin, topic, target)
        while not over.is_set():
            copy(admin, topic, target)

    return work


def listing(admin: str) -> Work:
    """List all queues again and again; returns the queues listed in a second."""

    def work(over: threading.Event) -> float:
        listed, began = 0, time.perf_counter()
        with Administration(admin) as administration:
            cursor = ""
            while not over.is_set():
                page = administration.ask("GET", f"monitor/msgVpns/default/queues?count={PAGE}{cursor}")
                listed += len(page["data"])
                following = (page["meta"].get("paging") or {}).get("cursorQuery", "")
                cursor = f"&cursor={quote(following)}" if following else ""
        return listed / (time.perf_counter() - began)

    return work


def trimming(admin: str) -> Work:
    """Trim the whole log; returns the messages trimmed in a second."""

    def work(_: threading.Event) -> float:
        with Administration(admin) as administration:
            first = administration.monitor(LOG)["firstMsgId"]
            began = time.perf_counter()
            trimmed = administration.act(f"{LOG}/trimLoggedMsgs", {"before": "live"})["firstMsgId"] - first
        return float(trimmed / (time.perf_counter() - began))

    return work


def purge(administration: Administration, queue: str) -> tuple[int, float]:
    """
    Purge a queue; returns the number of messages, and the milliseconds until the answer, which means it is durable.
    """
    began = time.perf_counter()
    count = administration.act(f"queues/{queue}/deleteMsgs")["deletedMsgCount"]
    return count, (time.perf_counter() - began) * 1000


POLLED = {
    LOG: 2.0,
    "alarms": 2.0,
    "replays": 2.0,
    "rates": 5.0,
    "refusals": 5.0,
    f"{LOG}/plan": 10.0,
    f"{LOG}/histogram?buckets=200": 10.0,
}
"""The paths that the console's overview requests, and the seconds between two requests."""

TICK_S = 1.0
OPEN_SECONDS = 60
PIECE_BYTES = 64 * 1024


def console(admin: str, opened: threading.Barrier) -> tuple[Work, Work]:
    """A console's polls, and its live tail, which returns the bytes received. Both start when all consoles are open."""

    def poll(over: threading.Event) -> None:
        due = dict.fromkeys(POLLED, 0.0)
        with Administration(admin) as administration:
            for path in POLLED:
                administration.monitor(path)
            opened.wait(OPEN_SECONDS)
            began = time.monotonic()
            while not over.wait(TICK_S):
                now = time.monotonic() - began
                for path, at in due.items():
                    if at + POLLED[path] <= now:
                        administration.monitor(path)
                        due[path] = now

    def tail(over: threading.Event) -> int:
        tailed = 0
        with urlopen(f"{admin}/SEMP/v2/monitor/msgVpns/default/{LOG}/live") as events:
            opened.wait(OPEN_SECONDS)
            # When nothing is published, the next piece is a heartbeat, which comes within seconds.
            while not over.is_set() and (piece := events.read1(PIECE_BYTES)):
                tailed += len(piece)
        return tailed

    return poll, tail
