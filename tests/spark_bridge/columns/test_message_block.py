"""Messages read side by side against the same messages read one by one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Described, Symbol, Timestamp, UByte, UInt, ULong, UShort, encode
from amqp_ext.message.annotations import Splicer
from amqp_ext.message.sections import bare_offset
from spark_bridge.columns.message_block import MessageBlock, Unusual
from spark_bridge.columns.record_batches import BatchBuilder
from store.archive.columns import COLUMNS

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


def stored(contents: list[bytes]) -> list[tuple[int, int, str, int, bytes]]:
    """The messages as rows of a store; what a gateway would refuse to take is left out."""
    rows = []
    for number, content in enumerate(contents, start=65_530):
        try:
            rows.append((number, TIME + number, f"t/{number % 3}", bare_offset(content), content))
        except ValueError:
            continue
    return rows


def by_one(names: list[str], rows: list[Any]) -> list[dict[str, Any]]:
    """Each row in a page of its own reader's."""
    splicer = Splicer(GENERATION)
    reader = BatchBuilder([(name, name) for name in names])
    columns = reader._kept_one_by_one(rows, splicer) if reader.needs_content else {}
    return [{name: columns[name][n].as_py() for name in columns} for n in range(len(rows))]


@given(st.lists(MESSAGES | CUT | BROKEN, max_size=12), SCHEMAS)
def test_a_page_reads_as_its_messages_one_by_one(contents: list[bytes], names: list[str]) -> None:
    """Whatever the messages, well-formed or not, no row depends on how it was read or what it lay beside."""
    rows = stored(contents)
    batch = BatchBuilder([(name, name) for name in names]).stored(rows, Splicer(GENERATION), GENERATION)
    found = batch.to_pylist()
    assert batch.num_rows == len(rows)
    for row, expected in zip(found, by_one(names, rows), strict=True):
        assert {name: row[name] for name in expected} == expected


@given(st.lists(MESSAGES | CUT | BROKEN, max_size=12), SCHEMAS)
def test_a_page_of_a_link_is_that_of_the_file(contents: list[bytes], names: list[str]) -> None:
    """With the gateway's annotations in front, and read from the store, every column of every row is the same."""
    rows = stored(contents)
    splicer = Splicer(GENERATION)
    messages = [splicer.front(n, ms, t, bare, c, 0, False) + c[bare:] for n, ms, t, bare, c in rows]
    ours, offsets = BatchBuilder([(name, name) for name in names]).batch(messages)
    theirs = BatchBuilder([(name, name) for name in names]).stored(rows, Splicer(GENERATION), GENERATION)
    assert offsets == [row[0] for row in rows]
    assert ours.to_pylist() == theirs.to_pylist()


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_any_bytes_are_unusual_or_a_page(messages: list[bytes]) -> None:
    """Nothing a peer sends makes the reader look outside its block."""
    try:
        page = MessageBlock(messages)
        page.texts_of(0x73, [0, 12])
        page.pairs()
        assert len(page.bodies()) == len(messages)
        page.annotations(with_texts=True)
    except Unusual as found:
        assert len(found.usual) == len(messages)


def test_the_usual_is_read_side_by_side() -> None:
    """What senders send needs no second look: texts long and short, numbers, a durable header, data or a value."""
    messages = [
        encode(Described(0x70, [True]))
        + encode(
            Described(0x73, [f"m-{n}", None, "topic://t", "s" * n, None, ULong(n), Symbol("text/plain")])
        )
        + encode(Described(0x74, {"carrier": "AA", "flight": n, "late": n % 2 == 0, "none": None, "f": 1.5}))
        + encode(Described(0x75, b"x" * n) if n % 3 else Described(0x77, "text"))
        for n in range(600)
    ]
    page = MessageBlock(messages)
    assert page.texts_of(0x73, [0, 5])[1].to_pylist() == [str(n) for n in range(600)]
    assert page.pairs()[599].as_py(maps_as_pydicts="strict") == {
        "carrier": "AA", "flight": "599", "late": "false", "none": None, "f": "1.5"
    }  # fmt: skip
    assert page.body_types().to_pylist()[:2] == ["value", "data"]


def test_annotations_that_cannot_be_decoded_do_not_make_the_log_unreadable() -> None:
    """A sender's annotation that is no UTF-8 costs that message its columns, not the log its readers."""
    content = b"\x00\x53\x72\xc1\x07\x02\xa3\x01a\xa1\x01\xff" + encode(Described(0x75, b"x"))
    rows = [(1, TIME, "t", 12, content), (2, TIME, "t", 0, content[12:])]
    splicer = Splicer(GENERATION)
    reader = BatchBuilder([(name, name) for name in ("offset", "topic", "body", "systemProperties")])
    batch = reader.stored(rows, splicer, GENERATION)
    assert batch.column(2).to_pylist() == [None, b"x"]
    assert "utf-8" in batch.to_pylist(maps_as_pydicts="strict")[0]["systemProperties"]["rewind:undecodable"]
    told = [splicer.front(*row, 0, False) + row[4][row[3] :] for row in rows]
    assert reader.batch(told)[0].to_pylist() == batch.to_pylist()


def test_a_key_that_is_no_text_does_not_make_the_log_unreadable() -> None:
    """A map needs its keys: null becomes the text null."""
    content = encode(Described(0x74, {None: 1})) + encode(Described(0x75, b"x"))
    batch = BatchBuilder([("properties", "properties")]).stored([(1, 0, "t", 0, content)], Splicer(1), 1)
    assert batch.to_pylist(maps_as_pydicts="strict") == [{"properties": {"null": "1"}}]
