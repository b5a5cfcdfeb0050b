"""Durable messages are told from others by their headers."""

from __future__ import annotations

import pytest

from amqp_ext.codec import Described, UByte, encode
from amqp_ext.message.sections import DATA, HEADER, MESSAGE_ANNOTATIONS
from tests.bench.generator.connection import Refused
from tests.bench.generator.durability import DurableHeaders
from tests.support.frames import transfer_frame

BODY = encode(Described(DATA, b"body"))
DURABLE = encode(Described(HEADER, [True]))
REDELIVERED = encode(Described(HEADER, [True, UByte(4), None, None, 1]))
ANNOTATED = encode(Described(MESSAGE_ANNOTATIONS, {}))


def check(headers: DurableHeaders, content: bytes, number: int = 0) -> None:
    """Have a delivery with this content looked at, behind others in a buffer."""
    frame = transfer_frame(0, number, content)
    headers.check(bytearray(b"before" + frame + b"behind"), 6, 6 + len(frame))


def test_durable_messages_pass_whatever_else_their_headers_say() -> None:
    """One like the last and one that is not, at small and at large delivery ids."""
    headers = DurableHeaders()
    for number, content in enumerate((DURABLE + BODY, DURABLE + ANNOTATED + BODY, REDELIVERED + BODY) * 2):
        check(headers, content, 200 * number)


@pytest.mark.parametrize(
    "content",
    [BODY, ANNOTATED + BODY, encode(Described(HEADER, [])) + BODY, encode(Described(HEADER, [False])) + BODY],
)
def test_any_other_message_is_refused(content: bytes) -> None:
    """Also behind one that was durable: no header, an empty one, and one that says so."""
    with pytest.raises(Refused, match="not durable"):
        check(DurableHeaders(), content)
    headers = DurableHeaders()
    check(headers, DURABLE + BODY)
    with pytest.raises(Refused, match="not durable"):
        check(headers, content)
