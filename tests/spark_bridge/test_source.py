"""The data source as Spark uses it, without Spark."""

from __future__ import annotations

import gc
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType

from amqp_ext.codec import Described, encode
from amqp_ext.message.sections import to_address
from spark_bridge.amqp_client.wire import Broker
from spark_bridge.columns.single_message import PROPERTY_AT, MessageDecoder
from spark_bridge.errors import OptionError, SchemaError
from spark_bridge.options import MEANINGS, Folder, Mode, Options, Schema, Selection, parse
from spark_bridge.places.broker_place import PAGE_ROWS
from spark_bridge.source import LogReader, chosen
from spark_bridge.stream import LogPartition, settle, shares
from spark_bridge.writer import encoded
from store.archive.columns import ARROW_TYPES, COLUMNS, arrow_schema
from store.archive.errors import ConnectionFailed, DataLoss
from store.archive.source import IdRange
from tests.spark_bridge.log_peer import LogPeer, annotated, data
from tests.spark_bridge.reading import source, streaming
from tests.spark_bridge.spark_types import struct

pytestmark = pytest.mark.spark


# --- The batch reader as Spark uses it: schema, reader, partitions, read, with pickling in between --------------------

SCHEMA = StructType([StructField("offset", LongType()), StructField("topic", StringType())])


def rows(reader: LogReader) -> list[tuple[int, str]]:
    """All rows of a reader, read by pickled copies, as Spark makes them."""
    batches = [
        batch
        for partition in pickle.loads(pickle.dumps(reader.partitions()))
        for batch in pickle.loads(pickle.dumps(reader)).read(partition)
    ]
    assert all(batch.schema == to_arrow_schema(SCHEMA, timezone="UTC") for batch in batches)
    return [(row["offset"], row["topic"]) for batch in batches for row in batch.to_pylist()]


def test_what_spark_loads_in_each_of_its_processes_is_no_more_than_a_log_needs() -> None:
    """Processes that read no archive import neither pandas nor the Parquet modules, which saves half a second each."""
    heavy = {"pandas", "pyarrow.dataset", "pyarrow.parquet", "pyarrow.fs"}
    code = f"import sys, spark_bridge.source; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


@pytest.fixture
def peer(log_peer: LogPeer) -> LogPeer:
    """A log of 30 messages on topics a and b."""
    log_peer.messages = {n: annotated(n, data(b"x"), topic="ab"[n % 2]) for n in range(1, 31)}
    return log_peer


def test_a_dataframe_is_what_the_log_held_at_load(peer: LogPeer) -> None:
    """Messages that arrive after ``schema()`` are never part of the same DataFrame."""
    loaded = source(url=peer.url)
    loaded.schema()
    shipped = pickle.loads(pickle.dumps(loaded))
    peer.messages[31] = annotated(31, data(b"late"))
    assert rows(shipped.reader(SCHEMA)) == [(n, "ab"[n % 2]) for n in range(1, 31)]


@pytest.mark.parametrize(
    ("subscribe", "expected"),
    [("a,b", range(1, 31)), ("a,zzz", range(2, 31, 2)), (">,!a", range(1, 31, 2)), ("!a", range(1, 31, 2))],
)
def test_several_patterns_are_filtered_by_the_bridge(peer: LogPeer, subscribe: str, expected: range) -> None:
    """The rows match a pattern and no exception, in order, and come from links on the whole log."""
    assert [offset for offset, _ in rows(source(url=peer.url, subscribe=subscribe).reader(SCHEMA))] == list(
        expected
    )
    assert {where for where, _ in peer.attaches} == {"log://>"}


def test_partitions_are_as_many_as_asked(peer: LogPeer) -> None:
    """minPartitions splits the ids evenly, in a list, which Spark insists on."""
    partitions = source(url=peer.url, minPartitions="4").reader(SCHEMA).partitions()
    assert partitions == [
        LogPartition(IdRange(first, last, 7)) for first, last in [(1, 7), (8, 15), (16, 22), (23, 30)]
    ]


