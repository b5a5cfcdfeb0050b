"""Planning and reading the log of a broker, and the failures on the way."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from spark_bridge.amqp_client.wire import Wire
from spark_bridge.errors import OptionError
from spark_bridge.options import Folder, Selection, parse
from spark_bridge.places.archive_place import ArchivePlace
from spark_bridge.places.broker_place import PAGE_ROWS, LogLink, address, filtered_here, survey
from spark_bridge.places.file_place import LogFile
from spark_bridge.places.log_place import LiveLog
from spark_bridge.places.stored_log import first_damaged
from spark_bridge.writer import LogWriter
from store.archive.columns import Columns
from store.archive.errors import ConnectionFailed, DataLoss, LogError
from store.archive.source import IdRange
from store.checksum import HEAD_BITS, content_sum, head_of
from tests.spark_bridge.log_gateway import LogGateway, text
from tests.spark_bridge.log_peer import LogPeer, annotated, data
from tests.spark_bridge.reading import plan, read
from tests.spark_bridge.spark_types import struct
from tests.spark_bridge.stored_log import StoredLog, body
from tests.system.gateway_process import GatewayProcess

pytestmark = pytest.mark.spark


# --- Reads of any place that may leave out lost messages --------------------------------------------------------------

OFFSET = (("offset", "offset"),)
LENIENT = Selection(fail_on_data_loss=False)


class TrimmedLog(LiveLog):
    """A log of the ids 1 to 9 whose first read gives two rows and fails; if it changes, ids 3 and 4 are lost then."""

    def __init__(self, *, changes: bool) -> None:
        self._first = 1
        self._changes = changes

    def extent(self, selection: Selection) -> IdRange:
        return IdRange(self._first, 9, 1)

    def batches(
        self, selection: Selection, columns: Columns, ids: IdRange
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        if ids.first < self._first:
            raise DataLoss("Gone.")
        for first in range(ids.first, ids.last + 1, 2):
            stop = min(first + 2, ids.last + 1)
            yield pa.record_batch({"offset": pa.array(range(first, stop), pa.int64())}), stop
            if self._first == 1:
                if self._changes:
                    self._first = 5
                raise DataLoss("Gone.")


def offsets(batches: Iterator[pa.RecordBatch]) -> list[int]:
    """All offsets of the batches."""
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_read_goes_on_behind_what_is_lost_with_each_row_once(capsys: pytest.CaptureFixture[str]) -> None:
    """After a loss the read goes on with the next row that exists, without repeating one, and warns."""
    log = TrimmedLog(changes=True)
    assert offsets(log.read(LENIENT, OFFSET, IdRange(1, 9, 1))) == [1, 2, 5, 6, 7, 8, 9]
    assert "Offsets 3 to 4 are no longer in the log" in capsys.readouterr().err


@pytest.mark.parametrize(("selection", "changes"), [(LENIENT, False), (Selection(), True)])
def test_a_loss_is_told_where_the_log_has_not_changed_or_nothing_may_be_lost(
    selection: Selection, changes: bool
) -> None:
    """A loss is an error if the log has not changed, as a retry would give the same, and always by default."""
    with pytest.raises(DataLoss):
        offsets(TrimmedLog(changes=changes).read(selection, OFFSET, IdRange(1, 9, 1)))


class StuckLog(LiveLog):
    """A log from id 6 on that grows whenever it is looked at, and whose reads fail ten times at most."""

    name = "stuck"

    def __init__(self) -> None:
        self.last = 9
        self.left = 10

    def extent(self, selection: Selection) -> IdRange:
        self.last += 1
        return IdRange(6, self.last, 1)

    def plan(self, selection: Selection) -> IdRange:
        return self.extent(selection)

    def batches(
        self, selection: Selection, columns: Columns, ids: IdRange
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        assert self.left, "the read is tried again for ever"
        self.left -= 1
        raise DataLoss("Unreadable.")


@pytest.mark.parametrize("has_archive", [False, True])
def test_a_log_that_cannot_be_read_is_told_though_it_grows(tmp_path: Path, has_archive: bool) -> None:
    """A read that fails at the same id again is no loss to be left out, even if messages came meanwhile."""
    log = StuckLog()
    place = ArchivePlace(str(tmp_path), log) if has_archive else log
    with pytest.raises(DataLoss, match="Unreadable"):
        offsets(place.read(LENIENT, OFFSET, IdRange(6, 9, 1)))


Message = tuple[int, int, str, int, int, bytes]

MESSAGES = st.lists(
    st.tuples(
        st.integers(1, 1 << 40),
        st.integers(0, 1 << 42),
        st.sampled_from(["a", "b/ä", "#queue/q"]),
        st.integers(0, 300),
        st.integers(0, 300),
        st.one_of(st.binary(max_size=20), st.sampled_from([b"\xff" * 10_000, bytes(70_000)])),
    ),
    min_size=1,
)


def page_of(messages: list[Message], checksums: list[int], *, whole: bool = True) -> pa.RecordBatch:
    names = ["id", "time", "topic", "bare", "route", "content"]
    kinds = [pa.int64(), pa.int64(), pa.string(), pa.int64(), pa.int64(), pa.binary()]
    columns = {
        name: pa.array(column, kind)
        for name, kind, column in zip(names, kinds, zip(*messages, strict=True), strict=True)
    }
    chosen = {name: columns[name] for name in names if whole or name in ("id", "content")}
    return pa.RecordBatch.from_pydict({**chosen, "checksum": pa.array(checksums)})


def checksum_of(message: Message) -> int:
    *head, content = message
    return (content_sum(content) << HEAD_BITS) + head_of(*head)


@given(MESSAGES, st.booleans(), st.data())
def test_the_first_that_is_not_what_was_written_is_found(
    messages: list[Message], whole: bool, data: st.DataObject
) -> None:
    """Of changed messages the first is found; a page of sound messages, or a slice of it, has no damaged one."""
    checksums = list(map(checksum_of, messages))
    page = page_of(messages, checksums, whole=whole)
    assert first_damaged(page) is None
    cut = data.draw(st.integers(0, len(messages) - 1))
    assert first_damaged(page.slice(cut)) is None
    changed = list(messages)
    places = data.draw(st.sets(st.integers(0, len(messages) - 1), min_size=1))
    for place in places:
        message_id, time, topic, bare, route, content = messages[place]
        if whole and data.draw(st.booleans()):
            changed[place] = (message_id, time ^ 0x40, topic, bare, route, content)
        else:
            changed[place] = (
                message_id,
                time,
                topic,
                bare,
                route,
                content[:-1] + b"#?"[content[-1:] == b"#" :][:1],
            )
    assert first_damaged(page_of(changed, checksums, whole=whole)) == messages[min(places)][0]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("field", ["content", "topic"])
def test_a_file_with_a_turned_byte_fails_where_it_is_read(tmp_path: Path, whole: bool, field: str) -> None:
    """The error names the message and what to do. A damaged topic is found only if all columns are read."""
    log = StoredLog(tmp_path)
    log.publish(20)
    path = tmp_path / "default.db"
    raw = bytearray(path.read_bytes())
    place = raw.index(body(13)) + 5
    if field == "topic":
        place = raw.rindex(b"n/1", 0, place)
    raw[place] ^= 4
    path.write_bytes(raw)
    with LogFile(Folder(tmp_path)) as file:
        ids = file.extent()
        if field == "topic" and not whole:
            assert sum(page.num_rows for page in file.pages(ids)) == 18
            return
        with pytest.raises(ConnectionFailed, match=r"message 13 is not what was written.*Restore the file"):
            list(file.pages(ids, whole=whole))


# --- Planning and reading a range of the log: complete, or an error ---------------------------------------------------


def plan_of(peer: LogPeer, **options: str) -> IdRange:
    """The ids that a read of the peer's log with these options is bound to."""
    asked = parse({"url": peer.url, **options})
    return survey(asked.broker, asked.selections[0])


