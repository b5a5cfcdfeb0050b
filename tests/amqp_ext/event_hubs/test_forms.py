"""Event Hubs' positions, frames, nodes and batches."""

from __future__ import annotations

import contextlib
import re
from typing import Any
from urllib.parse import quote_plus
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import CodecError, Described, Int, Symbol, UByte, UInt, ULong, decode, encode
from amqp_ext.event_hubs.forms import POSITION, from_position_selector
from amqp_ext.event_hubs.frames import (
    BATCH_FORMAT,
    FIELDS,
    LEAST_EVENT,
    MOST_EVENTS,
    PADDING_BYTES,
    IncomingFrames,
    Padder,
    padded,
)
from amqp_ext.event_hubs.management import (
    CbsNode,
    HubState,
    ManagementNode,
    PartitionState,
    PutToken,
    ReadHub,
    ReadPartition,
    TokenError,
    path_of,
    read_token,
    sign,
)
from amqp_ext.message import sections
from amqp_ext.replay_start import (
    MAX_DATE_MS,
    MAX_OFFSET,
    ReplayStartError,
    StartKind,
)
from amqp_ext.request_nodes import RequestError, value_of
from tests.amqp_ext.replay_start.starts import NEW_YEAR, start
from tests.support.frames import AMQP_HEADER, frame, framed
from tests.support.messages import section

# --- Event Hubs' positions as starts --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "kind", "place"),
    [
        ("amqp.annotation.x-opt-offset > '-1'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-offset >= '-1'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-offset > '@latest'", StartKind.LIVE, None),
        ("amqp.annotation.x-opt-offset > '41'", StartKind.OFFSET, 42),
        ("amqp.annotation.x-opt-offset >= '41'", StartKind.OFFSET, 41),
        ("amqp.annotation.x-opt-sequence-number > '41'", StartKind.OFFSET, 42),
        ("amqp.annotation.x-opt-sequence-number >= '41'", StartKind.OFFSET, 41),
        ("amqp.annotation.x-opt-sequence-number > '-1'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-sequence-number >= '0'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-offset > '0'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-offset >= '00000'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-enqueued-time >= '0'", StartKind.BEGINNING, None),
        ("amqp.annotation.x-opt-enqueued-time > '-62135596800000'", StartKind.BEGINNING, None),
        (f"amqp.annotation.x-opt-enqueued-time > '{NEW_YEAR}'", StartKind.DATE, NEW_YEAR + 1),
        (f"amqp.annotation.x-opt-enqueued-time >= '{NEW_YEAR}'", StartKind.DATE, NEW_YEAR),
        ("  amqp.annotation.x-opt-offset>'41' ", StartKind.OFFSET, 42),
        ('"amqp.annotation.x-opt-sequence-number" > 12345', StartKind.OFFSET, 12_346),
        (f'"amqp.annotation.x-opt-enqueued-time" >= {NEW_YEAR}', StartKind.DATE, NEW_YEAR),
    ],
)
def test_event_hubs_positions_are_read(text: str, kind: StartKind, place: int | None) -> None:
    """The selectors that Event Hubs clients send, and their quoted form that Qpid JMS can send."""
    read = from_position_selector(text)
    assert read == start(kind, place)
    assert read is not None and read.form == POSITION


@pytest.mark.parametrize(
    "text",
    [
        "",
        "colour = 'red'",
        "amqp.annotation.x-opt-offset < '5'",
        "amqp.annotation.x-opt-offset = '5'",
        "amqp.annotation.x-opt-offset > '5' AND colour = 'red'",
        '"amqp.annotation.x-opt-offset > 5',
        "amqp.annotation.x-opt-partition-key > '5'",
        "xamqp.annotation.x-opt-offset > '5'",
    ],
)
def test_other_selectors_are_not_event_hubs_positions(text: str) -> None:
    """A selector of another form is no position."""
    assert from_position_selector(text) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("amqp.annotation.x-opt-offset > ''", "The supplied offset '' is invalid: it is a number, '-1'"),
        ("amqp.annotation.x-opt-offset > 'abc'", "The supplied offset 'abc' is invalid"),
        ("amqp.annotation.x-opt-offset > '-2'", "'-2' is invalid"),
        ("amqp.annotation.x-opt-enqueued-time > '@latest'", "it is a time in ms since the epoch"),
        ("amqp.annotation.x-opt-enqueued-time > '2026-01-01'", "it is a time in ms since the epoch"),
        (f"amqp.annotation.x-opt-offset > '{MAX_OFFSET}'", "An offset is a number from 0"),
        (f"amqp.annotation.x-opt-enqueued-time > '{MAX_DATE_MS}'", "between the years"),
        ("amqp.annotation.x-opt-offset > '" + "9" * 5_000 + "'", "is invalid"),
    ],
)
def test_a_bad_event_hubs_position_is_refused(text: str, words: str) -> None:
    """The right form with no position in it is an error, not a selector that matches nothing."""
    with pytest.raises(ReplayStartError, match=re.escape(words)):
        from_position_selector(text)


