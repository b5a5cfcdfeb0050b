"""Messages cut into sections: hand-made, written by proton, or malformed; and shortcuts for usual encodings."""

from __future__ import annotations

import importlib.util
import re
import struct
import sys
from collections.abc import Callable
from typing import Any
from uuid import UUID

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import CodecError, Described, Long, Symbol, Timestamp, UByte, UInt, ULong, decode, encode
from amqp_ext.message import sections as section_contents
from amqp_ext.message.sections import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    FOOTER,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Header,
    MalformedMessage,
    MessageView,
    Properties,
    Section,
    application_properties,
    bare_offset,
    bare_offsets,
    body,
    message_annotations,
    properties,
    read_header,
    split,
    to_address,
    validate,
)

# --- Cut into sections ------------------------------------------------------------------------------------------------

NAMES = {
    HEADER: "amqp:header:list",
    DELIVERY_ANNOTATIONS: "amqp:delivery-annotations:map",
    MESSAGE_ANNOTATIONS: "amqp:message-annotations:map",
    PROPERTIES: "amqp:properties:list",
    APPLICATION_PROPERTIES: "amqp:application-properties:map",
    DATA: "amqp:data:binary",
    AMQP_SEQUENCE: "amqp:amqp-sequence:list",
    AMQP_VALUE: "amqp:amqp-value:*",
    FOOTER: "amqp:footer:map",
}

SPELLINGS: dict[str, Callable[[int], bytes]] = {
    "smallulong": lambda code: bytes((0x00, 0x53, code)),
    "ulong": lambda code: b"\x00\x80" + code.to_bytes(8, "big"),
    "symbol8": lambda code: b"\x00\xa3" + bytes((len(NAMES[code]),)) + NAMES[code].encode(),
    "symbol32": lambda code: b"\x00\xb3" + len(NAMES[code]).to_bytes(4, "big") + NAMES[code].encode(),
}


def section(code: int, value: Any, *, spelling: str = "smallulong") -> bytes:
    """One section; ``value`` is encoded unless it is bytes, which stand for a value already encoded."""
    return SPELLINGS[spelling](code) + (value if isinstance(value, bytes) else encode(value))


def data(payload: bytes = b"hello") -> bytes:
    return section(DATA, encode(payload))


def wide(encoded: bytes) -> bytes:
    """A list8 or map8 as a list32 or map32."""
    code, size, count = encoded[:3]
    return bytes((code + 0x10,)) + struct.pack(">II", size + 3, count) + encoded[3:]


HEADERS = {
    "no header": b"",
    "list0": section(HEADER, []),
    "list8": section(HEADER, [True, UByte(7), UInt(60_000)]),
    "list32": section(HEADER, wide(encode([True]))),
}
ANNOTATIONS = {
    "none": b"",
    "map8": section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-a"): 1}),
    "map32": section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-a"): "a" * 300}),
    "empty map8": section(MESSAGE_ANNOTATIONS, b"\xc1\x01\x00"),
    "delivery too": section(DELIVERY_ANNOTATIONS, {Symbol("x"): 1})
    + section(MESSAGE_ANNOTATIONS, {Symbol("y"): 1}),
    "delivery only": section(DELIVERY_ANNOTATIONS, wide(encode({Symbol("x"): 1}))),
}
BODIES = {
    "data": data(),
    "several data": data(b"one") + data(b"") + data(b"three" * 100),
    "sequences": section(AMQP_SEQUENCE, [1, "a"]) + section(AMQP_SEQUENCE, []),
    "null": section(AMQP_VALUE, None),
    "described": section(AMQP_VALUE, Described(Symbol("com.example:order"), {"id": 1})),
    "with properties": section(PROPERTIES, ["id", None, "to"]) + data(),
    "everything": section(PROPERTIES, [])
    + section(APPLICATION_PROPERTIES, {"a": 1})
    + data(b"")
    + section(FOOTER, {}),
}


