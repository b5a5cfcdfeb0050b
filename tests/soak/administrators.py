"""Administrators: they list, make, fill, purge and delete queues, scrape the metrics, and reload the configuration."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

from tests.support.administration import Administration

from .account import Account
from .client import Outcomes, Run

LIST_SECONDS, SCRAPE_SECONDS, RELOAD_SECONDS, PURGE_SECONDS = 2.0, 1.0, 5.0, 1.0
"""Pauses between two actions of each kind."""
MADE = (1, 20)
"""The least and the most queues that are made, filled and deleted together."""
ANSWER_SECONDS = 60
QUEUES = "config/msgVpns/default/queues"


def administrate(run: Run, url: str, seed: int) -> None:
    """Make queues, publish to each, look at them, purge and delete them; the counts must be right."""
    chance = random.Random(seed)
    with Administration(url) as administration:
        while not run.publishing_ends.wait(LIST_SECONDS):
            names = [f"soak-made-{seed}-{index}" for index in range(chance.randint(*MADE))]
            for name in names:
                administration.ask("POST", QUEUES, {"queueName": name})
                count = chance.randint(0, 50)
                _fill(run, f"queue://{name}", count)
                told = administration.monitor(f"queues/{name}")["spooledMsgCount"]
                if told != count:
                    run.problems.append(f"{name} holds {count} messages, the administration says {told}")
            administration.monitor("queues?count=500")
            administration.monitor("clients?count=500")
            for name in names:
                if chance.random() < 0.5:
                    administration.act(f"queues/{name}/deleteMsgs")
                administration.ask("DELETE", f"{QUEUES}/{name}")
            run.add(queues_made=len(names))


def _fill(run: Run, address: str, count: int) -> None:
    connection = run.connect("filler")
    connection.attach(sender=True, address=address)
    outcomes = Outcomes(connection, 0, Account(address))
    for _ in range(count):
        outcomes.publish(1_000)
    outcomes.finish(ANSWER_SECONDS)
    connection.close()


class Purges:
    """Counts what is purged from a queue without consumers: in the end, all accepted messages."""

    def __init__(self) -> None:
        self.count = 0

    def purge(self, run: Run, url: str, queue: str) -> None:
        """Purge until publishing has ended, and once more after all outcomes are known."""
        with Administration(url) as administration:
            while not run.is_draining.wait(PURGE_SECONDS):
                self.count += administration.act(f"queues/{queue}/deleteMsgs")["deletedMsgCount"]
                run.add(purges=1)
            self.count += administration.act(f"queues/{queue}/deleteMsgs")["deletedMsgCount"]


def scrape(run: Run, url: str) -> None:
    """Scrape the metrics, as a monitoring system does."""
    with Administration(url) as administration:
        while not run.publishing_ends.wait(SCRAPE_SECONDS):
            if "rewind_published_messages_total" not in administration.get("/metrics"):
                run.problems.append("a scrape lacks rewind_published_messages_total")
            run.add(scrapes=1)


def reload(run: Run, url: str, pid: int, file: Path, texts: tuple[str, str]) -> None:
    """Switch the configuration file between two texts, and have it reloaded by a signal and over HTTP in turn."""
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
