"""``rewind archive``, other engines that read the archive, and kills of its readers and writers."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import polars
import pytest
from click.testing import CliRunner, Result
from deltalake import DeltaTable
from proton import Delivery

from gateway.cli import main
from gateway.vpn.upkeep.archiving import PROGRAM
from store.archive import maintenance
from store.archive.storage import storage_at
from store.sqlite.check import check
from tests.bench.generator.links import STAMP
from tests.spark_bridge.log_gateway import text
from tests.spark_bridge.reading import table
from tests.spark_bridge.stored_log import StoredLog
from tests.store.archive.archives import archiver, ids, state_of, two_days
from tests.store.archive.writers import WHEN, archive_on, maintain
from tests.support.client import Client, Received
from tests.support.forked_gateway import FORKING
from tests.support.messages import data
from tests.support.waiting import wait_until
from tests.system.gateway_process import ROOT, GatewayProcess
from tests.system.load import LogReader, Named

pytestmark = pytest.mark.spark


# --- ``rewind archive``: its output, its exit status, and its work with a gateway -------------------------------------

PATIENCE_SECONDS = 30


def rewind(*arguments: str) -> Result:
    """Run ``rewind archive`` in this process."""
    return CliRunner().invoke(main, ["archive", *arguments])


@pytest.fixture
def log(tmp_path: Path) -> StoredLog:
    log = StoredLog(tmp_path / "data")
    log.publish(50)
    return log


def test_it_says_what_it_did(log: StoredLog, tmp_path: Path) -> None:
    """It prints one sentence, or with --json a line for each segment and one for the whole run."""
    to = str(tmp_path / "archive")
    done = rewind("--from", log.path, "--to", to, "--no-tell", "--rows", "20")
    assert (done.exit_code, done.output) == (
        0,
        f"archived 45 messages; {to} has the log up to message 50 in 3 files\n",
    )
    log.publish(10)
    lines = rewind("--from", log.path, "--to", to, "--no-tell", "--json").stdout.splitlines()
    segment, whole = map(json.loads, lines)
    assert (segment["first"], segment["last"], segment["rows"]) == (51, 60, 9)
    assert whole == {"archivedMsgId": 60, "rows": 9, "files": 4}
    compacted = rewind("compact", "--to", to, "--all")
    assert compacted.stdout == f"{to} has 1 file now; 4 files replaced\n"
    assert compacted.stderr.endswith("with 54 messages in place of 4 files\n")
    assert rewind("vacuum", "--to", to).stdout == f"0 files removed from {to}\n"
    stray = tmp_path / "archive" / "tmpx.tmp"
    stray.touch()
    os.utime(stray, (1, 1))
    assert rewind("vacuum", "--to", to, "--hours", "1").stdout == f"1 file removed from {to}\n"
    assert not stray.exists()


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["--from", "{data}"], 2, "Missing option '--to'"),
        (["--from", "{data}", "--to", "{tmp}/a"], 1, "The archive is whole, but the gateway was not told"),
        (["--from", "{tmp}/none", "--to", "{tmp}/a"], 1, "path is the data folder of a gateway on this host"),
        (["--from", "amqp://a/b", "--to", "{tmp}/a"], 2, "for example amqp://127.0.0.1:5672"),
        (
            ["--from", "{data}", "--to", "xyz://a"],
            1,
            "is not a place for an archive: pyarrow does not know it",
        ),
        (["--from", "{data}", "--to", "{tmp}/data/default.db/x"], 1, "cannot be used"),
        (["compact", "--to", "{tmp}/data/default.db"], 1, "cannot be used"),
        (["compact", "--to", "{tmp}/none"], 1, "There is no archive at "),
        (["vacuum", "--to", "{tmp}/none"], 1, "There is no archive at "),
    ],
    ids=str,
)
def test_what_is_wrong_is_one_sentence(
    log: StoredLog, tmp_path: Path, arguments: list[str], status: int, sentence: str
) -> None:
    """The exit status is 2 for wrong usage and 1 for a failure, and no stack trace is printed."""
    given = [argument.format(data=log.path, tmp=tmp_path) for argument in arguments]
    done = rewind(*given, *([] if given[0] in ("compact", "vacuum") else ["--admin", "http://127.0.0.1:9"]))
    assert done.exit_code == status
    assert sentence in done.output


def test_without_pyarrow_it_says_what_to_install(
    log: StoredLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyarrow is optional: the gateway is installed without it, and only this command needs it."""

    with monkeypatch.context() as patched:
        for name in ("gateway.cli.archiving", "store.archive.archiver", "store.archive.maintenance"):
            patched.delitem(sys.modules, name, raising=False)
        patched.setitem(sys.modules, "pyarrow", None)
        done = rewind("--from", log.path, "--to", str(tmp_path / "a"))
    assert done.exit_code == 1
    assert done.output == ("Error: an archive needs pyarrow: pip install 'rewind-gateway[archive]'\n")


