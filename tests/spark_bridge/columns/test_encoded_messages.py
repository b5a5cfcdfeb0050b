"""Encoded messages in a block: the same octets come out, whatever they came in as."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import CodecError
from amqp_ext.message.fields import batch_of, messages_of
from spark_bridge.columns.message_block import PADDING, EncodedMessages, Gathered
from tests.spark_bridge.reading import delivered

pytestmark = pytest.mark.spark
MESSAGES = st.lists(st.binary(max_size=90), max_size=9)


@given(MESSAGES, st.data())
def test_a_column_and_a_part_of_it_have_their_values(messages: list[bytes], data: st.DataObject) -> None:
    """A slice of a column, as a filter or a page leaves it, begins neither at its first row nor at its first octet."""
    first, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(messages))] * 2)))
    column = pa.array(messages, pa.binary()).slice(first, stop - first)
    assert list(EncodedMessages.of_column(column)) == messages[first:stop]
    assert list(delivered(messages)) == messages


@given(st.lists(MESSAGES, max_size=5), st.data())
def test_batches_have_the_messages_of_each(batches: list[list[bytes]], data: st.DataObject) -> None:
    """Messages of some batches are where ``messages_of`` finds them in each, and some of them can be chosen."""
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


@given(MESSAGES)
def test_behind_the_last_message_lies_nothing_of_another(messages: list[bytes]) -> None:
    """Whoever looks beyond the last message sees zeros, and each begins where the one before ends."""
    for found in (delivered(messages), EncodedMessages.of_column(pa.array(messages, pa.binary()))):
        assert not found.block[-PADDING:].any()
        assert found.block.size == sum(map(len, messages)) + PADDING
        assert (found.starts[1:] == found.ends[:-1]).all()


def test_what_is_no_batch_is_told() -> None:
    """A delivery that is cut short adds nothing."""
    gathered = Gathered(in_batches=True)
    with pytest.raises(CodecError):
        gathered.add(batch_of([b""], [b"message"])[:-1])
    assert (len(gathered), gathered.octets) == (0, 0)
