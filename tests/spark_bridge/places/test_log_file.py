"""The log read from the gateway's file: the same rows as over AMQP, and no row silently missing."""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from adbc_driver_manager import AdbcStatusCode, OperationalError
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from amqp_ext.codec import Described, Symbol, Timestamp, UByte, UInt, encode
from amqp_ext.message.annotations import NO_BODY
from spark_bridge.columns.message_block import PAGE_BYTES, PAGE_ROWS
from spark_bridge.errors import OptionError, Refused
from spark_bridge.options import Folder, parse
from spark_bridge.places import file_place
from spark_bridge.places.file_place import FilePlace, LogFile
from spark_bridge.source import DDL
from store.archive.errors import ConnectionFailed, DataLoss
from store.archive.source import IdRange
from tests.spark_bridge.log_gateway import LogGateway
from tests.spark_bridge.reading import plan, read, rows, source, streaming, table
from tests.spark_bridge.spark_types import struct
from tests.spark_bridge.stored_log import StoredLog
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.system]
HEADER, ANNOTATIONS, PROPERTIES, APPLICATION, DATA, SEQUENCE, VALUE = 0x70, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77
VALUES: list[Any] = [
    None, True, False, UByte(7), UInt(1 << 31), -(1 << 62), 1.5, "", "Grüße 🐝", Symbol("sym"), b"", b"\0\xff",
    Timestamp(1_700_000_000_123), UUID(int=5), [1, "a", None], {"k": [1, {"x": b"y"}]},
]  # fmt: skip


def message(*sections: Described, topic: str = "t/a") -> bytes:
    """A message of these sections, with a properties section for the topic in its place."""
    front = [section for section in sections if section.descriptor in {HEADER, ANNOTATIONS}]
    rest = [section for section in sections if section.descriptor not in {HEADER, ANNOTATIONS}]
    properties = Described(
        PROPERTIES, ["id", b"user", f"topic://{topic}", "subject", None, 17, Symbol("text/plain")]
    )
    return b"".join(encode(section) for section in (*front, properties, *rest))


EVERY_KIND = [
    message(Described(DATA, b"")),
    message(Described(DATA, b"plain")),
    message(Described(DATA, b"several "), Described(DATA, b"sections")),
    message(Described(DATA, bytes(range(256)) * 4096)),
    message(Described(SEQUENCE, [1, "two"]), Described(SEQUENCE, [])),
    *(message(Described(VALUE, value)) for value in VALUES),
    message(Described(HEADER, [True, UByte(9), UInt(5_000)]), Described(DATA, b"header")),
    message(
        Described(ANNOTATIONS, {Symbol("x-opt-mine"): "kept", Symbol("x-opt-offset"): "forged"}),
        Described(DATA, b"annotated"),
    ),
    message(
        Described(
            APPLICATION,
            {f"k{n}": value for n, value in enumerate(VALUES) if not isinstance(value, list | dict)},
        ),
        Described(DATA, b"properties"),
    ),
    message(Described(DATA, b"elsewhere"), topic="t/b/ü"),
    encode(Described(PROPERTIES, [None, None, "topic://t/c"])) + b"\x00\x53\x75\xb0\x00\x00\x00\x01x",
]


OFFSETS = (("offset", "offset"),)
LAST = 2_501 + len(EVERY_KIND)
"""The last id after ``fill``."""
ERASED = [700, 1_000, LAST]
"""The ids that ``fill`` erases: two messages with few sections, and one with many."""


def fill(gateway: LogGateway) -> None:
    """Publish 2,500 small messages, ``EVERY_KIND``, and one more, and erase some of them."""
    gateway.publish(message(Described(DATA, b"%d" % n), topic=f"n/{n % 3}") for n in range(2_500))
    gateway.publish(EVERY_KIND)
    header = Described(HEADER, [True, UByte(9), UInt(5_000)])
    annotations = Described(ANNOTATIONS, {Symbol("x-opt-theirs"): "a secret"})
    properties = Described(APPLICATION, {"k": "a secret"})
    gateway.publish([message(header, annotations, properties, Described(DATA, b"a secret"), topic="erased")])
    gateway.erase(*ERASED, reason="asked to")


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A running gateway's url and data folder; see ``fill``."""
    with LogGateway(tmp_path_factory.mktemp("gateway")) as gateway:
        fill(gateway)
        yield gateway.url, gateway.path