@pytest.mark.parametrize("rest", BODIES)
@pytest.mark.parametrize("annotations", ANNOTATIONS)
@pytest.mark.parametrize("header", HEADERS)
def test_the_bare_message_starts_behind_header_and_annotations(
    header: str, annotations: str, rest: str
) -> None:
    """Whatever the encodings in front, the bare message is found, and the whole message is valid."""
    front = HEADERS[header] + ANNOTATIONS[annotations]
    content = front + BODIES[rest]
    assert bare_offset(content) == len(front)
    validate(content)
    cuts = split(content)
    assert b"".join(content[cut.start : cut.end] for cut in cuts) == content
    assert next(cut.start for cut in cuts if cut.code > MESSAGE_ANNOTATIONS) == len(front)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_a_descriptor_is_understood(spelling: str) -> None:
    """Each section is recognised by smallulong, ulong or symbol as its descriptor."""
    values = {
        HEADER: [True],
        MESSAGE_ANNOTATIONS: {Symbol("k"): 1},
        PROPERTIES: [None, None, "queue"],
        APPLICATION_PROPERTIES: {"a": "b"},
        DATA: b"\xa0\x01x",
        FOOTER: {},
    }
    sections = {code: section(code, value, spelling=spelling) for code, value in values.items()}
    content = b"".join(sections.values())
    assert bare_offset(content) == len(sections[HEADER] + sections[MESSAGE_ANNOTATIONS])
    assert [cut.code for cut in split(content)] == list(values)
    assert read_header(content).durable
    assert message_annotations(content) == {"k": 1}
    assert to_address(content) == "queue"
    assert application_properties(content) == {"a": "b"}
    assert body(content).parts == (b"x",)
    for code in (AMQP_SEQUENCE, AMQP_VALUE):
        alone = section(code, [], spelling=spelling)
        assert split(alone) == [Section(code, 0, len(alone))]


MALFORMED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "needs at least a body section"),
    "header only": (section(HEADER, [True]), "needs at least a body section"),
    "no descriptor": (encode("hello"), "must start with a descriptor"),
    "unknown code": (section(0x79, []), "not the descriptor of a message section"),
    "unknown symbol": (encode(Described("amqp:heather:list", [])), "'amqp:heather:list' is not the"),
    "string descriptor": (b"\x00\xa1\x10amqp:header:list\x45", "must be a ulong or a symbol"),
    "int descriptor": (b"\x00\x54\x70\x45", "must be a ulong or a symbol"),
    "annotations before header": (
        ANNOTATIONS["map8"] + HEADERS["list8"] + data(),
        "header may not come after message-annotations",
    ),
    "header as map": (section(HEADER, {}) + data(), "header may not have format code 0xc1"),
    "annotations as list": (section(MESSAGE_ANNOTATIONS, []) + data(), "may not have format code 0x45"),
    "header cut in the descriptor": (b"\x00\x53", "descriptor of a section: a value of 1 bytes is cut short"),
    "symbol cut short": (b"\x00\xa3\x10amqp", "descriptor of a section: a size of 16 bytes"),
    "header without a value": (b"\x00\x53\x70", "header has no value"),
    "header cut in the size": (b"\x00\x53\x70\xc0", "header: the size is cut short"),
    "header cut in the long size": (b"\x00\x53\x70\xd0\x00", "header: the size is cut short"),
    "header beyond the end": (b"\x00\x53\x70\xc0\xff\x01\x41", "header: a size of 255 bytes is declared"),
    "long header beyond the end": (b"\x00\x53\x70\xd0\xff\xff\xff\xff\x41", "header: a size of 4294967295"),
    "trailing junk in front": (HEADERS["list8"] + b"\x01" + data(), "must start with a descriptor"),
}  # fmt: skip

