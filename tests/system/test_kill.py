"""
SIGKILL under load, again and again: no accepted message is lost, and work under way is complete or has not happened.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from proton import Delivery

from amqp_ext.message.annotations import ERASED_REASON
from store.sqlite.check import check
from tests.store.port.postgresql_vpn import check_url
from tests.support.chance import times
from tests.support.client import Client, Received, Receiver, texts
from tests.support.event_source import EventSource
from tests.support.messages import data
from tests.support.ports import free_port
from tests.support.postgresql import Server
from tests.support.publishing import Publishing
from tests.support.running import PLAIN_HTTP
from tests.support.waiting import wait_until
from tests.system.conftest import Start
from tests.system.gateway_process import GatewayProcess
from tests.system.load import Client as LoadClient
from tests.system.load import Consumer, LogReader, Named, Publisher, drain_queue, read_log

# --- Messages, ids, jobs, readers of events, replays ------------------------------------------------------------------

ROUNDS = times(3, 300)
CONFIG = """
[vpn.default.queue.load]
subscriptions = ["load/>"]
"""


@pytest.fixture
def chance() -> random.Random:
    """The source of random numbers; a failed test shows its seed."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def until_some_moment(chance: random.Random, most: float = 0.3) -> None:
    """Sleep for a random time: the kill comes at a random moment, not after an event."""
    time.sleep(chance.uniform(0, most))


def number_texts(count: int) -> list[str]:
    return [str(number) for number in range(count)]


@pytest.mark.slow
@pytest.mark.timeout(3_600)  # it starts a process each time
def test_kills_lose_nothing_and_name_nothing_twice(start: Start, chance: random.Random) -> None:
    """
    After kills at random moments every accepted message is in the log and, unless it was settled, on its queue, once
    and in order; every replay id that anybody ever saw names one message; the generation is one.
    """
    named = Named()
    addresses = ("queue://load", "topic://load/a", "topic://load/b")
    publishers = [
        Publisher(number, address, random.Random(chance.random())) for number, address in enumerate(addresses)
    ]
    consumer = Consumer("queue://load", named, random.Random(chance.random()))
    reader = LogReader(named)
    clients = [*publishers, consumer, reader]

    for _ in range(ROUNDS):
        gateway = start(CONFIG)
        for client in clients:
            client.start(gateway.address)
        for publisher in publishers:
            assert publisher.is_busy.wait(30), publisher.mistakes
        until_some_moment(chance)
        gateway.kill()
        for client in clients:
            client.join()
        assert not gateway.mistakes()
        assert [mistake for client in clients for mistake in client.mistakes] == []

    gateway = start(CONFIG)
    logged = read_log(gateway, named)
    queued = drain_queue(gateway, "queue://load", named)

    assert len(named.generations) == 1
    assert named.conflicts == []
    assert [number for number, _ in logged] == list(range(1, len(logged) + 1))
    for publisher in publishers:
        names = [name for _, name in logged if name[0] == publisher.publisher]
        assert names == sorted(set(names))
        assert publisher.told <= set(names)
        assert publisher.told
    queue_ids = [number for number, _ in queued]
    assert queue_ids == sorted(set(queue_ids))
    left = set(queue_ids)
    ids = {number for number, _ in logged}
    assert left <= ids
    assert ids - left <= consumer.settled
    assert consumer.settled & (ids - left), "the consumer's settlements came to nothing"
    print(f"{len(logged)} logged, {len(queued)} left, {sum(len(p.told) for p in publishers)} accepted")


JOBS_KILLS = times(2, 30)
JOBS_MESSAGES = 6_000
DEAD = JOBS_MESSAGES // 4
JOBS_CONFIG = """
[vpn.default.queue.orders]
dead_message_queue = "dead"
[vpn.default.queue.dead]
[vpn.default.queue.copies]
"""


def begin_copy(gateway: GatewayProcess, seconds: float, **more: Any) -> None:
    """Publish messages and start a copy job at a pace that takes this many seconds for all."""
    with Client(gateway.url) as client:
        client.sender("topic://past").send_all(map(data, range(JOBS_MESSAGES)))
    body = {"target": "queue://copies", "subscriptions": ["past"], "name": "copy"}
    wanted = {**body, "rate": JOBS_MESSAGES / seconds, **more}
    gateway.ask("PUT", "action", "/replayLogs/default/startCopy", wanted)


def wait_for_job(gateway: GatewayProcess, name: str) -> Any:
    """Wait until the job is complete; returns what the administration says of it."""

    def found() -> Any:
        job = gateway.ask("GET", "monitor", f"/replays/{name}")
        return job if job["state"] == "complete" else None

    return wait_until(found, "the job is complete", 60)