# --- Shared access signatures ---------------------------------------------------------------------------------------

KEY = "0123456789abcdef"
RESOURCE = "sb://127.0.0.1:5672/flights"


def token(key: str = KEY, resource: str = RESOURCE, expires_s: int = 2_000, name: str = "ann") -> str:
    """A token as the clients make it."""
    encoded = quote_plus(resource)
    signature = quote_plus(sign(key, encoded, expires_s))
    return f"SharedAccessSignature sr={encoded}&sig={signature}&se={expires_s}&skn={name}"


def test_a_token_of_the_library_is_good() -> None:
    """A token made by azure-eventhub 5.15.1 is read, and its signature is right."""
    text = (
        "SharedAccessSignature sr=sb%3A%2F%2F127.0.0.1%3A15672%2Fflights"
        "&sig=I%2Fd3EaQ7VRXPxwK2ky6Mo8hkyAt7nVHlBTb%2FQPh17EQ%3D&se=1795260000&skn=ann"
    )
    found = read_token(text)
    assert (found.key_name, found.resource, found.expires_s) == ("ann", "flights", 1_795_260_000)
    found.check(KEY, 1_795_259_999)


def test_a_token_says_who_for_what_and_how_long() -> None:
    """Key name, path and expiry are read in any order of the fields."""
    prefix, _, fields = token().partition(" ")
    found = read_token(f"{prefix} {'&'.join(reversed(fields.split('&')))}")
    assert (found.key_name, found.resource, found.expires_s) == ("ann", "flights", 2_000)
    found.check(KEY, 1_999.9)


@pytest.mark.parametrize(
    ("made", "now_s", "words"),
    [
        (token(key="another key, of another user"), 0, "not one of key 'ann'"),
        (token(), 2_000, "expired 0 s ago"),
        (token(), 2_060, "expired 60 s ago"),
        (token().replace("flights", "orders"), 0, "not one of key"),
        (token().replace("se=2000", "se=9000"), 0, "not one of key"),
    ],
)
def test_a_token_that_is_not_good_is_refused(made: str, now_s: float, words: str) -> None:
    """A token is refused if it was signed with another key, resource or expiry, or has expired."""
    with pytest.raises(TokenError, match=words):
        read_token(made).check(KEY, now_s)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("eyJhbGciOi", "not a shared access signature"),
        ("SharedAccessSignature ", "has no sr and no sig and no se and no skn"),
        (token().replace("&skn=ann", ""), "has no skn"),
        (token().replace("se=2000", "se=soon"), "not a number of seconds"),
        (token().replace("se=2000", "se=-1"), "not a number of seconds"),
    ],
)
def test_what_is_no_token_is_refused(text: str, words: str) -> None:
    """The error says what is missing or wrong, and does not quote the signature."""
    with pytest.raises(TokenError, match=words) as refused:
        read_token(text)
    assert "sig=" not in str(refused.value).replace("sig=…", "")


