"""
``./run soak keys``: order by key while consumers die and the gateway is killed.

Each round empties one of two queues: one has 100,000 message groups, the other has partitions. The first time, the
consumers take what was published; later, what a replay of the whole queue brings. In each round, consumers die with
unsettled deliveries, new ones attach, and the gateway is killed once and started again. Three things are checked for
each message: no earlier message of its key was skipped; its consumer got the messages of that key in order; and no
other live consumer has an unsettled message of that key. The exit status is 1 if a check fails or a message is missing.
"""

from __future__ import annotations

import argparse
import random
import select
import shutil
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from gateway.config import Queue, Vpn
from tests.bench.filled import BODY_BYTES, publish_into
from tests.bench.generator.connection import Connection
from tests.bench.generator.links import Receiver
from tests.bench.measured.rates import in_groups
from tests.bench.processes import ROOT, LoadFailed, ServerProcess, gateway
from tests.support.administration import Administration
from tests.support.waiting import wait_until

from .client import GONE, reset

FOLDER = ROOT / "build" / "soak-keys"
ROUNDS = 20
GROUPS = 100_000
EACH = 3
CREW = 50
CREDIT = (5, 500)
DEATHS = 40
"""Deaths of consumers in a round, about."""
TICK_SECONDS = 0.2
"""After this time without a message, all consumers accept what they have: others may wait for it."""
SILENCES = 100
"""After this many silences in a row, a missing message is considered lost."""
QUEUES = {"groups": Queue(message_groups=True), "partitions": Queue(partitions=200)}


class Holder:
    """What a consumer holds of each group."""

    def __init__(self) -> None:
        self.held: deque[int] = deque()
        """Numbers of messages that it has not accepted, in the order of delivery."""
        self.newest: dict[int, int] = {}


class Member(Holder):
    """A consumer."""

    def __init__(self, address: str, name: str, credit: int) -> None:
        super().__init__()
        self.connection = Connection.to(address, "member")
        self.connection.attach(sender=False, address=f"queue://{name}")
        self.receiver = Receiver(self.connection, BODY_BYTES)
        self.receiver.grant(credit)
        self.credit = credit

    def accept(self, count: int) -> list[int]:
        """Accept the first ``count`` messages; returns their numbers."""
        self.receiver.accept(count, self.credit)
        return [self.held.popleft() for _ in range(count)]


