"""The handshake frame by frame: headers, mechanisms, ANONYMOUS, EXTERNAL and PLAIN, and what is malformed."""

from __future__ import annotations

import pytest

from amqp_ext.codec import Array, Described, Symbol, encode
from amqp_ext.sasl import (
    AMQP_HEADER,
    MAX_PIPELINED_BYTES,
    SASL_HEADER,
    Identity,
    SaslState,
)
from tests.amqp_ext.sasl.exchange import feed, frame, frames, init, outcome, sasl_frame, server
from tests.support.frames import SASL_INIT, SASL_RESPONSE

# --- protocol headers ---


def test_plain_amqp_is_anonymous_where_sasl_is_not_required() -> None:
    """A peer without SASL is anonymous, and the engine gets its header and all that follows it."""
    sasl = server(sasl_required=False)
    feed(sasl, AMQP_HEADER + b"frames")
    assert sasl.state is SaslState.DONE
    assert sasl.identity == Identity("anonymous", "NONE")
    assert sasl.leftover == AMQP_HEADER + b"frames"
    assert sasl.drain_output() == b""


def test_plain_amqp_is_told_to_use_sasl_where_it_is_required() -> None:
    """A peer without SASL gets the SASL header, and no identity (section 2.2)."""
    sasl = server()
    feed(sasl, AMQP_HEADER + b"frames")
    assert sasl.state is SaslState.FAILED
    assert sasl.drain_output() == SASL_HEADER
    assert (sasl.identity, sasl.leftover) == (None, b"")
    assert sasl.failure == "the peer skips SASL, which is not allowed here"


@pytest.mark.parametrize("required", [True, False])
@pytest.mark.parametrize(
    "header",
    [
        b"AMQP\x02\x01\x00\x00",
        b"AMQP\x03\x01\x00\x01",
        b"AMQP\x00\x00\x09\x01",
        b"AMQP\x01\x01\x00\x0a",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00",
    ],
    ids=["TLS in AMQP", "SASL 1.0.1", "AMQP 0-9-1", "AMQP 0-10", "HTTP", "TLS", "zero"],
)
def test_other_protocols_get_the_header_we_support(header: bytes, required: bool) -> None:
    """A peer of any other protocol gets the header that it should have sent, and nothing else (section 2.2)."""
    sasl = server(sasl_required=required)
    feed(sasl, header)
    assert sasl.state is SaslState.FAILED
    assert sasl.drain_output() == (SASL_HEADER if required else AMQP_HEADER)
    assert "where an AMQP 1.0 header should be" in (sasl.failure or "")


@pytest.mark.parametrize(
    "bad",
    [SASL_HEADER, b"AMQP\x00\x01\x00\x01", init("ANONYMOUS")],
    ids=["SASL again", "other version", "frame"],
)
def test_after_sasl_the_amqp_header_must_follow(bad: bytes) -> None:
    """A peer that sends anything but the AMQP header after its login gets that header, and no identity."""
    sasl = server()
    feed(sasl, SASL_HEADER + init("ANONYMOUS"))
    assert outcome(sasl) == 0
    assert (sasl.state, sasl.identity) == (SaslState.NEGOTIATING, None)
    feed(sasl, bad)
    assert sasl.state is SaslState.FAILED
    assert sasl.drain_output() == AMQP_HEADER
    assert sasl.identity is None


# --- mechanisms offered ---


@pytest.mark.parametrize(
    ("mechanisms", "external", "offered"),
    [
        (["ANONYMOUS"], None, ["ANONYMOUS"]),
        (["SCRAM-SHA-512", "PLAIN"], None, ["SCRAM-SHA-512", "PLAIN"]),
        (["EXTERNAL", "PLAIN"], None, ["PLAIN"]),
        (["EXTERNAL", "PLAIN"], "cn", ["EXTERNAL", "PLAIN"]),
        (["EXTERNAL"], None, ["EXTERNAL"]),
    ],
)
def test_mechanisms_are_offered_in_order(
    mechanisms: list[str], external: str | None, offered: list[str]
) -> None:
    """Mechanisms are an array, even of one, in the configured order; EXTERNAL needs a certificate's user."""
    sasl = server(*mechanisms, external_user=external)
    sasl.receive(SASL_HEADER)
    output = sasl.drain_output()
    assert output.startswith(SASL_HEADER)
    [(code, [array])] = frames(output)
    assert (code, array) == (0x40, offered)
    assert type(array) is Array
    assert {type(name) for name in array} == {Symbol}


@pytest.mark.parametrize("mechanisms", [[], ["GSSAPI"], ["PLAIN", "plain"]])
def test_unknown_mechanisms_are_a_mistake_of_the_caller(mechanisms: list[str]) -> None:
    """A server without mechanisms, or with an unknown one, raises ValueError."""
    with pytest.raises(ValueError, match="mechanisms must be some of ANONYMOUS"):
        server(mechanisms=mechanisms)