def read_of(peer: LogPeer, ids: IdRange) -> list[bytes]:
    """All messages of a range."""
    with Wire(peer.broker, timeout=5) as wire:
        return [message for page in LogLink(wire, "log://>", ids).pages() for message in page]


@pytest.fixture
def peer(log_peer: LogPeer) -> LogPeer:
    """A peer with the ids 5 to 44 except 20."""
    log_peer.messages = {n: annotated(n, data(b"body %d" % n)) for n in range(5, 45) if n != 20}
    return log_peer


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({}, IdRange(5, 44, 7)),
        ({"startingOffsets": "10"}, IdRange(10, 44, 7)),
        ({"endingOffsets": "10"}, IdRange(5, 9, 7)),
        ({"endingOffsets": "45"}, IdRange(5, 44, 7)),
        ({"startingOffsets": "10", "endingOffsets": "10"}, IdRange(10, 9, 7)),
        ({"replayStart": "live"}, IdRange(45, 44, 7)),
    ],
)
def test_offsets_bound_a_plan(peer: LogPeer, options: dict[str, str], ids: IdRange) -> None:
    """A plan has all messages by default; startingOffsets is inclusive, endingOffsets exclusive, as with Kafka."""
    assert plan_of(peer, **options) == ids


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_batches_hold_the_range(peer: LogPeer, batch: int) -> None:
    """A broker that grants batches gives each message of the range, in order, as without batches."""
    ids = plan_of(peer)
    peer.batch = batch
    assert read_of(peer, ids) == list(peer.messages.values())