class Keys:
    """The state of each group of a queue that is consumed once."""

    def __init__(self, groups: int, each: int) -> None:
        self.groups, self.each = groups, each
        self.done = [-1] * groups
        """For each group the last message that was accepted, or was delivered and is held."""
        self.missing = groups * each
        self.holders: dict[int, tuple[Holder, int]] = {}
        """For each group, which consumer has unsettled messages of it, and how many."""
        self.count = 0

    def came(self, member: Holder, number: int) -> None:
        """
        A message was delivered.

        Raises:
            LoadFailed: It should not have been delivered, now, or to this consumer.
        """
        place, group = divmod(number, self.groups)
        holder, held = self.holders.get(group, (member, 0))
        if holder is not member:
            raise LoadFailed(f"two consumers have messages of group {group}: {place} came to the second")
        if place > self.done[group] + 1:
            raise LoadFailed(f"{place} of group {group} came, and {self.done[group]} was the last before")
        if place <= member.newest.get(group, -1):
            raise LoadFailed(f"{place} of group {group} came behind {member.newest[group]}")
        member.newest[group] = place
        member.held.append(number)
        self.holders[group] = member, held + 1
        self._until(group, max(place, self.done[group]))
        self.count += 1

    def accepted(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._let_go(number % self.groups)

    def died(self, member: Holder) -> None:
        """What it held is delivered again, before anything later of the same groups."""
        for number in reversed(member.held):
            place, group = divmod(number, self.groups)
            self._let_go(group)
            self._until(group, min(place - 1, self.done[group]))
        member.held.clear()

    def _until(self, group: int, place: int) -> None:
        self.missing -= place - self.done[group]
        self.done[group] = place

    def _let_go(self, group: int) -> None:
        member, held = self.holders.pop(group)
        if held > 1:
            self.holders[group] = member, held - 1


class Soak:
    """A gateway and its consumers."""

    def __init__(self, folder: Path, groups: int = GROUPS, each: int = EACH, crew: int = CREW) -> None:
        """``folder`` is emptied, then filled with messages."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._data, self._groups, self._each, self._crew = folder / "data", groups, each, crew
        self._chance = random.Random(groups)
        self._members: dict[int, Member] = {}
        self.deaths = self.again = 0
        published = (one for name in QUEUES for one in in_groups(name, groups * each, groups))
        publish_into(self._data, published, Vpn(queues=QUEUES))
        self._server: ServerProcess = gateway(self._data)

    def close(self) -> None:
        """Stop the gateway."""
        for member in self._members.values():
            reset(member.connection)
        self._members.clear()
        self._server.__exit__(None, None, None)

    def round(self, name: str, *, is_replayed: bool) -> float:
        """
        Consume one queue; returns messages a second.

        Raises:
            LoadFailed: The order was wrong, or a message is missing.
        """
        if is_replayed:
            with Administration(self._server.admin) as administration:
                administration.act(f"queues/{name}/startReplay")
        keys = Keys(self._groups, self._each)
        kill_at = self._chance.randrange(1, keys.missing)
        began, silences = time.monotonic(), 0
        while keys.missing:
            while len(self._members) < self._crew:
                self._add(name)
            came = self._take(keys)
            silences = 0 if came else silences + 1
            if silences > SILENCES:
                raise LoadFailed(f"{keys.missing} messages of {name} do not come")
            if kill_at and keys.count > kill_at:
                kill_at = 0
                self._kill(keys)
        for member in self._members.values():
            keys.accepted(member.accept(len(member.held)))
            member.connection.close()
        self._members.clear()
        seconds = time.monotonic() - began
        self.again += keys.count - self._groups * self._each
        with Administration(self._server.admin) as administration:
            left = f"queues/{name}"
            wait_until(lambda: not administration.monitor(left)["spooledMsgCount"], f"{name} is empty")
        return keys.count / seconds

    def _add(self, name: str) -> None:
        member = Member(self._server.address, name, self._chance.randint(*CREDIT))
        self._members[member.connection.sock.fileno()] = member

    def _take(self, keys: Keys) -> int:
        """
        Each consumer with data reads it and accepts some messages; some consumers die. Returns the number of messages.
        """
        came, chance = 0, self._chance
        readable = select.select(list(self._members), [], [], TICK_SECONDS)[0]
        for descriptor in readable:
            member = self._members[descriptor]
            for number in member.receiver.read():
                keys.came(member, number)
                came += 1
            if chance.random() < DEATHS * self._crew / (self._groups * self._each):
                del self._members[descriptor]
                self._dies(member, keys)
            elif member.held:
                keys.accepted(member.accept(chance.randint(1, len(member.held))))
        if not came:
            for member in self._members.values():
                keys.accepted(member.accept(len(member.held)))
        return came

    def _dies(self, member: Member, keys: Keys) -> None:
        reset(member.connection)
        keys.died(member)
        self.deaths += 1

    def _kill(self, keys: Keys) -> None:
        self._server.kill()
        for member in self._members.values():
            self._dies(member, keys)
        self._members.clear()
        self._server.close()
        self._server = gateway(self._data)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="./run soak keys", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds (%(default)s)")
    parser.add_argument("--groups", type=int, default=GROUPS, help="message groups (%(default)s)")
    parser.add_argument(
        "--folder", type=Path, default=FOLDER, help="folder for the data; emptied first (build/soak-keys)"
    )
    options = parser.parse_args(arguments)
    soak = Soak(options.folder.absolute(), options.groups)
    try:
        for number in range(options.rounds):
            name = list(QUEUES)[number % 2]
            rate = soak.round(name, is_replayed=number > 1)
            said = f"round {number + 1}: {name}, {rate:,.0f} msg/s, {soak.deaths} deaths"
            print(f"{said}, {soak.again} messages came again", flush=True)
    except (LoadFailed, *GONE) as error:
        print(f"FAULT: {error}", flush=True)
        return 1
    finally:
        soak.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