@pytest.mark.parametrize(
    ("resource", "path", "is_covered"),
    [
        ("sb://h/flights", "flights", True),
        ("sb://h/flights/", "flights/ConsumerGroups/$Default/Partitions/0", True),
        ("sb://h/flights", "Flights", False),
        ("sb://h/Flights", "flights/ConsumerGroups/$Default/Partitions/0", False),
        ("amqps://h:5671/flights/Partitions/0", "flights", False),
        ("sb://h/flights", "flights-2", False),
        ("sb://h/", "anything/at/all", True),
        ("sb://h", "", True),
        ("flights", "", False),
    ],
)
def test_a_token_is_for_an_entity_and_all_below(resource: str, path: str, is_covered: bool) -> None:
    """A hub's token covers its partitions and groups, a namespace's everything, a partition's not its hub."""
    assert read_token(token(resource=resource)).covers(path) is is_covered


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text raises anything but TokenError."""
    for one in (text, f"SharedAccessSignature {text}", f"SharedAccessSignature sr={text}&sig=a&se=1&skn=b"):
        with contextlib.suppress(TokenError):
            read_token(one).check(KEY, 0)


def test_a_path_is_what_is_behind_the_host() -> None:
    """Scheme, host and port are no part of the path."""
    assert path_of("sb://h:5672/a/b/") == path_of("amqps://other/a/b") == path_of("a/b") == "a/b"


# --- Frames seen before the engine ----------------------------------------------------------------------------------


def attach(name: str, handle: int, *, sends: bool = True, channel: int = 0) -> bytes:
    """The attach of one of the peer's links."""
    return frame(0x12, [name, UInt(handle), not sends], channel=channel)


def transfer(handle: int, tag: bytes | None, form: int | None, *, channel: int = 0, **said: bool) -> bytes:
    """A transfer; ``more`` and ``aborted`` may be given."""
    fields = [UInt(handle), UInt(0) if tag else None, tag, UInt(form) if form is not None else None]
    fields += [False, said.get("more", False), None, None, None, said.get("aborted", False)]
    return frame(0x14, fields, b"payload", channel=channel)


def watching(*names: str) -> IncomingFrames:
    """Incoming frames that follow these links, which are attached with the handles 0, 1…"""
    seen = IncomingFrames(65_536)
    for handle, name in enumerate(names):
        seen.receive(attach(name, handle))
        seen.follow(name)
    return seen


FIRST, SECOND = ("one", b"t"), ("two", b"t")
ATTACH_BY_SYMBOL = framed(encode(Described(Symbol("amqp:attach:list"), ["one", UInt(5), False])))


@pytest.mark.parametrize(
    ("sent", "batches"),
    [
        ([transfer(0, b"t", BATCH_FORMAT), transfer(1, b"t", 0), transfer(1, b"u", None)], {FIRST}),
        # The first transfer of a delivery has its format; the following ones need not.
        (
            [
                transfer(0, b"t", BATCH_FORMAT, more=True),
                transfer(0, None, None, more=True) + transfer(0, None, None),
                transfer(0, b"u", 0),
            ],
            {FIRST},
        ),
        ([transfer(0, b"t", BATCH_FORMAT, more=True) + transfer(0, None, None, aborted=True)], set()),
        # After a detach or the end of its session a handle may belong to another link.
        ([frame(0x16, [UInt(0), True]) + attach("two", 0), transfer(0, b"t", BATCH_FORMAT)], {SECOND}),
        ([frame(0x17, []) + attach("one", 1), transfer(1, b"t", BATCH_FORMAT)], {FIRST}),
        # A descriptor may be a symbol (AMQP 1.0 section 2.7).
        ([ATTACH_BY_SYMBOL, transfer(5, b"t", BATCH_FORMAT)], {FIRST}),
    ],
    ids=["on one link", "in several transfers", "aborted", "after a detach", "after an end", "by a symbol"],
)
def test_a_batch_is_known_by_its_link_and_tag(sent: list[bytes], batches: set[tuple[str, bytes]]) -> None:
    """A batch on one link does not affect the same tag on another, and ``is_batch`` is true once for each."""
    seen = watching("one", "two")
    for raw in sent:
        assert seen.receive(raw) == raw
    asked = [(link, tag) for link in ("one", "two") for tag in (b"t", b"u")]
    assert {each for each in asked if seen.is_batch(*each)} == batches
    assert not any(seen.is_batch(*each) for each in asked)


