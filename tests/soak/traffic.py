"""
The constant load of a run: publishers, consumers that die, log readers, and durable subscriptions that come and go.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from threading import Thread
from typing import Any

from amqp_ext.codec import Described, Symbol, UByte, UInt, ULong
from tests.bench.generator.connection import Connection, Refused
from tests.soak.account import Account, Consumption, Delivery
from tests.soak.client import (
    GONE,
    SILENCE_SECONDS,
    Outcomes,
    Run,
    accept,
    listen,
    message,
    received,
    reset,
)
from tests.support.frames import ATTACH, frame

TICK_SECONDS = 0.05
"""Pause between two bursts of a publisher."""
OUTSTANDING = 500
PARTS = ({"part": "even"}, {"part": "odd"})
"""Application properties that selectors match."""
CREDIT = 100
PUBLISHER_LIFE_SECONDS = (20, 90)
CONSUMER_LIFE_MESSAGES = (50, 2_000)
REPLAYS = 0.3
"""The share of consumers' lives that begin with a replay."""
CLEAN = 0.2
"""The share of lives that end with a clean close."""
LEFT = 0.3
"""The share of its batches that a dying consumer leaves unsettled at its end."""
READER_LIFE_MESSAGES = (1_000, 20_000)
REPLAY_START = Symbol("rewind:replay-start")
SELECTOR = Symbol("apache.org:selector-filter:string")
SILENCES = 25
"""After this many silences of 0.2 s in a row, a consumer that is still owed a message attaches again."""
DRAIN_SECONDS = 120
"""How long consumers may take after the end of publishing for what they are owed."""


def start_pairs(run: Run, names: Iterable[str], rate: float) -> tuple[list[Thread], list[Thread]]:
    """Start a publisher and a consumer for each of these queues, which share the rate."""
    publishers, consumers, each = [], [], list(names)
    for seed, name in enumerate(each):
        account, address = run.account(name), f"queue://{name}"
        publishers.append(run.start(publish, account, address, rate / len(each), seed))
        consumers.append(run.start(consume, account, address, 1_000 + seed))
    return publishers, consumers


def publish(run: Run, account: Account, address: str, rate: float, seed: int) -> None:
    """Publish bodies of all sizes at a steady rate; die now and then before all outcomes are known."""
    chance = random.Random(seed)
    number = 0
    while not run.publishing_ends.is_set():
        connection = run.connect(f"{account.name}-publisher")
        connection.attach(sender=True, address=address)
        outcomes = Outcomes(connection, number, account)
        first, began, due = number, time.monotonic(), 0.0
        life = chance.uniform(*PUBLISHER_LIFE_SECONDS)
        outcomes.listen(0)
        while not run.publishing_ends.is_set() and time.monotonic() - began < life:
            due += rate * TICK_SECONDS
            burst = range(number, number + min(first + int(due) - number, outcomes.room(OUTSTANDING)))
            outcomes.send(*(message(each, _size(run, chance), PARTS[each % 2]) for each in burst))
            number = outcomes.next
            # Messages that could not be sent in time are not sent later.
            due = min(due, number - first + rate)
            time.sleep(TICK_SECONDS)
            outcomes.listen(0)
        if run.publishing_ends.is_set() or chance.random() < CLEAN:
            outcomes.finish(DRAIN_SECONDS)
            connection.close()
        else:
            reset(connection)
            if outcomes.open:
                account.in_doubt(min(outcomes.open), max(outcomes.open))


def _size(run: Run, chance: random.Random) -> int:
    least, most = run.body_bytes
    return int(least * (most / least) ** chance.random())


def consume(
    run: Run,
    account: Account,
    address: str,
    seed: int,
    selector: str | None = None,
    replays: float = REPLAYS,
    rate: float | None = None,
) -> None:
    """
    Consume until publishing has ended and nothing is owed; die with unsettled deliveries, come back, rewind.

    Args:
        selector: A JMS selector; another consumer takes the rest.
        replays: Share of lives that begin with a replay.
        rate: Messages a second at most.
    """
    chance = random.Random(seed)
    own = account.consumer()
    filters = {SELECTOR: Described(SELECTOR, selector)} if selector else None
    deadline: float | None = None
    while not (run.is_draining.is_set() and not account.owed):
        if deadline is None and run.is_draining.is_set():
            deadline = time.monotonic() + DRAIN_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            return  # what is owed is lost, and the account names it
        rewinds = own.recent and deadline is None and chance.random() < replays
        try:
            connection = _attached(run, own, address, filters, chance.choice(own.recent) if rewinds else None)
            is_clean = _take(run, account, own, connection, chance, rate)
        except GONE as error:
            account.fault(f"its consumer was told: {error}")
            return
        own.ended(reset=not is_clean)
        run.add(deaths=not is_clean)


def _attached(
    run: Run,
    own: Consumption,
    address: str,
    filters: dict[Any, Any] | None,
    after: Delivery | None,
) -> Connection:
    """Attach a consumer; with ``replay``, from after an earlier message, if the log still has it."""
    connection = run.connect(f"{address}-consumer")
    if after is not None:
        try:
            start = f"{address}?replay-start={after.replay_id}"
            connection.attach(sender=False, address=start, filters=filters)
        except Refused as refused:
            reset(connection)
            if not str(refused).startswith("amqp:precondition-failed"):
                raise
            run.add(replays_too_late=1)
            return _attached(run, own, address, filters, None)
        own.rewound(after.message_id)
        run.add(replays=1)
    else:
        connection.attach(sender=False, address=address, filters=filters)
        own.begun()
    return connection