@pytest.fixture(scope="module")
def trimmed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LogGateway]:
    """A running gateway with a rule of retention that has removed about half of the messages on debug/>."""
    rule = '[[vpn.default.replay_log.retention]]\ntopics = ["debug/>"]\nquota_mb = 1'
    with LogGateway(tmp_path_factory.mktemp("trimmed"), rule) as gateway:
        content = Described(DATA, b"x" * 20_000)
        gateway.publish(message(content, topic=topic) for topic in ("debug/a", "orders/a") * 100)
        of_rule = {"path": gateway.path, "subscribe": "debug/>", "failOnDataLoss": "false"}
        wait_until(lambda: table("offset bigint", **of_rule).num_rows < 52, "the rule is kept to")
        yield gateway


SELECTIONS: list[dict[str, str]] = [
    {},
    {"subscribe": "t/>"},
    {"subscribe": "n/1,t/b/*,!n/2"},
    {"startingOffsets": "100", "endingOffsets": "2400"},
    {"minPartitions": "5", "replayStart": "last"},
    {"replayStart": "last", "subscribe": "n/1"},
    {"replayStart": "last", "subscribe": "n/0,n/1"},
    {"replayStart": "last", "subscribe": "none"},
    {"replayStart": "last:700", "subscribe": "n/1"},
    {"replayStart": "last:1000000"},
    {"replayStart": "2001-01-01T00:00:00Z", "failOnDataLoss": "false"},
    {"replayStart": "1000D", "failOnDataLoss": "false"},
    {"replayStart": "#99999", "failOnDataLoss": "false"},
    {"replayStart": "live"},
    {"startingTimestamp": "0"},
    {"endingTimestamp": "0"},
    {"startingTimestamp": "9999999999999"},
]
"""Options that have to give the same rows from every place."""

REFUSALS: list[tuple[dict[str, str], type[Exception], str]] = [
    ({"startingOffsets": "99999"}, DataLoss, "#99999 is not in it"),
    ({"endingOffsets": "99999"}, OptionError, "is beyond the log"),
    ({"replayStart": "message-id:x"}, OptionError, "has to be resolved by a gateway; give a url"),
    ({"replayStart": "point:none"}, OptionError, "no such point"),
    ({"replayStart": "nonsense"}, OptionError, "is not a replay start"),
    ({"replayStart": "2999-01-01T00:00:00Z"}, OptionError, "is in the future"),
    ({"replayStart": "2001-01-01T00:00:00Z"}, DataLoss, "does not reach back"),
]
"""Starts and ends that a log read from its store refuses."""


@pytest.mark.parametrize("options", SELECTIONS, ids=str)
def test_path_and_url_give_the_same_rows(gateway: tuple[str, str], options: dict[str, str]) -> None:
    """Bodies of every kind, nulls, Unicode, empty ones and a megabyte are equal in every column."""
    url, path = gateway
    ours, theirs = table(path=path, **options), table(url=url, **options)
    assert ours.to_pylist() == theirs.to_pylist()
    assert ours.schema == theirs.schema


def test_what_a_gateway_does_not_have_of_a_read_is_told(gateway: tuple[str, str]) -> None:
    """
    A missing Message VPN is an error; a start is refused with the gateway's error; a range planned on a longer log or
    another generation is data loss. A range without a matching message is complete without rows.
    """
    whole = parse({"url": gateway[0]})
    ids = plan(whole)
    with pytest.raises(ConnectionFailed, match="there is no Message VPN 'none'"):
        plan(parse({"url": gateway[0], "messageVpn": "none"}))
    assert plan(parse({"url": gateway[0], "messageVpn": "default"})) == ids
    with pytest.raises(Refused) as caught:
        plan(parse({"url": gateway[0], "startingOffsets": "99999999"}))
    assert caught.value.condition == "amqp:precondition-failed"
    assert caught.value.info["rewind:replay-error"] == "start-message-unavailable"
    for planned, sentence in (
        (replace(ids, last=LAST + 1), f"the log ends at {LAST} now"),
        (replace(ids, generation=(ids.generation or 0) + 1), "cannot be read any more"),
    ):
        with pytest.raises(DataLoss, match=sentence):
            list(read(whole, OFFSETS, planned))
    assert list(read(parse({"url": gateway[0], "subscribe": "n/1"}), OFFSETS, replace(ids, last=1))) == []


