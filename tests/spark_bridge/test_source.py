"""The data source as Spark uses it, without Spark: schema, reader, partitions, read; pickled in between."""

import pickle
import subprocess
import sys
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, LongType, MapType, StringType, StructField, StructType

from spark_bridge.errors import OptionError, SchemaError
from spark_bridge.places.broker_place import PAGE_ROWS
from spark_bridge.source import LogReader, RewindSource, chosen
from spark_bridge.stream import LogPartition
from store.archive.columns import COLUMNS, arrow_schema
from store.archive.errors import DataLoss
from store.archive.source import IdRange
from tests.spark_bridge.log_peer import LogPeer, annotated, data
from tests.spark_bridge.spark_types import struct

pytestmark = pytest.mark.spark
SCHEMA = StructType([StructField("offset", LongType()), StructField("topic", StringType())])


def source(peer: LogPeer, **options: str) -> RewindSource:
    """A source with the options as Spark passes them."""
    given: Any = CaseInsensitiveDict()
    given.update({"url": peer.url, **options})
    return RewindSource(given)


def rows(reader: LogReader) -> list[tuple[int, str]]:
    """Everything a reader gives, by way of pickled copies as Spark makes them."""
    batches = [
        batch
        for partition in pickle.loads(pickle.dumps(reader.partitions()))
        for batch in pickle.loads(pickle.dumps(reader)).read(partition)
    ]
    assert all(batch.schema == to_arrow_schema(SCHEMA, timezone="UTC") for batch in batches)
    return [(row["offset"], row["topic"]) for batch in batches for row in batch.to_pylist()]


def test_what_spark_loads_in_each_of_its_processes_is_no_more_than_a_log_needs() -> None:
    """pandas, and what reads Parquet, are in none that reads a file or asks a broker: half a second of each."""
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
    """Messages that come after schema() are in no later plan of the same DataFrame."""
    loaded = source(peer)
    loaded.schema()
    shipped = pickle.loads(pickle.dumps(loaded))
    peer.messages[31] = annotated(31, data(b"late"))
    assert rows(shipped.reader(SCHEMA)) == [(n, "ab"[n % 2]) for n in range(1, 31)]


def test_with_a_users_schema_the_range_is_pinned_by_the_reader(peer: LogPeer) -> None:
    """Spark does not call schema() then; the reader asks the broker itself."""
    assert len(rows(source(peer).reader(SCHEMA))) == 30


@pytest.mark.parametrize(
    ("subscribe", "expected"),
    [("a,b", range(1, 31)), ("a,zzz", range(2, 31, 2)), (">,!a", range(1, 31, 2)), ("!a", range(1, 31, 2))],
)
def test_several_patterns_are_filtered_by_the_bridge(peer: LogPeer, subscribe: str, expected: range) -> None:
    """The union of the patterns less the exceptions, in order, from one link on the whole log."""
    assert [offset for offset, _ in rows(source(peer, subscribe=subscribe).reader(SCHEMA))] == list(expected)
    assert {where for where, _ in peer.attaches} == {"log://>"}


def test_partitions_are_as_many_as_asked(peer: LogPeer) -> None:
    """minPartitions splits the ids evenly, in a list, which Spark insists on."""
    partitions = source(peer, minPartitions="4").reader(SCHEMA).partitions()
    assert partitions == [
        LogPartition(IdRange(first, last, 7)) for first, last in [(1, 7), (8, 15), (16, 22), (23, 30)]
    ]


def test_an_empty_log_has_one_partition_without_rows(log_peer: LogPeer) -> None:
    """Spark calls read even without partitions; one empty range costs no connection."""
    reader = source(log_peer).reader(SCHEMA)
    assert len(reader.partitions()) == 1
    attaches = len(log_peer.attaches)
    assert rows(reader) == []
    assert len(log_peer.attaches) == attaches


def test_reading_a_partition_again_gives_the_same(peer: LogPeer) -> None:
    """Spark repeats a task that failed elsewhere."""
    reader = source(peer).reader(SCHEMA)
    assert rows(reader) == rows(reader)


@pytest.mark.parametrize("ending", ["error", "drop"])
def test_a_broken_read_is_not_a_short_one(peer: LogPeer, ending: str) -> None:
    """A worker whose link ends early, or whose connection brings it no further, raises."""
    reader = source(peer, minPartitions="1").reader(SCHEMA)
    peer.stop_after, peer.ending = 12, ending
    with pytest.raises(DataLoss):
        rows(reader)


def test_a_lost_connection_is_made_again_where_the_read_stands(log_peer: LogPeer) -> None:
    """A slow consumer's connection may be dropped before a page is full; every row still comes exactly once."""
    log_peer.messages = {n: annotated(n, data(b"x")) for n in range(1, 7_001)}
    reader = source(log_peer, minPartitions="1").reader(SCHEMA)
    log_peer.stop_after, log_peer.ending = 2_500, "drop"
    assert [offset for offset, _ in rows(reader)] == list(range(1, 7_001))
    starts = [asked["offset"] for _, asked in log_peer.attaches if not isinstance(asked, str)]
    assert starts == sorted(set(starts)), "each brings the read forward"
    assert starts[0] == 1
    assert max(starts[n + 1] - starts[n] for n in range(len(starts) - 1)) <= 2_500 < PAGE_ROWS


def test_a_peer_that_sends_too_much_is_noticed(peer: LogPeer) -> None:
    """Messages beyond the pinned end would make partitions overlap."""
    reader = source(peer, minPartitions="2").reader(SCHEMA)
    peer.bounds = False
    with pytest.raises(DataLoss, match="does not keep to the bounds"):
        rows(reader)


def test_bad_options_and_columns_are_told_before_anything_is_read(peer: LogPeer) -> None:
    """schema() and reader() raise: there Spark still shows our sentence as the error's own."""
    with pytest.raises(OptionError, match="Option colour is unknown"):
        source(peer, colour="red").schema()
    with pytest.raises(SchemaError, match="no column colour"):
        source(peer).reader(StructType([StructField("colour", BinaryType())]))
    assert peer.attaches == []


def test_errors_survive_pickling() -> None:
    """An error keeps its code and sentence on its way between processes."""
    error = pickle.loads(pickle.dumps(DataLoss("Gone.")))
    assert (type(error), str(error)) == (DataLoss, "[REWIND_DATA_LOSS] Gone.")


def columns(*names: str) -> StructType:
    """A Spark schema of columns of the log."""
    return struct(", ".join(f"{name} {COLUMNS[name]}" for name in names))


@pytest.mark.parametrize("names", [tuple(COLUMNS), tuple(reversed(COLUMNS)), ("topic", "offset")])
def test_the_arrow_schema_is_the_one_spark_derives(names: tuple[str, ...]) -> None:
    """Spark compares a batch's schema for equality with its own: order, types, time zone, nullability."""
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
    """Each way a schema can differ from the log gets its own sentence."""
    with pytest.raises(SchemaError) as caught:
        chosen(schema)
    assert sentence in str(caught.value)