MALFORMED_BEHIND: dict[str, tuple[bytes, str]] = {
    "mixed body": (data() + section(AMQP_SEQUENCE, []), "amqp-sequence may not come after data"),
    "data as string": (section(DATA, "text"), "data may not have format code 0xa1"),
    "cut body": (data()[:-1], "data: a size of 5 bytes is declared, but only 4 are left"),
    "cut value": (section(AMQP_VALUE, b"\x80\x00"), "amqp-value: a value of 8 bytes is cut short"),
    "junk at the end": (data() + b"\x00", "must be a ulong or a symbol"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "reason"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_front_is_refused_with_place_and_reason(content: bytes, reason: str) -> None:
    """An error before the bare message makes bare_offset, validate, split and body fail alike."""
    for function in (bare_offset, validate, split, body):
        with pytest.raises(MalformedMessage) as caught:
            function(content)
        assert reason in caught.value.reason
        assert 0 <= caught.value.offset <= len(content)


@pytest.mark.parametrize(("content", "reason"), MALFORMED_BEHIND.values(), ids=MALFORMED_BEHIND)
def test_a_malformed_bare_message_is_found_by_validate(content: bytes, reason: str) -> None:
    """bare_offset does not check the bare message; validate, split and body do."""
    front = HEADERS["list8"]
    assert bare_offset(front + content) == len(front)
    for function in (validate, split, body):
        with pytest.raises(MalformedMessage) as caught:
            function(front + content)
        assert reason in caught.value.reason


def test_errors_point_into_the_message() -> None:
    """The offset of an error is counted from the start of the message, not of the section."""
    content = HEADERS["list8"] + b"\x00\x53\x99\x45"
    with pytest.raises(MalformedMessage, match=f"at byte {len(HEADERS['list8'])}"):
        validate(content)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ([], Header()),
        ([True], Header(durable=True)),
        ([None, UByte(9)], Header(priority=9)),
        (
            [True, UByte(0), UInt(2**32 - 1), True, UInt(2**32 - 1)],
            Header(True, 0, 2**32 - 1, True, 2**32 - 1),
        ),
        (
            b"\xc0\x0a\x05" + b"\x56\x01" + b"\x50\x03" + b"\x43" + b"\x56\x00" + b"\x52\x02",
            Header(True, 3, 0, False, 2),
        ),
        (b"\xd0" + struct.pack(">II", 40, 1) + b"\xb0" + struct.pack(">I", 31) + b"x" * 31, None),
        (["yes"], None),
        ([True, True], None),
        ([None, None, "60s"], None),
        ([None] * 6, None),
        (b"\xc0\x02\x01\x3f", None),
        ([None, ULong(9), ULong(2**32 - 1)], Header(priority=9, ttl_ms=2**32 - 1)),
        ([None, UInt(256)], None),
        ([None, None, ULong(2**64 - 1)], None),
        ([None, None, None, None, Long(-1)], None),
    ],
)
def test_header_fields(value: Any, expected: Header | None) -> None:
    """Absent and null fields have the specification's defaults; others are malformed."""
    content = section(HEADER, value) + data()
    if expected is None:
        with pytest.raises(MalformedMessage):
            read_header(content)
    else:
        assert read_header(content) == expected
        assert MessageView(content, bare_offset(content)).header == expected


def test_no_header_means_the_defaults() -> None:
    """A message that starts with another section, in any encoding, has the default header."""
    assert read_header(data()) == Header(False, 4, None, False, 0)
    assert read_header(section(DATA, b"\xa0\x00", spelling="ulong")) == Header()
    assert read_header(ANNOTATIONS["map8"] + data()) == Header()


FULL: list[Any] = [
    "id-1", b"me", "queue://orders", "subject", "reply", UUID(int=7), Symbol("text/plain"), Symbol("gzip"),
    Timestamp(1_700_000_000_000), Timestamp(1_600_000_000_000), "group", UInt(3), "reply-group",
]  # fmt: skip


