"""The handshake against hostile peers, and in pieces."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate, pairwise

from hypothesis import given
from hypothesis import strategies as st

from amqp_ext.sasl import AMQP_HEADER, SASL_HEADER, SaslServer, SaslState
from tests.amqp_ext.sasl.exchange import feed, frame, init, server
from tests.amqp_ext.sasl.test_server import BAD_FRAMES
from tests.support.frames import SASL_RESPONSE


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
    """Random bytes among good frames raise nothing, take little memory, and log in nobody without a mechanism."""
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
    """Random responses to mechanisms with a password are refused, without an exception."""
    sasl = server(mechanism)
    check_hostile(
        sasl, [SASL_HEADER + init(mechanism, first), frame(SASL_RESPONSE, final.encode("utf-8", "replace"))]
    )
    assert sasl.state is SaslState.FAILED
    again = server(mechanism)
    check_hostile(again, [SASL_HEADER + init(mechanism, b"n,,n=ann,r=nonce"), frame(SASL_RESPONSE, first)])
    assert again.state is SaslState.FAILED


STREAMS = [
    AMQP_HEADER + b"frames",
    b"GET / HTTP/1.1\r\n\r\n",
    SASL_HEADER + init("ANONYMOUS") + AMQP_HEADER + b"open",
    SASL_HEADER + init("ANONYMOUS") + SASL_HEADER,
    SASL_HEADER + init("PLAIN") + frame(SASL_RESPONSE, b"\0ann\0secret") + AMQP_HEADER + b"open",
    SASL_HEADER + init("PLAIN", b"\0ann\0wrong") + AMQP_HEADER,
    SASL_HEADER + GOOD[5] + GOOD[7] + AMQP_HEADER,
    *(SASL_HEADER + bad + init("ANONYMOUS") + AMQP_HEADER for bad, _ in BAD_FRAMES.values()),
]


@given(st.sampled_from(STREAMS), st.booleans(), st.lists(st.integers(1, 60), max_size=20))
def test_pieces_make_no_difference(stream: bytes, required: bool, sizes: list[int]) -> None:
    """A handshake gives the same output and ends the same however its bytes are cut, an octet at a time, too."""
    ends = [0, *accumulate(sizes), len(stream)]
    cuts = ([stream], [bytes((octet,)) for octet in stream], [stream[a:b] for a, b in pairwise(ends)])
    seen = []
    for pieces in cuts:
        sasl = server(sasl_required=required)
        feed(sasl, *pieces)
        seen.append((sasl.drain_output(), sasl.state, sasl.identity, sasl.leftover, bool(sasl.failure)))
    assert seen == seen[:1] * 3
