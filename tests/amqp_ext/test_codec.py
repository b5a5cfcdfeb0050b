"""The type system against the specification's bytes, itself, proton and hostile bytes."""

from __future__ import annotations

import enum
import struct
from typing import Any
from uuid import UUID

import proton
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amqp_ext.codec import (
    MAX_DEPTH,
    Array,
    Byte,
    Char,
    CodecError,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Long,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
    decode,
    encode,
    skip,
)

UUID_HEX = "12345678123456781234567812345678"

ENCODINGS: list[tuple[str, Any]] = [
    ("40", None),
    ("41", True),
    ("42", False),
    ("56 01", True),
    ("56 00", False),
    ("50 ff", UByte(255)),
    ("60 ffff", UShort(65535)),
    ("70 ffffffff", UInt(2**32 - 1)),
    ("52 ff", UInt(255)),
    ("43", UInt(0)),
    ("80 ffffffffffffffff", ULong(2**64 - 1)),
    ("53 ff", ULong(255)),
    ("44", ULong(0)),
    ("51 ff", Byte(-1)),
    ("61 8000", Short(-32768)),
    ("71 80000000", Int(-(2**31))),
    ("54 ff", Int(-1)),
    ("81 8000000000000000", Long(-(2**63))),
    ("55 ff", Long(-1)),
    ("72 3fc00000", Float(1.5)),
    ("82 3ff8000000000000", 1.5),
    ("74 deadbeef", Decimal32(b"\xde\xad\xbe\xef")),
    ("84 0102030405060708", Decimal64(bytes(range(1, 9)))),
    ("94" + "01" * 16, Decimal128(b"\x01" * 16)),
    ("73 0001f600", Char("\U0001f600")),
    ("83 ffffffffffffffff", Timestamp(-1)),
    ("98" + UUID_HEX, UUID(UUID_HEX)),
    ("a0 02 0001", b"\x00\x01"),
    ("b0 00000002 0001", b"\x00\x01"),
    ("a1 02 c3a9", "\u00e9"),
    ("b1 00000002 c3a9", "\u00e9"),
    ("a3 02 6162", Symbol("ab")),
    ("b3 00000002 6162", Symbol("ab")),
    ("45", []),
    ("c0 01 00", []),
    ("c0 03 02 40 41", [None, True]),
    ("d0 00000006 00000002 40 41", [None, True]),
    ("c1 01 00", {}),
    ("c1 05 02 a30161 41", {Symbol("a"): True}),
    ("d1 00000008 00000002 a30161 41", {Symbol("a"): True}),
    ("e0 06 02 a3 0161 0162", Array([Symbol("a"), Symbol("b")])),
    ("f0 00000009 00000002 a3 0161 0162", Array([Symbol("a"), Symbol("b")])),
    ("e0 05 03 54 010203", Array([Int(1), Int(2), Int(3)])),
    ("e0 04 02 56 0100", Array([True, False])),
    ("e0 02 02 41", Array([True, True])),
    ("e0 02 00 40", Array([])),
    ("e0 08 02 00a30178 54 0102", Array([Described(Symbol("x"), Int(1)), Described(Symbol("x"), Int(2))])),
    ("e0 06 02 c0 01 00 01 00", Array([[], []])),
    ("00 a30178 53 05", Described(Symbol("x"), ULong(5))),
    ("00 53 24 45", Described(ULong(0x24), [])),
    ("00 80 0000468c00000004 a10131", Described(ULong(0x0000468C00000004), "1")),
    ("00 44 00 a30178 40", Described(ULong(0), Described(Symbol("x"), None))),
]