@pytest.mark.parametrize(
    "identifier", ["text", ULong(7), UUID(int=1), b"raw"], ids=["string", "ulong", "uuid", "binary"]
)
def test_all_thirteen_properties_are_read(identifier: Any) -> None:
    """Each field lands under its name; the two ids have any of four types (sections 3.2.11 to 3.2.14)."""
    fields = [identifier, *FULL[1:5], identifier, *FULL[6:]]
    content = HEADERS["list8"] + section(PROPERTIES, fields) + data()
    found = properties(content)
    assert found == Properties(*fields) == MessageView(content, bare_offset(content)).properties
    assert type(found.message_id) is type(found.correlation_id) is type(identifier)
    assert to_address(content) == "queue://orders"


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ([True], "message_id may not be bool"),
        ([None, "me"], "user_id may not be str"),
        ([None, None, b"queue"], "to may not be bytes"),
        ([None] * 8 + ["soon"], "absolute_expiry_time may not be str"),
        ([None] * 14, "has 14 fields, at most 13"),
    ],
)
def test_properties_of_the_wrong_type_are_malformed(fields: list[Any], reason: str) -> None:
    """A property of a type the specification does not allow is named in the error."""
    with pytest.raises(MalformedMessage, match=reason):
        properties(section(PROPERTIES, fields) + data())


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (data(), None),
        (section(PROPERTIES, []) + data(), None),
        (section(PROPERTIES, b"\xc0\x01\x00") + data(), None),
        (section(PROPERTIES, ["id", b"me"]) + data(), None),
        (section(PROPERTIES, ["id", b"me", None, "subject"]) + data(), None),
        (section(PROPERTIES, ["id", b"me", "here"]) + data(), "here"),
        (section(PROPERTIES, wide(encode(["id", b"me", "here", "subject"]))) + data(), "here"),
        (section(PROPERTIES, ["i" * 300, b"me", "here"]) + data(), "here"),
        (section(APPLICATION_PROPERTIES, {"to": "not this"}) + data(), None),
        (section(AMQP_VALUE, ["id", None, "not this"]), None),
    ],
)
def test_to_address_is_found_without_decoding_the_rest(content: bytes, expected: str | None) -> None:
    """``to`` is read after any header and annotations, and is None if it is absent."""
    for front in (b"", HEADERS["list8"] + ANNOTATIONS["map32"]):
        assert to_address(front + content) == expected == properties(front + content).to


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (section(PROPERTIES, b"\xc0\x03\x03\x40\x40") + section(AMQP_VALUE, "stolen"), "properties: "),
        (section(PROPERTIES, b"\xc0\x05\x03\x40\x40\xa1\x04") + section(AMQP_SEQUENCE, []), "properties: "),
        (section(PROPERTIES, [None, None, "queue", "subject"])[:-3], "properties: "),
        (section(PROPERTIES, [None, None, 5]) + data(), "to may not be Long"),
    ],
    ids=["it lies behind the section", "it goes on behind it", "the section is cut short", "no string"],
)
def test_a_to_address_that_ends_elsewhere_is_malformed(content: bytes, reason: str) -> None:
    """A ``to`` that extends beyond its section is malformed, even if its bytes are a whole string."""
    with pytest.raises(MalformedMessage, match=reason):
        to_address(content)


def test_annotations_and_application_properties_become_dicts() -> None:
    """Maps keep key and value types, unknown and described entries included; absent sections are empty."""
    annotations = {
        Symbol("x-opt-unknown"): Described(Symbol("x:y"), [1]),
        ULong(9): Timestamp(5),
        Symbol("z"): None,
    }
    content = (
        section(DELIVERY_ANNOTATIONS, {Symbol("d"): True})
        + section(MESSAGE_ANNOTATIONS, annotations)
        + section(APPLICATION_PROPERTIES, {"price": 1.5, "count": UInt(3)})
        + data()
    )
    assert message_annotations(content) == annotations
    assert application_properties(content) == {"price": 1.5, "count": 3}
    assert {type(key) for key in message_annotations(content)} == {Symbol, ULong}
    view = MessageView(content, bare_offset(content))
    assert view.message_annotations == annotations
    assert view.application_properties == {"price": 1.5, "count": 3}
    assert view.properties == Properties()
    for function in (message_annotations, application_properties):
        assert function(data()) == {}