def test_an_empty_log_has_one_partition_without_rows(log_peer: LogPeer) -> None:
    """An empty log gives one empty partition, as Spark would call read even without any; it costs no connection."""
    reader = source(url=log_peer.url).reader(SCHEMA)
    assert len(reader.partitions()) == 1
    attaches = len(log_peer.attaches)
    assert rows(reader) == []
    assert len(log_peer.attaches) == attaches


def test_reading_a_partition_again_gives_the_same(peer: LogPeer) -> None:
    """A repeated task, as after a failure, gives the same rows."""
    reader = source(url=peer.url).reader(SCHEMA)
    assert rows(reader) == rows(reader)


@pytest.mark.parametrize("ending", ["error", "drop"])
def test_a_broken_read_is_not_a_short_one(peer: LogPeer, ending: str) -> None:
    """A worker raises DataLoss if its link ends early, or if new connections make no progress."""
    reader = source(url=peer.url, minPartitions="1").reader(SCHEMA)
    peer.stop_after, peer.ending = 12, ending
    with pytest.raises(DataLoss):
        rows(reader)


def test_a_lost_connection_is_made_again_where_the_read_stands(log_peer: LogPeer) -> None:
    """If a connection is dropped before a page is full, the read continues there, and every row comes once."""
    log_peer.messages = {n: annotated(n, data(b"x")) for n in range(1, 7_001)}
    reader = source(url=log_peer.url, minPartitions="1").reader(SCHEMA)
    log_peer.stop_after, log_peer.ending = 2_500, "drop"
    assert [offset for offset, _ in rows(reader)] == list(range(1, 7_001))
    starts = [asked["offset"] for _, asked in log_peer.attaches if not isinstance(asked, str)]
    assert starts == sorted(set(starts)), "each brings the read forward"
    assert starts[0] == 1
    assert max(starts[n + 1] - starts[n] for n in range(len(starts) - 1)) <= 2_500 < PAGE_ROWS


def test_a_peer_that_sends_too_much_is_noticed(peer: LogPeer) -> None:
    """Messages beyond a partition's end, which would make partitions overlap, are an error."""
    reader = source(url=peer.url, minPartitions="2").reader(SCHEMA)
    peer.bounds = False
    with pytest.raises(DataLoss, match="does not keep to the start and end"):
        rows(reader)


def test_bad_options_and_columns_are_told_before_anything_is_read(peer: LogPeer) -> None:
    """``schema()`` and ``reader()`` raise, because Spark shows their errors to the user as they are."""
    with pytest.raises(OptionError, match="Option colour is unknown"):
        source(url=peer.url, colour="red").schema()
    with pytest.raises(SchemaError, match="no column colour"):
        source(url=peer.url).reader(StructType([StructField("colour", BinaryType())]))
    assert peer.attaches == []


def test_errors_survive_pickling() -> None:
    """An error keeps its code and sentence when it is pickled between processes."""
    error = pickle.loads(pickle.dumps(DataLoss("Gone.")))
    assert (type(error), str(error)) == (DataLoss, "[REWIND_DATA_LOSS] Gone.")


def columns(*names: str) -> StructType:
    """A Spark schema of columns of the log."""
    return struct(", ".join(f"{name} {COLUMNS[name]}" for name in names))


@pytest.mark.parametrize("names", [tuple(COLUMNS), tuple(reversed(COLUMNS)), ("topic", "offset")])
def test_the_arrow_schema_is_the_one_spark_derives(names: tuple[str, ...]) -> None:
    """Spark requires the schema of a batch to equal its own in order, types, time zone and nullability."""
    spark = columns(*names)
    assert arrow_schema(chosen(spark)) == to_arrow_schema(spark, timezone="UTC")