def shown(gateway: GatewayProcess) -> dict[str, int]:
    """The administration's description of the log."""
    found: dict[str, int] = gateway.ask("GET", "monitor", "/replayLogs/default")
    return found


@pytest.mark.system
def test_a_full_log_is_freed_by_the_archiver_that_follows_it(tmp_path: Path) -> None:
    """A log with a quota of 1 MB that keeps what is not archived takes more than 2 MB: each message is archived over
    AMQP and only then trimmed, refused publishers can go on, and SIGTERM ends the archiver with status 0."""
    config = "[vpn.default.replay_log]\nkeep_until_archived = true\nquota_mb = 1\n"
    gateway = GatewayProcess(tmp_path / "data", config)
    to = str(tmp_path / "archive")
    admin = gateway.ready["admin"]
    try:
        url = "amqp://{}:{}".format(*gateway.address)
        place = ["--from", url, "--to", to, "--admin", admin, "--follow", "--age", "0"]
        process = subprocess.Popen([sys.executable, "-m", "gateway", "archive", *place], cwd=ROOT)
        try:
            wait_until((tmp_path / "archive" / "_delta_log").is_dir, "the archiver has begun")
            with Client(url) as client:
                sender = client.sender("topic://a")
                left = 250
                while left:
                    delivery = sender.send(text(b"%d " % left + b"x" * 10_000, "a"))
                    left -= client_took(sender.outcome(delivery))
                    delivery.settle()

            wait_until(lambda: shown(gateway)["archivedMsgId"] == 250, "all is archived")
            assert shown(gateway)["firstMsgId"] > 100
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0
        found = table("offset bigint, body binary", url=url, archive=to)
        assert found.column("offset").to_pylist() == list(range(1, 251))
        assert [int(row.split()[0]) for row in found.column("body").to_pylist()] == list(range(250, 0, -1))
    finally:
        gateway.kill()


@pytest.mark.system
def test_a_gateway_archives_its_log_itself(tmp_path: Path) -> None:
    """
    The gateway's archiver archives the messages from before the start and the new ones. It is restarted if it is
    killed, and ends when the gateway stops or is killed.
    """
    to = tmp_path / "archive"
    config = f'[vpn.default.archive]\nto = "{to}"\nage_seconds = 1\n'

    def publish(gateway: GatewayProcess, count: int) -> None:
        with Client("{}:{}".format(*gateway.address)) as client:
            client.sender("topic://a").send_all([text(b"x", "a")] * count)

    def archivers() -> list[int]:
        """Processes that archive the log of this test."""
        found = subprocess.run(
            ["pgrep", "-f", f"{PROGRAM} {to}"], capture_output=True, text=True, check=False
        )
        return [int(line) for line in found.stdout.split()]

    gateway = GatewayProcess(tmp_path / "data")
    publish(gateway, 10)
    assert gateway.stop() == 0
    gateway = GatewayProcess(tmp_path / "data", config)
    try:
        wait_until(lambda: shown(gateway)["archivedMsgId"] == 10, "what was there is archived")
        (first,) = archivers()
        os.kill(first, signal.SIGKILL)
        publish(gateway, 5)
        wait_until(lambda: archivers() not in ([], [first]), "another one has begun")
        wait_until(lambda: shown(gateway)["archiveLastMsgId"] == 15, "it goes on")
        assert ids(archive=str(to)) == list(range(1, 16))
    finally:
        gateway.kill()
    wait_until(lambda: archivers() == [], "it ends with a gateway that is killed")
    gateway = GatewayProcess(tmp_path / "data", config)
    wait_until(archivers, "one has begun")
    assert gateway.stop() == 0
    wait_until(lambda: archivers() == [], "it ends with a gateway that stops")


def client_took(outcome: str | None) -> int:
    """1 if the gateway accepted the message, 0 if its full log rejected it and the publisher has to try again."""
    assert outcome in {"ACCEPTED", "REJECTED"}
    return int(outcome == "ACCEPTED")


# --- DuckDB, Polars and PyArrow read the archive ----------------------------------------------------------------------