def are_markers(found: pa.Table) -> bool:
    """Whether the rows are the markers of ``ERASED``: no contents, but the header and the reason of the erasure."""
    rows = found.to_pylist()
    says = [dict(row.pop("systemProperties")) for row in rows]
    assert [row["offset"] for row in rows] == ERASED
    assert {(row["body"], row["bodyType"], row["messageId"]) for row in rows} == {(NO_BODY, "value", None)}
    assert all(told["x-opt-erased-reason"] == "asked to" and "x-opt-erased-time" in told for told in says)
    assert (says[-1]["priority"], says[-1].get("x-opt-theirs")) == ("9", None)
    return not any("secret" in str(row) for row in rows)


@pytest.mark.parametrize("subscribe", [">", "debug/>", "orders/>"])
def test_what_a_rule_of_retention_took_out_is_missing_everywhere(trimmed: LogGateway, subscribe: str) -> None:
    """By url and by path the same messages are read: those that the rule kept, and all of other topics."""
    from_url, from_path = (
        table("offset bigint, topic string", subscribe=subscribe, **where)
        for where in ({"url": trimmed.url}, {"path": trimmed.path})
    )
    assert from_url.equals(from_path)
    topics = from_url.column("topic").to_pylist()
    assert topics.count("orders/a") == (0 if subscribe == "debug/>" else 100)
    assert (40 < topics.count("debug/a") < 52) == (subscribe != "orders/>")


def test_what_a_gateway_takes_out_of_a_planned_range_is_data_loss_or_left_out(trimmed: LogGateway) -> None:
    """By url and by path, with one pattern or several, removals after the plan fail reads of the topics only."""
    ddl = "offset bigint, topic string"
    selections: dict[str, dict[str, str]] = {
        "strict": {"subscribe": "debug/>"},
        "several": {"subscribe": "orders/>,debug/>"},
        "other": {"subscribe": "orders/>"},
        "others": {"subscribe": "orders/>,none"},
        "lenient": {"subscribe": ">", "failOnDataLoss": "false"},
    }
    ways = ({"url": trimmed.url}, {"path": trimmed.path})
    planned = [
        {name: source(**way, **options).reader(struct(ddl)) for name, options in selections.items()}
        for way in ways
    ]
    of_rule = {"path": trimmed.path, "subscribe": "debug/>", "failOnDataLoss": "false"}
    gone = table(ddl, **of_rule).column("offset")[5].as_py()
    trimmed.publish(message(Described(DATA, b"x" * 20_000), topic="debug/a") for _ in range(10))
    wait_until(lambda: table(ddl, **of_rule).column("offset")[0].as_py() > gone, "the rule is kept to")
    for readers in planned:
        found: dict[str, list[str]] = {}
        for name, reader in readers.items():
            if name in ("strict", "several"):
                with pytest.raises(DataLoss, match=r"retention rule removed messages"):
                    rows(reader)
            else:
                found[name] = rows(reader).column("topic").to_pylist()
        assert found["other"] == found["others"] == ["orders/a"] * 100
        assert 20 < found["lenient"].count("debug/a") < 47 and found["lenient"].count("orders/a") == 100
    for way in ways:
        assert table(ddl, **way, subscribe="debug/>").num_rows > 40


def test_an_erased_message_is_a_row_without_its_content(gateway: tuple[str, str]) -> None:
    """By url and by path an erased message is a marker, with its offset and topic."""
    url, path = gateway
    for way in ({"url": url}, {"path": path}):
        whole = table(**way)
        assert are_markers(whole.filter(pc.is_in(whole["offset"], pa.array(ERASED))))
        assert whole["topic"].to_pylist()[699] == "n/0"


def test_the_last_message_is_one_that_is_read(gateway: tuple[str, str]) -> None:
    """With topics, replayStart=last is the newest message on one of them, not the newest of the log."""
    for way in ({"url": gateway[0]}, {"path": gateway[1]}):
        for subscribe, last in (("n/1", 2_498), ("n/0,n/1", 2_500)):
            options = way | {"replayStart": "last", "subscribe": subscribe}
            assert table("offset bigint", **options).column(0).to_pylist() == [last]


