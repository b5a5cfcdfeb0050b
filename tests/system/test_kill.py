"""
SIGKILL under load, again and again: nothing that was accepted is lost, no id names two messages; jobs, readers of
events, replays that keep and rules of retention go on where they were.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import settings
from proton import Delivery

from store.sqlite.check import check
from tests.support.client import Client, Received, Receiver, texts
from tests.support.event_source import EventSource
from tests.support.messages import data
from tests.support.ports import free_port
from tests.support.publishing import Publishing
from tests.support.running import PLAIN_HTTP
from tests.support.waiting import wait_until
from tests.system.conftest import Start
from tests.system.gateway_process import GatewayProcess
from tests.system.load import Consumer, LogReader, Named, Publisher, drain_queue, read_log

ROUNDS = {"nightly": 300}
USUAL_ROUNDS = 20
CONFIG = """
[vpn.default.queue.load]
subscriptions = ["load/>"]
"""


@pytest.mark.slow
@pytest.mark.timeout(3_600)  # it starts a process each time
def test_kills_lose_nothing_and_name_nothing_twice(start: Start) -> None:
    """
    After kills at random moments, twenty of them and for a soak 300, every accepted message is in the log and, unless
    it was settled, on its queue, once and in order; every replay id that anybody ever saw names one message; the
    generation is one.
    """
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    named = Named()
    publishers = [
        Publisher(0, "queue://load", random.Random(seed + 1)),
        Publisher(1, "topic://load/a", random.Random(seed + 2)),
        Publisher(2, "topic://load/b", random.Random(seed + 3)),
    ]
    consumer = Consumer("queue://load", named, random.Random(seed + 4))
    reader = LogReader(named)
    clients = [*publishers, consumer, reader]

    for _ in range(ROUNDS.get(settings.get_current_profile_name(), USUAL_ROUNDS)):
        gateway = start(CONFIG)
        for client in clients:
            client.start(gateway.address)
        for publisher in publishers:
            assert publisher.is_busy.wait(30), publisher.mistakes
        time.sleep(chance.uniform(0, 0.3))  # the moment of the kill is what is random, nothing is waited for
        gateway.kill()
        for client in clients:
            client.join()
        assert not gateway.mistakes()
        assert [mistake for client in clients for mistake in client.mistakes] == []

    gateway = start(CONFIG)
    logged = read_log(gateway.address, named)
    queued = drain_queue(gateway.address, "queue://load", named)

    assert len(named.generations) == 1
    assert named.conflicts == []
    assert [number for number, _ in logged] == list(range(1, len(logged) + 1))
    twice = [name for name, count in Counter(name for _, name in logged).items() if count > 1]
    assert twice == []
    for publisher in publishers:
        numbers = [number for _, (who, number) in logged if who == publisher.publisher]
        assert all(before < after for before, after in pairwise(numbers))
        assert publisher.accepted <= set(numbers)
        assert publisher.accepted
    queue_ids = [number for number, _ in queued]
    assert queue_ids == sorted(set(queue_ids))
    left = set(queue_ids)
    ids = {number for number, _ in logged}
    assert left <= ids
    assert ids - left <= consumer.settled
    assert consumer.settled & (ids - left), "the consumer's settlements came to nothing"
    print(f"{len(logged)} logged, {len(queued)} left, {sum(len(p.accepted) for p in publishers)} accepted")


JOBS_KILLS = 5
JOBS_MESSAGES = 6_000
JOBS_CONFIG = """
[vpn.default.queue.orders]
dead_message_queue = "dead"
[vpn.default.queue.dead]
[vpn.default.queue.copies]
"""


def ask(gateway: GatewayProcess, method: str, tree: str, path: str, body: Any = None) -> Any:
    """A request to the administration that is done; its data."""
    url = f"{gateway.ready['admin']}/SEMP/v2/{tree}/msgVpns/default{path}"
    answer = httpx.request(method, url, json=body, **PLAIN_HTTP, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def url_of(gateway: GatewayProcess) -> str:
    host, port = gateway.address
    return f"amqp://{host}:{port}"


def state_of(gateway: GatewayProcess, name: str) -> str:
    return str(ask(gateway, "GET", "monitor", f"/replays/{name}")["state"])


def killed_until_over(start: Start, name: str, begin: Callable[[GatewayProcess], None]) -> GatewayProcess:
    """A job is begun and the gateway killed at random moments; the one under which the job came to its end."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    gateway = start(JOBS_CONFIG)
    begin(gateway)
    for _ in range(JOBS_KILLS):
        with Publishing(url_of(gateway), "topic://live") as publishing:
            publishing.wait_for(10)
            time.sleep(
                chance.uniform(0, 0.3)
            )  # the moment of the kill is what is random, nothing is waited for
            publishing.expect_an_end()
            gateway.kill()
        gateway = start(JOBS_CONFIG)
    wait_until(lambda: state_of(gateway, name) == "complete", "the job is complete", 60)
    return gateway