def test_a_batch_cut_short_is_an_error(peer: LogPeer) -> None:
    """A batch that is cut short is an error; it does not look like the end of the log."""
    ids = plan_of(peer)
    peer.batch, peer.cut = 7, 1
    with pytest.raises(ConnectionFailed, match="a batch is data sections"):
        read_of(peer, ids)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"endingOffsets": "46"}, "is beyond the log, whose last offset is 44"),
        ({"endingOffsets": "4"}, "is before the start of the read, offset 5"),
    ],
)
def test_an_end_outside_the_log_is_refused(peer: LogPeer, options: dict[str, str], sentence: str) -> None:
    """An end beyond the log, or before the start, is an error of the plan."""
    with pytest.raises(OptionError, match=sentence):
        plan_of(peer, **options)


@given(st.integers(0, 1 << 62), st.integers(0, 10_000), st.integers(1, 64))
def test_a_split_covers_the_range_once(first: int, width: int, parts: int) -> None:
    """The parts cover the range without a gap; no part is empty unless the range is; widths differ by one at most."""
    whole = IdRange(first, first + width - 1, 1)
    split = whole.split(parts)
    assert (split[0].first, split[-1].last) == (whole.first, whole.last)
    assert all(left.last + 1 == right.first for left, right in pairwise(split))
    widths = {part.last - part.first + 1 for part in split}
    assert max(widths) - min(widths) <= 1
    assert len(split) == max(1, min(parts, width))


def test_a_worker_asks_for_its_range_and_generation(peer: LogPeer) -> None:
    """The filter has the range's bounds, where until is its last id, and the generation."""
    read_of(peer, IdRange(10, 12, 7))
    assert peer.attaches == [("log://>", {"offset": 10, "until": 12, "missing": "clamp", "generation": 7})]


def test_pages_are_cut_by_rows_and_by_bytes(log_peer: LogPeer) -> None:
    """A page has at most PAGE_ROWS messages, and fewer if they are large."""
    log_peer.messages = {n: annotated(n, data(b"x" * (1_000_000 if n < 12 else 1))) for n in range(5_000)}
    with Wire(log_peer.broker) as wire:
        pages = list(LogLink(wire, "log://>", IdRange(0, 4_999, 7)).pages())
    assert [message for page in pages for message in page] == list(log_peer.messages.values())
    assert max(map(len, pages)) == PAGE_ROWS
    assert len(pages[0]) < 12