@pytest.mark.parametrize(
    "ddl", ["body binary", "offset bigint, topic string", "replayId string, body binary", DDL]
)
def test_few_columns_are_those_of_many(gateway: tuple[str, str], ddl: str) -> None:
    """A schema with few columns has the same values in them as the whole schema."""
    _, path = gateway
    assert (
        table(ddl, path=path).to_pylist()
        == table(path=path).select(table(ddl, path=path).column_names).to_pylist()
    )


def test_all_kinds_of_body_are_there(gateway: tuple[str, str]) -> None:
    """The messages that other tests compare include bodies of every kind, and one of a megabyte."""
    kinds = table("body binary, bodyType string", path=gateway[1], subscribe="t/>").to_pylist()
    assert len(kinds) == len(EVERY_KIND)
    assert {row["bodyType"] for row in kinds} == {"data", "sequence", "value"}
    assert max(len(row["body"]) for row in kinds) == 1 << 20


def copy(path: str, folder: Path, *statements: str) -> str:
    """Copy the gateway's file as it is now, and change the copy by SQL."""
    with (
        closing(sqlite3.connect(Path(path) / "default.db")) as original,
        closing(sqlite3.connect(folder / "default.db")) as changed,
    ):
        original.backup(changed)
    change(folder, *statements)
    return str(folder)


def change(folder: Path, *statements: str) -> None:
    """Change a file by SQL, as a gateway might during a read."""
    with closing(sqlite3.connect(folder / "default.db")) as connection, connection:
        for statement in statements:
            connection.execute(statement)


@pytest.mark.parametrize(
    ("changes", "sentence", "left", "lost"),
    [
        (
            ("update log set first_id = 1001", "delete from message where id <= 1000"),
            "offset 1 was to be read, and the log begins at 1001 now",
            range(1_001, LAST + 1),
            "1 to 1000",
        ),
        (
            ("update log set last_id = 1000", "delete from message where id > 1000"),
            "the log ends at 1000 now",
            range(1, 1_001),
            f"1001 to {LAST}",
        ),
        (("update log set generation = generation + 1",), "was recreated", (), f"1 to {LAST}"),
    ],
    ids=["trimmed", "restored", "made anew"],
)
def test_what_is_gone_of_a_planned_range_is_data_loss_or_left_out(
    gateway: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: tuple[str, ...],
    sentence: str,
    left: Sequence[int],
    lost: str,
) -> None:
    """
    After the plan, messages are trimmed, or the log is restored from an older copy or recreated with the same ids. A
    read fails; with failOnDataLoss=false it gives what is left, and warns.
    """
    path = copy(gateway[1], tmp_path)
    strict, lenient = (
        source(path=path, minPartitions="1", failOnDataLoss=fails).reader(struct("offset bigint"))
        for fails in ("true", "false")
    )
    change(tmp_path, *changes)
    with pytest.raises(DataLoss, match=sentence):
        rows(strict)
    assert rows(lenient).column(0).to_pylist() == list(left)
    assert f"Offsets {lost} are no longer in the log" in capsys.readouterr().err


RULE_TAKES_OUT = [
    """insert into retention (rule, below, whole_time) values ('[["n/1"]]', {below}, 9999999999999)
    on conflict (rule) do update set below = excluded.below""",
    "delete from message where topic = 'n/1' and id < {below}",
]


def take_out(folder: Path, below: int) -> None:
    """Remove the messages on n/1 (ids 2, 5, 8 and so on) below an id, as a rule of retention does."""
    change(folder, *(statement.format(below=below) for statement in RULE_TAKES_OUT))