def test_a_broken_map_is_malformed_when_it_is_read_and_not_before() -> None:
    """validate checks sizes only; reading the values of a broken map raises MalformedMessage."""
    content = section(MESSAGE_ANNOTATIONS, b"\xc1\x02\x01\x40") + section(PROPERTIES, b"\xc0\x02\x01\x3f")
    validate(content + data())
    for function in (message_annotations, properties):
        with pytest.raises(MalformedMessage):
            function(content)


def test_a_view_decodes_each_section_once() -> None:
    """Reading a section twice gives the same object, so it was decoded once."""
    content = HEADERS["list8"] + ANNOTATIONS["map8"] + BODIES["everything"]
    view = MessageView(content, bare_offset(content))
    for name in ("header", "message_annotations", "properties", "application_properties"):
        assert getattr(view, name) is getattr(view, name)


def test_body_kinds_and_parts() -> None:
    """Data gives the bytes of each section; sequences and a value come as encoded sections."""
    assert body(HEADERS["list8"] + BODIES["several data"] + section(FOOTER, {})) == (
        "data",
        (b"one", b"", b"three" * 100),
    )
    assert body(section(PROPERTIES, []) + section(APPLICATION_PROPERTIES, {})) == ("data", ())
    for name, kind, values in (
        ("sequences", "sequence", [[1, "a"], []]),
        ("described", "value", [Described("com.example:order", {"id": 1})]),
    ):
        found = body(BODIES[name])
        assert (found.kind, [decode(part)[0].value for part in found.parts]) == (kind, values)


# --- against proton ---

PROTON_BODIES = st.one_of(
    st.binary(max_size=400), st.text(st.characters(codec="utf-8"), max_size=40), st.none()
)


@given(
    st.builds(
        lambda **fields: fields,
        body=PROTON_BODIES,
        durable=st.booleans(),
        priority=st.integers(0, 255),
        ttl=st.sampled_from([None, 0, 5.0, 3600.0]),
        id=st.sampled_from([None, "id", "x" * 300]),
        address=st.sampled_from([None, "queue", "q" * 300]),
        properties=st.sampled_from([None, {"a": "b"}, {str(number): number for number in range(60)}]),
        annotations=st.sampled_from([None, {"x-opt-a": "b"}, {f"x-opt-{number}": 1 for number in range(60)}]),
        inferred=st.booleans(),
    )
)
def test_what_proton_writes_is_read_back(fields: dict[str, Any]) -> None:
    """Any message that proton encodes is valid, and each section has the values given to proton."""
    properties_set, annotations_set = fields.pop("properties"), fields.pop("annotations")
    message = proton.Message(**{name: value for name, value in fields.items() if value is not None})
    if properties_set is not None:
        message.properties = properties_set
    if annotations_set is not None:
        message.annotations = annotations_set
    content = bytes(message.encode())
    validate(content)
    view = MessageView(content, bare_offset(content))
    assert (view.header.durable, view.header.priority) == (fields["durable"], fields["priority"])
    assert view.header.ttl_ms == (None if not fields["ttl"] else int(fields["ttl"] * 1000))
    assert view.properties.message_id == fields["id"]
    assert to_address(content) == view.properties.to == fields["address"]
    assert view.application_properties == (properties_set or {})
    assert view.message_annotations == (annotations_set or {})
    kind, parts = body(content)
    sent = fields["body"]
    if kind == "data":
        assert parts == (() if sent is None else (sent,))
    else:
        assert decode(parts[0])[0].value == sent


# --- hostile bytes ---

READERS = [
    bare_offset, validate, split, read_header, message_annotations, properties,
    application_properties, to_address, body,
]  # fmt: skip