def _take(
    run: Run,
    account: Account,
    own: Consumption,
    connection: Connection,
    chance: random.Random,
    rate: float | None,
) -> bool:
    """One life of a consumer; returns whether it ended with everything settled and a clean close."""
    wanted = chance.randint(*CONSUMER_LIFE_MESSAGES)
    is_clean = chance.random() < CLEAN
    taken = 0
    silent = 0
    for batch in received(connection, CREDIT):
        own.delivered(batch)
        taken += len(batch)
        silent = 0 if batch else silent + 1
        is_last = taken >= wanted or (run.is_draining.is_set() and not account.owed)
        # In a silence, owed messages may be unsettled from another life: they come in the next one.
        is_last = is_last or (run.is_draining.is_set() and silent > SILENCES)
        if batch and not (is_last and not is_clean and chance.random() < LEFT):
            _acknowledge(own, connection, batch)
        if is_last:
            break
        if rate is not None and batch:
            time.sleep(len(batch) / rate)
    if is_clean:
        # Deliveries under way are not seen, and come again.
        connection.close()
    else:
        reset(connection)
    return is_clean


def read(run: Run, seed: int) -> None:
    """Read the log, die, go on after the last message: each id follows the one before it."""
    chance = random.Random(seed)
    last: Delivery | None = None
    while not run.publishing_ends.is_set():
        connection = run.connect(f"reader-{seed}")
        start: object = last.replay_id if last else Symbol("beginning")
        filters = {
            REPLAY_START: Described(
                REPLAY_START, {Symbol("after" if last else "from"): start, Symbol("missing"): Symbol("fail")}
            )
        }
        try:
            connection.attach(sender=False, address="log://>", filters=filters, settled=True)
        except Refused:
            # The log was trimmed past this id meanwhile.
            reset(connection)
            last = None
            run.add(readers_too_late=1)
            continue
        wanted = chance.randint(*READER_LIFE_MESSAGES)
        taken = 0
        try:
            for batch in received(connection, 1_000):
                for one in batch:
                    if last is not None and one.message_id != last.message_id + 1:
                        run.problems.append(
                            f"log reader {seed}: {one.message_id} came after {last.message_id}"
                        )
                    last = one
                taken += len(batch)
                if taken >= wanted or run.publishing_ends.is_set():
                    break
        except Refused:
            last = None
            run.add(readers_too_late=1)
        run.add(read=taken)
        reset(connection)


def _acknowledge(own: Consumption, connection: Connection, batch: list[Delivery]) -> None:
    accept(connection, batch)
    own.acknowledged(batch)


TOGETHER = (20, 200)
"""The least and the most messages that are published while nobody receives."""
ANSWER_SECONDS = 60
PAUSE_SECONDS = 1.0
"""Pause between two rounds."""
NEVER = Symbol("never")


def subscribe(run: Run, topic: str, seed: int) -> None:
    """In rounds: subscribe, leave, publish, come back, take everything, unsubscribe."""
    chance = random.Random(seed)
    account = run.account(topic)
    container = f"subscriber-{seed}"
    publisher = run.connect(f"{topic}-publisher")
    publisher.attach(sender=True, address=topic)
    outcomes = Outcomes(publisher, 0, account)
    round_number = 0
    while not run.publishing_ends.wait(PAUSE_SECONDS):
        name = f"{container}-{round_number}"
        round_number += 1
        own = account.consumer()
        for _ in range(chance.randint(1, 4)):
            reset(_subscribed(run, container, topic, name))
            for _ in range(chance.randint(*TOGETHER)):
                outcomes.publish(chance.randint(40, 4_000))
            outcomes.finish(ANSWER_SECONDS)
            _take_all(account, own, _subscribed(run, container, topic, name))
        _give_up(run, container, name)
        run.add(subscriptions=1)
    publisher.close()


def _subscribed(run: Run, container: str, topic: str, name: str) -> Connection:
    connection = run.connect(container)
    connection.attach(sender=False, address=topic, name=name, expiry=NEVER)
    return connection


def _take_all(account: Account, own: Consumption, connection: Connection) -> None:
    """Take what is owed, and close the connection cleanly but not the link, so that the subscription stays."""
    own.begun()
    deadline = time.monotonic() + ANSWER_SECONDS
    for batch in received(connection, 100):
        own.delivered(batch)
        if batch:
            _acknowledge(own, connection, batch)
        if not account.owed or time.monotonic() > deadline:
            break
    connection.end_all()
    own.ended(reset=False)


def _give_up(run: Run, container: str, name: str) -> None:
    """Unsubscribe: attach without a source, then close the link."""
    connection = run.connect(container)
    target = Described(ULong(0x29), ["peer"])
    connection.sock.sendall(frame(ATTACH, [name, UInt(0), True, UByte(0), UByte(0), None, target]))
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        listen(connection, SILENCE_SECONDS)
        for start, stop in connection.frames():
            answer = connection.control(start, stop)
            if answer is not None and answer.code == ATTACH:
                connection.close()
                return
    raise TimeoutError(f"the attach that gives up {name} was not answered in {ANSWER_SECONDS} s")