def test_what_a_rule_takes_out_of_a_planned_range_is_data_loss_or_left_out(
    gateway: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """
    Messages that a rule of retention removes after the plan fail the read, unless failOnDataLoss=false. Earlier
    removals, and removals of other topics or ids, do not.
    """
    path = copy(gateway[1], tmp_path)
    take_out(tmp_path, 600)
    one = {"path": path, "minPartitions": "1"}
    ddl = struct("offset bigint, topic string")
    strict, lenient, other, behind = (
        source(**one, **more).reader(ddl)
        for more in (
            {},
            {"failOnDataLoss": "false"},
            {"subscribe": "!n/1"},
            {"startingOffsets": "1200"},
        )
    )
    halves = source(path=path, endingOffsets="1200", minPartitions="2").reader(ddl)
    expected = table("offset bigint", path=path).num_rows

    first, second = halves.partitions()
    assert rows(strict).num_rows == expected
    take_out(tmp_path, 1_000)
    with pytest.raises(DataLoss, match="removed messages from the log since the read was planned"):
        rows(strict)
    with pytest.raises(DataLoss, match="between offsets 600 and 1199"):
        list(halves.read(second))
    assert sum(batch.num_rows for batch in halves.read(first)) == 599 - 200
    assert rows(behind).num_rows > 1_000 and rows(other).num_rows > 1_500
    assert rows(lenient).num_rows == table("offset bigint", path=path).num_rows == expected - 133
    assert "a retention rule removed some from the log; they are left out" in capsys.readouterr().err


@pytest.mark.parametrize("start", ["#10", "2020-01-01T00:00:00Z"])
def test_a_start_in_what_a_rule_took_out_is_refused(
    gateway: tuple[str, str], tmp_path: Path, start: str
) -> None:
    """A start among removed messages is refused, but not for other topics, or with failOnDataLoss=false."""
    path = copy(gateway[1], tmp_path, "update log set floor_time = 0")
    take_out(tmp_path, 600)
    options = {"path": path, "replayStart": start}
    with pytest.raises(DataLoss, match="up to offset 599 a retention rule removed some"):
        table("offset bigint", **options)
    assert table("offset bigint", **options, subscribe="n/0").num_rows > 800
    assert table("offset bigint", **options, failOnDataLoss="false").num_rows > 2_000
    assert table("offset bigint", path=path, replayStart="#600").num_rows > 1_800


def test_a_stream_is_told_of_what_a_rule_takes_out_before_it_comes_to_it(
    gateway: tuple[str, str], tmp_path: Path
) -> None:
    """
    A stream's offset records which messages had been removed when it was made. Those do not fail a batch; messages
    removed later do, unless the batch ends before them.
    """
    path = copy(gateway[1], tmp_path)
    take_out(tmp_path, 600)
    with streaming("offset bigint", path=path, startingOffsets="earliest") as stream:
        start = stream.initialOffset()
        middle = stream.latestOffset(start, ReadMaxRows(300))
        end = stream.latestOffset(middle, ReadAllAvailable())
        place = FilePlace(Folder(path)).name
        assert [found[place].get("takenBelow") for found in (start, middle, end)] == [[600], [600], None]

        def count(first: Any, last: Any) -> int:
            return sum(
                batch.num_rows for part in stream.partitions(first, last) for batch in stream.read(part)
            )

        assert (count(start, middle), count(middle, end)) == (200, LAST - 300 - 100)
        take_out(tmp_path, 1_000)
        assert count(start, middle) == 200
        with pytest.raises(DataLoss, match="since the read was planned"):
            count(middle, end)


def test_what_is_no_log_is_explained(tmp_path: Path) -> None:
    """A folder without a store, and a file that is no database, have an error each."""
    with pytest.raises(ConnectionFailed, match=r"There is no .*default\.db; path is the data folder"):
        source(path=str(tmp_path)).schema()
    (tmp_path / "default.db").write_bytes(b"no database" * 100)
    with pytest.raises(ConnectionFailed, match="cannot be read as a gateway's file"):
        source(path=str(tmp_path)).schema()


def test_a_folder_that_may_not_be_written_to_is_explained(
    gateway: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error explains why SQLite wants to write, though the user only reads."""

    def statement(_connection: object) -> None:
        raise OperationalError("attempt to write a readonly database", status_code=AdbcStatusCode.IO)

    monkeypatch.setattr(file_place, "AdbcStatement", statement)
    with pytest.raises(ConnectionFailed, match="Where no gateway is running, SQLite has to create files"):
        LogFile(Folder(gateway[1]))


@pytest.mark.parametrize(("options", "error", "sentence"), REFUSALS)
def test_a_start_or_end_the_log_does_not_have_is_refused(
    gateway: tuple[str, str], options: dict[str, str], error: type[Exception], sentence: str
) -> None:
    """As over AMQP, a start or end that the log does not have is an error."""
    with pytest.raises(error, match=sentence):
        table(path=gateway[1], **options)


def test_a_page_is_bounded_by_bytes(gateway: tuple[str, str]) -> None:
    """Pages of large messages are shorter, and no message is lost between two pages."""
    with LogFile(Folder(gateway[1])) as file:
        extent = file.extent()
        pages = list(file.pages(IdRange(1, extent.last, extent.generation)))
    assert [number for page in pages for number in page.column("id").to_pylist()] == list(
        range(1, extent.last + 1)
    )
    assert max(map(len, pages)) <= PAGE_ROWS
    assert max(page.column("content").nbytes for page in pages) <= PAGE_BYTES + (2 << 20)
    assert len(pages) < 8


def test_a_page_is_bounded_before_the_log_s_row_has_the_largest_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log's row is written now and then: pages are bounded by messages that it does not count yet, too."""
    log = StoredLog(tmp_path)
    log.publish(8)
    monkeypatch.setattr(file_place, "PAGE_BYTES", 20)
    monkeypatch.setattr(file_place, "LIGHT_ROWS", 20)
    with LogFile(Folder(log.path)) as file:
        assert file.one("select largest_bytes from log") == (0,)
        assert [len(page) for page in file.pages(file.extent())] == [1] * 8


@pytest.mark.parametrize("fitting", [1, 40, 900])
def test_pages_of_any_size_bring_each_message_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fitting: int
) -> None:
    """Pages of any bound have each message once, are not too large, and are filled to at least a third on average."""
    log = StoredLog(tmp_path)
    log.publish(2_500)
    with LogFile(Folder(log.path)) as file:
        extent = file.extent()
        (largest,) = file.one("select largest_bytes from log")
        monkeypatch.setattr(file_place, "PAGE_BYTES", fitting * largest)
        monkeypatch.setattr(file_place, "LIGHT_ROWS", 100)
        pages = list(file.pages(extent))
    assert [number for page in pages for number in page.column("id").to_pylist()] == log.logged
    sizes = [sum(map(len, page.column("content").to_pylist())) for page in pages]
    assert max(sizes) <= (fitting + 1) * largest
    assert sum(sizes[:-1]) >= (len(sizes) - 1) * fitting * largest // 3, "pages are filled"


WRITER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=0)
with connection:
    connection.execute("update log set last_time = last_time + 1")