HOSTILE: list[tuple[str, int, str]] = [
    ("", 0, "buffer ends"),
    ("3f", 0, "not an AMQP format code"),
    ("57 00", 0, "not an AMQP format code"),
    ("56 02", 1, "boolean must be"),
    ("70 0000", 1, "cut short"),
    ("73 0000d800", 1, "not a Unicode character"),
    ("73 00110000", 1, "not a Unicode character"),
    ("a1 05 61", 1, "5 bytes is declared, but only 1 are left"),
    ("b0 ffffffff 00", 1, "only 1 are left"),
    ("b0 ffff", 1, "size is cut short"),
    ("a1 02 61ff", 3, "not valid utf-8"),
    ("a3 01 80", 2, "not valid ascii"),
    ("c0 00", 1, "no room for the 1 of the count"),
    ("d0 00000003 000000", 1, "no room for the 4 of the count"),
    ("c0 02 ff 40", 1, "255 items are declared in 1 bytes"),
    ("d0 00000005 ffffffff 40", 1, "items are declared in 1 bytes"),
    ("c0 03 01 40 40", 4, "1 bytes are left over"),
    ("c0 03 01 a1 05", 4, "only 0 are left"),
    ("c1 02 01 40", 1, "key without a value"),
    ("c1 07 04 5401 40 5401 40", 1, "two equal keys"),
    ("c1 09 04 a10161 40 a30161 40", 1, "two equal keys"),
    ("c1 03 02 45 40", 1, "list or a map as a key"),
    ("e0 01 00", 3, "buffer ends"),
    ("e0 02 11 41", 1, "17 array elements"),
    ("f0 00000005 ffffffff 45", 1, "array elements are declared, at most 16"),
    ("f0 00000006 ffffffff 54 00", 1, "array elements are declared, at most 1"),
    ("e0 03 02 41 41", 4, "left over"),
    ("e0 02 00 3f", 3, "not an AMQP format code"),
    ("00", 1, "buffer ends"),
    ("00 a10161 40", 1, "descriptor must be a symbol or a ulong"),
    ("00 00 53 01 40 40", 1, "descriptor must be a symbol or a ulong"),
    ("00 53", 1, "cut short"),
    ("00 53 70", 3, "buffer ends"),
]


def described_deeply(levels: int) -> bytes:
    return b"\x00\x44" * levels + b"\x40"


def nested_lists(levels: int) -> bytes:
    encoded = b"\x45"
    for _ in range(levels):
        encoded = b"\xd0" + struct.pack(">II", len(encoded) + 4, 1) + encoded
    return encoded


def nested_arrays(levels: int) -> bytes:
    payload = b"\x00\x00\x00\x05\x00\x00\x00\x00\x40"
    for _ in range(levels):
        payload = struct.pack(">II", len(payload) + 5, 1) + b"\xf0" + payload
    return b"\xf0" + payload


def typed(value: Any) -> Any:
    """``value`` with its types spelled out, so that equality tells Symbol from str."""
    kind = type(value).__name__
    if isinstance(value, Described):
        return kind, typed(value.descriptor), typed(value.value)
    if isinstance(value, list):
        return kind, [typed(item) for item in value]
    if isinstance(value, dict):
        return kind, [(typed(key), typed(item)) for key, item in value.items()]
    return kind, repr(value)


