"""Messages read in columns (many at once), compared with the same messages read one by one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import (
    CodecError,
    Described,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode,
    encode,
)
from amqp_ext.message.annotations import REPLAY_NAME, Splicer, annotated
from amqp_ext.message.fields import batch_of
from amqp_ext.message.sections import bare_offset
from spark_bridge.columns.message_block import PADDING, EncodedMessages, Gathered, MessageBlock, Unusual
from spark_bridge.columns.record_batches import STORED, BatchBuilder
from spark_bridge.columns.single_message import items
from store.archive.columns import COLUMNS
from tests.spark_bridge.reading import delivered
from tests.support.messages import messages_of

pytestmark = pytest.mark.spark
GENERATION = 7
TIME = 1_700_000_000_000
TEXTS = st.text(max_size=9) | st.sampled_from(["", "x" * 300])
SCALARS = (
    st.none()
    | st.booleans()
    | TEXTS
    | st.text("abc", max_size=3).map(Symbol)
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.integers(-200, 200)
    | st.integers(0, (1 << 64) - 1).map(ULong)
    | st.integers(0, (1 << 32) - 1).map(UInt)
    | st.integers(0, 255).map(UByte)
    | st.integers(0, 65_535).map(UShort)
    | st.floats(allow_nan=False)
    | st.integers(-(1 << 63), (1 << 63) - 1).map(Timestamp)
    | st.uuids()
    | st.binary(max_size=300)
)
VALUES = SCALARS | st.lists(SCALARS, max_size=3)
MAPS = st.dictionaries(TEXTS, VALUES, max_size=5)
FRONTS = st.tuples(
    st.none() | st.just([True]) | st.lists(SCALARS, max_size=3),
    st.none() | st.dictionaries(st.text("abc", min_size=1, max_size=3).map(Symbol), VALUES, max_size=2),
)
BODIES = (
    st.lists(st.binary(max_size=300), min_size=1, max_size=2).map(
        lambda parts: [(0x75, part) for part in parts]
    )
    | VALUES.map(lambda value: [(0x77, value)])
    | st.lists(VALUES, max_size=2).map(lambda value: [(0x76, value)])
    | st.just([])
)
MESSAGES = st.builds(
    lambda front, properties, application, body, footer: b"".join(
        encode(Described(code, value))
        for code, value in [
            *zip((0x70, 0x72, 0x73, 0x74), (*front, properties, application), strict=True),
            *body,
            (0x78, footer),
        ]
        if value is not None or code == 0x77
    ),
    FRONTS,
    st.none() | st.lists(VALUES, max_size=13),
    st.none() | MAPS,
    BODIES,
    st.none() | st.just({Symbol("crc"): 1}),
)
CUT = MESSAGES.flatmap(lambda whole: st.integers(0, len(whole)).map(lambda end: whole[:end]))
BROKEN = MESSAGES.flatmap(
    lambda whole: st.tuples(st.integers(0, max(len(whole) - 1, 0)), st.integers(0, 255)).map(
        lambda change: whole[: change[0]] + bytes(change[1:]) + whole[change[0] + 1 :]
    )
)
SCHEMAS = st.lists(st.sampled_from(list(COLUMNS)), min_size=1, unique=True)


def stored(contents: list[bytes], first: int = 65_530) -> pa.RecordBatch:
    """The messages as a page of a store, without those that a gateway would refuse."""
    taken = []
    for content in contents:
        with suppress(ValueError):
            bare_offset(content)
            taken.append(content)
    ids = range(first, first + len(taken))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ids, pa.int64()),
            pa.array([TIME + number for number in ids], pa.int64()),
            pa.array([f"t/{number % 3}" for number in ids], pa.string()),
            pa.array(taken, pa.binary()),
        ],
        names=STORED,
    )


def told(page: pa.RecordBatch, replay_name: str = "") -> EncodedMessages:
    """The messages of a page as a log reader gets them, with the gateway's annotations."""
    splicer = Splicer(GENERATION, replay_name=replay_name)
    messages = []
    for number, time_ms, topic, content in zip(*page.to_pydict().values(), strict=True):
        bare = bare_offset(content)
        messages.append(splicer.front(number, time_ms, topic, bare, content, 0, False) + content[bare:])
    return delivered(messages)