GUIDE = Path(__file__).parents[3] / "docs/guides/archive.md"
COLUMNS = ("offset", "topic", "body", "messageId")
(EXTENSION,) = (Path(duckdb_extension_delta.__file__).parent / "extensions").glob("*/delta.duckdb_extension")


def of_duckdb(place: str) -> list[dict[str, Any]]:
    with duckdb.connect() as database:
        database.load_extension(str(EXTENSION))
        wanted = ", ".join(f'"{name}"' for name in COLUMNS)  # offset is a word of SQL
        rows = database.execute(f"select {wanted} from delta_scan('{place}')").fetchall()
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def of_polars(place: str) -> list[dict[str, Any]]:
    return polars.scan_delta(place).select(COLUMNS).collect().to_dicts()


def of_pyarrow(place: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        DeltaTable(place).to_pyarrow_dataset().to_table(columns=list(COLUMNS)).to_pylist()
    )
    return rows


@pytest.fixture
def two_days_log(tmp_path: Path) -> StoredLog:
    log = two_days(tmp_path / "data")
    archiver(log, str(tmp_path / "archive")).run()
    return log


@pytest.mark.parametrize("read", [of_duckdb, of_polars, of_pyarrow])
@pytest.mark.usefixtures("two_days_log")
def test_an_engine_reads_what_was_archived(
    tmp_path: Path, read: Callable[[str], list[dict[str, Any]]]
) -> None:
    place = str(tmp_path / "archive")
    expected = table("offset bigint, topic string, body binary, messageId string", archive=place).to_pylist()
    assert sorted(read(place), key=lambda row: int(row["offset"])) == expected


def test_the_guides_sql_runs(tmp_path: Path, two_days_log: StoredLog) -> None:
    """The guide's example for DuckDB runs as printed, but for the topic and the interval, and counts every message."""
    found = re.search(r"```python\n(import duckdb.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found is not None
    script = found[1].replace("orders/%", "n/%").replace("interval 7 day", "interval 9000 day")
    load = f"import duckdb\nduckdb.load_extension({str(EXTENSION)!r})\n"
    command = [sys.executable, "-c", load + script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "orders" in done.stdout, done.stdout
    counts = [int(line.split("│")[2]) for line in done.stdout.splitlines() if re.match(r"│ \d{4}-", line)]
    assert sum(counts) == len(two_days_log.logged), done.stdout


# --- SIGKILL while the archive is read, and while it is written -------------------------------------------------------

KILLS = 4
MESSAGES = 3_000
BELOW = 2_401
"""Messages below this id are in the archive only."""

Start = Callable[[], GatewayProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """
    Starts gateways on one data folder, one after another; none of them may log a mistake.

    The log begins with ``MESSAGES`` messages that the queue has settled. All of them are archived, and those below
    ``BELOW`` are trimmed.
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
    trimmed = first.ask("PUT", "action", "/replayLogs/default/trimLoggedMsgs", {"before": f"#{BELOW}"})
    assert trimmed["firstMsgId"] == BELOW
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


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_readers_go_on_out_of_the_archive(start: Start) -> None:
    """
    The gateway is killed again and again while readers read the archive. They begin again after their last message, and
    get each message once, in order, from the archive, from the log and live.
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


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_replay_goes_on_out_of_the_archive(start: Start) -> None:
    """
    The gateway is killed again and again during an endpoint replay. A message whose settlement was confirmed never
    comes again. All that the consumer did not settle comes, in order on each link, from the archive, the log and live.
    """
    dice = chance()
    settled: set[int] = set()
    """Settled by the consumer; the gateway may have been killed before it received that."""
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
            # The consumer settles in any order, and leaves some messages unsettled.
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


ROUNDS = 6
"""How often writers of an archive are killed."""


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_writers_leave_the_archive_the_log(tmp_path: Path) -> None:
    """
    Two archivers and a process that compacts and erases are killed at any moment and restarted. At each look the table
    has the log's beginning without a gap, each id once, and in the end the whole log, bit for bit.
    """
    dice = chance()
    log, to = StoredLog(tmp_path / "data"), str(tmp_path / "archive")
    log.publish(20)
    archiver(log, to).run()
    log.erase([7], *WHEN)
    maintenance.erase(storage_at(to), {7: WHEN})

    def begin(target: Callable[..., None], *arguments: str) -> BaseProcess:
        process = FORKING.Process(target=target, args=arguments, daemon=True)
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
