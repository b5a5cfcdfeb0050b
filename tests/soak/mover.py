"""Transactions: a client that moves messages from one queue to another, acknowledging and publishing in one."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from amqp_ext.codec import Described, UByte, UInt, ULong, encode
from tests.bench.generator.connection import Connection, Refused, credit_limit
from tests.support.frames import (
    ATTACH,
    DISPOSITION,
    FLOW,
    SOURCE,
    TRANSFER,
    attach_frame,
    flow_frame,
    frame,
)

from .account import Delivery
from .client import SILENCE_SECONDS, Run, delivery, listen, message, reset

COORDINATOR, DECLARE, DISCHARGE, DECLARED, TRANSACTIONAL = 0x30, 0x31, 0x32, 0x33, 0x34
ACCEPTED = 0x24
AMQP_VALUE = 0x77
CONSUMED, PUBLISHED, CONTROL = 0, 1, 2
"""Handles of the three links."""
TOGETHER = 40
"""Most messages in a transaction."""
ROLLED_BACK = 0.25
"""Share of transactions that are rolled back first, and done again."""
LIFE_TRANSACTIONS = (5, 100)
ANSWER_SECONDS = 60
LOG_IS_FULL = "the replay log is at its quota"
"""What comes at once after a machine has stood still may be more than trimming has kept free."""


class RolledBack(Exception):
    """A transaction was not committed as the log was full just then: whoever published is to try again."""


class Mover:
    """One life of it: a session with three links."""

    def __init__(self, connection: Connection, source: str, target: str) -> None:
        self._connection = connection
        self._next = 0
        """Delivery id of what is sent next: one count for both links of a session."""
        self._received = 0
        self._granted = 0
        self._names: dict[int, str] = {}
        self._credit = {"published": 0, "control": 0}
        """By link: how many may have been sent."""
        self._published = self._controls = 0
        self._arrived: list[Delivery] = []
        self._states: dict[int, Described] = {}
        ends = [Described(ULong(SOURCE), ["control"]), Described(ULong(COORDINATOR), [])]
        fields = ["control", UInt(CONTROL), False, UByte(0), UByte(0), *ends, None, None, UInt(0)]
        connection.sock.sendall(
            attach_frame(CONSUMED, receiver=True, address=source)
            + attach_frame(PUBLISHED, receiver=False, address=target, name="published")
            + frame(ATTACH, fields)
        )
        self._wait(lambda: all(self._credit.values()), "credit")

    def take(self, run: Run) -> list[Delivery]:
        """What has arrived, up to ``TOGETHER``; nothing where nothing comes and the run drains."""
        if self._granted - self._received < TOGETHER:
            self._granted = self._received + 2 * TOGETHER
            incoming = self._connection.peer_next_outgoing + self._received
            self._connection.sock.sendall(
                flow_frame(CONSUMED, self._received, 2 * TOGETHER, next_incoming=incoming)
            )
        while not self._arrived and not run.is_draining.is_set():
            self._listen()
        self._listen()
        batch, self._arrived = self._arrived[:TOGETHER], self._arrived[TOGETHER:]
        return batch

    def move(self, batch: list[Delivery], sizes: list[int], *, commits: bool) -> None:
        """Publish copies, by the numbers of what came, and acknowledge, in one transaction that is discharged."""
        state = self._control(Described(ULong(DECLARE), [None]))
        txn_id = state.value[0]
        for one, size in zip(batch, sizes, strict=True):
            self._wait(lambda: self._published < self._credit["published"], "credit to publish")
            self._send(PUBLISHED, message(one.number, size), Described(ULong(TRANSACTIONAL), [txn_id]))
            self._published += 1
        if commits:
            # In a rollback they stay with the consumer, which has not settled them.
            outcome = Described(ULong(TRANSACTIONAL), [txn_id, Described(ULong(ACCEPTED), [])])
            first, last = batch[0].delivery_id, batch[-1].delivery_id
            self._connection.sock.sendall(frame(DISPOSITION, [True, UInt(first), UInt(last), True, outcome]))
        discharged = self._control(Described(ULong(DISCHARGE), [txn_id, not commits]))
        if int(discharged.descriptor) != ACCEPTED:
            if LOG_IS_FULL in str(discharged):
                raise RolledBack
            raise Refused(f"a transaction was answered {discharged}")

    def _control(self, body: Described) -> Described:
        number = self._next
        self._wait(lambda: self._controls < self._credit["control"], "credit for the coordinator")
        self._send(CONTROL, b"\x00\x53" + bytes([AMQP_VALUE]) + encode(body), None)
        self._controls += 1
        self._wait(lambda: number in self._states, "the coordinator's answer")
        return self._states.pop(number)

    def _send(self, handle: int, payload: bytes, state: Described | None) -> None:
        number = self._next
        self._next += 1
        fields = [UInt(handle), UInt(number), number.to_bytes(4, "big"), UInt(0), False, False, None, state]
        self._connection.sock.sendall(frame(TRANSFER, fields, payload))

    def _wait(self, condition: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + ANSWER_SECONDS
        self._listen(0)
        while not condition():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not come in {ANSWER_SECONDS} s")
            self._listen()

    def _listen(self, seconds: float = SILENCE_SECONDS) -> None:
        connection = self._connection
        listen(connection, seconds)
        for start, stop in connection.frames():
            received = connection.control(start, stop)
            if received is None:
                continue
            if received.code == TRANSFER:
                self._arrived.append(delivery(received))
                self._received += 1
            elif received.code == FLOW and received.field(4) is not None:
                # By the gateway's own handles, which need not be ours.
                name = self._names[received.field(4)]
                self._credit[name] = credit_limit(received)
            elif received.code == ATTACH:
                self._names[int(received.field(1))] = str(received.field(0))
            elif received.code == DISPOSITION:
                first = int(received.field(1))
                state = received.field(4)
                for number in range(first, int(received.field(2, first)) + 1):
                    if int(state.descriptor) != TRANSACTIONAL:
                        self._states[number] = state
                    elif int(state.value[1].descriptor) != ACCEPTED:
                        raise Refused(f"a message in a transaction was answered {state}")


def move(run: Run, source: str, target: str, seed: int) -> None:
    """Move until nothing comes any more; roll back now and then, die now and then, also with a transaction open."""
    chance = random.Random(seed)
    silent = 0
    while silent < 10:
        connection = run.connect("mover")
        mover = Mover(connection, source, target)
        for _ in range(chance.randint(*LIFE_TRANSACTIONS)):
            batch = mover.take(run)
            silent = 0 if batch else silent + 1
            if silent == 10:
                break
            if not batch:
                continue
            sizes = [chance.randint(40, 2_000) for _ in batch]
            if chance.random() < ROLLED_BACK:
                mover.move(batch, sizes, commits=False)
                run.add(rollbacks=1)
            try:
                mover.move(batch, sizes, commits=True)
            except RolledBack:
                # It had settled them: they come again, to its next life.
                run.add(refused_transactions=1)
                break
            run.add(transactions=1, moved=len(batch))
        reset(connection)
