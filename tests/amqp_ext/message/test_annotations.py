"""The front (header and annotations) of outgoing messages, read by our codec and by proton."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext import codec
from amqp_ext.codec import CodecError, Described, Long, Symbol, Timestamp, UByte, UInt, ULong
from amqp_ext.message import annotations as module
from amqp_ext.message.annotations import OutgoingRow, Splicer, annotated
from amqp_ext.message.sections import (
    DATA,
    DELIVERY_ANNOTATIONS,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Header,
    bare_offset,
    message_annotations,
    read_header,
    split,
    split_front,
)
from amqp_ext.replay_id import format_replay_id
from tests.support.messages import messages_of, section

GENERATION = 0x0123_4567_89AB_CDEF
ID = 123_456
TIME_MS = 1_735_689_600_123
TOPIC = "flights/JFK/AA/LAX"

OURS: dict[str, Any] = {
    "x-opt-topic": TOPIC,
    "x-opt-sequence-number": ID,
    "x-opt-enqueued-time": TIME_MS,
    "x-opt-replay-id": format_replay_id(GENERATION, ID),
    "x-opt-offset": str(ID),
}


def wide(encoded: bytes) -> bytes:
    """A section whose list8 or map8 is written as list32 or map32; its descriptor is a smallulong."""
    kind, size, count = encoded[3:6]
    head = encoded[:3] + bytes([kind + 0x10])
    return head + (size + 3).to_bytes(4, "big") + count.to_bytes(4, "big") + encoded[6:]


HEADER_8 = section(HEADER, [True, UByte(7), UInt(60_000), True, UInt(2)])
THEIRS_8 = section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-theirs"): [1, {"a": b"\x00"}], Symbol("other"): True})
BODY = section(PROPERTIES, ["id-1", None, "queue"]) + section(DATA, b"hello") + section(DATA, b"")

HEADERS = {
    "no header": b"",
    "list8": HEADER_8,
    "list32": wide(HEADER_8),
    "list0": b"\x00\x53\x70\x45",
    "ulong descriptor": b"\x00\x80" + bytes(7) + b"\x70" + HEADER_8[3:],
    "symbol descriptor": codec.encode(Described(Symbol("amqp:header:list"), [True, UByte(7)])),
}
THEIRS = {
    "none": b"",
    "map8": THEIRS_8,
    "map32": wide(THEIRS_8),
    "empty map8": b"\x00\x53\x72\xc1\x01\x00",
    "symbol descriptor": codec.encode(
        Described(Symbol("amqp:message-annotations:map"), {Symbol("x-opt-theirs"): "a" * 300})
    ),
    "a number as key": section(MESSAGE_ANNOTATIONS, {ULong(5): "five"}),
    "delivery annotations": section(DELIVERY_ANNOTATIONS, {Symbol("x-opt-hop"): 1}),
    "both": section(DELIVERY_ANNOTATIONS, {Symbol("x-opt-hop"): 1}) + THEIRS_8,
}


def row(content: bytes, message_id: int = ID, time_ms: int = TIME_MS, topic: str = TOPIC) -> OutgoingRow:
    return message_id, time_ms, topic, bare_offset(content), 0, None, content


def delivered(
    content: bytes, *, attempts: int = 0, is_end: bool = False, stream_offset: bool = False
) -> bytes:
    """The message as it goes out."""
    rows = [row(content)]
    splicer = Splicer(GENERATION, stream_offset=stream_offset)
    (front,) = splicer.fronts(rows, {ID: attempts} if attempts else {}, ID if is_end else None)
    return front + content[bare_offset(content) :]


def decoded(raw: bytes) -> proton.Message:
    message = proton.Message()
    message.decode(raw)
    return message


# --- by both decoders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("theirs", THEIRS)
@pytest.mark.parametrize("header", HEADERS)
def test_the_front_is_theirs_and_ours_and_the_bare_message_follows(header: str, theirs: str) -> None:
    """Whatever the encoding of the front, our annotations are added and the bare message stays bit for bit."""
    content = HEADERS[header] + THEIRS[theirs] + BODY
    raw = delivered(content)
    assert raw.startswith(HEADERS[header]), "the header as it came"
    assert raw.endswith(BODY)
    codes = [cut.code for cut in split(raw)]
    assert codes[-3:] == [PROPERTIES, DATA, DATA]
    assert DELIVERY_ANNOTATIONS not in codes, "what the sender said to its receiver alone (section 3.2.2)"
    expected = message_annotations(content) | OURS
    assert message_annotations(raw) == expected
    assert read_header(raw) == read_header(content)
    before, after = decoded(content), decoded(raw)
    assert after.annotations == expected
    assert (after.durable, after.priority, after.ttl) == (before.durable, before.priority, before.ttl)


@pytest.mark.parametrize("stream_offset", [False, True])
def test_our_annotations_have_the_types_that_clients_expect(stream_offset: bool) -> None:
    """
    Keys are symbols; values are long, timestamp and string, as Event Hubs' and Solace's clients read them. Only
    RabbitMQ's clients get the stream's offset.
    """
    found = message_annotations(delivered(BODY, stream_offset=stream_offset))
    assert all(type(key) is Symbol for key in found)
    assert {str(key): type(value) for key, value in found.items()} == {
        "x-opt-topic": str,
        "x-opt-sequence-number": Long,
        "x-opt-enqueued-time": Timestamp,
        "x-opt-replay-id": str,
        "x-opt-offset": str,
        **({"x-stream-offset": Long} if stream_offset else {}),
    }


# --- their annotations ----------------------------------------------------------------------------------------------


def test_annotations_of_the_sender_keep_their_bytes() -> None:
    """A sender's annotation keeps its encoding, however unusual, unless its key is ours."""
    odd = b"\xb3\x00\x00\x00\x03odd" + b"\x80\x00\x00\x00\x00\x00\x00\x00\x01"
    inside = codec.encode(Symbol("x-opt-offset")) + b"\xa1\x04fake" + odd
    content = b"\x00\x53\x72\xc1" + bytes([len(inside) + 1, 4]) + inside + BODY
    raw = delivered(content)
    assert odd in raw
    assert message_annotations(raw) == OURS | {"odd": 1}