@pytest.mark.parametrize(
    ("ending", "kind", "sentence"),
    [("error", DataLoss, "The read of offsets 5 to 44 broke off"), ("drop", ConnectionFailed, "connection")],
)
def test_a_read_that_breaks_off_is_an_error(
    peer: LogPeer, ending: str, kind: type[Exception], sentence: str
) -> None:
    """Neither a detach with an error nor a lost connection looks like the end of the range."""
    peer.stop_after, peer.ending = 10, ending
    with pytest.raises(kind, match=sentence):
        read_of(peer, IdRange(5, 44, 7))


def test_a_range_trimmed_since_planning_is_data_loss(peer: LogPeer) -> None:
    """If the log's first id is above the start of the range, messages are lost."""
    peer.first = 9
    with pytest.raises(
        DataLoss,
        match="trimmed since the read was planned: offset 5 was to be read, and the log begins at 9 now",
    ):
        read_of(peer, IdRange(5, 44, 7))


def test_a_refused_range_is_data_loss(peer: LogPeer) -> None:
    """If the log was recreated between planning and reading, the refusal is data loss."""
    peer.refusal = ("amqp:precondition-failed", "generation 8, not 7")
    with pytest.raises(DataLoss, match=r"cannot be read any more\. .*generation 8, not 7"):
        read_of(peer, IdRange(5, 44, 7))


def test_a_peer_that_ignores_the_filter_is_noticed(peer: LogPeer) -> None:
    """If the reply does not echo the filter, it was not applied, and the read fails."""
    peer.echo = False
    with pytest.raises(ConnectionFailed, match="did not honour the replay start"):
        read_of(peer, IdRange(5, 44, 7))


@pytest.mark.parametrize("offsets", [[5, 5], [6, 5], [4], [5, 13]])
def test_offsets_outside_the_order_or_the_range_are_data_loss(peer: LogPeer, offsets: list[int]) -> None:
    """A repeated or falling offset, or one outside the range, is an error, also across pages."""
    with Wire(peer.broker) as wire:
        link = LogLink(wire, "log://>", IdRange(5, 12, 7))
        with pytest.raises(DataLoss, match="does not keep to the start and end"):
            for offset in offsets:
                link.check(np.array([offset]))


@pytest.mark.parametrize(
    ("patterns", "where", "here"),
    [
        ((">",), "log://>", False),
        (("a/*/c",), "log://a/*/c", False),
        (("a", "b"), "log://>", True),
        ((">", "!a"), "log://>", True),
        (("!a",), "log://>", True),
        (("what?",), "log://>", True),
    ],
)
def test_one_pattern_goes_into_the_address(patterns: tuple[str, ...], where: str, here: bool) -> None:
    """A single pattern goes into the address; several, or one that no address can hold, the bridge matches itself."""
    assert (address(patterns), filtered_here(patterns)) == (where, here)


# --- TLS, a log that is trimmed during a read, and a gateway that is killed during a write ----------------------------

COUNT = 6_000
OFFSETS = (("offset", "offset"),)


def trim(gateway: LogGateway, first: int) -> None:
    """Make ``first`` the first id of the log, as a trim would."""
    gateway.kill()
    connection = sqlite3.connect(Path(gateway.path) / "default.db")
    with connection:
        connection.execute("update log set first_id = ?", [first])
        connection.execute("delete from message where id < ?", [first])
    connection.close()
    gateway.start()


