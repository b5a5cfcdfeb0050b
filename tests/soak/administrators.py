"""Administrators: they list, make, fill, purge and delete queues, scrape the metrics, have the file read again."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Self

import httpx

from tests.support.frames import transfer_frame
from tests.support.running import PLAIN_HTTP

from .account import Account
from .client import Outcomes, Run, message

LIST_SECONDS, SCRAPE_SECONDS, RELOAD_SECONDS, PURGE_SECONDS = 2.0, 1.0, 5.0, 1.0
"""Between two of a kind."""
MADE = (1, 20)
"""Queues that are made, filled and deleted together."""
REQUEST_SECONDS = 60


class Administration:
    """A client of the administration of one Message VPN."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, **PLAIN_HTTP, timeout=REQUEST_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def ask(self, method: str, path: str, body: object = None) -> dict[str, object]:
        """The answer to a request below ``/SEMP/v2/``, which has to succeed."""
        answer = self._http.request(method, f"/SEMP/v2/{path}", json=body)
        if answer.status_code != httpx.codes.OK:
            raise RuntimeError(f"{method} {path} was answered {answer.status_code}: {answer.text[:300]}")
        found: dict[str, object] = answer.json()
        return found

    def queue(self, method: str, tree: str, path: str = "", body: object = None) -> dict[str, object]:
        """The data of the answer to a request about the queues of the default Message VPN."""
        data = self.ask(method, f"{tree}/msgVpns/default/queues{path}", body).get("data")
        return data if isinstance(data, dict) else {}

    def metrics(self) -> str:
        """A scrape."""
        return self._http.get("/metrics").raise_for_status().text


def administrate(run: Run, url: str, seed: int) -> None:
    """Make queues, publish to each, look at them, purge them, delete them; the counts have to be right."""
    chance = random.Random(seed)
    with Administration(url) as administration:
        while not run.publishing_ends.wait(LIST_SECONDS):
            names = [f"soak-made-{seed}-{index}" for index in range(chance.randint(*MADE))]
            for name in names:
                administration.queue("POST", "config", body={"queueName": name})
                count = chance.randint(0, 50)
                _fill(run, f"queue://{name}", count)
                expect(
                    run,
                    f"{name} holds",
                    count,
                    administration.queue("GET", "monitor", f"/{name}"),
                    "spooledMsgCount",
                )
            administration.ask("GET", "monitor/msgVpns/default/queues?count=500")
            administration.ask("GET", "monitor/msgVpns/default/clients?count=500")
            for name in names:
                if chance.random() < 0.5:
                    administration.queue("PUT", "action", f"/{name}/deleteMsgs", {})
                administration.queue("DELETE", "config", f"/{name}")
            run.add(queues_made=len(names))


def expect(run: Run, what: str, count: int, data: dict[str, object], key: str) -> None:
    """A count that an administrator is told is a problem where it is not this."""
    if data.get(key) != count:
        run.problems.append(f"{what} {count} messages, the administration says {data.get(key)}")


def _fill(run: Run, address: str, count: int) -> None:
    connection = run.connect("filler")
    connection.attach(sender=True, address=address)
    outcomes = Outcomes(connection, 0, Account(address))
    for number in range(count):
        while number >= outcomes.credit_limit:
            outcomes.listen(0.2)
        outcomes.open.add(number)
        connection.sock.sendall(transfer_frame(0, number, message(number, 1_000)))
    while outcomes.open:
        outcomes.listen(0.2)
    connection.close()


class Purges:
    """What was purged off a queue that nobody consumes: at the end it is what was accepted."""

    def __init__(self) -> None:
        self.count = 0

    def purge(self, run: Run, url: str, queue: str) -> None:
        """Purge until publishing has ended, and once more when all outcomes are known."""
        with Administration(url) as administration:
            while not run.is_draining.wait(PURGE_SECONDS):
                self._purge_once(administration, queue)
                run.add(purges=1)
            self._purge_once(administration, queue)

    def _purge_once(self, administration: Administration, queue: str) -> None:
        told = administration.queue("PUT", "action", f"/{queue}/deleteMsgs", {})["deletedMsgCount"]
        assert isinstance(told, int)
        self.count += told


def scrape(run: Run, url: str) -> None:
    """Scrape the metrics, as a monitoring system does."""
    with Administration(url) as administration:
        while not run.publishing_ends.wait(SCRAPE_SECONDS):
            if "rewind_published_messages_total" not in administration.metrics():
                run.problems.append("a scrape lacks rewind_published_messages_total")
            run.add(scrapes=1)


def reload(run: Run, url: str, pid: int, file: Path, texts: tuple[str, str]) -> None:
    """Change the configuration file to and fro, and have it read, by a signal and over HTTP in turn."""
    with Administration(url) as administration:
        ways: tuple[Callable[[], object], ...] = (
            lambda: os.kill(pid, signal.SIGHUP),
            lambda: administration.ask("PUT", "action/reload", {}),
        )
        count = 0
        while not run.publishing_ends.wait(RELOAD_SECONDS):
            file.write_text(texts[count % 2])
            ways[count // 2 % 2]()
            count += 1
            run.add(reloads=1)
