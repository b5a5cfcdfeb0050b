"""Order by key with several consumers: message groups and partitions, on the wire."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import pytest

from amqp_ext import codec
from gateway.config import Limits, Queue, Vpn
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import SELECTOR, Client, Receiver, texts
from tests.support.messages import APPLICATION_PROPERTIES, PROPERTIES, data, section

SMALL = Limits(endpoint_window=20, read_page_rows=10, tail_bytes=2_000)
"""Windows and pages so small that some hundred messages are a deep queue."""

LAST = 0xFFFF_FFFF

either_way = pytest.mark.parametrize(
    "queue", [Queue(message_groups=True), Queue(partitions=7)], ids=["groups", "partitions"]
)
either_depth = pytest.mark.parametrize("limits", [Limits(), SMALL], ids=["wide", "narrow"])


def message(key: object, number: int, sequence: int | None = None, **properties: object) -> bytes:
    """A message of a group, whose body is the group and the message's number in it."""
    group = None if key is None else str(key)
    fields = [*[None] * 10, group, None if sequence is None else codec.UInt(sequence)]
    application = section(APPLICATION_PROPERTIES, properties) if properties else b""
    return section(PROPERTIES, fields) + application + data(f"{key} {number}")


def numbered(groups: int, each: int) -> list[bytes]:
    """``each`` messages of each group, interleaved."""
    return [message(f"g{group}", number) for number in range(each) for group in range(groups)]


class Crew:
    """Consumers of a queue, each on a connection of its own, and the last number processed of each key."""

    def __init__(self, connect: Callable[[], Client], address: str = "q") -> None:
        self._connect, self.address = connect, address
        self.receivers: list[Receiver] = []
        self.last: dict[str, int] = {}
        self.count = 0

    def add(self, credit: int) -> None:
        self.receivers.append(self._connect().receiver(self.address, credit=credit))

    def work(self, count: int) -> None:
        """
        All consumers process messages in small steps until at least ``count`` are processed. One that a consumer had
        settled before it died may come again; none comes before an earlier one of its key.
        """
        while self.count < count:
            for receiver in self.receivers:
                receiver.client.wait(iter((False, True)).__next__, "what came is read", turn=0.002)
                some = [receiver.arrived.popleft() for _ in range(min(len(receiver.arrived), 7))]
                for received in some:
                    key, number = received.text.split()
                    assert int(number) <= self.last.get(key, -1) + 1, "one of the key was passed over"
                    self.count += int(number) > self.last.get(key, -1)
                    self.last[key] = max(self.last.get(key, -1), int(number))
                receiver.settle(some)
                receiver.flow(len(some))

    def dies(self) -> None:
        self.receivers.pop(0).client.cut()


@either_way
@either_depth
def test_order_holds_while_consumers_die_and_come(
    start: Start, connect: Connect, queue: Queue, limits: Limits
) -> None:
    """
    What a dead consumer had unsettled is redelivered in order before later messages of the key; so is what all
    consumers had when the gateway stopped. A replay of all messages keeps the order, too.
    """
    gateway = start(vpn=Vpn(queues={"q": queue}), limits=limits)
    connect(gateway).sender("q").send_all(numbered(25, 8))
    for _ in range(2):
        crew = Crew(lambda: connect(gateway))
        for credit in (10, 10, 30):
            crew.add(credit)
        for processed in (20, 40, 60):
            crew.work(processed)
            crew.dies()
            crew.add(15)
        gateway.restart()
        crew.receivers.clear()
        for credit in (1, 5, 100):
            crew.add(credit)
        crew.work(200)
        for receiver in crew.receivers:
            receiver.close()
        gateway.start_replay("q", "beginning")


def test_a_last_message_ends_its_group(start: Start, connect: Connect) -> None:
    """
    Once a group's last message is settled, another consumer may get the group; messages without a group go anywhere.
    """
    gateway = start(vpn=Vpn(queues={"q": Queue(message_groups=True)}))
    sender = connect(gateway).sender("q")
    first = connect(gateway).receiver("q", credit=2)
    sender.send_all([message("g", 0), message("g", 1, LAST), message("g", 2)])
    taken = first.take(2)
    second = connect(gateway).receiver("q", credit=10)
    sender.send_all([message(None, 0)])
    assert texts(second.take(1)) == ["None 0"]
    assert not second.drain()
    second.flow(10)
    first.settle(taken)
    first.client.wait(lambda: gateway.depth("q") == 2, "the group is settled")
    assert texts(second.take_and_accept(1)) == ["g 2"]
    assert not first.drain()
    sender.send_all([message("g", 3)])
    assert texts(second.take(1)) == ["g 3"]


def test_partitions_are_told_by_a_property(start: Start, connect: Connect) -> None:
    """The property may have any type; a consumer's selector takes what it matches of the consumer's partitions."""
    gateway = start(vpn=Vpn(queues={"q": Queue(partitions=3, partition_key="customer")}))
    client = connect(gateway)
    client.sender("q").send_all(
        message(None, number, customer=number % 4 if number % 2 else f"c{number % 4}", odd=number % 2)
        for number in range(40)
    )
    crew = [connect(gateway).receiver("q", filters={SELECTOR: "odd = 1"}) for _ in range(3)]
    for receiver in crew:
        receiver.flow(100)
    taken = list(chain.from_iterable(receiver.drain() for receiver in crew))
    assert sorted(int(text.split()[1]) for text in texts(taken)) == list(range(1, 40, 2))