def check_hostile(content: bytes) -> None:
    for function in READERS:
        try:
            function(content)
        except MalformedMessage as error:
            assert -1 < error.offset <= len(content)
    try:
        validate(content)
    except MalformedMessage:
        return
    assert bare_offset(content) == next(cut.start for cut in split(content) if cut.code > MESSAGE_ANNOTATIONS)


@given(
    st.sampled_from(list(HEADERS.values())),
    st.sampled_from(list(ANNOTATIONS.values())),
    st.sampled_from(list(BODIES.values())) | st.binary(max_size=100),
    st.data(),
)
def test_damaged_messages_are_read_or_malformed(
    header: bytes, annotations: bytes, rest: bytes, draw: st.DataObject
) -> None:
    """A message that is cut, changed or continued with any bytes raises nothing but MalformedMessage."""
    damaged = bytearray(header + annotations + rest)
    for _ in range(draw.draw(st.integers(0, 3)) if damaged else 0):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.integers(0, 255))
    check_hostile(bytes(damaged[: draw.draw(st.integers(0, len(damaged)))]))


@given(st.lists(st.sampled_from(list(NAMES)), max_size=6))
def test_sections_are_accepted_in_the_specified_order_only(codes: list[int]) -> None:
    """Exactly the sequences of sections that section 3.2 allows are valid, and bare_offset is right for them."""
    values = {DATA: b"\xa0\x01x", **{code: [] for code in (HEADER, PROPERTIES, AMQP_SEQUENCE, AMQP_VALUE)}}
    content = b"".join(section(code, values.get(code, {})) for code in codes)
    letters = "".join(chr(code) for code in codes)
    grammar = re.fullmatch(r"p?q?r?(s?t?(u+|v+|w)x?|s|t|st)", letters)
    try:
        validate(content)
    except MalformedMessage:
        assert not grammar
    else:
        assert grammar
        assert bare_offset(content) == sum(
            len(section(code, values.get(code, {}))) for code in codes if code < PROPERTIES
        )


def test_malformed_message_is_a_value_error() -> None:
    """Callers may catch ValueError, CodecError or MalformedMessage: each is the next one's base."""
    assert issubclass(MalformedMessage, CodecError)
    assert issubclass(CodecError, ValueError)


# --- Shortcuts for usual encodings give the same results --------------------------------------------------------------

# --- where the bare message begins ----------------------------------------------------------------------------------


@st.composite
def alike(draw: st.DrawFn) -> list[bytes]:
    """Messages of one publisher with equal fronts; some of them are cut, or differ in one octet."""
    fronts = st.sampled_from([header + more for header in HEADERS.values() for more in ANNOTATIONS.values()])
    front = draw(fronts)
    contents = draw(
        st.lists(st.sampled_from(list(BODIES.values())).map(front.__add__), min_size=1, max_size=8)
    )
    for index in draw(st.lists(st.integers(0, len(contents) - 1), max_size=3)):
        content = contents[index]
        at = draw(st.integers(0, min(len(content), len(front) + 8)))
        other = draw(st.one_of(st.none(), st.sampled_from([0x00, 0x45, 0x53, 0x70, 0x72, 0x75, 0xC0, 0xFF])))
        contents[index] = (
            content[:at] if other is None else content[:at] + bytes((other,)) + content[at + 1 :]
        )
    return contents


@given(alike())
def test_bare_messages_of_many_are_found_as_those_of_each(contents: list[bytes]) -> None:
    """The offsets of many messages equal those found one by one, and one malformed message fails them all."""
    try:
        expected = [bare_offset(content) for content in contents]
    except MalformedMessage:
        with pytest.raises(MalformedMessage):
            bare_offsets(contents)
    else:
        assert bare_offsets(contents) == expected


def sections_where_nothing_is_compiled() -> Any:
    """The module as it is if its part in C was not built."""
    name = "amqp_ext.message.sections_in_python"
    spec = importlib.util.spec_from_file_location(name, section_contents.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "amqp_ext.message._fronts", None)
        patch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
    return module