def reader_of(names: Sequence[str]) -> BatchBuilder:
    """A builder of these columns."""
    return BatchBuilder([(name, name) for name in names])


SHAPES = st.tuples(
    st.none() | st.just([True]) | st.just([True, UByte(7)]),
    st.lists(st.sampled_from([None, "text", "symbol", "number", "binary"]), max_size=8),
    st.lists(st.text("kéy", max_size=12) | st.just("k" * 70), max_size=4),
    st.lists(st.sampled_from(["text", "symbol", "number", "binary", "null"]), min_size=4, max_size=4),
)
"""The shape of a sender's messages: header, types of properties, names and types of application properties."""
TYPES: dict[str | None, st.SearchStrategy[Any]] = {
    None: st.none(),
    "null": st.none(),
    "text": TEXTS,
    "symbol": st.text("abc", max_size=3).map(Symbol),
    "number": st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-200, 200),
    "binary": st.binary(max_size=9),
}


@st.composite
def alike(draw: st.DrawFn) -> list[bytes]:
    """A page of one sender's messages, which differ in values only; sometimes with another or a damaged one."""
    header, properties, names, kinds = draw(SHAPES)
    same_length = draw(st.booleans())
    page = []
    for _ in range(draw(st.integers(2, 9))):
        fields = [draw(TYPES[kind]) for kind in properties]
        values = {name: draw(TYPES[kind]) for name, kind in zip(names, kinds, strict=False)}
        body = draw(st.binary(min_size=5, max_size=5) if same_length else st.binary(max_size=300))
        parts = ((0x70, header), (0x73, fields), (0x74, values), (0x75, body))
        page.append(b"".join(encode(Described(code, part)) for code, part in parts if part is not None))
    if draw(st.booleans()):
        page.insert(draw(st.integers(0, len(page))), draw(MESSAGES | BROKEN))
    if draw(st.booleans()):
        number = draw(st.integers(0, len(page) - 1))
        octets = page[number]
        at = draw(st.integers(0, max(len(octets) - 1, 0)))
        page[number] = octets[:at] + bytes([draw(st.integers(0, 255))]) + octets[at + 1 :]
    return page


PAGES = st.lists(MESSAGES | CUT | BROKEN, max_size=12) | alike()


