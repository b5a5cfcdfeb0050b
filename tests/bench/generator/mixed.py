"""Mixed load on a gateway's queues: bodies of any size, consumers that die with deliveries unsettled, replays.

    python -m tests.bench.generator.mixed 127.0.0.1:5672 --minutes 30 --queues 20 --rate 3000

Each queue ``mixed0``, ``mixed1``, ... has a publisher and a consumer of its own; two readers go through the newest part
of the log again and again. The result is one JSON line. It fails where a message is not accepted, or where consumers
are left behind.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress

from amqp_ext.codec import Described, Symbol, ULong
from tests.bench.generator.connection import CODE_OFFSET, Connection, Refused, accepted_range
from tests.bench.generator.links import message_of
from tests.support.frames import DISPOSITION, FLOW, TRANSFER, disposition, transfer_frame

BODY_BYTES = (40, 2_000)
SIZES = 64
"""Sizes of bodies, spread evenly over these."""
TICK_SECONDS = 0.05
"""Between the bursts of a publisher."""
OUTSTANDING = 1_000
CREDIT = 200
LIFE_MESSAGES = (100, 3_000)
"""What a consumer takes before it dies."""
REPLAYED = "5s"
"""How far back a consumer's replay goes."""
REPLAYS = 0.3
"""Share of consumers that begin with one."""
READERS = 2
READ_BACK_MS = 20_000
READ_MESSAGES = 20_000
REPLAY_START = Symbol("rewind:replay-start")
CAUGHT_UP = 0.8
"""Share of what was published that consumers have to have taken in the end."""

_GONE = (Refused, OSError)


class Load:
    """What all threads count, and when they stop."""

    def __init__(self, server: str, seconds: float) -> None:
        self.server = server
        self.started = time.monotonic()
        self.stop_at = self.started + seconds
        self.published = self.accepted = self.received = self.replays = self.deaths = self.read = 0
        self.problems: list[str] = []
        self._lock = threading.Lock()

    @property
    def is_wanted(self) -> bool:
        """Whether there is time left, and nothing went wrong."""
        return time.monotonic() < self.stop_at and not self.problems

    def add(self, **counts: int) -> None:
        """Count these, from any thread."""
        with self._lock:
            for name, count in counts.items():
                setattr(self, name, getattr(self, name) + count)

    def run(self, work: Callable[..., None], *arguments: object) -> None:
        """Do a thread's work; what it was told by a gateway that should not have said it is a problem."""
        try:
            work(self, *arguments)
        except _GONE as error:
            self.problems.append(f"{work.__name__}: {error}")


