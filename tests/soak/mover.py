"""A client that moves messages from one queue to another: it acknowledges and publishes in one transaction."""

from __future__ import annotations

import random
import time

from proton import Delivery

from tests.bench.generator.connection import Refused
from tests.support.client import Client, Received
from tests.support.transactions import DISCHARGE, Controller, acknowledge, provisional_outcome, publish

from .client import SILENCE_SECONDS, TAIL, Run, message

TOGETHER = 40
"""The most messages in a transaction."""
ROLLED_BACK = 0.25
"""The share of transactions that are rolled back first, and then repeated."""
LIFE_TRANSACTIONS = (5, 100)
SILENCES = 10
"""After this many silences in a row while the run drains, no more messages are expected."""
LOG_IS_FULL = "the replay log is at its quota"
"""Expected: after a machine has stood still, the burst of messages may exceed the space that trims keep free."""


class Mover:
    """One life of the mover: a connection with three links."""

    def __init__(self, client: Client, source: str, target: str) -> None:
        self._client = client
        self._controller = Controller(client)
        self._sender = client.sender(target)
        self._receiver = client.receiver(source)

    def take(self, run: Run) -> list[Received]:
        """The messages that have arrived, up to ``TOGETHER``; empty after a silence while the run drains."""
        receiver = self._receiver
        if receiver.link.credit < TOGETHER:
            receiver.flow(2 * TOGETHER - receiver.link.credit)
        self._listen()
        while not receiver.arrived and not run.is_draining.is_set():
            self._listen()
        return receiver.take(min(len(receiver.arrived), TOGETHER))

    def _listen(self) -> None:
        until = time.monotonic() + SILENCE_SECONDS
        self._client.wait(lambda: self._receiver.arrived or time.monotonic() > until, "messages, or a while")

    def move(self, batch: list[Received], sizes: list[int], *, commits: bool) -> bool:
        """
        Publish copies with the same numbers and acknowledge the originals in one transaction, then discharge it.

        Returns:
            Whether it was discharged as requested; False if the log was full at that moment.
        """
        txn_id = self._controller.declare()
        published = [
            publish(self._sender, message(TAIL.unpack(one.raw[-TAIL.size :])[0], size), txn_id)
            for one, size in zip(batch, sizes, strict=True)
        ]
        for delivery in published:
            if provisional_outcome(self._sender, delivery) != Delivery.ACCEPTED:
                raise Refused(f"a message in a transaction was answered {delivery.remote_state}")
            delivery.settle()
        if commits:
            # After a rollback the messages stay with the consumer, which has not settled them.
            for one in batch:
                acknowledge(one, txn_id)
        discharged = self._controller.ask(DISCHARGE, [txn_id, not commits])
        if (outcome := self._controller.outcome(discharged)) == "ACCEPTED":
            return True
        if LOG_IS_FULL in str(discharged.remote.condition):
            return False
        raise Refused(f"a transaction was answered {outcome}: {discharged.remote.condition}")


def move(run: Run, source: str, target: str, seed: int) -> None:
    """Move messages until no more come; sometimes roll back, sometimes die."""
    chance = random.Random(seed)
    silent = 0
    while silent < SILENCES:
        with Client("{}:{}".format(*run.address)) as client:
            mover = Mover(client, source, target)
            for _ in range(chance.randint(*LIFE_TRANSACTIONS)):
                batch = mover.take(run)
                silent = 0 if batch else silent + 1
                if silent == SILENCES:
                    break
                if not batch:
                    continue
                sizes = [chance.randint(40, 2_000) for _ in batch]
                if chance.random() < ROLLED_BACK and mover.move(batch, sizes, commits=False):
                    run.add(rollbacks=1)
                if not mover.move(batch, sizes, commits=True):
                    # It had settled them: they are delivered again in its next life.
                    run.add(refused_transactions=1)
                    break
                run.add(transactions=1, moved=len(batch))
