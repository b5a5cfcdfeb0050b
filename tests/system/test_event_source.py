"""SIGKILL while programs without AMQP read and publish: no event is missed or shown twice, no answered line is lost."""

from __future__ import annotations

import json
import random
import threading
import time

import httpx

from tests.support.event_source import EventSource
from tests.support.http import PLAIN_HTTP
from tests.system.conftest import Start
from tests.system.load import Publisher

ROUNDS = 5


class LinePublisher:
    """Posts numbered lines, some at a time, until the gateway is gone; knows which were answered."""

    def __init__(self) -> None:
        self.sent = 0
        self.answered: list[int] = []
        self.is_busy = threading.Event()
        self.mistakes: list[str] = []
        self._thread: threading.Thread | None = None

    def start(self, url: str) -> None:
        self.is_busy.clear()
        self._thread = threading.Thread(target=self._run, args=(url,))
        self._thread.start()

    def join(self) -> None:
        assert self._thread is not None
        self._thread.join()

    def _run(self, url: str) -> None:
        with httpx.Client(base_url=url, **PLAIN_HTTP, timeout=30) as http:
            while True:
                numbers = range(self.sent, self.sent + 20)
                self.sent = numbers.stop
                body = "".join(f'{{"body":"{number}"}}\n' for number in numbers)
                try:
                    answer = http.post("/v1/publish?address=topic://lines", content=body)
                except httpx.HTTPError:
                    return
                if answer.status_code != 200:
                    self.mistakes.append(answer.text)
                    return
                self.answered += numbers
                self.is_busy.set()


def test_events_and_lines_survive_kills(start: Start) -> None:
    """
    A browser that reads from the beginning, and one that came before the first message, show each message of the log
    once and in order, over kills at random moments; each line that was answered is in the log, once and in order.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    by_amqp, by_http = Publisher(0, "topic://load/a", random.Random(seed + 1)), LinePublisher()
    url = ""
    gateway = start()
    url = gateway.ready["admin"]
    with (
        EventSource(lambda: f"{url}/v1/log?from=beginning") as whole,
        EventSource(lambda: f"{url}/v1/log?subscribe=lines") as early,
    ):
        early.wait(lambda: early.last_event_id == "0", "connected before the first message")
        for round_ in range(ROUNDS):
            if round_:
                gateway = start()
                url = gateway.ready["admin"]
            by_amqp.start(gateway.address)
            by_http.start(url)
            assert by_amqp.is_busy.wait(30), by_amqp.mistakes
            assert by_http.is_busy.wait(30), by_http.mistakes
            time.sleep(
                chance.uniform(0, 0.3)
            )  # the moment of the kill is what is random, nothing is waited for
            gateway.kill()
            by_amqp.join()
            by_http.join()
            assert not gateway.mistakes()
        gateway = start()
        url = gateway.ready["admin"]
        answer = httpx.get(f"{url}/v1/log", **PLAIN_HTTP, timeout=60)
        # Not splitlines(): in a text it ends lines at characters that a body may have, as U+0085.
        wanted = [json.loads(line) for line in answer.content.split(b"\n") if line]
        of_lines = [one for one in wanted if one["topic"] == "lines"]
        whole.wait(lambda: len(whole.events) >= len(wanted), "all came")
        early.wait(lambda: len(early.events) >= len(of_lines), "all lines came")
    assert by_amqp.mistakes == by_http.mistakes == []
    assert [int(id_) for _, id_, _ in whole.events] == [one["offset"] for one in wanted]
    assert [int(id_) for _, id_, _ in early.events] == [one["offset"] for one in of_lines]
    assert [one["offset"] for one in wanted] == list(range(1, len(wanted) + 1))
    numbers = [int(one["body"]) for one in of_lines]
    assert numbers == sorted(set(numbers))
    assert set(by_http.answered) <= set(numbers)
    assert whole.connections > 1
    assert early.connections > 1
