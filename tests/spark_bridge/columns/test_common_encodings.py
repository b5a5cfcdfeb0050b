"""The quick reader of messages against the general one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import CodecError, Described, Symbol, Timestamp, ULong, decode, encode
from amqp_ext.message.sections import split
from spark_bridge.columns.single_message import items, sections

pytestmark = pytest.mark.spark
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.integers(0, (1 << 64) - 1).map(ULong)
    | st.integers(-(1 << 63), (1 << 63) - 1).map(Timestamp)
    | st.text(max_size=300)
    | st.binary(max_size=300)
    | st.uuids()
    | st.text("abc", max_size=3).map(Symbol)
)
MAPS = st.dictionaries(st.text(max_size=9), SCALARS | st.lists(SCALARS, max_size=3), max_size=9)
MESSAGES = st.builds(
    lambda parts, body: (
        b"".join(encode(Described(code, value)) for code, value in parts if value is not None)
        + b"".join(encode(Described(0x75, part)) for part in body)
    ),
    st.tuples(
        st.tuples(st.sampled_from([0x70, "amqp:header:list"]), st.none() | st.lists(SCALARS, max_size=3)),
        st.tuples(st.just(0x72), st.none() | MAPS),
        st.tuples(st.just(0x73), st.none() | st.lists(SCALARS, max_size=13)),
        st.tuples(st.just(0x74), st.none() | MAPS),
    ),
    st.lists(st.binary(max_size=300), min_size=1, max_size=3),
)
CUT_MESSAGES = MESSAGES.flatmap(lambda whole: st.integers(0, len(whole)).map(lambda end: whole[:end]))


@given(st.lists(SCALARS | st.lists(SCALARS, max_size=3), max_size=40), st.binary(max_size=3))
def test_lists_read_as_the_codec_reads_them(values: list[object], front: bytes) -> None:
    """Every list of any values has the same items, wherever in the buffer it stands."""
    encoded = front + encode(values)
    assert items(encoded, len(front)) == decode(encoded, len(front))[0]


@given(MAPS)
def test_maps_read_as_their_pairs_in_order(mapping: dict[str, object]) -> None:
    """A map gives key, value, key, value, in the order sent."""
    assert items(encode(mapping), 0) == [part for pair in mapping.items() for part in pair]


def test_a_timestamp_stays_a_timestamp() -> None:
    """Times are written differently from numbers, so the type must survive."""
    assert type(items(encode([Timestamp(5)]), 0)[0]) is Timestamp


@given(MESSAGES)
def test_sections_are_found_where_the_general_walk_finds_them(message: bytes) -> None:
    """Code, start and end of every section agree, and so does the value decoded from where it starts."""
    quick = sections(message)
    assert [(code, start, end) for code, start, _, end in quick] == split(message)
    assert all(decode(message, start)[0].value == decode(message, value)[0] for _, start, value, _ in quick)


@given(st.binary(max_size=60) | CUT_MESSAGES)
def test_any_bytes_give_sections_within_them_or_a_codec_error(message: bytes) -> None:
    """Cut-off and random bytes neither crash the reader nor lead it beyond their end."""
    try:
        found = sections(message)
    except CodecError:
        return
    assert all(start < value <= end <= len(message) for _, start, value, end in found)


@given(st.sampled_from([0xC0, 0xD0, 0xC1, 0xD1, 0x45, 0xA0]), st.binary(max_size=40))
def test_any_bytes_give_items_or_a_known_error(form: int, rest: bytes) -> None:
    """What a hostile list can raise is what the row builder catches."""
    try:
        assert len(items(bytes((form,)) + rest, 0)) <= len(rest)
    except (CodecError, IndexError, UnicodeDecodeError):
        pass
    except Exception as error:
        assert type(error).__name__ == "error", error  # struct.error, from eight bytes that are not there