def test_a_subset_in_any_order_is_taken_as_asked() -> None:
    """The columns come in the user's order and under the user's spelling."""
    schema = StructType([StructField("BODY", BinaryType()), StructField("offset", LongType())])
    assert chosen(schema) == (("body", "BODY"), ("offset", "offset"))


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        (StructType([StructField("ofset", LongType())]), "no column ofset; did you mean offset?"),
        (StructType([StructField("zz", LongType())]), "no column zz; there are offset, enqueuedTime"),
        (StructType([StructField("offset", StringType())]), "Column offset is bigint, not string; cast it"),
        (StructType([StructField("topic", StringType(), False)]), "write it without NOT NULL"),
        (
            StructType([StructField("properties", MapType(StringType(), StringType(), False))]),
            "write it without NOT NULL",
        ),
        (StructType([]), "The schema names no column."),
    ],
)
def test_a_schema_that_does_not_fit_is_refused(schema: StructType, sentence: str) -> None:
    """Each way in which a schema can differ from the log has its own error."""
    with pytest.raises(SchemaError) as caught:
        chosen(schema)
    assert sentence in str(caught.value)


# --- The stream reader as Spark uses it, without Spark: offsets, limits, generations ----------------------------------


def at(peer: LogPeer, offset: int, generation: int = 7) -> dict[str, dict[str, int]]:
    """An offset as checkpoints keep it."""
    return {peer.url: {"offset": offset, "generation": generation}}


@pytest.mark.parametrize(
    ("options", "offset"),
    [
        ({}, 31),
        ({"startingOffsets": "earliest"}, 1),
        ({"startingOffsets": "latest"}, 31),
        ({"replayStart": "#9"}, 9),
    ],
)
def test_a_stream_starts_where_the_options_say(peer: LogPeer, options: dict[str, str], offset: int) -> None:
    """Without a start a stream begins at the end, as with Spark's Kafka source."""
    with streaming("offset bigint", url=peer.url, **options) as reader:
        assert reader.initialOffset() == at(peer, offset)


def test_a_limit_cuts_micro_batches(peer: LogPeer) -> None:
    """A batch spans maxOffsetsPerTrigger offsets; the last one has the rest, and no batch follows it."""
    with streaming("offset bigint", url=peer.url, maxOffsetsPerTrigger="12") as reader:
        limit, ends = reader.getDefaultReadLimit(), [at(peer, 1)]
        assert limit == ReadMaxRows(12)
        for _ in range(4):
            ends.append(reader.latestOffset(ends[-1], limit))
        assert ends == [at(peer, n) for n in (1, 13, 25, 31, 31)]
        assert reader.partitions(ends[3], ends[4]) == []
        assert reader.latestOffset(ends[0], ReadAllAvailable()) == at(peer, 31)


def test_batches_between_offsets_are_the_log(peer: LogPeer) -> None:
    """Read by pickled copies, as Spark makes them, every message comes in exactly one batch."""
    with streaming("offset bigint", url=peer.url, minPartitions="2") as reader:
        offsets = [at(peer, n) for n in (1, 13, 31)]
        found = [
            row["offset"]
            for start, end in pairwise(offsets)
            for part in pickle.loads(pickle.dumps(reader.partitions(start, end)))
            for batch in pickle.loads(pickle.dumps(reader)).read(part)
            for row in batch.to_pylist()
        ]
    assert found == list(range(1, 31))


def test_available_now_ends_where_it_began(peer: LogPeer) -> None:
    """An AvailableNow query ends with the messages of its start; reportLatestOffset includes later ones."""
    with streaming("offset bigint", url=peer.url) as reader:
        reader.prepareForTriggerAvailableNow()
        reader.stop()  # a later question asks the broker again
        peer.messages[31] = annotated(31, data(b""))
        assert reader.latestOffset(at(peer, 1), ReadAllAvailable()) == at(peer, 31)
        assert reader.reportLatestOffset() == at(peer, 32)


def test_an_idle_stream_does_not_attach_again_and_again(peer: LogPeer) -> None:
    """Spark polls every 10 ms, but the broker is asked only once while no new message comes."""
    with streaming("offset bigint", url=peer.url) as reader:
        for _ in range(50):
            assert reader.latestOffset(at(peer, 31), ReadAllAvailable()) == at(peer, 31)
        assert len(peer.attaches) == 1