@pytest.mark.parametrize("key", [*OURS, "x-opt-replay-end", "x-stream-offset"])
def test_what_is_ours_to_say_cannot_be_forged(key: str) -> None:
    """A sender's annotation under one of our keys is left out, even where we do not set that key."""
    raw = delivered(section(MESSAGE_ANNOTATIONS, {Symbol(key): "forged", Symbol("x-kept"): 1}) + BODY)
    assert message_annotations(raw) == OURS | {"x-kept": 1}
    assert b"forged" not in raw


def test_each_key_is_there_once() -> None:
    """The map has each key once, as AMQP requires, and its count is that of distinct keys."""
    raw = delivered(section(MESSAGE_ANNOTATIONS, dict.fromkeys(map(Symbol, OURS), "forged")) + BODY)
    assert raw.count(b"x-opt-offset") == 1
    (cut,) = [cut for cut in split(raw) if cut.code == MESSAGE_ANNOTATIONS]
    assert int.from_bytes(raw[cut.start + 8 : cut.start + 12], "big") == 2 * len(OURS)


# --- what a link or a delivery adds ---------------------------------------------------------------------------------


@pytest.mark.parametrize("header", HEADERS)
def test_failed_deliveries_are_counted_in_the_header(header: str) -> None:
    """delivery-count rises by the attempts, first-acquirer becomes false, and the rest of the header stays."""
    before = read_header(HEADERS[header] + BODY)
    raw = delivered(HEADERS[header] + THEIRS["map8"] + BODY, attempts=3)
    assert read_header(raw) == Header(
        before.durable, before.priority, before.ttl_ms, False, before.delivery_count + 3
    )
    message = decoded(raw)
    assert message.delivery_count == before.delivery_count + 3
    assert message.annotations["other"] is True
    assert raw.endswith(BODY)


# --- runs of messages -----------------------------------------------------------------------------------------------

# Where the digits of an id, decimal or hexadecimal, change in number or carry over.
EDGES = [1, *[10**digits for digits in (1, 2, 5, 18)], *[1 << bits for bits in (16, 32)], 2**63 - 1]
ids = st.sampled_from(EDGES).flatmap(lambda edge: st.integers(max(edge - 3, 1), min(edge + 3, 2**63 - 1)))
topics = st.sampled_from(["a", TOPIC, "#queue/ö", "x" * 250])
front_values = st.dictionaries(
    st.text("abxyz-", min_size=1, max_size=12).map(Symbol),
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.text(max_size=20)
    | st.binary(max_size=300),
    max_size=4,
)
contents = st.builds(
    lambda header, theirs, body: header + theirs + section(DATA, body),
    st.sampled_from([*HEADERS.values()]),
    st.just(b"") | front_values.map(lambda value: section(MESSAGE_ANNOTATIONS, value)),
    st.binary(max_size=40),
)
messages = st.builds(row, contents, ids, st.sampled_from([0, TIME_MS, TIME_MS + 1]), topics)
rows_of_messages = st.lists(messages, min_size=1, max_size=8)


