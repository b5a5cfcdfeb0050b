"""
How many messages a second, and how long they are on their way: the limits, queues, fans of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

from amqp_ext.addresses.address import queue_topic
from amqp_ext.codec import Described, encode
from amqp_ext.message.sections import PROPERTIES
from gateway.config import Vpn
from gateway.config.vpn import Queue
from tests.bench import limits
from tests.bench.crowds import consume, subscribe
from tests.bench.filled import Published, numbered, publish_into
from tests.bench.generator.client import percentile
from tests.bench.measured.sizes import Figures, Sizes
from tests.bench.processes import FROM_BEGINNING, MEGABYTE, Load, ServerProcess, gateway, recv, send


def sqlite(folder: Path, sizes: Sizes) -> Figures:
    """Raw SQLite: the gateway's rows without the gateway."""
    written = folder / "written.db"
    return {"sqlite-write": limits.write_rate(written, sizes.bulk), "sqlite-read": limits.read_rate(written)}


def container(_folder: Path, sizes: Sizes) -> Figures:
    """What the Container-style queue takes in under the same load."""
    with ServerProcess("tests.bench.baseline") as server:
        return {"container": send(server.address, "bench", sizes.container)["rate"]}


EXCLUSIVE = '[vpn.default.queue.bench]\nexclusive = "wait"\n'
"""A queue that a consumer can rewind."""


def queue(folder: Path, sizes: Sizes) -> Figures:
    """Publish to one queue, consume it; after a restart, with nothing in memory, replay it in both ways."""
    count, data = sizes.bulk, folder / "data"
    figures = _published_and_consumed(gateway(data, EXCLUSIVE), count)
    with gateway(data, EXCLUSIVE) as server:
        log = recv(server.address, "log://>", count, filters=FROM_BEGINNING)
        rewound = recv(server.address, "queue://bench?replay-start=beginning", count)
    return figures | {"replay-log": log["rate"], "replay-endpoint": rewound["rate"]}


def before(folder: Path, sizes: Sizes) -> Figures:
    """Publish and consume as ``queue`` does, with the gateway of another checkout; its figures begin with `before-`."""
    if sizes.before is None:
        raise ValueError("there is no other checkout to measure")
    found = _published_and_consumed(gateway(folder / "data", EXCLUSIVE, checkout=sizes.before), sizes.bulk)
    return {f"before-{name}": value for name, value in found.items()}


WINDOW = 1_000_000
"""Ids that a queue remembers."""


def dedup(folder: Path, sizes: Sizes) -> Figures:
    """Publish messages with ids to a queue that remembers none, and to one whose window is full of others."""
    tables = f"[vpn.default.queue.plain]\n[vpn.default.queue.once]\ndedup_window = {WINDOW}\n"
    with gateway(folder / "data", tables) as server:
        send(server.address, "queue://once", WINDOW, named=True)
        # What goes where messages went last is added at an index's end, which is faster: neither of both.
        send(server.address, "queue://plain", 1)
        send(server.address, "queue://last", 1)
        return {
            name: send(server.address, f"queue://{queue}", sizes.bulk, named=True)["rate"]
            for name, queue in (("publish-plain", "plain"), ("publish-dedup", "once"))
        }


DELAY_MS = 3_600_000
DUE_MS = 3_000


def delayed(folder: Path, sizes: Sizes) -> Figures:
    """
    Very many messages that wait for their time: how fast they are published, beside such as do not; what they weigh;
    how late those come that are due, beside another publisher; a start with them.
    """
    data, due = folder / "data", sizes.windowed // 2
    with gateway(data) as server:
        # The first of a process are slower than those that follow.
        send(server.address, "queue://warm", sizes.bulk)
        figures = {"undelayed": send(server.address, "queue://calm", sizes.bulk)["rate"]}
        before = server.resident_bytes()
        figures["delayed"] = send(server.address, "queue://later", sizes.delayed, delay_ms=DELAY_MS)["rate"]
        figures["delayed-memory"] = max(server.resident_bytes() - before, MEGABYTE) / MEGABYTE
        consumer = Load("receive", server.address, "queue://due", due, timed=True).attached()
        with Load("send", server.address, "queue://busy", 100 * sizes.bulk, outstanding=100):
            send(server.address, "queue://due", due, delay_ms=DUE_MS, outstanding=100)
            figures["due-p99"] = consumer.result()["p99_ms"] - DUE_MS
    with gateway(data) as server:
        return figures | {"delayed-start": server.ready_seconds}