IN_PYTHON = sections_where_nothing_is_compiled()


@given(
    st.binary(max_size=3),
    st.lists(st.sampled_from([b"", b"a", b"ab", b"abc", b"abd", b"b"])),
    st.integers(0, 3),
)
def test_messages_that_begin_alike_are_told_the_same_in_c_and_in_python(
    front: bytes, contents: list[bytes], behind: int
) -> None:
    told = section_contents.all_begin_with(front, contents, behind)
    assert told == IN_PYTHON.all_begin_with(front, contents, behind)
    assert told == all(
        content[: len(front)] == front and len(content) >= len(front) + behind for content in contents
    )


def test_what_is_no_list_of_bytes_has_no_fronts() -> None:
    for wrong in ((b"a",), [b"a", "a"], None):
        with pytest.raises(TypeError):
            section_contents.all_begin_with(b"a", wrong, 0)  # type: ignore[arg-type] # that is the test


@pytest.mark.parametrize("header", HEADERS)
def test_one_of_many_that_is_cut_behind_its_front_is_found(header: str) -> None:
    """A message that is cut after a front equal to the others' is found malformed."""
    front = HEADERS[header]
    with pytest.raises(MalformedMessage, match="the size is cut short"):
        bare_offsets([front + data()] * 9 + [front + data()[:4]])


# --- the address ----------------------------------------------------------------------------------------------------

PROPERTY_VALUES = st.one_of(
    st.none(),
    st.text(max_size=6),
    st.text(min_size=200, max_size=300),
    st.binary(max_size=6),
    st.sampled_from([ULong(0), ULong(7), ULong(1 << 40), UUID(int=1), True, UInt(3), Symbol("s"), [1]]),
)


@given(
    st.lists(PROPERTY_VALUES, max_size=5),
    st.booleans(),
    st.sampled_from(list(HEADERS)),
    st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from([None, 0x00, 0x40, 0x53, 0x80, 0xA1, 0xB1, 0xC3, 0xFF]))
    ),
)
def test_to_address_is_the_same_however_it_is_read(
    fields: list[Any], is_wide: bool, header: str, changes: list[tuple[int, int | None]]
) -> None:
    """The shortcut for ``to`` gives the same as decoding the list, for any encoding, cut or changed octet."""
    encoded = encode(fields)
    if is_wide and fields and encoded[0] == 0xC0:
        encoded = wide(encoded)
    content = section(PROPERTIES, encoded) + data()
    for at, other in changes:
        content = content[:at] if other is None else content[:at] + bytes((other,)) + content[at + 1 :]
    content = HEADERS[header] + content

    def read(is_usual: bool) -> str | type[MalformedMessage] | None:
        with pytest.MonkeyPatch.context() as patch:
            if not is_usual:
                patch.setattr(section_contents, "_usual_to_address", lambda content, bare: None)
            try:
                return to_address(content)
            except MalformedMessage:
                return MalformedMessage

    assert read(True) == read(False)


def test_a_to_address_that_the_count_leaves_out_is_none() -> None:
    """Two fields are message-id and user-id, whatever follows them in the section."""
    assert to_address(section(PROPERTIES, b"\xc0\x06\x02\x40\x40\xa1\x01x") + data()) is None


def test_the_usual_to_address_is_read_without_a_closer_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shortcut reads ``to`` after a message-id of any type and a user-id, or nulls, as clients encode it."""
    monkeypatch.setattr(section_contents, "section_at", None)
    for message_id in (None, "id", ULong(0), ULong(7), ULong(1 << 40), UUID(int=1), b"id"):
        for user_id in (None, b"me"):
            content = HEADERS["list8"] + section(PROPERTIES, [message_id, user_id, "k\xe4se"]) + data()
            assert to_address(content) == to_address(content, len(HEADERS["list8"])) == "k\xe4se"