ANY_RUN = given(
    batches=st.lists(rows_of_messages, min_size=1, max_size=3),
    attempts=st.dictionaries(ids, st.integers(1, 3), max_size=2),
    end_id=st.none() | ids,
    stream_offset=st.booleans(),
    replay_name=st.sampled_from(["", "monday", "ö" * 200, "x" * 200]),
)


@ANY_RUN
def test_one_splicer_serves_any_run_of_messages(
    batches: Sequence[list[OutgoingRow]],
    attempts: dict[int, int],
    end_id: int | None,
    stream_offset: bool,
    replay_name: str,
) -> None:
    """Whatever was sent before on a link, each message has its own id, time, topic, header and annotations."""
    splicer = Splicer(GENERATION, stream_offset=stream_offset).marked(replay_name)
    for rows in batches:
        for (number, time_ms, topic, bare, _, _, content), front in zip(
            rows, splicer.fronts(rows, attempts, end_id), strict=True
        ):
            raw = front + content[bare:]
            expected = message_annotations(content) | {
                "x-opt-topic": topic,
                "x-opt-sequence-number": number,
                "x-opt-enqueued-time": time_ms,
                "x-opt-replay-id": format_replay_id(GENERATION, number),
                "x-opt-offset": str(number),
            }
            if number == end_id:
                expected["x-opt-replay-end"] = True
            if stream_offset:
                expected["x-stream-offset"] = number
            if replay_name:
                expected["x-opt-replay-name"] = replay_name
            assert message_annotations(raw) == expected
            before, after = read_header(content), read_header(raw)
            assert after.delivery_count == before.delivery_count + attempts.get(number, 0)
            assert (after.durable, after.priority, after.ttl_ms) == (
                before.durable,
                before.priority,
                before.ttl_ms,
            )
            assert decoded(raw).annotations == expected


def test_a_mark_takes_the_place_of_an_older_one() -> None:
    """A replay with a name replaces an older replay's name on a message; without a name the old one stays."""
    content = section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-replay-name"): "old", Symbol("x-k"): 1}) + BODY
    for name in ("", "new"):
        (front,) = Splicer(GENERATION, replay_name=name).fronts([row(content)], {}, None)
        found = message_annotations(front + BODY)
        assert (found["x-opt-replay-name"], found["x-k"], len(found)) == (name or "old", 1, 7)


@ANY_RUN
def test_a_batch_has_the_messages_that_go_out_one_by_one(
    batches: Sequence[list[OutgoingRow]],
    attempts: dict[int, int],
    end_id: int | None,
    stream_offset: bool,
    replay_name: str,
) -> None:
    """A message in a batch is the same as in a delivery of its own, whatever the link sent before."""
    one_by_one = Splicer(GENERATION, stream_offset=stream_offset, replay_name=replay_name)
    together = Splicer(GENERATION, stream_offset=stream_offset, replay_name=replay_name)
    for rows in batches:
        fronts = one_by_one.fronts(rows, attempts, end_id)
        assert messages_of(together.batch(rows, attempts, end_id)) == [
            front + content[bare:] for front, (_, _, _, bare, _, _, content) in zip(fronts, rows, strict=True)
        ]
        # Batches and single deliveries may alternate on one link, so neither may spoil the template of the other.
        assert together.fronts(rows, {}, None) == one_by_one.fronts(rows, {}, None)