def test_a_log_that_ends_before_the_checkpoint_is_data_loss(peer: LogPeer) -> None:
    """A log below the checkpoint was restored from an older copy, and will reuse ids for other messages."""
    with streaming("offset bigint", url=peer.url) as reader, pytest.raises(DataLoss, match="ends at 30 now"):
        reader.latestOffset(at(peer, 40), ReadAllAvailable())


def test_a_checkpoint_of_other_urls_is_refused(peer: LogPeer) -> None:
    """Checkpoints keep offsets by url, so a checkpoint of another url is an error."""
    other = replace(peer, port=1)
    with (
        streaming("offset bigint", url=peer.url) as reader,
        pytest.raises(OptionError, match="Use the same, or another checkpoint"),
    ):
        reader.latestOffset(at(other, 5), ReadAllAvailable())


@pytest.mark.parametrize(
    ("ids", "asked", "expected"), [(10_000, None, 1), (50_000, None, 1), (50_001, None, 2), (10_000, 3, 3)]
)
def test_few_ids_are_one_partition_unless_more_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, ids: int, asked: int | None, expected: int
) -> None:
    """Few ids are one partition, as a task would cost more than it saves, unless minPartitions asks for more."""
    monkeypatch.setattr("spark_bridge.stream._cores", lambda: 4)
    options = parse({"url": "amqp://127.0.0.1"} | ({"minPartitions": str(asked)} if asked else {}))
    assert len(shares(options.partitions, (IdRange(1, ids, 7),))) == expected


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A main module whose spec a test can set."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    settle.cache_clear()
    yield module
    settle.cache_clear()
    gc.unfreeze()


def test_what_a_worker_of_sparks_daemon_has_imported_is_not_looked_at_again(main: ModuleType) -> None:
    """Spark collects garbage after each task; objects from before the first task are frozen, later ones are not."""
    main.__spec__ = ModuleSpec("pyspark.daemon", None)
    settle()
    count = gc.get_freeze_count()
    assert count > 0
    later = [[] for _ in range(1_000)]  # type: list[list[object]]
    settle()
    assert gc.get_freeze_count() <= count
    assert any(item is later for item in gc.get_objects())


@pytest.mark.parametrize("spec", [None, ModuleSpec("pytest", None)])
def test_nothing_is_done_to_the_collector_of_a_users_process(
    main: ModuleType, spec: ModuleSpec | None
) -> None:
    """In a process that is not Spark's daemon, no object is frozen."""
    main.__spec__ = spec
    settle()
    assert gc.get_freeze_count() == 0


# --- Rows that become messages, without a broker ----------------------------------------------------------------------

VALUE = encode(Described(0x77, "v"))
SEQUENCE = encode(Described(0x76, [1]))


def batch(**columns: object) -> pa.RecordBatch:
    """A batch with one row."""
    return pa.RecordBatch.from_pydict({name: [value] for name, value in columns.items()})


@pytest.mark.parametrize("message_id", ["m", None])
def test_a_row_is_sent_with_all_that_a_message_has(message_id: str | None) -> None:
    """A row read back is the same; without a messageId its replayId becomes the message-id, to detect duplicates."""
    columns = {name: name for name in PROPERTY_AT} | {"messageId": message_id, "replayId": "r"}
    row = batch(**columns, topic="a/b", body="é", offset=5)
    [message] = encoded(
        row.append_column("properties", pa.array([{"k": "v"}], ARROW_TYPES["map<string,string>"])), None
    )
    found = MessageDecoder(frozenset({*columns, "properties", "body"})).of(annotated(1) + message)
    expected = {name: name for name in PROPERTY_AT} | {"messageId": message_id or "r"}
    assert {name: found[name] for name in PROPERTY_AT} == expected
    assert (found["properties"], found["body"]) == ({"k": "v"}, "é".encode())
    assert to_address(message) == "topic://a/b"


