"""Pages of a gateway's file beside their checksums."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_bridge.options import Folder
from spark_bridge.places.file_place import LogFile
from spark_bridge.places.stored_log import first_damaged
from store.archive.errors import ConnectionFailed
from store.checksum import HEAD_BITS, content_sum, head_of
from tests.spark_bridge.stored_log import StoredLog, body

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