def is_sound_at_its_end(gateway: GatewayProcess) -> bool:
    return gateway.stop() == 0 and check(gateway.data / "default.db") == []


def of_queue(client: Client) -> Receiver:
    """A consumer of the queue."""
    return client.receiver("orders")


def of_topic_endpoint(client: Client) -> Receiver:
    """A consumer of the durable topic endpoint."""
    return client.receiver("topic://orders", name="mine", durable=True)


@pytest.mark.slow
@pytest.mark.timeout(600)  # it starts a process each time
def test_killed_jobs_go_on_where_they_were(start: Start, chance: random.Random) -> None:
    """
    A copy job copies all earlier messages once and in order, and none of those published meanwhile. A job that returns
    dead letters loses and doubles none: each is again where it died, on the queue or the topic endpoint, and the dead
    message queue is empty.
    """
    gateway = start(JOBS_CONFIG)
    with Client(gateway.url) as client:
        of_topic_endpoint(client).detach()
        gateway.ask("PATCH", "config", "/topicEndpoints/mine", {"deadMsgQueue": "dead"})
        for consumer, address in ((of_queue, "orders"), (of_topic_endpoint, "topic://orders")):
            receiver = consumer(client)
            client.sender(address).send_all(data(f"{address} {n}") for n in range(DEAD))
            receiver.flow(DEAD)
            receiver.settle(receiver.take(DEAD), Delivery.REJECTED)
        client.wait(
            lambda: gateway.ask("GET", "monitor", "/queues/dead")["spooledMsgCount"] == 2 * DEAD,
            "all are dead",
        )
    begin_copy(gateway, 2)
    gateway.ask("PUT", "action", "/queues/dead/returnDead", {"rate": DEAD, "name": "return"})
    for _ in range(JOBS_KILLS):
        with Publishing(gateway.url, "topic://live") as publishing:
            publishing.wait_for(10)
            until_some_moment(chance)
            publishing.expect_an_end()
            gateway.kill()
        gateway = start(JOBS_CONFIG)
    assert wait_for_job(gateway, "copy")["sentMsgCount"] == JOBS_MESSAGES
    wait_for_job(gateway, "return")
    assert gateway.ask("GET", "monitor", "/queues/dead")["spooledMsgCount"] == 0
    with Client(gateway.url) as client:
        found: list[Received] = []
        client.receiver("copies").collect(found, JOBS_MESSAGES)
        assert texts(found) == number_texts(JOBS_MESSAGES)
        sources = [one.annotations["x-opt-replay-source-id"] for one in found]
        assert sources == list(range(sources[0], sources[0] + JOBS_MESSAGES))
        for consumer, address in ((of_queue, "orders"), (of_topic_endpoint, "topic://orders")):
            back: list[Received] = []
            consumer(client).collect(back, DEAD)
            assert sorted(texts(back)) == sorted(f"{address} {n}" for n in range(DEAD))
    assert is_sound_at_its_end(gateway)


