"""The quick reader of lists and maps against the general one."""

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import CodecError, Symbol, Timestamp, ULong, decode, encode
from spark_bridge.columns.single_message import items

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
VALUES = SCALARS | st.lists(SCALARS, max_size=3)


@given(st.lists(VALUES, max_size=40) | st.dictionaries(st.text(max_size=9), VALUES), st.binary(max_size=3))
def test_lists_and_maps_are_read_as_the_codec_reads_them(value: object, front: bytes) -> None:
    """The same items, of a map key and value in turns, wherever in the buffer it stands; a time stays a time."""
    encoded = front + encode(value)
    known = decode(encoded, len(front))[0]
    known = list(chain(*known.items())) if isinstance(known, dict) else known
    found = items(encoded, len(front))
    assert found == known
    assert [isinstance(item, Timestamp) for item in found] == [isinstance(item, Timestamp) for item in known]


@given(st.sampled_from([0xC0, 0xD0, 0xC1, 0xD1, 0x45, 0xA0]), st.binary(max_size=40))
def test_any_bytes_give_items_or_a_known_error(form: int, rest: bytes) -> None:
    """What a hostile list can raise is what the row builder catches."""
    try:
        assert len(items(bytes((form,)) + rest, 0)) <= len(rest)
    except (CodecError, IndexError, UnicodeDecodeError):
        pass
    except Exception as error:
        assert type(error).__name__ == "error", error  # struct.error, from eight bytes that are not there