def test_only_links_that_are_followed_are_remembered() -> None:
    """Batches on links that are not followed take no memory: a peer cannot fill it with tags."""
    seen = watching("one")
    seen.forget("one")
    seen.receive(transfer(0, b"t", BATCH_FORMAT))
    seen.follow("one")
    assert not seen.is_batch("one", b"t")


@pytest.mark.parametrize("asked", [65_536, 544, 2**32 - 1])
def test_an_open_leaves_room_for_padding(asked: int) -> None:
    """The engine sees a smaller max-frame-size than the peer's, so that even a full frame can be padded."""
    raw = frame(0x10, ["container", "host", UInt(asked), None, UInt(30_000)])
    seen = IncomingFrames(65_536).receive(AMQP_HEADER + raw)[8:]
    assert int.from_bytes(seen[:4], "big") == len(seen)
    fields = decode(seen, 8)[0].value
    assert fields == ["container", "host", UInt(asked - PADDING_BYTES), None, UInt(30_000)]


@pytest.mark.parametrize(
    "raw",
    [
        frame(0x10, ["container", "host", UInt(512)]),
        frame(0x10, ["container"]),
        frame(0x14, []),
        frame(0x12, [None, None, UByte(7)]),
        b"\x00\x00\x00\x0a\x02\x00\x00\x00\x00\x53",
        b"\x00\x00\x00\x02 no frame at all",
        b"\xff\xff\xff\xff" + b"too large",
        b"\x00\x00\x00\x09\x02\x00\x00\x00\x41",
    ],
)
def test_what_is_odd_is_left_to_the_engine(raw: bytes) -> None:
    """Bytes that are no valid frame reach the engine as they came."""
    seen = watching("one")
    assert seen.receive(raw[:5]) + seen.receive(raw[5:]) == raw


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes_go_through(data: bytes, cut: int) -> None:
    """Whatever a peer sends, no exception is raised, and what is handed on is a beginning of it."""
    seen = IncomingFrames(4_096)
    assert data.startswith(seen.receive(data[:cut]) + seen.receive(data[cut:]))


# --- Performatives filled up with the fields that engines leave out -------------------------------------------------

HEARTBEAT = b"\x00\x00\x00\x08\x02\x00\x00\x00"

values = st.one_of(
    st.none(),
    st.booleans(),
    st.binary(max_size=300),
    st.text(max_size=60),
    st.integers(0, 2**32 - 1).map(UInt),
    st.lists(st.text(max_size=5), max_size=3),
)


@st.composite
def frames(draw: st.DrawFn) -> tuple[bytes, int, list[Any], bytes]:
    """A frame with any number of its fields, and what it is made of."""
    code = draw(st.sampled_from(sorted(FIELDS)))
    fields = draw(st.lists(values, max_size=FIELDS[code]))
    payload = draw(st.binary(max_size=300)) if code == 0x14 else b""
    return frame(code, fields, payload), code, fields, payload


@given(frames())
def test_a_padded_frame_means_the_same(made: tuple[bytes, int, list[Any], bytes]) -> None:
    """Padding keeps every field and the payload, sets the missing fields to null, and corrects the frame's size."""
    raw, code, fields, payload = made
    found = padded(raw)
    performative, behind = decode(found, 8)
    assert int.from_bytes(found[:4], "big") == len(found) <= len(raw) + PADDING_BYTES
    assert found[4:8] == raw[4:8]
    assert performative == Described(ULong(code), fields + [None] * (FIELDS[code] - len(fields)))
    assert found[behind:] == payload


@given(st.lists(frames(), max_size=4), st.lists(st.integers(1, 50), max_size=20))
def test_pieces_of_any_size_give_the_same_frames(
    made: list[tuple[bytes, int, list[Any], bytes]], sizes: list[int]
) -> None:
    """However the engine's output is cut, each of its frames is written padded."""
    whole = AMQP_HEADER + HEARTBEAT + b"".join(raw for raw, *_ in made)
    padder, written, start = Padder(), b"", 0
    for size in [*sizes, len(whole)]:
        written += padder.pad(whole[start : start + size])
        start += size
    assert written == AMQP_HEADER + HEARTBEAT + b"".join(padded(raw) for raw, *_ in made)