@pytest.mark.slow
@pytest.mark.timeout(600)  # it starts a process each time
def test_a_killed_copy_goes_on_where_it_was(start: Start, tmp_path: Path) -> None:
    """All messages of the past are copied once, in order, and none of what was published meanwhile."""

    def begin(gateway: GatewayProcess) -> None:
        with Client(url_of(gateway)) as client:
            client.sender("topic://past").send_all([data(n) for n in range(JOBS_MESSAGES)])
        body = {
            "target": "queue://copies",
            "subscriptions": ["past"],
            "rate": JOBS_MESSAGES / 2,
            "name": "copy",
        }
        ask(gateway, "PUT", "action", "/replayLogs/default/startCopy", body)

    gateway = killed_until_over(start, "copy", begin)
    with Client(url_of(gateway)) as client:
        found: list[Received] = []
        client.receiver("copies").collect(found, JOBS_MESSAGES)
        assert texts(found) == [str(n) for n in range(JOBS_MESSAGES)]
        assert [one.annotations["x-opt-replay-source-id"] for one in found] == [*range(1, JOBS_MESSAGES + 1)]
    assert ask(gateway, "GET", "monitor", "/replays/copy")["sentMsgCount"] == JOBS_MESSAGES
    assert gateway.stop() == 0
    assert check(tmp_path / "data" / "default.db") == []


def of_queue(client: Client) -> Receiver:
    """A consumer of a queue."""
    return client.receiver("orders")


def of_topic_endpoint(client: Client) -> Receiver:
    """A consumer of a durable topic endpoint."""
    return client.receiver("topic://orders", name="mine", durable=True)


@pytest.mark.slow
@pytest.mark.timeout(600)  # it starts a process each time
@pytest.mark.parametrize(
    ("address", "consumer"),
    [("orders", of_queue), ("topic://orders", of_topic_endpoint)],
    ids=["queue", "topic endpoint"],
)
def test_a_killed_return_loses_and_doubles_no_dead_letter(
    start: Start, tmp_path: Path, address: str, consumer: Callable[[Client], Receiver]
) -> None:
    """Each is where it died, once, and the dead message queue is empty."""
    count = JOBS_MESSAGES // 4

    def begin(gateway: GatewayProcess) -> None:
        with Client(url_of(gateway)) as client:
            receiver = consumer(client)
            for one in ask(gateway, "GET", "monitor", "/topicEndpoints"):
                name = quote(one["topicEndpointName"], safe="")
                ask(gateway, "PATCH", "config", f"/topicEndpoints/{name}", {"deadMsgQueue": "dead"})
            client.sender(address).send_all([data(n) for n in range(count)])
            receiver.flow(count)
            receiver.settle(receiver.take(count), Delivery.REJECTED)
            client.wait(
                lambda: ask(gateway, "GET", "monitor", "/queues/dead")["spooledMsgCount"] == count,
                "all are dead",
            )
            receiver.detach()
        ask(gateway, "PUT", "action", "/queues/dead/returnDead", {"rate": count / 2, "name": "return"})

    gateway = killed_until_over(start, "return", begin)
    assert ask(gateway, "GET", "monitor", "/queues/dead")["spooledMsgCount"] == 0
    with Client(url_of(gateway)) as client:
        found: list[Received] = []
        consumer(client).collect(found, count)
        assert sorted(texts(found), key=int) == [str(n) for n in range(count)]
    assert gateway.stop() == 0
    assert check(tmp_path / "data" / "default.db") == []