@pytest.mark.system
def test_amqps_is_read_with_the_authority_it_names(tmp_path: Path) -> None:
    """With the option tlsCa a certificate is trusted; without it the read fails and says so."""
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    server = tmp_path / "server.pem"
    config = f'[[listener]]\nport = 0\n[listener.tls]\ncertificate = "{server}"\nkey = "{server}"\n'
    process = GatewayProcess(tmp_path / "data", config, listen=())
    try:
        url = process.url
        assert url.startswith("amqps://")
        given = {"url": url, "tlsCa": str(tmp_path / "ca.pem")}
        writer = LogWriter(given | {"topic": "t"}, struct("body binary"), overwrite=False)
        writer.write(iter([pa.RecordBatch.from_pydict({"body": [b"1", b"2"]})]))
        options = parse(given)
        ids = plan(options)
        assert offsets(read(options, OFFSETS, ids)) == [1, 2]
        with pytest.raises(LogError, match="shows a certificate that is not trusted"):
            plan(parse({"url": url}))
    finally:
        process.kill()


@pytest.mark.system
@pytest.mark.parametrize(
    ("file", "reason"),
    [("none.pem", "No such file or directory"), ("notes.txt", "it holds no PEM certificate")],
)
def test_authorities_that_cannot_be_read_are_told(tmp_path: Path, file: str, reason: str) -> None:
    """A wrong tlsCa has an error of its own, rather than that of an unreachable broker."""
    (tmp_path / "notes.txt").write_text("no certificate")
    options = parse({"url": "amqps://127.0.0.1:1", "tlsCa": str(tmp_path / file)})
    with pytest.raises(LogError, match=f"tlsCa, .*{file}, cannot be read: {reason}"):
        plan(options)


@pytest.mark.system
def test_a_host_that_is_no_name_is_told() -> None:
    """A host name with a label too long for Python to look up is an unreachable broker."""
    with pytest.raises(LogError, match="cannot be reached"):
        plan(parse({"url": f"amqp://{'a' * 70}.example"}))


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[LogGateway]:
    """A gateway with 6,000 messages."""
    with LogGateway(tmp_path) as gateway:
        gateway.publish(text(b"x" * 1024, "t") for _ in range(COUNT))
        yield gateway


@pytest.mark.system
def test_a_log_trimmed_under_the_read_is_read_on_behind_it(gateway: LogGateway) -> None:
    """
    With failOnDataLoss=false a read whose log is trimmed goes on with the first message left, misses none of the rest,
    and repeats none. A read that begins later gives what is left; without the option it fails.
    """
    options, strict = (parse({"url": gateway.url, "failOnDataLoss": flag}) for flag in ("false", "true"))
    ids = plan(options)
    batches = read(options, OFFSETS, ids)
    found = next(batches).column(0).to_pylist()
    trim(gateway, 5_001)
    found += offsets(batches)
    assert found == sorted(set(found))
    assert found[:1_000] == list(range(1, 1_001))
    assert found[-1_000:] == list(range(5_001, COUNT + 1))
    assert offsets(read(options, OFFSETS, ids)) == list(range(5_001, COUNT + 1))
    with pytest.raises(LogError, match="REWIND_DATA_LOSS"):
        offsets(read(strict, OFFSETS, ids))


@pytest.mark.system
def test_a_writer_goes_on_when_the_gateway_is_back(gateway: LogGateway) -> None:
    """If the gateway is killed and restarted during a write, it has every row afterwards, maybe repeated."""
    schema = struct("body binary, messageId string")
    writer = LogWriter({"url": gateway.url, "topic": "copy"}, schema, overwrite=False)

    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(4):
            if number == 2:
                gateway.kill()
                gateway.start()
            ids = [f"{number}-{row}" for row in range(500)]
            yield pa.RecordBatch.from_pydict({"body": [b"x"] * 500, "messageId": ids})

    assert writer.write(batches()).accepted == 2_000
    options = parse({"url": gateway.url, "subscribe": "copy"})
    batches_back = read(options, (("messageId", "messageId"),), plan(options))
    found = [message_id for batch in batches_back for message_id in batch.column(0).to_pylist()]
    assert set(found) == {f"{number}-{row}" for number in range(4) for row in range(500)}
