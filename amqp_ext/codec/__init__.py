"""
The AMQP 1.0 type system: encoded bytes to plain Python values and back (AMQP 1.0 part 1).

``types`` are the Python types that stand for AMQP's, ``formats`` what a format code says, ``decoder`` and ``encoder``
the two ways. Others import this package alone.
"""

from amqp_ext.codec.decoder import decode, skip
from amqp_ext.codec.encoder import encode
from amqp_ext.codec.types import (
    MAX_DEPTH,
    Array,
    Buffer,
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
)

__all__ = [
    "MAX_DEPTH",
    "Array",
    "Buffer",
    "Byte",
    "Char",
    "CodecError",
    "Decimal32",
    "Decimal64",
    "Decimal128",
    "Described",
    "Float",
    "Int",
    "Long",
    "Short",
    "Symbol",
    "Timestamp",
    "UByte",
    "UInt",
    "ULong",
    "UShort",
    "decode",
    "encode",
    "skip",
]