def test_remembered_layouts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics of ever new lengths do not fill the memory, and each message still has its topic."""
    monkeypatch.setattr(module, "PACK_CACHE", 4)
    splicer = Splicer(GENERATION)
    for length in range(1, 20):
        (front,) = splicer.fronts([row(BODY, topic="t" * length)], {}, None)
        assert message_annotations(front + BODY)["x-opt-topic"] == "t" * length
        assert len(splicer._packs) <= 4


def test_what_is_remembered_of_fronts_is_bounded() -> None:
    """Ever new annotations do not fill the memory, and long fronts are not remembered."""
    module._taken_apart.cache_clear()
    for number in range(2 * module.PACK_CACHE):
        theirs = section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-theirs"): number})
        assert message_annotations(delivered(theirs + BODY))["x-opt-theirs"] == number
    assert module._taken_apart.cache_info().currsize == module.PACK_CACHE
    module._taken_apart.cache_clear()
    theirs = section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-theirs"): "a" * module.LONGEST_FRONT})
    assert message_annotations(delivered(theirs + BODY))["x-opt-theirs"] == "a" * module.LONGEST_FRONT
    assert module._taken_apart.cache_info().currsize == 0


# --- annotations on messages that the gateway itself publishes ------------------------------------------------------


@pytest.mark.parametrize("theirs", ["none", "map8", "map32"])
@pytest.mark.parametrize("header", HEADERS)
def test_a_message_can_be_given_more_annotations(header: str, theirs: str) -> None:
    """The result has the header, annotations and bare message of the original, and the new annotations."""
    content = HEADERS[header] + THEIRS[theirs] + BODY
    raw, bare = annotated(content, {"x-opt-dead-reason": "expired", "x-opt-dead-time": Timestamp(5)})
    assert raw[bare:] == BODY
    assert bare_offset(raw) == bare
    assert read_header(raw) == read_header(content)
    assert message_annotations(raw) == message_annotations(content) | {
        "x-opt-dead-reason": "expired",
        "x-opt-dead-time": 5,
    }


def test_an_annotation_given_twice_has_the_last_value() -> None:
    """A message that is dead-lettered again has only the second reason."""
    once, _ = annotated(BODY, {"x-opt-dead-reason": "expired"})
    twice, _ = annotated(once, {"x-opt-dead-reason": "rejected"})
    assert message_annotations(twice)["x-opt-dead-reason"] == "rejected"
    assert twice.count(b"x-opt-dead-reason") == 1


# --- malformed messages are delivered without an error ----------------------------------------------------------------

CUT_BODY = b"\x00\x53\x75\xa0\x09cut"


def test_a_body_that_is_cut_short_goes_out_as_it_came() -> None:
    """The bare message is neither checked nor changed."""
    content = section(MESSAGE_ANNOTATIONS, {Symbol("x-mine"): 1}) + CUT_BODY
    out = delivered(content)
    assert out.endswith(CUT_BODY)
    assert message_annotations(out)["x-mine"] == 1


@pytest.mark.parametrize(
    "inside",
    [b"\xa3\x02ab", b"\x45\x45", b"\xff\xff", b"\xb0\xff\xff\xff\xff\x40"],
    ids=["a key alone", "a list as key", "no types", "a size beyond"],
)
def test_annotations_that_are_none_are_left_out(inside: bytes) -> None:
    """An annotations section whose content is no map is replaced by ours."""
    theirs = b"\x00\x53\x72\xc1" + bytes([len(inside) + 1, 2]) + inside
    out = delivered(theirs + CUT_BODY)
    assert message_annotations(out)["x-opt-sequence-number"] == ID
    assert out.endswith(CUT_BODY)


def test_a_header_that_is_none_is_counted_from_the_defaults() -> None:
    """If the header has wrong types, a redelivery has a new header, which counts from the defaults."""
    content = b"\x00\x53\x70" + codec.encode(["durable", "high"]) + CUT_BODY
    assert read_header(delivered(content, attempts=2)).delivery_count == 2


@pytest.mark.parametrize(
    "fields",
    [[True, UInt(300)], [None, Long(-1)], [None, None, ULong(2**32)], [None, None, None, None, Long(-9)]],
)
def test_a_number_out_of_its_range_in_a_header_does_not_stop_a_redelivery(fields: list[Any]) -> None:
    """A header with a number that its field cannot have is taken in; its redelivery counts from the defaults."""
    out = delivered(section(HEADER, fields) + BODY, attempts=2)
    assert read_header(out) == Header(delivery_count=2)
    assert out.endswith(BODY)


def test_the_delivery_count_ends_at_its_largest() -> None:
    """A delivery-count of 4,294,967,295 stays as it is, without an error."""
    content = section(HEADER, [False, None, None, False, UInt(2**32 - 1)]) + CUT_BODY
    assert read_header(delivered(content, attempts=3)).delivery_count == 2**32 - 1


@given(st.binary(max_size=60), st.integers(0, 3))
def test_no_content_that_was_taken_fails_on_its_way_out(noise: bytes, attempts: int) -> None:
    """Any content that is accepted as a message can be sent, with a front that can be read."""
    for content in (
        noise,
        section(MESSAGE_ANNOTATIONS, {Symbol("a"): 1})[:6] + noise,
        b"\x00\x53\x72\xc1" + noise,
    ):
        try:
            bare = bare_offset(content)
        except CodecError:
            continue
        out = delivered(content, attempts=attempts)
        assert out.endswith(content[bare:])
        assert split_front(out, len(out) - len(content[bare:]))