@pytest.mark.parametrize(
    ("body_type", "body"),
    [("value", VALUE), ("sequence", SEQUENCE), ("sequence", SEQUENCE * 2), ("data", b"x"), (None, b"")],
)
def test_a_body_of_any_kind_is_sent_as_it_was_read(body_type: str | None, body: bytes) -> None:
    """Bodies of any type, values and sequences as encoded bytes, are the same when they are read back."""
    [message] = encoded(batch(body=body, bodyType=body_type), "topic://t")
    row = MessageDecoder(frozenset({"body", "bodyType"})).of(annotated(1) + message)
    assert (row["body"], row["bodyType"]) == (body, body_type or "data")


@pytest.mark.parametrize(
    ("body_type", "body"),
    [("value", b"x"), ("value", b""), ("value", VALUE * 2), ("value", SEQUENCE), ("sequence", VALUE)],
)
def test_a_body_that_is_not_what_its_type_says_is_refused(body_type: str, body: bytes) -> None:
    """A body that does not match its bodyType, which no receiver could read, is refused."""
    with pytest.raises(
        SchemaError, match=f"bodyType {body_type} has a body that is not an encoded AMQP {body_type}"
    ):
        encoded(batch(body=body, bodyType=body_type), "topic://t")


def test_a_content_type_that_amqp_cannot_hold_is_refused() -> None:
    """content-type is a symbol, and so has to be ASCII (AMQP 1.0, section 1.6.21)."""
    with pytest.raises(SchemaError, match="The contentType 'é' is not valid"):
        encoded(batch(body=b"x", contentType="é"), "topic://t")


# --- Options: their meaning, and the error for each mistake -----------------------------------------------------------

URL = {"url": "amqp://broker:5673"}
EVERY = {
    "url": "amqps://broker:5673",
    "tlsCa": "/ca",
    "startingTimestamp": "10",
    "endingTimestamp": "20",
    "maxOffsetsPerTrigger": "7",
    "failOnDataLoss": "False",
    "includeHeaders": "false",
    "subscribe": "a/>, b/*",
    "startingOffsets": "5",
    "endingOffsets": "9",
    "minPartitions": "3",
    "messageVpn": "trading",
    "user": "ann",
    "passwordFile": "/run/secret",
    "archive": "s3://bucket/archive",
}


def test_every_option_is_understood() -> None:
    """Each documented option sets its value; a url alone means the whole log."""
    broker = Broker("broker", 5673, "trading", "ann", "/run/secret", tls=True, tls_ca="/ca")
    selection = Selection(("a/>", "b/*"), "#5", 9, 10, 20, fail_on_data_loss=False)
    assert parse(EVERY) == Options((broker,), (selection,), 3, 7, headers=False, archive=EVERY["archive"])
    assert EVERY.keys() | {"replayStart", "path", "dsn"} == MEANINGS.keys()
    assert parse(URL) == Options((Broker("broker", 5673),), (Selection((">",), "beginning"),))


@pytest.mark.parametrize(
    ("given_options", "address"),
    [
        ({"dsn": "host=h dbname=rewind"}, Schema("host=h dbname=rewind", "default")),
        (
            {"dsn": "postgresql://ann@a,b/rewind", "messageVpn": "v", "passwordFile": "/p"},
            Schema("postgresql://ann@a,b/rewind", "v", "/p"),
        ),
        ({"path": "/data", "messageVpn": "trading"}, Folder("/data", "trading")),
    ],
)
def test_a_log_is_where_its_option_says(given_options: dict[str, str], address: Schema | Folder) -> None:
    """``dsn`` names a database, with the password in a file, and ``path`` a data folder; both with a Message VPN."""
    assert parse(given_options).addresses == (address,)