@pytest.mark.slow
@pytest.mark.timeout(600)  # it starts a process each time
def test_copies_at_another_gateway_outlive_kills_of_both(start: Start, tmp_path: Path) -> None:
    """None is missing on the other side; what comes twice has the same source id, and the same content."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    port = free_port()
    config = f'{JOBS_CONFIG}[vpn.default.replay_target.far]\nurl = "amqp://127.0.0.1:{port}"\n'

    def start_far() -> GatewayProcess:
        return start(data=tmp_path / "far", listen=(f"127.0.0.1:{port}",))

    gateway, far = start(config), start_far()
    with Client(url_of(gateway)) as client:
        client.sender("topic://past").send_all([data(n) for n in range(JOBS_MESSAGES)])
    body = {"target": "queue://copies", "replayTarget": "far", "subscriptions": ["past"], "name": "copy"}
    ask(gateway, "PUT", "action", "/replayLogs/default/startCopy", {**body, "rate": JOBS_MESSAGES / 3})
    for _ in range(JOBS_KILLS):
        time.sleep(chance.uniform(0, 0.4))  # the moment of the kill is what is random, nothing is waited for
        far.kill()
        far = start_far()
        time.sleep(chance.uniform(0, 0.4))
        gateway.kill()
        gateway = start(config)
    wait_until(lambda: state_of(gateway, "copy") == "complete", "the job is complete", 60)
    with Client(url_of(far)) as client:
        found = client.receiver("copies").drain(3 * JOBS_MESSAGES)
    by_id = {
        one.annotations["x-opt-replay-source-id"]: text for one, text in zip(found, texts(found), strict=True)
    }
    assert [by_id.get(place) for place in range(1, JOBS_MESSAGES + 1)] == [
        str(n) for n in range(JOBS_MESSAGES)
    ]
    assert len(by_id) == JOBS_MESSAGES
    for process, name in ((gateway, "data"), (far, "far")):
        assert process.stop() == 0
        assert check(tmp_path / name / "default.db") == []


EVENTS_ROUNDS = 5


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
        for round_ in range(EVENTS_ROUNDS):
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


KEEPS_KILLS = 2
KEEPS_MESSAGES = 600
FIRST = 301
KEEPS_CONFIG = """
[vpn.default.replay_log]
topics = ["!#queue/q"]
[vpn.default.queue.q]
subscriptions = ["logged"]
"""


def replay(gateway: GatewayProcess, start: str) -> None:
    """Ask for one; the gateway may be gone before it answers."""
    url = f"{gateway.ready['admin']}/SEMP/v2/action/msgVpns/default/queues/q/startReplay"
    try:
        answer = httpx.request(
            "PUT", url, json={"keepUnlogged": True, "start": start}, **PLAIN_HTTP, timeout=30
        )
    except httpx.TransportError:
        return
    assert answer.status_code == 200, answer.text


@pytest.mark.slow
@pytest.mark.timeout(300)  # it starts a process each time
def test_killed_at_any_moment_of_its_start(start: Start, tmp_path: Path) -> None:
    """After each kill all that the log does not have is still there, once; so is in the end what it has."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    gateway = start(KEEPS_CONFIG)
    with Client(url_of(gateway)) as client:
        logged, unlogged = client.sender("topic://logged"), client.sender("queue://q")
        for first in range(0, KEEPS_MESSAGES, 20):
            logged.send_all([data(n) for n in range(first, first + 10)])
            unlogged.send_all([data(n) for n in range(first + 10, first + 20)])
    for _ in range(KEEPS_KILLS):
        asking = threading.Thread(target=replay, args=(gateway, f"#{chance.choice([1, FIRST])}"))
        asking.start()
        time.sleep(chance.uniform(0, 0.03))  # the moment of the kill is random, nothing is waited for
        gateway.kill()
        asking.join()
        gateway = start(KEEPS_CONFIG)
    replay(gateway, f"#{FIRST}")
    with Client(url_of(gateway)) as client:
        found: list[Received] = []
        receiver = client.receiver("q", credit=1_000)
        kept_or_replayed = [n for n in range(KEEPS_MESSAGES) if n % 20 >= 10 or n + 1 >= FIRST]
        receiver.collect(found, len(kept_or_replayed))
        assert [int(message.text) for message in found] == kept_or_replayed
        assert receiver.drain(0) == []
    gateway.stop()
    assert check(tmp_path / "data" / "default.db") == []


RULES = """
[[vpn.default.replay_log.retention]]
topics = ["debug/>"]
quota_mb = 1

[vpn.default.queue.all]
subscriptions = ["debug/>", "orders/>"]
"""


def test_what_was_accepted_lies_on_its_queue_though_the_gateway_is_killed_while_rules_trim(
    start: Start,
) -> None:
    """Killed three times under load: the queue has all of it in order, the log all of other topics."""
    accepted = 0
    for _ in range(3):
        gateway = start(RULES)
        url = gateway.ready["amqp"][0]
        with Client(url) as client, Publishing(url, "topic://orders/a", first=accepted) as publishing:
            sender = client.sender("topic://debug/a")
            for _ in range(30):
                sender.send_all(data(b"x" * 1_000) for _ in range(100))
            publishing.expect_an_end()
            gateway.kill()
            client.cut()
        accepted = publishing.accepted
    assert check(gateway.data / "default.db") == []
    gateway = start(RULES)
    with Client(gateway.ready["amqp"][0]) as client:
        orders = client.receiver("log://orders/>?replay-start=beginning&until=now").take_to_end()
        debug = client.receiver("log://debug/>?replay-start=beginning&until=now").take_to_end()
        assert {int(message.text) for message in orders} >= set(range(accepted))
        assert 9_000 > len(debug) > 700
        queue = client.receiver("all")
        taken = []
        queue.collect(taken, 9_000 + len(orders))
        assert [m.id for m in taken] == sorted(
            {m.id for m in taken} | {m.id for m in orders} | {m.id for m in debug}
        )
    gateway.stop()
    assert check(gateway.data / "default.db") == []
