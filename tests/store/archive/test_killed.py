"""SIGKILL while the archive is read, and while it is written: readers go on exactly, and the archive is the log."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import httpx
import pytest
from proton import Delivery

from store.archive import maintenance
from store.archive.archiver import Archiver, Limits
from store.archive.erasures import Erasure
from store.archive.storage import storage_at
from store.sqlite.check import check
from tests.bench.generator.links import STAMP
from tests.spark_bridge.places.test_log_file import table
from tests.spark_bridge.stored_log import StoredLog
from tests.store.archive.archives import archiver, ids, log_of, state_of
from tests.store.archive.test_archive_verb import rewind
from tests.support.client import Client, Received
from tests.support.messages import data
from tests.support.running import PLAIN_HTTP
from tests.support.waiting import wait_until
from tests.system.gateway_process import GatewayProcess
from tests.system.load import LogReader, Named

pytestmark = [pytest.mark.spark, pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(600)]

WHEN = Erasure(1_700_000_000_123, "asked to")
KILLS = 6
MESSAGES = 3_000
BELOW = 2_401
"""What is below is in the archive alone."""

Start = Callable[[], GatewayProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """
    Starts gateways on one data folder, one after another; what each one logged must be free of mistakes.

    The first has a queue's worth of history behind it: ``MESSAGES`` messages that the queue has let go of, all of them
    archived, and those below ``BELOW`` trimmed.
    """
    archive = tmp_path / "archive"
    config = f"""
        [limits]
        read_page_rows = 40
        [vpn.default.archive]
        from = "{archive}"
        [vpn.default.queue.orders]
        subscriptions = ["past"]
    """
    started: list[GatewayProcess] = []

    def begin() -> GatewayProcess:
        started.append(GatewayProcess(tmp_path / "data", config))
        return started[-1]

    first = begin()
    with connect(first) as client:
        client.sender("topic://past").send_all([data(STAMP.pack(n, 0)) for n in range(MESSAGES)])
        client.receiver("orders").collect([], MESSAGES)
        client.close()
    told = ["--admin", first.ready["admin"]]
    done = rewind("--from", str(first.data), "--to", str(archive), "--rows", "100", *told)
    assert done.exit_code == 0, done.output
    trimmed = httpx.put(
        f"{first.ready['admin']}/SEMP/v2/action/msgVpns/default/replayLogs/default/trimLoggedMsgs",
        json={"before": f"#{BELOW}"},
        **PLAIN_HTTP,
    )
    assert trimmed.json()["data"]["firstMsgId"] == BELOW, trimmed.text
    assert first.stop() == 0
    yield begin
    statuses = [process.stop() for process in started if process.is_running]
    assert statuses == [0] * len(statuses)
    assert [line for process in started for line in process.mistakes()] == []
    assert check(tmp_path / "data" / "default.db") == []


def connect(gateway: GatewayProcess) -> Client:
    return Client("{}:{}".format(*gateway.address))


def chance() -> random.Random:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return random.Random(seed)


def test_killed_readers_go_on_out_of_the_archive(start: Start) -> None:
    """
    Readers of the log that begin again behind the last message they had: each message once, in order, whatever was
    killed while it read the archive; and on into the log and what is published then.
    """
    dice = chance()
    named = Named()
    readers = [LogReader(named, credit) for credit in (10, 30)]
    for _ in range(KILLS):
        gateway = start()
        goals = [reader.newest + dice.randint(20, BELOW // KILLS // 3) for reader in readers]
        for reader in readers:
            reader.start(gateway.address)
        wait_until(lambda: any(map(_has_reached, readers, goals)), "some were read")  # noqa: B023
        gateway.kill()
        for reader in readers:
            reader.join()
    gateway = start()
    newest = [reader.newest for reader in readers]
    for reader in readers:
        reader.start(gateway.address)
    with connect(gateway) as client:
        client.sender("topic://past").send_all([data(STAMP.pack(MESSAGES, 0))])
        client.close()
    wait_until(lambda: all(reader.newest > MESSAGES for reader in readers), "all were read")
    gateway.kill()
    for reader in readers:
        reader.join()
    assert [mistake for reader in readers for mistake in reader.mistakes] == []
    assert min(newest) < BELOW, "none was killed in the archive's part"
    assert named.conflicts == []
    assert named.messages == {n + 1: (0, n) for n in range(MESSAGES + 1)}


def _has_reached(reader: LogReader, goal: int) -> bool:
    return reader.newest >= goal


def test_a_killed_replay_goes_on_out_of_the_archive(start: Start) -> None:
    """
    An endpoint replay that is cut off again and again: what it was told is settled never comes again, and all that it
    did not settle does, in order on each link; what only the archive has as well as the rest, and what is new.
    """
    dice = chance()
    settled: set[int] = set()
    """By the consumer; the gateway may have been killed before it knew."""
    confirmed: set[int] = set()
    address = "orders?replay-start=beginning"
    for _ in range(KILLS):
        gateway = start()
        with connect(gateway) as client:
            taken = client.receiver(address, credit=MESSAGES).take(dice.randint(50, BELOW // KILLS - 50))
            ids = [message.id for message in taken]
            assert ids == sorted(set(ids))
            assert not confirmed & set(ids)
            assert ids[0] < BELOW
            # In any order, and some of them not at all.
            some = dice.sample(taken, len(taken) - dice.randint(1, 20))
            for message in some:
                message.delivery.update(Delivery.ACCEPTED)
            settled.update(message.id for message in some)
            client.wait(lambda: any(one.delivery.settled for one in some), "some are settled")  # noqa: B023
            gateway.kill()
            confirmed.update(message.id for message in some if message.delivery.settled)
        address = "orders"
    gateway = start()
    with connect(gateway) as client:
        receiver = client.receiver("orders")
        client.sender("topic://past").send_all([data(STAMP.pack(MESSAGES, 0))])
        rest: list[Received] = []
        while not rest or rest[-1].id <= MESSAGES:
            receiver.collect(rest, len(rest) + 1)
        client.close()
    ids = [message.id for message in rest]
    assert ids == sorted(set(ids))
    assert confirmed, "the gateway was killed before it had settled anything"
    assert not confirmed & set(ids)
    assert set(range(1, MESSAGES + 2)) - settled <= set(ids)


ROUNDS = 10
"""Of kills of whoever writes to an archive."""


def archive_on(data: str, to: str) -> None:
    """An archiver that goes on and on, in a process of its own."""
    run = Archiver(log_of({"path": data}), storage_at(to), Limits(rows=3, age_seconds=0))
    run.run(follow=True)


def maintain(to: str) -> None:
    """Compactions and erasures, one after another, in a process of its own."""
    while True:
        maintenance.compact(storage_at(to), is_all=True)
        maintenance.erase(storage_at(to), {7: WHEN})


def test_killed_writers_leave_the_archive_the_log(tmp_path: Path) -> None:
    """
    Two archivers and whoever compacts and erases, killed at any moment and begun anew: at each look the table has a
    whole beginning of the log, each id once, and in the end all of it, bit for bit.
    """
    dice = chance()
    log, to = StoredLog(tmp_path / "data"), str(tmp_path / "archive")
    log.publish(20)
    archiver(log, to).run()
    log.erase([7], *WHEN)
    maintenance.erase(storage_at(to), {7: WHEN})
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])

    def begin(target: Callable[..., None], *arguments: str) -> BaseProcess:
        process = context.Process(target=target, args=arguments, daemon=True)
        process.start()
        return process

    work = [(archive_on, log.path, to), (archive_on, log.path, to), (maintain, to)]
    running = [begin(*one) for one in work]
    try:
        for _ in range(ROUNDS):
            log.publish(dice.randint(1, 20))
            before = state_of(to).version
            wanted = before + dice.randint(1, 6)
            wait_until(lambda: state_of(to).version >= wanted, "they commit")  # noqa: B023
            found = ids(archive=to)
            assert found == log.logged[: len(found)]
            for place in dice.sample(range(3), dice.randint(1, 3)):
                running[place].kill()
                running[place].join()
                running[place] = begin(*work[place])
        wait_until(lambda: state_of(to).last == log.last, "all is archived")
    finally:
        for process in running:
            process.kill()
    assert table(archive=to).to_pylist() == table(path=log.path).to_pylist()