@pytest.mark.parametrize("mechanism", ["GSSAPI", "anonymous", "EXTERNAL", ""])
def test_a_mechanism_that_was_not_offered_is_refused(mechanism: str) -> None:
    """Choosing what was not offered gives outcome auth, and the log says what was on offer."""
    sasl = server()
    feed(sasl, SASL_HEADER + init(mechanism, b""))
    assert outcome(sasl) == 1
    assert "is not among ANONYMOUS, PLAIN, SCRAM-SHA-256, SCRAM-SHA-512" in (sasl.failure or "")


# --- ANONYMOUS, EXTERNAL, PLAIN ---


@pytest.mark.parametrize("response", [None, b"", b"trace@example.com"])
def test_anonymous(response: bytes | None) -> None:
    """ANONYMOUS gives the user ``anonymous``, whatever trace the peer sends (RFC 4505)."""
    sasl = server("ANONYMOUS")
    feed(sasl, SASL_HEADER + init("ANONYMOUS", response) + AMQP_HEADER + b"open")
    assert outcome(sasl) == 0
    assert (sasl.state, sasl.identity) == (SaslState.DONE, Identity("anonymous", "ANONYMOUS"))
    assert sasl.leftover == AMQP_HEADER + b"open"


@pytest.mark.parametrize(
    ("user", "response", "code"),
    [
        ("ann", None, 0),
        ("ann", b"", 0),
        ("ann", b"ann", 0),
        ("ann", b"bob", 1),
        ("ann", b"\xff", 1),
        (None, b"", 1),
    ],
)
def test_external(user: str | None, response: bytes | None, code: int) -> None:
    """EXTERNAL gives the certificate's user, unless the peer asks for another."""
    sasl = server("EXTERNAL", external_user=user)
    feed(sasl, SASL_HEADER + init("EXTERNAL", response) + AMQP_HEADER)
    assert outcome(sasl) == code
    assert sasl.identity == (None if code else Identity("ann", "EXTERNAL"))


PLAIN = [
    (b"\0ann\0secret", 0, "ann"),
    (b"ann\0ann\0secret", 0, "ann"),
    ("\0cafe\u0301\0p\u00e4ss".encode(), 0, "caf\u00e9"),
    (b"\0ann\0wrong", 1, None),
    (b"\0ann\0", 1, None),
    (b"\0bob\0secret", 1, None),
    (b"bob\0ann\0secret", 1, None),
    (b"\0\0secret", 1, None),
    (b"", 1, None),
    (b"ann\0secret", 1, None),
    (b"\0ann\0secret\0", 1, None),
    (b"\0\xff\0secret", 1, None),
    (b"\0a\nn\0secret", 1, None),
]


@pytest.mark.parametrize("initial", [True, False], ids=["initial response", "challenged"])
@pytest.mark.parametrize(("response", "code", "user"), PLAIN)
def test_plain(response: bytes, code: int, user: str | None, initial: bool) -> None:
    """PLAIN comes with the init or after an empty challenge; acting as another user is refused (RFC 4616)."""
    sasl = server("PLAIN")
    if initial:
        feed(sasl, SASL_HEADER + init("PLAIN", response))
    else:
        feed(sasl, SASL_HEADER + init("PLAIN"))
        assert frames(sasl.drain_output())[-1] == (0x42, [b""])
        feed(sasl, frame(SASL_RESPONSE, response))
    assert outcome(sasl) == code
    feed(sasl, AMQP_HEADER)
    assert sasl.identity == (Identity(user, "PLAIN") if user else None)
    assert sasl.state is (SaslState.FAILED if code else SaslState.DONE)
    assert "secret" not in (sasl.failure or "")


def test_a_password_is_checked_by_the_caller_in_its_own_time() -> None:
    """PLAIN waits in VERIFYING, answers nothing meanwhile, and keeps what the peer sends ahead."""
    sasl = server("PLAIN")
    sasl.receive(SASL_HEADER + init("PLAIN", b"\0ann\0secret"))
    sasl.drain_output()
    assert sasl.state is SaslState.VERIFYING
    verification = sasl.verification
    assert verification is not None
    sasl.receive(AMQP_HEADER)
    sasl.receive(b"open")
    assert (sasl.state, sasl.drain_output(), sasl.identity) == (SaslState.VERIFYING, b"", None)
    sasl.resolve(verification())
    assert (sasl.state, sasl.leftover) == (SaslState.DONE, AMQP_HEADER + b"open")
    sasl.resolve(False)
    assert sasl.identity == Identity("ann", "PLAIN")


def test_what_is_sent_ahead_of_the_outcome_is_bounded() -> None:
    """A peer that sends too much while its password is checked fails, even if the password is right."""
    sasl = server("PLAIN")
    sasl.receive(SASL_HEADER + init("PLAIN", b"\0ann\0secret"))
    sasl.receive(bytes(MAX_PIPELINED_BYTES))
    before = sasl.failure
    assert before is None
    sasl.receive(b"x")
    assert sasl.failure == f"more than {MAX_PIPELINED_BYTES} bytes came before the outcome"
    sasl.resolve(True)
    assert (sasl.state, sasl.identity, sasl.verification) == (SaslState.FAILED, None, None)


