"""What every place of a log has in common: a read that may leave out what is lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_bridge.options import Folder, Selection
from spark_bridge.places.file_place import LogFile
from spark_bridge.places.log_place import LiveLog
from spark_bridge.places.stored_log import first_damaged
from store.archive.columns import Columns
from store.archive.errors import ConnectionFailed, DataLoss
from store.archive.source import IdRange
from store.checksum import HEAD_BITS, content_sum, head_of
from tests.spark_bridge.stored_log import StoredLog, body

pytestmark = pytest.mark.spark
OFFSET = (("offset", "offset"),)
LENIENT = Selection(fail_on_data_loss=False)


class TrimmedLog(LiveLog):
    """A log of the ids 1 to 9 that gives two rows of a read, and has lost the next two when it goes on."""

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
    """All of them."""
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_a_read_goes_on_behind_what_is_lost_with_each_row_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that were given stay so; what the log lost before it came to them is left out, and told."""
    log = TrimmedLog(changes=True)
    assert offsets(log.read(LENIENT, OFFSET, IdRange(1, 9, 1))) == [1, 2, 5, 6, 7, 8, 9]
    assert "Offsets 3 to 4 are no longer in the log" in capsys.readouterr().err


@pytest.mark.parametrize(("selection", "changes"), [(LENIENT, False), (Selection(), True)])
def test_a_loss_is_told_where_the_log_has_not_changed_or_nothing_may_be_lost(
    selection: Selection, changes: bool
) -> None:
    """Reading again and again would give the same; and a strict read is never short."""
    with pytest.raises(DataLoss):
        offsets(TrimmedLog(changes=changes).read(selection, OFFSET, IdRange(1, 9, 1)))


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
    """A page of sound ones has none, nor has a slice of it; with bytes changed it is the first of those."""
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
    """The error names the message, and what to do; beside contents only an archive is as thorough."""
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