@pytest.mark.parametrize(
    ("given_options", "mode", "starts", "stops"),
    [
        ({"URL": "amqp://b", "STARTINGOFFSETS": "7"}, None, ["#7"], [None]),
        (URL | {"replayStart": "10m"}, None, ["10m"], [None]),
        (URL, "stream", ["live"], [None]),
        (URL, "batch", ["beginning"], [None]),
        (
            {"url": "amqp://a, amqp://b"}
            | {"startingOffsets": '{"0": 5, "1": -2}', "endingOffsets": '{"1": 9, "0": -1}'},
            None,
            ["#5", "beginning"],
            [None, 9],
        ),
    ],
)
def test_starts_and_ends(
    given_options: dict[str, str], mode: Mode | None, starts: list[str], stops: list[int | None]
) -> None:
    """
    As in Spark's Kafka source are the defaults, names in any case, and offsets by partition with -2 for earliest and -1
    for latest. A replay start is passed to the broker.
    """
    selections = parse(given_options, mode).selections
    assert [selection.start for selection in selections] == starts
    assert [selection.stop for selection in selections] == stops
    assert [selection.partition for selection in selections] == list(range(len(starts)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"url": ""}, "is not amqp://host:port or amqps://host:port"),
        ({"url": "broker:5672"}, "for example amqp://127.0.0.1:5672"),
        ({"url": "amqp://b:99999"}, "is not amqp://host:port or amqps://host:port"),
        ({"url": "amqp://b,amqp://b:5672"}, "one of them is given twice"),
        ({"path": "/data"}, "Options url and path both name a log"),
        ({"path": "amqp://broker"}, "it is a URI; a broker's goes into the option url"),
        ({"dsn": "host=h"}, "Options url and dsn both name a log"),
        ({"dsn": "host=h", "path": "/data"}, "Options url and path and dsn all name a log"),
        ({"dsn": "mysql://h/rewind"}, "for example postgresql://"),
        ({"dsn": "host=h", "user": "ann"}, "dsn says who reads by itself"),
        ({"dsn": "host=h", "tlsCa": "/ca"}, "dsn says whom to trust (sslrootcert) by itself"),
        ({"path": "/data", "user": "ann", "passwordFile": "/x"}, "Option user belongs to a url"),
        ({"tlsCa": "/ca"}, "Option tlsCa needs a url with amqps://"),
        ({"messageVpn": "../x"}, "is not a name of a Message VPN"),
        ({"startingTimestamp": "yesterday"}, "a whole number of milliseconds"),
        ({"startingTimestamp": "253402300800000"}, "up to the year 9999"),
        (
            {"startingTimestamp": "5", "endingTimestamp": "4"},
            "endingTimestamp=4 is before startingTimestamp=5",
        ),
        ({"startingTimestamp": "5", "replayStart": "10m"}, "both name a start"),
        ({"maxOffsetsPerTrigger": "0"}, "1 or more"),
        ({"failOnDataLoss": "maybe"}, "Option failOnDataLoss='maybe' is not true, or false"),
        ({"startingOffsets": '{"1": 5}'}, "it has to name each partition, 0 to 0"),
        ({"startingOffsets": '{"0": 1.5}'}, "a whole number below 2^63"),
        ({"endingOffsets": '{"0": -2}'}, "would read nothing"),
        ({"url": "amqp://ann:secret@b"}, "credentials go into the options user and passwordFile"),
        ({"startingOffsets": "-1"}, "a whole number below 2^63"),
        ({"startingOffsets": "9223372036854775808"}, "a whole number below 2^63"),
        ({"startingOffsets": '{"t":{"0":1}}'}, "it has to name each partition, 0 to 0"),
        ({"endingOffsets": "earliest"}, "would read nothing"),
        ({"endingOffsets": "soon"}, "Option endingOffsets='soon' is not latest, the offset"),
        ({"subscribe": "a,,b"}, "needs at least one character"),
        ({"subscribe": "a//b"}, "cannot have an empty level"),
        ({"minPartitions": "0"}, "Option minPartitions='0' is not the number of partitions"),
        ({"minPartitions": "10001"}, "1 to 10000"),
        ({"replayStart": " "}, "it is empty"),
        ({"replayStart": "nonsense"}, "'nonsense' is not a replay start: a start is beginning, live, last"),
        ({"replayStart": "last", "subscribe": "a/>,!a/b"}, "where subscribe has an exception"),
        ({"replayStart": "last:5", "subscribe": "a,b"}, "last:N takes one topic in subscribe"),
        ({"replayStart": "last:5", "subscribe": "a?"}, "last:N takes one topic in subscribe"),
        ({"replayStart": "live", "startingOffsets": "1"}, "both name a start"),
        ({"url": "amqp://b:0"}, "port 0 is not a port"),
        ({"user": "ann"}, "belong together"),
        ({"passwordFile": "/x"}, "belong together"),
        ({"startingOffset": "1"}, "Option startingOffset is unknown; did you mean startingOffsets?"),
        ({"zzz": "1"}, "Option zzz is unknown; known options are url, path, dsn, archive"),
    ],
)
def test_a_bad_option_gets_a_sentence(change: dict[str, str], sentence: str) -> None:
    """Every error names the option and its value, and says what would be right."""
    with pytest.raises(OptionError, match=r"^\[REWIND_OPTION\] ") as caught:
        parse(({} if change.keys() == {"path", "user", "passwordFile"} else URL) | change)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", ["url", "dsn", "archive"])