# --- frames ---


@pytest.mark.parametrize(
    "good",
    [
        frame(SASL_INIT, Symbol("ANONYMOUS")),
        frame(SASL_INIT, Symbol("ANONYMOUS"), None, None),
        sasl_frame(encode(Described("amqp:sasl-init:list", [Symbol("ANONYMOUS")]))),
        sasl_frame(encode(Described(SASL_INIT, [Symbol("ANONYMOUS")])), extended=b"\xde\xad\xbe\xef"),
    ],
    ids=["short", "nulls", "symbolic", "extended header"],
)
def test_every_legal_form_of_a_frame_is_read(good: bytes) -> None:
    """Fields may be omitted, descriptors may be symbols, headers may be extended (sections 2.3.1 and 1.3)."""
    sasl = server()
    feed(sasl, SASL_HEADER + good + AMQP_HEADER)
    assert sasl.state is SaslState.DONE


BAD_FRAMES = {
    "too small": (b"\x00\x00\x00\x07\x02\x01\x00\x00", "SASL frame of 7 bytes"),
    "too large": (b"\x00\x00\x50\x01\x02\x01\x00\x00", "SASL frame of 20481 bytes; 8 to 20480 are accepted"),
    "huge": (b"\xff\xff\xff\xff\x02\x01\x00\x00", "SASL frame of 4294967295 bytes"),
    "type": (sasl_frame(encode(Described(SASL_INIT, [Symbol("ANONYMOUS")])), kind=0), "frame of type 0"),
    "offset too small": (b"\x00\x00\x00\x08\x01\x01\x00\x00", "its body at 4 is not a SASL frame"),
    "offset too large": (b"\x00\x00\x00\x08\x03\x01\x00\x00", "its body at 12 is not a SASL frame"),
    "empty": (sasl_frame(b""), "malformed"),
    "not AMQP": (sasl_frame(b"\xff\xff"), "malformed"),
    "not described": (sasl_frame(encode([Symbol("ANONYMOUS")])), "one described list and nothing else"),
    "trailing": (sasl_frame(encode(Described(SASL_INIT, [Symbol("ANONYMOUS")])) + b"\x40"), "nothing else"),
    "not a list": (sasl_frame(encode(Described(SASL_INIT, {Symbol("a"): 1}))), "sasl-init should come here"),
    "array": (
        sasl_frame(encode(Described(SASL_INIT, Array([Symbol("PLAIN")])))),
        "sasl-init should come here",
    ),
    "open": (sasl_frame(encode(Described(0x10, ["container"]))), "sasl-init should come here, not 16"),
    "unknown symbol": (sasl_frame(encode(Described("amqp:open:list", []))), "not 'amqp:open:list'"),
    "response first": (frame(SASL_RESPONSE, b"x"), "sasl-init should come here, not 67"),
    "no mechanism": (frame(SASL_INIT), "must name a mechanism"),
    "string mechanism": (frame(SASL_INIT, "PLAIN"), "must name a mechanism"),
    "string response": (frame(SASL_INIT, Symbol("PLAIN"), "text"), "its response must be binary"),
}


@pytest.mark.parametrize(("bad", "reason"), BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_a_bad_frame_ends_the_handshake(bad: bytes, reason: str) -> None:
    """A malformed or misplaced frame ends the handshake immediately, without an outcome, whatever follows."""
    sasl = server()
    feed(sasl, SASL_HEADER + bad + init("ANONYMOUS") + AMQP_HEADER)
    assert sasl.state is SaslState.FAILED
    assert reason in (sasl.failure or "")
    assert [code for code, _ in frames(sasl.drain_output())] == [0x40]
    assert (sasl.identity, sasl.leftover) == (None, b"")


@pytest.mark.parametrize("bad", [init("PLAIN", b"x"), frame(SASL_RESPONSE), frame(SASL_RESPONSE, "text")])
def test_a_bad_response_ends_the_handshake(bad: bytes) -> None:
    """Where a response is due, a second init or a response that is no binary fails."""
    sasl = server()
    feed(sasl, SASL_HEADER + init("PLAIN") + bad)
    assert sasl.state is SaslState.FAILED
    assert "sasl-response" in (sasl.failure or "")


def test_after_the_end_nothing_changes() -> None:
    """After FAILED, input is ignored; after DONE, it is only added to the leftover."""
    failed = server()
    failed.receive(b"HTTP")
    reason = failed.failure
    failed.receive(SASL_HEADER + init("ANONYMOUS") + AMQP_HEADER)
    assert (failed.state, failed.failure, failed.identity) == (SaslState.FAILED, reason, None)
    done = server()
    done.receive(SASL_HEADER + init("ANONYMOUS") + AMQP_HEADER)
    done.receive(b"more")
    assert (done.state, done.leftover) == (SaslState.DONE, AMQP_HEADER + b"more")