def integers(kind: type[int], bits: int, *, signed: bool) -> st.SearchStrategy[Any]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.one_of(st.integers(low, high), st.integers(max(low, -130), min(high, 260))).map(kind)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=300)
SYMBOLS = st.text(st.characters(max_codepoint=127), max_size=300).map(Symbol)
KEYS = st.one_of(
    SYMBOLS, st.integers(2**63, 2**64 - 1).map(ULong), st.uuids(), st.integers(-(2**63), -1).map(Long)
)
SCALAR_KINDS: list[st.SearchStrategy[Any]] = [
    st.booleans(),
    integers(UByte, 8, signed=False),
    integers(UShort, 16, signed=False),
    integers(UInt, 32, signed=False),
    integers(ULong, 64, signed=False),
    integers(Byte, 8, signed=True),
    integers(Short, 16, signed=True),
    integers(Int, 32, signed=True),
    integers(Long, 64, signed=True),
    integers(Timestamp, 64, signed=True),
    st.floats(width=32).map(Float),
    st.floats(),
    st.characters(exclude_categories=["Cs"]).map(Char),
    st.uuids(),
    st.binary(max_size=300),
    TEXT,
    SYMBOLS,
    st.binary(min_size=4, max_size=4).map(Decimal32),
    st.binary(min_size=8, max_size=8).map(Decimal64),
    st.binary(min_size=16, max_size=16).map(Decimal128),
]
SCALARS = st.one_of(st.none(), *SCALAR_KINDS)
DESCRIPTORS = st.one_of(SYMBOLS, integers(ULong, 64, signed=False))
ARRAYS = st.one_of(
    *[st.lists(kind, min_size=1, max_size=5).map(Array) for kind in SCALAR_KINDS],
    st.tuples(DESCRIPTORS, st.lists(TEXT, min_size=1, max_size=4)).map(
        lambda pair: Array([Described(pair[0], text) for text in pair[1]])
    ),
    st.lists(st.lists(SCALARS, max_size=3), min_size=1, max_size=3).map(Array),
)
VALUES = st.recursive(
    st.one_of(SCALARS, ARRAYS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(KEYS, inner, max_size=5),
        st.builds(Described, DESCRIPTORS, inner),
        st.lists(inner, min_size=1, max_size=1).map(lambda items: Array([[items[0]], []])),
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(("wire", "value"), ENCODINGS, ids=[row[0] for row in ENCODINGS])
def test_each_encoding_of_the_specification_decodes(wire: str, value: Any) -> None:
    """
    Every format code of AMQP 1.0 section 1.6 gives its value and type, and decode and skip agree on its end; what is
    encoded of it decodes to the same, in no more bytes (arrays excepted).
    """
    raw = bytes.fromhex(wire)
    decoded, behind = decode(b"\xff" + raw + b"\xff", 1)
    assert typed(decoded) == typed(value)
    assert behind == 1 + len(raw) == skip(b"\xff" + raw + b"\xff", 1)
    encoded = encode(value)
    assert typed(decode(encoded)[0]) == typed(value)
    assert isinstance(value, Array) or len(encoded) <= len(raw)


@pytest.mark.parametrize(("wire", "offset", "reason"), HOSTILE, ids=[row[0] for row in HOSTILE])
def test_malformed_bytes_say_where_and_why(wire: str, offset: int, reason: str) -> None:
    """Each malformed encoding is refused with the place and the reason."""
    with pytest.raises(CodecError) as caught:
        decode(bytes.fromhex(wire))
    assert reason in caught.value.reason
    assert caught.value.offset == offset
    assert str(caught.value) == f"{caught.value.reason} (at byte {offset})"


@given(VALUES)
@example([[]] * 300)
@example({Symbol(f"k{number}"): "v" for number in range(200)})
@example(Array(["x" * 255]))
def test_values_survive_the_round_trip(value: Any) -> None:
    """decode(encode(v)) is v with all its types, and encode is stable on what decode gives."""
    encoded = encode(value)
    decoded, behind = decode(encoded)
    assert typed(decoded) == typed(value)
    assert behind == len(encoded) == skip(encoded, 0)
    assert encode(decoded) == encoded


@given(VALUES, st.data())
def test_a_truncated_value_is_always_an_error(value: Any, data: st.DataObject) -> None:
    """No proper prefix of an encoded value is itself taken for a value."""
    encoded = encode(value)
    cut = data.draw(st.integers(0, len(encoded) - 1))
    with pytest.raises(CodecError):
        decode(encoded[:cut])
    with pytest.raises(CodecError):
        skip(encoded[:cut], 0)


@given(VALUES.map(encode) | st.binary(min_size=1, max_size=200), st.data())
def test_damaged_values_give_a_value_or_a_codec_error(raw: bytes, data: st.DataObject) -> None:
    """Any bytes and any change to a valid encoding give a value or CodecError; skip and decode agree on the end."""
    damaged = bytearray(raw)
    for _ in range(data.draw(st.integers(0, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    check_hostile(bytes(damaged))


def check_hostile(raw: bytes) -> None:
    try:
        skipped: int | None = skip(raw, 0)
    except CodecError:
        skipped = None
    try:
        value, behind = decode(raw)
    except CodecError:
        return
    assert behind == skipped
    assert typed(decode(encode(value))[0]) == typed(value)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_byte_buffer_can_be_decoded(kind: type) -> None:
    """bytes, bytearray and memoryview decode alike, and binaries come out as bytes of their own."""
    value = [b"raw", "text", Symbol("name"), {Symbol("k"): Array([Symbol("x")])}]
    decoded, _ = decode(kind(encode(value)))
    assert typed(decoded) == typed(value)


@pytest.mark.parametrize("nest", [described_deeply, nested_lists, nested_arrays])
def test_nesting_stops_at_the_limit(nest: Any) -> None:
    """Values nested up to the limit decode; deeper ones are refused, even at ten thousand levels."""
    allowed = nest(MAX_DEPTH - 2)
    assert decode(allowed)[1] == len(allowed)
    for levels in (MAX_DEPTH, 10_000):
        with pytest.raises(CodecError, match=r"nested deeper|descriptors before"):
            decode(nest(levels))
    with pytest.raises(CodecError, match="descriptors before"):
        skip(described_deeply(MAX_DEPTH), 0)


def test_an_array_makes_no_more_values_than_it_has_octets() -> None:
    """Thirty descriptors before elements of one octet would make thirty values of each octet."""

    def wire(count: int, descriptors: int) -> bytes:
        inside = count.to_bytes(4, "big") + b"\x00\x53\x01" * descriptors + b"\x50" + bytes(1_000)
        return b"\xf0" + len(inside).to_bytes(4, "big") + inside

    assert len(decode(wire(1_000, 1))[0]) == 1_000
    with pytest.raises(CodecError, match="1000 array elements are declared, at most 33 are possible"):
        decode(wire(1_000, 30))


def test_keys_of_one_hash_are_refused() -> None:
    """Python gives all multiples of a number, as uuids, the same hash: a map of many would take quadratic time."""
    keys = [UUID(int=number * (2**61 - 1)) for number in range(1, 1_000)]
    assert len(set(map(hash, keys))) == 1
    with pytest.raises(CodecError, match="more than 16 keys of one hash"):
        decode(encode(dict.fromkeys(keys)))
    usual: dict[Any, Any] = {UUID(int=number): None for number in range(1, 1_000)}
    usual |= {ULong(number * (2**61 - 1)): None for number in range(8)}
    assert len(decode(encode(usual))[0]) == len(usual)


def test_encoding_stops_at_the_limit_too() -> None:
    """A list that contains itself is refused instead of recursing for ever, and so is an array."""
    loop: list[Any] = []
    loop.append(loop)
    ring = Array()
    ring.append(ring)
    for endless in (loop, ring):
        with pytest.raises(CodecError, match="nested deeper"):
            encode(endless)


class Colour(enum.IntEnum):
    RED = 3


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        (5, "55 05"),
        (2**40, "81 0000010000000000"),
        (1.5, "82 3ff8000000000000"),
        (Colour.RED, "55 03"),
        ((None, True), "c0 03 02 40 41"),
        (bytearray(b"x"), "a0 01 78"),
        (memoryview(b"x"), "a0 01 78"),
        (Described("x", None), "00 a30178 40"),
        (Described(0x24, []), "00 5324 45"),
        (Array([], code=0xA3), "e0 02 00 a3"),
        (UInt(256), "70 00000100"),
        (UInt(0), "43"),
        (ULong(0), "44"),
    ],
)
def test_plain_python_values_have_an_amqp_form(value: Any, wire: str) -> None:
    """Plain ints are longs, floats doubles, tuples lists; descriptors are symbols or ulongs."""
    assert encode(value) == bytes.fromhex(wire)


@pytest.mark.parametrize(
    "value",
    [
        Ellipsis,
        {1, 2},
        2**63,
        UByte(256),
        UInt(-1),
        Timestamp(2**63),
        Float(1e39),
        Char("ab"),
        Char("\ud800"),
        "\ud800",
        Symbol("\u00e9"),
        Decimal32(b"12345"),
        Described(b"x", 1),
        Array([1, "a"]),
        Array([Described("a", 1), Described("b", 1)]),
        Array([Described("a", 1), 1]),
        Array([None] * 17),
    ],
    ids=lambda value: f"{type(value).__name__}-{value!a}",
)
def test_values_without_an_amqp_form_are_refused(value: Any) -> None:
    """A value AMQP cannot carry raises CodecError without an offset, and nothing else."""
    with pytest.raises(CodecError) as caught:
        encode(value)
    assert caught.value.offset == -1


def test_an_empty_array_keeps_its_element_type() -> None:
    """An array of no symbols is still an array of symbols after decoding and encoding."""
    decoded, _ = decode(encode(Array([], code=0xB3)))
    assert decode(encode(decoded))[0].code == decoded.code == 0xB3


# --- against proton ---

UNDESCRIBED: Any = proton.UNDESCRIBED

TO_PROTON = {
    UByte: proton.ubyte, UShort: proton.ushort, UInt: proton.uint, ULong: proton.ulong, Byte: proton.byte,
    Short: proton.short, Int: proton.int32, Timestamp: proton.timestamp, Symbol: proton.symbol,
    Char: proton.char, Float: proton.float32, Decimal128: proton.decimal128, Long: int,
}  # fmt: skip


def to_proton(value: Any) -> Any:
    """``value`` in proton's vocabulary."""
    if isinstance(value, Described):
        return proton.Described(to_proton(value.descriptor), to_proton(value.value))
    if isinstance(value, Array):
        kinds = {
            Symbol: proton.Data.SYMBOL,
            Int: proton.Data.INT,
            ULong: proton.Data.ULONG,
            str: proton.Data.STRING,
        }
        if isinstance(value[0], Described):
            inner = [to_proton(element.value) for element in value]
            descriptor = to_proton(value[0].descriptor)
            return proton.Array(descriptor, kinds[type(value[0].value)], *inner)
        return proton.Array(UNDESCRIBED, kinds[type(value[0])], *[to_proton(item) for item in value])
    if isinstance(value, list):
        return [to_proton(item) for item in value]
    if isinstance(value, dict):
        return {to_proton(key): to_proton(item) for key, item in value.items()}
    if isinstance(value, (Decimal32, Decimal64)):
        kind = proton.decimal32 if isinstance(value, Decimal32) else proton.decimal64
        return kind(int.from_bytes(value, "big"))
    return TO_PROTON.get(type(value), lambda same: same)(value)


PROTON_ARRAYS = st.one_of(
    st.lists(SYMBOLS, min_size=1, max_size=3).map(Array),
    st.lists(integers(Int, 32, signed=True), min_size=1, max_size=3).map(Array),
    st.lists(TEXT, min_size=1, max_size=3).map(
        lambda texts: Array([Described(Symbol("d"), text) for text in texts])
    ),
)
PROTON_VALUES = st.recursive(
    st.one_of(st.none(), *SCALAR_KINDS, PROTON_ARRAYS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=4),
        # proton reads a described value within a described value wrongly, even in its own bytes
        st.builds(Described, DESCRIPTORS, inner.filter(lambda value: not isinstance(value, Described))),
    ),
    max_leaves=8,
)


@given(PROTON_VALUES)
def test_we_read_what_proton_writes_and_it_reads_what_we_write(value: Any) -> None:
    """Our decoder reads what proton encodes of a value, and what proton encodes again after decoding our bytes."""
    told, heard = proton.Data(), proton.Data()
    told.put_object(to_proton(value))
    ours = encode(value)
    assert heard.decode(ours) == len(ours)
    for written in (told.encode(), heard.encode()):
        decoded, behind = decode(written)
        assert behind == len(written) == skip(written, 0)
        assert typed(decoded) == typed(value)