def test_the_error_of_a_close_has_all_its_fields() -> None:
    """The Python client reads the third field of an error even if it has two, and then hides the error."""
    error = Described(ULong(0x1D), [Symbol("amqp:unauthorized-access"), "the token has expired"])
    (found,) = decode(padded(frame(0x18, [error])), 8)[0].value
    assert found == Described(error.descriptor, [*error.value, None])


@pytest.mark.parametrize(
    "raw",
    [
        HEARTBEAT,
        AMQP_HEADER,
        frame(0x17, []),
        frame(0x18, []),
        b"\x00\x00\x00\x0c\x02\x01\x00\x00\x00\x53\x44\x45",
    ],
)
def test_what_needs_no_padding_stays(raw: bytes) -> None:
    """Heartbeats, headers, end, a close without an error and SASL frames stay as they are."""
    assert padded(raw) == raw


# --- Event Hubs' nodes and batches: requests and envelopes read, answers written --------------------------------------

ID = UUID(int=7)


def request(body: Any, reply_to: str | None = None, **asked: Any) -> bytes:
    """A request as the clients send it."""
    found = section(sections.PROPERTIES, [ID, None, None, None, reply_to])
    found += section(sections.APPLICATION_PROPERTIES, dict(asked.items()))
    return found + section(sections.DATA if isinstance(body, bytes) else sections.AMQP_VALUE, body)


def said(answer: bytes) -> tuple[int, str, Any]:
    """Status, description and body of an answer to the request with our id."""
    properties = sections.application_properties(answer)
    assert sections.properties(answer).correlation_id == ID
    return properties["status-code"], properties["status-description"], value_of(answer)


@pytest.mark.parametrize("body", ["a token", b"a token"])
def test_a_token_is_put(body: Any) -> None:
    """put-token is read with its type and token, which may be a string or data, and answered with 202."""
    asked = request(body, "me", operation="put-token", type="jwt", name="sb://h/hub")
    read = CbsNode().read(asked)
    assert (read.command, read.id, read.reply_to) == (PutToken("a token", "jwt"), ID, "me")
    assert said(CbsNode().answer(read, None)) == (202, "Accepted", None)


def test_a_request_without_reply_to_is_answered_by_the_name_of_its_node() -> None:
    """The Python client sends requests without reply-to; its receiving link has the node's name as target."""
    read = ManagementNode().read(request("", operation="READ", type="com.microsoft:eventhub", name="hub"))
    assert (read.command, read.reply_to) == (ReadHub("hub"), "$management")


def test_a_hub_is_described() -> None:
    """The answer has the hub's name, its creation time and its only partition."""
    node = ManagementNode()
    read = node.read(request(b"[]", "me", operation="READ", type="com.microsoft:eventhub", name="hub"))
    status, _, found = said(node.answer(read, HubState("hub", 1_000)))
    assert (status, found["name"], found["created_at"]) == (200, "hub", 1_000)
    assert (found["partition_count"], list(found["partition_ids"])) == (1, ["0"])
    # The Go client requires this field, as a signed integer.
    assert (found["georeplication_factor"], type(found["georeplication_factor"])) == (1, Int)


@pytest.mark.parametrize(
    ("state", "numbers"),
    [
        (PartitionState("hub", 3, 9, 5_000), (3, 9, "9", 5_000, False)),
        (PartitionState("hub", 10, None, 0), (10, -1, "-1", 0, True)),
    ],
)
def test_a_partition_is_described(state: PartitionState, numbers: tuple[Any, ...]) -> None:
    """The answer says where the partition begins and ends; an empty one ends at -1, as in Event Hubs."""
    node = ManagementNode()
    kind = "com.microsoft:partition"
    read = node.read(request("", operation="READ", type=kind, name="hub", partition="0"))
    assert read.command == ReadPartition("hub", "0")
    _, _, found = said(node.answer(read, state))
    keys = ("begin_sequence_number", "last_enqueued_sequence_number", "last_enqueued_offset")
    assert tuple(found[key] for key in (*keys, "last_enqueued_time_utc", "is_partition_empty")) == numbers
    # The Rust client requires these fields, even without replication.
    assert (found["begin_sequence_number_epoch"], found["last_enqueued_sequence_number_epoch"]) == (-1, -1)