is_busy, *_ = connection.execute("pragma wal_checkpoint(truncate)").fetchone()
print(is_busy)
"""


def test_between_two_pages_the_wal_can_begin_anew(gateway: tuple[str, str], tmp_path: Path) -> None:
    """A read holds no snapshot between two pages, so a slow consumer does not keep the WAL from being truncated."""
    path = copy(gateway[1], tmp_path)
    with LogFile(Folder(path)) as file:
        extent = file.extent()
        pages = file.pages(extent)
        count = next(pages).num_rows
        command = [sys.executable, "-c", WRITER, f"{path}/default.db"]
        writer = subprocess.run(command, capture_output=True, text=True, check=True)
        assert writer.stdout == "0\n"
        assert count + sum(page.num_rows for page in pages) == extent.last


CRASHED = """
import apsw, os, sys
connection = apsw.Connection(sys.argv[1])
connection.execute("pragma wal_autocheckpoint = 0").fetchall()
connection.execute("update log set last_time = last_time + 1")
os._exit(0)
"""


def test_reading_writes_nothing(gateway: tuple[str, str], tmp_path: Path) -> None:
    """
    Neither reading nor closing checkpoints what a crash left in the WAL. As the reader writes nothing, the version of
    its SQLite does not matter.
    """
    path = copy(gateway[1], tmp_path)
    file, wal = Path(path) / "default.db", Path(path) / "default.db-wal"
    subprocess.run([sys.executable, "-c", CRASHED, str(file)], check=True)
    before = file.read_bytes(), wal.read_bytes()
    assert before[1]
    with LogFile(Folder(path)) as opened:
        assert sum(page.num_rows for page in opened.pages(opened.extent()))
    assert (file.read_bytes(), wal.read_bytes()) == before
