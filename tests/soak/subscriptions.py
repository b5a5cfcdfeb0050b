"""Durable subscriptions: made, left, come back to, given up; what is published meanwhile comes all and in order."""

from __future__ import annotations

import random
import time

from amqp_ext.codec import Described, Symbol, UByte, UInt, ULong
from tests.bench.generator.connection import Connection
from tests.support.frames import ATTACH, frame, transfer_frame

from .account import Account, Consumption
from .client import SILENCE_SECONDS, Outcomes, Run, accept, listen, message, received, reset

TOGETHER = (20, 200)
"""Messages published while nobody receives."""
ANSWER_SECONDS = 60
PAUSE_SECONDS = 1.0
"""Between two rounds."""
NEVER = Symbol("never")


def subscribe(run: Run, topic: str, seed: int) -> None:
    """Rounds of it: subscribe, leave, publish, come back, take all, give up."""
    chance = random.Random(seed)
    account = run.account(topic)
    container = f"subscriber-{seed}"
    publisher = run.connect(f"{topic}-publisher")
    publisher.attach(sender=True, address=topic)
    outcomes = Outcomes(publisher, 0, account)
    round_number = number = 0
    while not run.publishing_ends.wait(PAUSE_SECONDS):
        name = f"{container}-{round_number}"
        round_number += 1
        own = account.consumer()
        for _ in range(chance.randint(1, 4)):
            reset(_attached(run, container, topic, name))
            for _ in range(chance.randint(*TOGETHER)):
                while number >= outcomes.credit_limit:
                    outcomes.listen(0.2)
                outcomes.open.add(number)
                publisher.sock.sendall(transfer_frame(0, number, message(number, chance.randint(40, 4_000))))
                number += 1
            deadline = time.monotonic() + ANSWER_SECONDS
            while outcomes.open and time.monotonic() < deadline:
                outcomes.listen(0.2)
            _take_all(account, own, _attached(run, container, topic, name))
        _give_up(run, container, name)
        run.add(subscriptions=1)
    publisher.close()


def _attached(run: Run, container: str, topic: str, name: str) -> Connection:
    connection = run.connect(container)
    connection.attach(sender=False, address=topic, name=name, expiry=NEVER)
    return connection


def _take_all(account: Account, own: Consumption, connection: Connection) -> None:
    """Take what is owed, and close as one should, but for the link: the subscription stays."""
    own.begun()
    deadline = time.monotonic() + ANSWER_SECONDS
    for batch in received(connection, 100):
        for one in batch:
            own.delivered(one.number, one.message_id, one.delivery_count)
        if batch:
            accept(connection, batch)
            own.acknowledged([(one.number, one.replay_id) for one in batch])
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