def test_a_token_comes_with_a_request_and_is_not_shown() -> None:
    """Some clients send the token with the request rather than to $cbs. The request's repr does not show it."""
    asked = {"operation": "READ", "type": "com.microsoft:eventhub", "name": "hub", "security_token": "secret"}
    read = ManagementNode().read(request("", **asked))
    assert read.command == ReadHub("hub", "secret")
    assert "secret" not in repr(read)


@pytest.mark.parametrize(
    ("node", "asked", "status", "words"),
    [
        (CbsNode(), {"operation": "delete-token", "type": "jwt"}, 501, "put-token"),
        (CbsNode(), {"type": "jwt"}, 400, "'operation'"),
        (CbsNode(), {"operation": "put-token"}, 400, "'type'"),
        (ManagementNode(), {"operation": "DELETE", "type": "com.microsoft:eventhub"}, 501, "READ"),
        (ManagementNode(), {"operation": "READ", "type": "com.microsoft:queue"}, 501, "can be read"),
        (ManagementNode(), {"operation": "READ", "type": "com.microsoft:eventhub"}, 400, "'name'"),
        (
            ManagementNode(),
            {"operation": "READ", "type": "com.microsoft:eventhub", "name": "hub", "security_token": 7},
            400,
            "'security_token'",
        ),
    ],
)
def test_a_bad_request_is_answered(node: Any, asked: dict[str, Any], status: int, words: str) -> None:
    """The answer says what would have been right."""
    with pytest.raises(RequestError) as bad:
        node.read(request("text", **asked))
    found, text, _ = said(node.refuse(bad.value.request, bad.value.condition, str(bad.value)))
    assert (found, words in text) == (status, True)


# --- batches ----------------------------------------------------------------------------------------------------------


def event(text: str, key: str | None = None) -> bytes:
    """An event, with a partition key of its own or without."""
    front = section(sections.MESSAGE_ANNOTATIONS, {Symbol("x-opt-partition-key"): key}) if key else b""
    return front + section(sections.DATA, text.encode())


def batch(*events: bytes, key: str | None = None) -> bytes:
    """The batch's message with these events, and a partition key of its own or without."""
    front = section(sections.MESSAGE_ANNOTATIONS, {Symbol("x-opt-partition-key"): key}) if key else b""
    return front + b"".join(section(sections.DATA, one) for one in events)


def test_events_of_a_batch_stay_as_they_are() -> None:
    """Each data section of a batch is one message, bit for bit."""
    events = [event("a"), event("b", "k"), section(sections.AMQP_VALUE, {"deep": [1, 2]})]
    assert IncomingFrames.messages_of(batch(*events)) == events


def test_the_partition_key_of_a_batch_is_its_events() -> None:
    """Events without a partition key get the batch's; their bare message stays as it was."""
    first, second = IncomingFrames.messages_of(batch(event("a"), event("b", "own"), key="all"))
    assert sections.message_annotations(first) == {"x-opt-partition-key": "all"}
    assert first.endswith(event("a"))
    assert second == event("b", "own")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (section(sections.AMQP_VALUE, "text"), "not value"),
        (section(sections.PROPERTIES, []), "not empty"),
        (batch(event("a"), b"no message"), "event 1 of the batch"),
        (batch(b""), "event 0 of the batch"),
        (batch(event("a")) + b"more", "."),
    ],
)
def test_what_is_no_batch_is_refused(content: bytes, words: str) -> None:
    """One bad event is enough: a batch is taken as a whole or not at all."""
    with pytest.raises(CodecError, match=words):
        IncomingFrames.messages_of(content)


def test_a_batch_has_a_bound_on_its_events() -> None:
    """Events of a few octets each do not block the gateway for seconds."""
    least = batch(event(""))
    assert len(least) == LEAST_EVENT
    assert len(IncomingFrames.messages_of(least * MOST_EVENTS)) == MOST_EVENTS
    with pytest.raises(CodecError, match="a batch has at most 50,000 events"):
        IncomingFrames.messages_of(least * (MOST_EVENTS + 1))