def by_one(names: list[str], page: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows of a page, read one by one."""
    reader = reader_of(names)
    if "content" not in reader.stored_columns:
        return [{} for _ in range(len(page))]
    columns = reader._kept_one_by_one(page, Splicer(GENERATION))
    return [{name: columns[name][n].as_py() for name in columns} for n in range(len(page))]


@given(PAGES, SCHEMAS)
def test_a_page_reads_as_its_messages_one_by_one(contents: list[bytes], names: list[str]) -> None:
    """A page of any messages, well-formed or not, gives the same rows as its messages one by one."""
    page = stored(contents)
    batch = reader_of(names).stored(page, Splicer(GENERATION), GENERATION)
    assert batch.num_rows == len(page)
    for row, expected in zip(batch.to_pylist(), by_one(names, page), strict=True):
        assert {name: row[name] for name in expected} == expected


@given(PAGES, SCHEMAS)
def test_a_page_of_a_link_is_that_of_the_file(contents: list[bytes], names: list[str]) -> None:
    """Messages from a link, with the gateway's annotations, give the same rows as messages from the store."""
    page = stored(contents)
    ours, offsets = reader_of(names).batch(told(page))
    theirs = reader_of(names).stored(page, Splicer(GENERATION), GENERATION)
    assert offsets.tolist() == page.column("id").to_pylist()
    assert ours.to_pylist() == theirs.to_pylist()


@given(st.lists(MESSAGES, min_size=1, max_size=8), st.booleans())
def test_a_mark_is_a_system_property(contents: list[bytes], is_stored: bool) -> None:
    """
    The name of a replay, added by the link or stored with a copy, is in systemProperties, and no other column is
    different.
    """
    plain, _ = reader_of(list(COLUMNS)).batch(told(stored(contents)))
    if is_stored:
        taken = stored(contents).column("content").to_pylist()
        page = stored([annotated(content, {REPLAY_NAME: "nightly"})[0] for content in taken])
        found = reader_of(list(COLUMNS)).stored(page, Splicer(GENERATION), GENERATION)
    else:
        found, _ = reader_of(list(COLUMNS)).batch(told(stored(contents), "nightly"))
    for before, after in zip(plain.to_pylist(), found.to_pylist(), strict=True):
        known, system = dict(before.pop("systemProperties")), dict(after.pop("systemProperties"))
        assert system == known | {REPLAY_NAME: "nightly"}
        assert after == before


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_are_unusual_or_a_page(messages: list[bytes]) -> None:
    """Any bytes of a peer are read as a page or reported as unusual."""
    try:
        page = MessageBlock(delivered(messages))
        page.texts_of(0x73, [0, 12])
        page.pairs()
        assert len(page.bodies()) == len(messages)
        page.annotations(with_texts=True)
    except Unusual as found:
        assert len(found.usual) == len(messages)


def test_the_usual_is_read_side_by_side() -> None:
    """Usual messages are read in columns: texts of any length, numbers, a durable header, data or a value."""
    messages = [
        encode(Described(0x70, [True]))
        + encode(
            Described(0x73, [f"m-{n}", None, "topic://t", "s" * n, None, ULong(n), Symbol("text/plain")])
        )
        + encode(Described(0x74, {"carrier": "AA", "flight": n, "late": n % 2 == 0, "none": None, "f": 1.5}))
        + encode(Described(0x75, b"x" * n) if n % 3 else Described(0x77, "text"))
        for n in range(600)
    ]
    page = MessageBlock(delivered(messages))
    assert page.texts_of(0x73, [0, 5])[1].to_pylist() == [str(n) for n in range(600)]
    assert page.pairs()[599].as_py(maps_as_pydicts="strict") == {
        "carrier": "AA", "flight": "599", "late": "false", "none": None, "f": "1.5"
    }  # fmt: skip
    assert page.body_types().to_pylist()[:2] == ["value", "data"]


def test_annotations_that_cannot_be_decoded_do_not_make_the_log_unreadable() -> None:
    """An annotation that is no UTF-8 makes the columns of its message null, and does not fail the read."""
    content = b"\x00\x53\x72\xc1\x07\x02\xa3\x01a\xa1\x01\xff" + encode(Described(0x75, b"x"))
    page = stored([content, content[12:]], 1)
    reader = reader_of(("offset", "topic", "body", "systemProperties"))
    batch = reader.stored(page, Splicer(GENERATION), GENERATION)
    assert batch.column(2).to_pylist() == [None, b"x"]
    assert "utf-8" in batch.to_pylist(maps_as_pydicts="strict")[0]["systemProperties"]["rewind:undecodable"]
    assert reader.batch(told(page))[0].to_pylist() == batch.to_pylist()


def test_a_key_that_is_no_text_does_not_make_the_log_unreadable() -> None:
    """A null key, which a map column cannot have, becomes the text ``null``."""
    content = encode(Described(0x74, {None: 1})) + encode(Described(0x75, b"x"))
    batch = reader_of(["properties"]).stored(stored([content], 1), Splicer(1), 1)
    assert batch.to_pylist(maps_as_pydicts="strict") == [{"properties": {"null": "1"}}]


def sent(number: int, name: str = "late", subject: str | bytes = "é") -> bytes:
    """One of a sender's messages, with values of several types and varying lengths."""
    fields = [f"m-{'1' * (number % 5)}", None, "topic://t", subject]
    values = {"carrier": "A" * (number % 4), "flight": number, name: number % 2 == 0, "tail": f"N{number}"}
    parts = ((0x70, [True]), (0x73, fields), (0x74, values), (0x75, b"x" * (number % 3)))
    return b"".join(encode(Described(code, part)) for code, part in parts)


@pytest.mark.parametrize(
    "odd",
    [
        sent(3),
        sent(3, name="last"),
        sent(3, name="tail"),
        sent(3).replace(b"topic://t", b"topic://\xff"),
        sent(3).replace(b"\xa1\x02N3", b"\xa1\x02N\xff"),
        sent(3).replace(b"\xa1\x02N3", b"\x01\x02N3"),
        sent(3, subject="s" * 300),
        sent(3).replace(b"\x00\x53\x75", b"\x00\x53\x78"),
    ],
)
@pytest.mark.parametrize("at", [0, 2, 6])
def test_one_that_differs_among_those_that_are_alike(odd: bytes, at: int) -> None:
    """One message that differs from its page in a name, a type or an octet that is no text is read right."""
    contents = [sent(number) for number in range(6)]
    page = stored([*contents[:at], odd, *contents[at:]])
    names = list(COLUMNS)
    for chosen in (names, ["body"], ["subject"], ["properties"]):
        found = reader_of(chosen).stored(page, Splicer(GENERATION), GENERATION).to_pylist()
        for row, expected in zip(found, by_one(chosen, page), strict=True):
            assert {name: row[name] for name in expected} == expected


SOME = st.lists(st.binary(max_size=90), max_size=9)


@given(SOME, st.data())
def test_a_column_and_a_part_of_it_have_their_values(messages: list[bytes], data: st.DataObject) -> None:
    """A slice of a column, whose first row and octet are not the column's, has the right messages."""
    first, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(messages))] * 2)))
    column = pa.array(messages, pa.binary()).slice(first, stop - first)
    assert list(EncodedMessages.of_column(column)) == messages[first:stop]
    assert list(delivered(messages)) == messages