def many_routes(folder: Path, sizes: Sizes) -> Figures:
    """An endpoint that is subscribed to everything, beside one for each topic, and a queue of one topic alone."""
    each = {f"own{n}": Queue(subscriptions=(f"bench/{n}",)) for n in range(sizes.routes)}
    settings = Vpn(queues={"all": Queue(subscriptions=(">",)), "one": Queue(), **each})
    # One message each time, as they come from many publishers: no two neighbours are of the same topic.
    many = (
        (f"bench/{number % sizes.routes}", contents, bare)
        for number, (_, contents, bare) in enumerate(numbered("", 0, sizes.bulk, run=1))
    )
    one = numbered(queue_topic("one"), 0, sizes.bulk)
    publish_into(folder / "data", chain(one, many), settings)
    with gateway(folder / "data") as server:
        # The first of a process are slower than those that follow.
        send(server.address, "queue://warm", sizes.bulk // 4)
        recv(server.address, "queue://warm", sizes.bulk // 4)
        return {
            "one-route": recv(server.address, "queue://one", sizes.bulk)["rate"],
            "many-routes": recv(server.address, "queue://all", sizes.bulk)["rate"],
        }


def by_key(folder: Path, sizes: Sizes) -> Figures:
    """Fifty consumers of a queue: any of them any message; by 100,000 groups in turn; by 200 partitions of those."""
    queues = {
        "ungrouped": Queue(),
        "groups": Queue(message_groups=True),
        "partitions": Queue(partitions=200),
    }
    count = sizes.bulk
    messages = (one for name in queues for one in in_groups(name, count, GROUPS))
    publish_into(folder / "data", messages, Vpn(queues=queues))
    with gateway(folder / "data") as server:
        # The first of a process are slower than those that follow.
        send(server.address, "queue://warm", count // 4)
        recv(server.address, "queue://warm", count // 4)
        return {
            name: consume(
                server.address, f"queue://{name}", CREW, count, GROUPS if name != "ungrouped" else 0
            )
            for name in queues
        }


def in_groups(name: str, count: int, groups: int) -> Iterator[Published]:
    """Messages for a queue, numbered from 0: n is in group n modulo their number."""
    number = 0
    for topic, contents, bare in numbered(queue_topic(name), 0, count):
        yield topic, [_grouped(one, bare, (number + k) % groups) for k, one in enumerate(contents)], bare
        number += len(contents)


def _grouped(message: bytes, bare: int, group: int) -> bytes:
    properties = encode(Described(PROPERTIES, [*[None] * 10, f"group-{group}"]))
    return message[:bare] + properties + message[bare:]


def _published_and_consumed(started: ServerProcess, count: int) -> Figures:
    with started as server:
        publish = charged(server, "publish", count, lambda: send(server.address, "queue://bench", count))
        consume = charged(server, "consume", count, lambda: recv(server.address, "queue://bench", count))
    return publish | consume


def charged(server: ServerProcess, name: str, count: int, run: Callable[[], dict[str, Any]]) -> Figures:
    """The rate that ``run`` tells of, and the server's processor time a message in microseconds."""
    before = server.cpu_seconds()
    rate = run()["rate"]
    return {name: rate, f"{name}-cpu": (server.cpu_seconds() - before) / count * 1e6}


CREW = 50
"""Consumers of one queue."""
GROUPS = 100_000
"""Of messages of one queue."""
FAN = 10
"""Queues on one topic."""
SUBSCRIPTIONS = 100
"""Durable subscriptions on one topic."""


def fan_out(folder: Path, sizes: Sizes) -> Figures:
    """One topic into a queue, into ten, into a hundred durable subscriptions; the last queue has all of it."""
    count = sizes.fanned
    queues = {"fan": ["one"], **{f"fan{n}": ["ten"] for n in range(FAN)}}
    tables = (f"[vpn.default.queue.{name}]\nsubscriptions = {topics}\n" for name, topics in queues.items())
    with gateway(folder / "data", "".join(tables)) as server:
        subscribe(server.address, "topic://hundred", SUBSCRIPTIONS)
        # The first of a process are slower than those that follow.
        send(server.address, "topic://one", count)
        recv(server.address, "queue://fan", count)
        # Before and after: a machine with other guests is not the same from one minute to the next.
        one = send(server.address, "topic://one", count)["rate"]
        ten = send(server.address, "topic://ten", count)["rate"]
        hundred = send(server.address, "topic://hundred", count)["rate"]
        one = mean((one, send(server.address, "topic://one", count)["rate"]))
        recv(server.address, f"queue://fan{FAN - 1}", count)
    return {"fan-out-1": one, "fan-out-10": ten, "fan-out-100": hundred}


def wide_fan(folder: Path, sizes: Sizes) -> Figures:
    """One outstanding: on a topic with very many durable subscriptions, and on one with one."""
    count = sizes.single
    with gateway(folder / "data") as server:
        subscribe(server.address, "topic://many", sizes.subscribers)
        subscribe(server.address, "topic://one", 1, "one")
        send(server.address, "topic://one", count, outstanding=1)
        one = send(server.address, "topic://one", count, outstanding=1)["p50_ms"]
        many = send(server.address, "topic://many", count, outstanding=1)["p50_ms"]
        one = mean((one, send(server.address, "topic://one", count, outstanding=1)["p50_ms"]))
    return {"fan-out-p50": many, "narrow-p50": one}


OUTSTANDING = (100, 1000)


def latency(folder: Path, sizes: Sizes) -> Figures:
    """Send to ``accepted`` with 1, 100 and 1,000 outstanding; publish to receipt with 1 outstanding.

    Raw commits are timed right before and after the single messages they are compared with: disks have moods.
    """
    with gateway(folder / "data") as server:
        commits = limits.commit_latencies(folder / "before.db", sizes.single // 2)
        single = send(server.address, "queue://single", sizes.single, outstanding=1)
        commits += limits.commit_latencies(folder / "after.db", sizes.single // 2)
        figures = {
            **_percentiles("sync", single),
            "commit-p50": percentile(commits, 0.5),
            "commit-p99": percentile(commits, 0.99),
        }
        for outstanding in OUTSTANDING:
            windowed = send(server.address, "queue://windowed", sizes.windowed, outstanding=outstanding)
            figures |= _percentiles(f"{outstanding}", windowed)
        consumer = Load("receive", server.address, "queue://through", sizes.single, timed=True)
        consumer.attached()
        send(server.address, "queue://through", sizes.single, outstanding=1)
        return figures | _percentiles("through", consumer.result())


def _percentiles(name: str, result: dict[str, Any]) -> Figures:
    return {f"{name}-p50": result["p50_ms"], f"{name}-p99": result["p99_ms"]}
