"""The load generator with a gateway; its fast parsing compared with the full decoder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.codec import Described, UByte, UInt, ULong, encode
from amqp_ext.message.sections import DATA, HEADER, MESSAGE_ANNOTATIONS
from tests.bench.generator.connection import Connection, Refused, acceptance, accepted_range
from tests.bench.generator.links import (
    BLOCK,
    MAX_OUTSTANDING,
    DurableHeaders,
    Receiver,
    Sender,
)
from tests.support import frames as amqp
from tests.support.running import RunningGateway, settings_for

COUNT = 5 * BLOCK + 3
"""No multiple of a block, and more than one octet of a delivery id can count."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway whose queues the tests share."""
    with RunningGateway(settings_for(tmp_path_factory.mktemp("generator"))) as running:
        yield running


@pytest.fixture
def connection(gateway: RunningGateway) -> Iterator[Connection]:
    """A client's connection."""
    client = Connection.to(gateway.address, "test")
    yield client
    client.close()


@pytest.mark.parametrize("outstanding", [1, 7, 1000])
def test_every_message_sent_is_accepted_and_timed(connection: Connection, outstanding: int) -> None:
    """A publishing run ends when all messages are accepted, with one latency for each."""
    connection.attach(sender=True, address="queue://sent")

    sent = Sender(connection, 256).send(COUNT, outstanding)

    assert sent.count == len(sent.latencies) == COUNT
    assert min(sent.latencies) > 0


@pytest.mark.parametrize("credit", [1, 10, 1000])
def test_messages_received_are_those_sent_in_their_order(
    gateway: RunningGateway, connection: Connection, credit: int
) -> None:
    """The numbers in the bodies exercise every patched octet of a block, and credit never runs out."""
    publisher = Connection.to(gateway.address, "publisher")
    publisher.attach(sender=True, address="queue://received")
    Sender(publisher, 256).send(COUNT, 1000)
    publisher.close()
    connection.attach(sender=False, address="queue://received")

    received = Receiver(connection, 256, durable=True).receive(COUNT, credit, timed=True)

    assert received.count == len(received.latencies) == COUNT
    assert received.in_order


def test_outstanding_beyond_the_sockets_buffers_is_refused(connection: Connection) -> None:
    """A limit that could deadlock the blocking socket is an error, not a hang."""
    connection.attach(sender=True, address="queue://sent")

    with pytest.raises(ValueError, match="from 1 to 10000"):
        Sender(connection, 256).send(1, MAX_OUTSTANDING + 1)


def test_a_refused_link_says_why(gateway: RunningGateway) -> None:
    """A detach after an attach with a null terminus becomes ``Refused`` in the gateway's own words."""
    client = Connection.to(gateway.address, "test")

    with pytest.raises(Refused, match=r"amqp:not-allowed: .*log"):
        client.attach(sender=True, address="log://>")

    client.sock.close()


IDS = st.integers(0, 2**32 - 1)
ACCEPTANCE = Described(ULong(amqp.ACCEPTED), [])


@given(IDS, st.none() | IDS)
def test_an_acceptance_has_the_same_bounds_however_it_is_read(first: int, last: int | None) -> None:
    """Ids of any width, and ``last`` null or not: brokers encode acceptances differently."""
    fields = [True, UInt(first), None if last is None else UInt(last), True, ACCEPTANCE]
    encoded = bytearray(amqp.frame(amqp.DISPOSITION, fields))
    decoded = amqp.Frame(amqp.DISPOSITION, fields, b"")

    bounds = (first, first if last is None else last)
    assert accepted_range(encoded, 0, len(encoded)) == acceptance(decoded) == bounds


@pytest.mark.parametrize("code", [0x23, 0x25, 0x26, 0x27])
def test_any_other_outcome_is_none(code: int) -> None:
    """Received, rejected, released and modified are never taken for accepted."""
    fields = [True, UInt(1), UInt(2), True, Described(ULong(code), [])]
    encoded = bytearray(amqp.frame(amqp.DISPOSITION, fields))

    assert accepted_range(encoded, 0, len(encoded)) is None
    assert acceptance(amqp.Frame(amqp.DISPOSITION, fields, b"")) is None


BODY = encode(Described(DATA, b"body"))
DURABLE = encode(Described(HEADER, [True]))
REDELIVERED = encode(Described(HEADER, [True, UByte(4), None, None, 1]))
ANNOTATED = encode(Described(MESSAGE_ANNOTATIONS, {}))


def check(headers: DurableHeaders, content: bytes, number: int = 0) -> None:
    """Check a delivery with this content that follows others in the buffer."""
    sent = amqp.transfer_frame(0, number, content)
    headers.check(bytearray(b"before" + sent + b"behind"), 6, 6 + len(sent))


def test_durable_messages_pass_whatever_else_their_headers_say() -> None:
    """A header equal to the last one and a different one pass, at small and at large delivery ids."""
    headers = DurableHeaders()
    for number, content in enumerate((DURABLE + BODY, DURABLE + ANNOTATED + BODY, REDELIVERED + BODY) * 2):
        check(headers, content, 200 * number)


@pytest.mark.parametrize(
    "content",
    [BODY, ANNOTATED + BODY, encode(Described(HEADER, [])) + BODY, encode(Described(HEADER, [False])) + BODY],
)
def test_any_other_message_is_refused(content: bytes) -> None:
    """Refused even after a durable message: without a header, with an empty one, and with durable false."""
    with pytest.raises(Refused, match="not durable"):
        check(DurableHeaders(), content)
    headers = DurableHeaders()
    check(headers, DURABLE + BODY)
    with pytest.raises(Refused, match="not durable"):
        check(headers, content)
