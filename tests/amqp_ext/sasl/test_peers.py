"""The handshake against proton's client, and against hostile peers."""

from __future__ import annotations

from collections.abc import Iterable

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.sasl import (
    AMQP_HEADER,
    SASL_HEADER,
    Identity,
    SaslServer,
    SaslState,
)
from tests.amqp_ext.sasl.exchange import PIECES, feed, frame, init, server
from tests.support.frames import SASL_RESPONSE

# --- against proton ---


def proton_client(mechanisms: str, user: str | None = None, password: str | None = None) -> proton.Transport:
    transport, connection = proton.Transport(), proton.Connection()
    if user is not None:
        connection.user, connection.password = user, password or ""
    connection.open()
    sasl = transport.sasl()
    sasl.allow_insecure_mechs = True
    sasl.allowed_mechs(mechanisms)
    transport.bind(connection)
    transport.connection_kept = connection  # proton does not keep it alive
    return transport


def converse(client: proton.Transport, sasl: SaslServer, *, whole: bool) -> None:
    """Carry bytes between proton and us until neither has any."""
    while sasl.state is not SaslState.DONE:
        pending = client.pending()
        sent = client.peek(pending) if pending > 0 else b""
        if sent:
            client.pop(len(sent))
            feed(sasl, bytes(sent), whole=whole)
        answer = sasl.drain_output()
        for piece in [answer] if whole else [bytes((octet,)) for octet in answer]:
            if piece and client.capacity() > 0:
                client.push(piece)
        if not sent and not answer:
            return


@PIECES
@pytest.mark.parametrize(
    ("mechanism", "user", "password", "external"),
    [("ANONYMOUS", None, None, None), ("PLAIN", "ann", "secret", None), ("EXTERNAL", None, None, "ann")],
)
@pytest.mark.parametrize("is_alone", [False, True])
def test_proton_logs_in(
    mechanism: str, user: str | None, password: str | None, external: str | None, is_alone: bool, whole: bool
) -> None:
    """proton's client accepts our mechanisms, or only one, and outcome; what is left over opens a proton server."""
    client = proton_client(mechanism, user, password)
    sasl = server(*([mechanism] if is_alone else []), external_user=external)
    converse(client, sasl, whole=whole)
    assert (sasl.state, sasl.failure) == (SaslState.DONE, None)
    assert sasl.identity == Identity(user or external or "anonymous", mechanism)
    assert client.sasl().outcome == proton.SASL.OK
    assert client.sasl().mech == mechanism
    engine, connection = proton.Transport(proton.Transport.SERVER), proton.Connection()
    engine.bind(connection)
    engine.push(sasl.leftover)
    while (pending := client.pending()) > 0:
        engine.push(client.peek(pending) or b"")
        client.pop(pending)
    assert connection.state & proton.Endpoint.REMOTE_ACTIVE


@PIECES
def test_proton_is_told_that_its_password_is_wrong(whole: bool) -> None:
    """proton's client reads our outcome auth as such."""
    client = proton_client("PLAIN", "ann", "wrong")
    sasl = server()
    converse(client, sasl, whole=whole)
    assert sasl.state is SaslState.FAILED
    assert client.sasl().outcome == proton.SASL.AUTH


# --- hostile peers ---


def check_hostile(sasl: SaslServer, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        sasl.receive(piece)
        if sasl.state is SaslState.VERIFYING:
            sasl.resolve(False)
        assert len(sasl._input) < 4096
        assert len(sasl.drain_output()) < 1000
        assert (sasl.failure is not None) == (sasl.state is SaslState.FAILED)
        assert (sasl.identity is not None) == (sasl.state is SaslState.DONE)


GOOD = [
    SASL_HEADER,
    AMQP_HEADER,
    init("ANONYMOUS"),
    init("PLAIN", b"\0ann\0secret"),
    init("PLAIN"),
    init("SCRAM-SHA-256", b"n,,n=ann,r=nonce"),
    frame(SASL_RESPONSE, b"\0ann\0secret"),
    frame(SASL_RESPONSE, b"c=biws,r=nonceserver-nonce-0,p=AAAA"),
]


@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from(GOOD)), max_size=6), st.booleans())
def test_any_bytes_end_in_a_state_and_never_in_an_exception(pieces: list[bytes], required: bool) -> None:
    """Random bytes among good frames never raise, never pile up, and never log in without a mechanism."""
    sasl = server(sasl_required=required)
    check_hostile(sasl, pieces)
    if sasl.state is SaslState.DONE and required:
        assert init("ANONYMOUS") in pieces


@given(st.sampled_from(GOOD[2:]), st.data())
def test_damaged_frames_never_raise(good: bytes, draw: st.DataObject) -> None:
    """A good frame with some bytes changed is read, refused or waited for."""
    damaged = bytearray(good)
    for _ in range(draw.draw(st.integers(1, 4))):
        damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.integers(0, 255))
    check_hostile(server(), [SASL_HEADER, bytes(damaged), AMQP_HEADER])


@given(
    st.sampled_from(["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]), st.binary(max_size=60), st.text(max_size=60)
)
def test_random_responses_never_log_in(mechanism: str, first: bytes, final: str) -> None:
    """No random response to a mechanism that asks for a password is accepted, and none raises."""
    sasl = server(mechanism)
    check_hostile(
        sasl, [SASL_HEADER + init(mechanism, first), frame(SASL_RESPONSE, final.encode("utf-8", "replace"))]
    )
    assert sasl.state is SaslState.FAILED
    again = server(mechanism)
    check_hostile(again, [SASL_HEADER + init(mechanism, b"n,,n=ann,r=nonce"), frame(SASL_RESPONSE, first)])
    assert again.state is SaslState.FAILED


@given(st.lists(st.integers(1, 60), max_size=20))
def test_pieces_make_no_difference(sizes: list[int]) -> None:
    """A handshake gives the same output and the same leftover however its bytes are cut."""
    stream = SASL_HEADER + init("PLAIN") + frame(SASL_RESPONSE, b"\0ann\0secret") + AMQP_HEADER + b"open"
    whole, cut = server(), server()
    feed(whole, stream)
    offset = 0
    for size in [*sizes, len(stream)]:
        feed(cut, stream[offset : offset + size])
        offset += size
    assert cut.drain_output() == whole.drain_output()
    assert (cut.state, cut.identity, cut.leftover) == (whole.state, whole.identity, whole.leftover)
    assert whole.state is SaslState.DONE
