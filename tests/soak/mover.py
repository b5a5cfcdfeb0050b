"""Transactions: a client that moves messages from one queue to another, acknowledging and publishing in one."""

from __future__ import annotations

import random
import time

from proton import Delivery

from tests.bench.generator.connection import Refused
from tests.support.client import Client, Received
from tests.support.transactions import DISCHARGE, Controller, acknowledge, provisional_outcome, publish

from .client import SILENCE_SECONDS, TAIL, Run, message

TOGETHER = 40
"""Most messages in a transaction."""
ROLLED_BACK = 0.25
"""Share of transactions that are rolled back first, and done again."""
LIFE_TRANSACTIONS = (5, 100)
SILENCES = 10
"""In a row, after which nothing is expected any more once the run drains."""
LOG_IS_FULL = "the replay log is at its quota"
"""What comes at once after a machine has stood still may be more than trimming has kept free."""


class Mover:
    """One life of it: a connection with three links."""

    def __init__(self, client: Client, source: str, target: str) -> None:
        self._client = client
        self._controller = Controller(client)
        self._sender = client.sender(target)
        self._receiver = client.receiver(source)

    def take(self, run: Run) -> list[Received]:
        """What has arrived, up to ``TOGETHER``; nothing where nothing comes for a while and the run drains."""
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
        Publish copies, by the numbers of what came, and acknowledge, in one transaction that is discharged.

        Returns:
            Whether it went as it was asked for; not if the log was full just then.
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
            # In a rollback they stay with the consumer, which has not settled them.
            for one in batch:
                acknowledge(one, txn_id)
        discharged = self._controller.ask(DISCHARGE, [txn_id, not commits])
        if (outcome := self._controller.outcome(discharged)) == "ACCEPTED":
            return True
        if LOG_IS_FULL in str(discharged.remote.condition):
            return False
        raise Refused(f"a transaction was answered {outcome}: {discharged.remote.condition}")


def move(run: Run, source: str, target: str, seed: int) -> None:
    """Move until nothing comes any more; roll back now and then, die now and then."""
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
                    # It had settled them: they come again, to its next life.
                    run.add(refused_transactions=1)
                    break
                run.add(transactions=1, moved=len(batch))