def test_credentials_in_an_option_are_not_repeated(name: str) -> None:
    """The error of an option with credentials does not show the password."""
    with pytest.raises(OptionError) as caught:
        parse({name: "amqp://ann:s3cret@b", "minPartitions": "many"})
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("mode", "change", "sentence"),
    [
        ("batch", {"startingOffsets": "latest"}, "Option startingOffsets=latest is for streams"),
        ("batch", {"startingOffsets": '{"0": -1}'}, "Option startingOffsets=latest is for streams"),
        ("batch", {"maxOffsetsPerTrigger": "5"}, "Option maxOffsetsPerTrigger is for streams"),
        ("stream", {"endingOffsets": "5"}, "Option endingOffsets is for batches"),
        ("stream", {"endingTimestamp": "5"}, "Option endingTimestamp is for batches"),
    ],
)
def test_what_belongs_to_the_other_mode_is_refused(mode: Mode, change: dict[str, str], sentence: str) -> None:
    """Options of the other mode are refused once Spark says whether the load is a batch or a stream."""
    assert parse(URL | change)
    with pytest.raises(OptionError, match=sentence):
        parse(URL | change, mode)


def test_all_problems_are_told_at_once() -> None:
    """One error names all mistakes; without any options, the url is missing."""
    with pytest.raises(OptionError) as caught:
        parse({"url": "x", "minPartitions": "many", "colour": "red"})
    assert all(name in str(caught.value) for name in ("url", "minPartitions", "colour"))
    with pytest.raises(OptionError, match=r"Option url is missing: amqp://host:port or"):
        parse({})


@given(st.dictionaries(st.sampled_from([*MEANINGS, "other"]), st.text(max_size=12)))
def test_any_options_give_a_value_or_an_option_error(options: dict[str, str]) -> None:
    """Any texts give Options or an OptionError."""
    try:
        assert isinstance(parse(options), Options)
    except OptionError as error:
        assert error.sentence


def test_a_password_is_the_first_line_of_its_file(tmp_path: Path) -> None:
    """The line end is no part of the password, blanks are; if the file is missing, the error names it."""
    path = tmp_path / "secret"
    path.write_bytes(b" s p\xc3\xa4 \r\nsecond\n")
    assert Broker("b", 1, user="ann", password_file=str(path)).password() == " s p\u00e4 "
    path.unlink()
    with pytest.raises(ConnectionFailed, match=f"The passwordFile {path} cannot be read: No such file"):
        Broker("b", 1, user="ann", password_file=str(path)).password()


def test_an_ipv6_host_is_bracketed_again() -> None:
    """The url in messages has the brackets again, so that users can copy it."""
    assert parse({"url": "amqp://[::1]:7"}).broker.url == "amqp://[::1]:7"
