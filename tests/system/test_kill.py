"""SIGKILL under load, again and again on one data folder: nothing that was accepted is lost, moved or made twice."""

from __future__ import annotations

import random
import time
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import settings

from tests.system.conftest import Start
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