def publish(load: Load, queue: str, rate: float, seed: int) -> None:
    """Publish bodies of any size at an even rate, until it is time to stop; wait for what is not accepted yet."""
    chance = random.Random(seed)
    first, last = BODY_BYTES
    messages = [message_of(first + (last - first) * step // (SIZES - 1))[0] for step in range(SIZES)]
    with closing(_Publisher(load, queue)) as publisher:
        due = time.monotonic()
        sent = 0.0
        while load.is_wanted:
            sent += rate * TICK_SECONDS
            while publisher.sent < int(sent):
                publisher.send(chance.choice(messages))
            due += TICK_SECONDS
            time.sleep(max(0.0, due - time.monotonic()))
            publisher.listen(socket.MSG_DONTWAIT)
        while publisher.unsettled:
            publisher.listen()


def consume(load: Load, queue: str, seed: int) -> None:
    """Consume, die with deliveries unsettled, come back; now and then with a replay of the last seconds."""
    chance = random.Random(seed)
    while load.is_wanted:
        replays = chance.random() < REPLAYS
        connection = Connection.to(load.server, f"{queue}-consumer")
        with closing(connection.sock):
            connection.attach(
                sender=False, address=queue + (f"?replay-start={REPLAYED}&missing=clamp" if replays else "")
            )
            load.add(replays=replays)
            wanted = chance.randint(*LIFE_MESSAGES)
            load.add(received=_take(load, connection, wanted), deaths=1)


def read(load: Load) -> None:
    """Read the newest part of the log, die, begin again."""
    filters = {
        REPLAY_START: Described(
            REPLAY_START, {Symbol("ago"): ULong(READ_BACK_MS), Symbol("missing"): Symbol("clamp")}
        )
    }
    while load.is_wanted:
        connection = Connection.to(load.server, "mixed-reader")
        with closing(connection.sock):
            connection.attach(sender=False, address="log://>", filters=filters)
            load.add(read=_take(load, connection, READ_MESSAGES))


def _take(load: Load, connection: Connection, count: int) -> int:
    """Accept messages, all but the last ones that came, until there are ``count`` or it is time to stop."""
    connection.sock.settimeout(1)
    taken = granted = delivery = 0
    first: int | None = None
    while taken < count and load.is_wanted:
        if granted - taken <= CREDIT // 2:
            granted = taken + CREDIT
            connection.flow(taken, taken, CREDIT)
        with suppress(TimeoutError):
            connection.fill()
        fresh = 0
        for start, stop in connection.frames():
            if connection.buffer[start + CODE_OFFSET] != TRANSFER:
                connection.control(start, stop)
                continue
            if first is None:
                transfer = connection.control(start, stop)
                assert transfer is not None
                first = delivery = int(transfer.field(1))
            fresh += 1
        taken += fresh
        if fresh and taken < count:
            connection.sock.sendall(disposition(delivery, delivery + fresh - 1))
        delivery += fresh
    return taken


class _Publisher:
    """A link to a queue, and how much is on its way."""

    def __init__(self, load: Load, queue: str) -> None:
        self._load = load
        self._connection = Connection.to(load.server, f"{queue}-publisher")
        self._connection.attach(sender=True, address=queue)
        self._credit_limit = 0
        self.sent = 0
        self.unsettled = 0
        self._take()  # credit may have come with the answer to the attach

    def send(self, message: Callable[[int, int], bytes]) -> None:
        """Send one when there is credit for it."""
        while self.sent >= self._credit_limit or self.unsettled >= OUTSTANDING:
            self.listen()
        content = message(self.sent, time.monotonic_ns())
        self._connection.sock.sendall(transfer_frame(0, self.sent, content))
        self.sent += 1
        self.unsettled += 1
        self._load.add(published=1)

    def listen(self, flags: int = 0) -> None:
        """Take in credit and settlements; with ``MSG_DONTWAIT`` only those that are there."""
        with suppress(BlockingIOError):
            self._connection.fill(flags)
        self._take()

    def _take(self) -> None:
        connection = self._connection
        for start, stop in connection.frames():
            bounds = None
            if connection.buffer[start + CODE_OFFSET] == DISPOSITION:
                bounds = accepted_range(connection.buffer, start, stop)
            if bounds is not None:
                self.unsettled -= bounds[1] - bounds[0] + 1
                continue
            received = connection.control(start, stop)
            if received is not None and received.code == FLOW and received.field(4) is not None:
                self._credit_limit = int(received.field(5, 0)) + int(received.field(6, 0))
            elif received is not None and received.code == DISPOSITION:
                raise Refused(f"a message was not accepted: {received.field(4)}")

    def close(self) -> None:
        """Go."""
        self._connection.close()


def main(arguments: list[str] | None = None) -> int:
    """Run the load; exit status 1 with a sentence on stderr where something was refused or left behind."""
    parser = argparse.ArgumentParser(prog="tests.bench.generator.mixed", description="Mixed load.")
    parser.add_argument("server", help="HOST:PORT")
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--queues", type=int, default=20)
    parser.add_argument("--rate", type=float, default=3_000, help="messages a second, over all queues")
    options = parser.parse_args(arguments)
    load = Load(options.server, options.minutes * 60)
    works: list[tuple[Callable[..., None], tuple[object, ...]]] = [(read, ())] * READERS
    for number in range(options.queues):
        queue = f"queue://mixed{number}"
        works.append((publish, (queue, options.rate / options.queues, number)))
        works.append((consume, (queue, 1_000 + number)))
    threads = [threading.Thread(target=load.run, args=(work, *given)) for work, given in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not load.problems and load.received < load.published * CAUGHT_UP:
        load.problems.append(f"of {load.published} messages only {load.received} were consumed")
    if load.problems:
        print(load.problems[0], file=sys.stderr)
        return 1
    result = {"seconds": time.monotonic() - load.started}
    result |= {name: getattr(load, name) for name in ("published", "received", "replays", "deaths", "read")}
    print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