@pytest.mark.slow
@pytest.mark.timeout(600)  # it starts a process each time
def test_copies_at_another_gateway_outlive_kills_of_both(
    start: Start, tmp_path: Path, chance: random.Random
) -> None:
    """
    No message is missing at the other gateway; one that arrives twice has the same source id and the same content.
    """
    port = free_port()
    config = f'{JOBS_CONFIG}[vpn.default.replay_target.far]\nurl = "amqp://127.0.0.1:{port}"\n'

    def start_far() -> GatewayProcess:
        return start(data=tmp_path / "far", listen=(f"127.0.0.1:{port}",))

    gateway, far = start(config), start_far()
    begin_copy(gateway, 2, replayTarget="far")
    for _ in range(JOBS_KILLS // 2):
        until_some_moment(chance, 0.4)
        far.kill()
        far = start_far()
        until_some_moment(chance, 0.4)
        gateway.kill()
        gateway = start(config)
    wait_for_job(gateway, "copy")
    with Client(far.url) as client:
        found = client.receiver("copies").drain(3 * JOBS_MESSAGES)
    by_id = {one.annotations["x-opt-replay-source-id"]: one.text for one in found}
    assert by_id == {number + 1: str(number) for number in range(JOBS_MESSAGES)}
    for process in (gateway, far):
        assert is_sound_at_its_end(process)


EVENTS_ROUNDS = times(2, 30)


class LinePublisher(LoadClient):
    """Posts numbered lines, several in a request, until the gateway is gone; knows which requests were answered."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = 0
        self.answered: list[int] = []

    def run(self, where: str) -> None:
        with httpx.Client(base_url=where, **PLAIN_HTTP) as http:
            while True:
                numbers = range(self.sent, self.sent + 20)
                self.sent = numbers.stop
                body = "".join(f'{{"body":"{number}"}}\n' for number in numbers)
                answer = http.post("/v1/publish?address=topic://lines", content=body)
                assert answer.status_code == 200, answer.text
                self.answered += numbers
                self.is_busy.set()


@pytest.mark.timeout(600)  # it starts a process each time
def test_events_and_lines_survive_kills(start: Start, chance: random.Random) -> None:
    """
    Over kills at random moments, a browser that reads from the beginning, and one that connected before the first
    message, see each message of the log once and in order. The log has each answered line once and in order.
    """
    by_amqp, by_http = Publisher(0, "topic://load/a", random.Random(chance.random())), LinePublisher()
    gateway = start()
    url = gateway.ready["admin"]
    with (
        EventSource(lambda: f"{url}/v1/log?from=beginning") as whole,
        EventSource(lambda: f"{url}/v1/log?subscribe=lines") as early,
    ):
        early.wait(lambda: early.last_event_id == "0", "connected before the first message")
        for _ in range(EVENTS_ROUNDS):
            by_amqp.start(gateway.address)
            by_http.start(url)
            assert by_amqp.is_busy.wait(30), by_amqp.mistakes
            assert by_http.is_busy.wait(30), by_http.mistakes
            until_some_moment(chance)
            gateway.kill()
            by_amqp.join()
            by_http.join()
            assert not gateway.mistakes()
            gateway = start()
            url = gateway.ready["admin"]
        answer = httpx.get(f"{url}/v1/log", **PLAIN_HTTP | {"timeout": 60})
        # Not splitlines(): that also splits at characters that a body may contain, such as U+0085.
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


KEEPS_KILLS = times(2, 30)
KEEPS_MESSAGES = 600
FIRST = 301
KEEPS_CONFIG = """
[vpn.default.replay_log]
topics = ["!#queue/q"]
[vpn.default.queue.q]
subscriptions = ["logged"]
"""


def replay(gateway: GatewayProcess, start: str) -> None:
    """Request a replay; the gateway may be gone before it answers."""
    url = f"{gateway.ready['admin']}/SEMP/v2/action/msgVpns/default/queues/q/startReplay"
    try:
        answer = httpx.put(url, json={"keepUnlogged": True, "start": start}, **PLAIN_HTTP)
    except httpx.TransportError:
        return
    assert answer.status_code == 200, answer.text


@pytest.mark.slow
@pytest.mark.timeout(300)  # it starts a process each time
def test_killed_at_any_moment_of_its_start(start: Start, chance: random.Random) -> None:
    """
    A replay is requested before each kill. In the end the queue has each message that the log lacks, and each replayed
    message, exactly once.
    """
    gateway = start(KEEPS_CONFIG)
    with Client(gateway.url) as client:
        logged, unlogged = client.sender("topic://logged"), client.sender("queue://q")
        for first in range(0, KEEPS_MESSAGES, 20):
            logged.send_all(map(data, range(first, first + 10)))
            unlogged.send_all(map(data, range(first + 10, first + 20)))
    for _ in range(KEEPS_KILLS):
        asking = threading.Thread(target=replay, args=(gateway, f"#{chance.choice([1, FIRST])}"))
        asking.start()
        until_some_moment(chance, 0.03)
        gateway.kill()
        asking.join()
        gateway = start(KEEPS_CONFIG)
    replay(gateway, f"#{FIRST}")
    with Client(gateway.url) as client:
        found: list[Received] = []
        receiver = client.receiver("q", credit=1_000)
        kept_or_replayed = [n for n in range(KEEPS_MESSAGES) if n % 20 >= 10 or n + 1 >= FIRST]
        receiver.collect(found, len(kept_or_replayed))
        assert [int(message.text) for message in found] == kept_or_replayed
        assert receiver.drain(0) == []
    assert is_sound_at_its_end(gateway)


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
    """
    After two kills under load the queue has all accepted messages in order, and the log has all those of other topics.
    """
    accepted = 0
    for _ in range(2):
        gateway = start(RULES)
        orders = Publishing(gateway.url, "topic://orders/a", first=accepted)
        with Client(gateway.url) as client, orders as publishing:
            sender = client.sender("topic://debug/a")
            for _ in range(15):
                sender.send_all(data(b"x" * 1_000) for _ in range(100))
            publishing.expect_an_end()
            gateway.kill()
            client.cut()
        accepted = publishing.accepted
    assert check(gateway.data / "default.db") == []
    gateway = start(RULES)
    with Client(gateway.url) as client:
        kept, debug = client.read_log("orders/>"), client.read_log("debug/>")
        assert {int(message.text) for message in kept} >= set(range(accepted))
        assert 3_000 > len(debug) > 700
        client.receiver("all").collect(taken := [], 3_000 + len(kept))
        assert [one.id for one in taken] == sorted({one.id for one in [*taken, *kept, *debug]})
    assert is_sound_at_its_end(gateway)


# --- SIGKILL while messages are erased under load: an erasure is complete or has not happened -------------------------


ERASING_ROUNDS = times(2, 30)
MARK = ERASED_REASON.encode()
NEWEST = 50
"""The first messages of the log, which are erased again and again."""

MOST_ERASED = 40
"""The most messages that one request erases."""


class Eraser(LoadClient):
    """Erases messages by one request after the other until the gateway is gone."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.answered: list[set[int]] = []
        self.asked: set[int] = set()
        """The messages of the last request, which was not answered."""
        self._chance = chance

    def run(self, where: str) -> None:
        path = "/SEMP/v2/action/msgVpns/default/replayLogs/default/redactMsg"
        chance = self._chance
        with httpx.Client(base_url=where, **PLAIN_HTTP) as http:
            while True:
                self.asked = {chance.randint(1, NEWEST) for _ in range(chance.randint(1, MOST_ERASED))}
                answer = http.put(path, json={"msgId": sorted(self.asked), "reason": "the law"})
                assert answer.status_code == 200, answer.text
                assert set(answer.json()["data"]["msgIds"]) == self.asked
                self.answered.append(self.asked)
                self.asked = set()
                self.is_busy.set()


def erased(gateway: GatewayProcess) -> set[int]:
    """Ids of the erasure markers among the first messages of the log, as an AMQP client reads it."""
    with Client(gateway.url) as client:
        found = client.receiver("log://>?replay-start=beginning", credit=NEWEST).take(NEWEST)
    assert [one.id for one in found] == list(range(1, NEWEST + 1))
    return {one.id for one in found if MARK in one.raw}


def kill_erasing(
    start: Callable[[], GatewayProcess],
    look: Callable[[GatewayProcess, set[int]], None] = lambda _gateway, _markers: None,
) -> None:
    """
    Kill a gateway several times under publishers, a consumer and erasures: each answered erasure is complete, an
    unanswered one is complete or has not happened.

    Args:
        look: Called after each restart with the gateway and the ids of the erased messages.
    """
    chance = random.Random(7)
    named = Named()
    clients = [
        Publisher(0, "queue://load", chance),
        Publisher(1, "topic://load/a", chance),
        Consumer("queue://load", named, chance),
    ]
    markers: set[int] = set()
    gateway = start()
    for number in range(ERASING_ROUNDS):
        for client in clients:
            client.start(gateway.address)
        for publisher in clients[:2]:
            assert publisher.is_busy.wait(30), publisher.mistakes
        eraser = Eraser(chance)
        eraser.start(gateway.ready["admin"])
        if number:
            assert eraser.is_busy.wait(30), eraser.mistakes
        time.sleep(chance.uniform(0, 0.3))  # the moment of the kill is random: nothing is waited for
        gateway.kill()
        for client in clients:
            client.join()
        eraser.join()
        assert not [*gateway.mistakes(), *eraser.mistakes]
        gateway = start()
        expected = markers.union(*eraser.answered)
        markers = erased(gateway)
        assert markers in (expected, expected | eraser.asked)
        look(gateway, markers)
    assert markers  # each round but the first waits for an answer


ON_POSTGRESQL = """
[vpn.default.store]
url = "{url}"
lease_seconds = 2
"""


def test_kills_leave_no_erasure_half_done(start: Start) -> None:
    """An erasure on SQLite is complete or has not happened; the file passes its check after each kill."""

    def begin() -> GatewayProcess:
        assert files == [] or check(files[0]) == []
        gateway = start(CONFIG)
        files[:] = [gateway.data / "default.db"]
        return gateway

    files: list[Path] = []
    kill_erasing(begin)


@pytest.mark.postgresql
def test_kills_leave_no_erasure_half_done_on_postgresql(start: Start, postgresql: Server) -> None:
    """An erasure on PostgreSQL is complete or has not happened; the tables pass their check at the end."""
    url = postgresql.url(postgresql.new_database())
    config = CONFIG + ON_POSTGRESQL.format(url=url)
    kill_erasing(lambda: start(config))
    assert check_url(url, "default") == []
