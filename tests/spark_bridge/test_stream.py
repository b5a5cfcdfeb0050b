"""The stream reader as Spark uses it, without Spark: offsets, limits, generations."""

import gc
import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.machinery import ModuleSpec
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StructField, StructType

from spark_bridge.errors import OptionError
from spark_bridge.options import parse
from spark_bridge.source import RewindSource
from spark_bridge.stream import LogStream, settle, shares
from store.archive.errors import DataLoss
from store.archive.source import IdRange
from tests.spark_bridge.log_peer import LogPeer, annotated, data

pytestmark = pytest.mark.spark


@pytest.fixture
def peer(log_peer: LogPeer) -> LogPeer:
    """A log of 30 messages."""
    log_peer.messages = {n: annotated(n, data(b"x")) for n in range(1, 31)}
    return log_peer


@contextmanager
def stream(peer: LogPeer, **options: str) -> Iterator[LogStream]:
    """A stream reader with the options as Spark passes them; it keeps a connection until it is stopped."""
    given: Any = CaseInsensitiveDict()
    given.update({"url": peer.url, **options})
    reader = RewindSource(given).streamReader(StructType([StructField("offset", LongType())]))
    try:
        yield reader
    finally:
        reader.stop()


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
    """At the end by default, as with Spark's Kafka source."""
    with stream(peer, **options) as reader:
        assert reader.initialOffset() == at(peer, offset)


def test_a_limit_cuts_micro_batches(peer: LogPeer) -> None:
    """maxOffsetsPerTrigger is the width of a batch; the last one is what is left, and then there is no more."""
    with stream(peer, maxOffsetsPerTrigger="12") as reader:
        limit, ends = reader.getDefaultReadLimit(), [at(peer, 1)]
        assert limit == ReadMaxRows(12)
        for _ in range(4):
            ends.append(reader.latestOffset(ends[-1], limit))
        assert ends == [at(peer, n) for n in (1, 13, 25, 31, 31)]
        assert reader.partitions(ends[3], ends[4]) == []
        assert reader.latestOffset(ends[0], ReadAllAvailable()) == at(peer, 31)


def test_batches_between_offsets_are_the_log(peer: LogPeer) -> None:
    """Read by pickled copies, as Spark does, every message comes in one batch."""
    with stream(peer, minPartitions="2") as reader:
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
    """What comes after the query began is for the next one, but the backlog tells of it."""
    with stream(peer) as reader:
        reader.prepareForTriggerAvailableNow()
        reader.stop()  # a later question asks the broker again
        peer.messages[31] = annotated(31, data(b""))
        assert reader.latestOffset(at(peer, 1), ReadAllAvailable()) == at(peer, 31)
        assert reader.reportLatestOffset() == at(peer, 32)


def test_an_idle_stream_does_not_attach_again_and_again(peer: LogPeer) -> None:
    """Spark polls every 10 ms; the broker is asked once, as long as nothing new comes."""
    with stream(peer) as reader:
        for _ in range(50):
            assert reader.latestOffset(at(peer, 31), ReadAllAvailable()) == at(peer, 31)
        assert len(peer.attaches) == 1


def test_a_log_made_anew_is_data_loss_or_begun_anew(peer: LogPeer) -> None:
    """The checkpoint's generation is held against the log's."""
    with (
        stream(peer) as reader,
        pytest.raises(DataLoss, match=r"made anew: .* offset 9 of generation 6"),
    ):
        reader.latestOffset(at(peer, 9, generation=6), ReadAllAvailable())
    with stream(peer, failOnDataLoss="false") as reader:
        end = reader.latestOffset(at(peer, 9, generation=6), ReadAllAvailable())
        assert end == at(peer, 31)
        [first, *_] = reader.partitions(at(peer, 9, generation=6), end)
        assert first.ids.first == 1


def test_a_log_that_ends_before_the_checkpoint_is_data_loss(peer: LogPeer) -> None:
    """Such a log was restored from an older copy: its next ids would name other messages."""
    with stream(peer) as reader, pytest.raises(DataLoss, match="ends at 30 now"):
        reader.latestOffset(at(peer, 40), ReadAllAvailable())


def test_a_checkpoint_of_other_urls_is_refused(peer: LogPeer) -> None:
    """Offsets are kept by url; none is guessed."""
    other = replace(peer, port=1)
    with stream(peer) as reader, pytest.raises(OptionError, match="Use the same, or another checkpoint"):
        reader.latestOffset(at(other, 5), ReadAllAvailable())


@pytest.mark.parametrize(
    ("ids", "asked", "expected"), [(10_000, None, 1), (50_000, None, 1), (50_001, None, 2), (10_000, 3, 3)]
)
def test_few_ids_are_one_partition_unless_more_are_asked_for(
    monkeypatch: pytest.MonkeyPatch, ids: int, asked: int | None, expected: int
) -> None:
    """A task more costs more than it saves where there is little to read; minPartitions is heeded all the same."""
    monkeypatch.setattr("spark_bridge.stream._cores", lambda: 4)
    options = parse({"url": "amqp://127.0.0.1"} | ({"minPartitions": str(asked)} if asked else {}))
    assert len(shares(options.partitions, (IdRange(1, ids, 7),))) == expected


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The main module, to be given a name."""
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    settle.cache_clear()
    yield module
    settle.cache_clear()
    gc.unfreeze()


def test_what_a_worker_of_sparks_daemon_has_imported_is_not_looked_at_again(main: ModuleType) -> None:
    """Spark collects garbage after each task: only what came since the first is gone through."""
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
    """A driver's garbage is its own affair."""
    main.__spec__ = spec
    settle()
    assert gc.get_freeze_count() == 0