@given(st.lists(SOME, max_size=5), st.data())
def test_batches_have_the_messages_of_each(batches: list[list[bytes]], data: st.DataObject) -> None:
    """Batches give the messages that ``messages_of`` finds in each, and a filter chooses among them."""
    gathered, expected = Gathered(in_batches=True), []
    for messages in batches:
        batch = batch_of([b""] * len(messages), messages)
        gathered.add(batch)
        expected += messages_of(batch)
    found = gathered.messages()
    assert (list(found), len(gathered)) == (expected, len(expected))
    chosen = data.draw(st.lists(st.booleans(), min_size=len(expected), max_size=len(expected)))
    kept = [message for message, is_chosen in zip(expected, chosen, strict=True) if is_chosen]
    assert list(found.filter(pa.array(chosen, pa.bool_()))) == kept


@given(SOME)
def test_behind_the_last_message_lies_nothing_of_another(messages: list[bytes]) -> None:
    """Messages follow each other without gaps, and zeros follow the last one, so a read beyond it finds no other."""
    for found in (delivered(messages), EncodedMessages.of_column(pa.array(messages, pa.binary()))):
        assert not found.block[-PADDING:].any()
        assert found.block.size == sum(map(len, messages)) + PADDING
        assert (found.starts[1:] == found.ends[:-1]).all()


def test_what_is_no_batch_is_told() -> None:
    """A delivery that is cut short is an error, and adds no message."""
    gathered = Gathered(in_batches=True)
    with pytest.raises(CodecError):
        gathered.add(batch_of([b""], [b"message"])[:-1])
    assert (len(gathered), gathered.octets) == (0, 0)


@given(st.lists(VALUES, max_size=40) | st.dictionaries(st.text(max_size=9), VALUES), st.binary(max_size=3))
def test_lists_and_maps_are_read_as_the_codec_reads_them(value: object, front: bytes) -> None:
    """``items`` gives the codec's items, of a map in turn key and value, at any place in a buffer."""
    encoded = front + encode(value)
    known = decode(encoded, len(front))[0]
    known = list(chain(*known.items())) if isinstance(known, dict) else known
    found = items(encoded, len(front))
    assert found == known
    assert [isinstance(item, Timestamp) for item in found] == [isinstance(item, Timestamp) for item in known]


@given(st.sampled_from([0xC0, 0xD0, 0xC1, 0xD1, 0x45, 0xA0]), st.binary(max_size=40))
def test_any_bytes_give_items_or_a_known_error(form: int, rest: bytes) -> None:
    """A hostile list raises only errors that the row builder catches."""
    try:
        assert len(items(bytes((form,)) + rest, 0)) <= len(rest)
    except (CodecError, IndexError, UnicodeDecodeError):
        pass
    except Exception as error:
        assert type(error).__name__ == "error", error  # struct.error, from a value that is cut short
