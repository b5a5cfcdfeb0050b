"""The handshake against proton's client, against scramp's, frame by frame, and against hostile peers."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scramp import ScramClient, ScramException  # type: ignore[import-untyped]

from amqp_ext.codec import Array, Described, Symbol, UByte, ULong, decode, encode
from amqp_ext.passwords import StoredPassword, hash_password, parse
from amqp_ext.sasl import (
    AMQP_HEADER,
    MAX_PIPELINED_BYTES,
    MECHANISMS,
    SASL_HEADER,
    Identity,
    SaslServer,
    SaslState,
)

INIT, RESPONSE = 0x41, 0x43
USERS = {
    name: parse(hash_password(password, salt=name.encode().ljust(16, b"."), iterations=4096))
    for name, password in {"ann": "secret", "caf\u00e9": "p\u00e4ss", "o,d=d": "x"}.items()
}


def server(*mechanisms: str, **changes: Any) -> SaslServer:
    numbers = itertools.count()
    settings: dict[str, Any] = {
        "mechanisms": mechanisms or MECHANISMS,
        "credentials": USERS.get,
        "sasl_required": True,
        "nonce": lambda: f"server-nonce-{next(numbers)}",
        "decoy_key": b"decoy",
        "decoy_iterations": 4096,
    }
    return SaslServer(**{**settings, **changes})


def frame(code: int, *fields: Any, spelling: Callable[[int], Any] = ULong) -> bytes:
    return raw_frame(encode(Described(spelling(code), list(fields))))


def raw_frame(body: bytes, *, kind: int = 1, extended: bytes = b"") -> bytes:
    head = bytes((2 + len(extended) // 4, kind, 0, 0))
    return (8 + len(extended) + len(body)).to_bytes(4, "big") + head + extended + body


def init(mechanism: str, response: bytes | None = None) -> bytes:
    return frame(INIT, Symbol(mechanism), response, "some.host")


def frames(output: bytes) -> list[tuple[int, list[Any]]]:
    """SASL frames, as code and fields; the header in front is checked and left out."""
    found = []
    offset = 8 if output.startswith(SASL_HEADER) else 0
    while offset < len(output):
        size = int.from_bytes(output[offset : offset + 4], "big")
        assert output[offset + 4 : offset + 8] == b"\x02\x01\x00\x00"
        performative, behind = decode(output, offset + 8)
        assert behind == offset + size
        found.append((int(performative.descriptor), performative.value))
        offset = behind
    return found


def feed(sasl: SaslServer, data: bytes, *, whole: bool = True) -> None:
    """Hand over `data` whole or byte by byte, running a verification wherever one is asked for."""
    for piece in [data] if whole else [bytes((octet,)) for octet in data]:
        sasl.receive(piece)
        if sasl.state is SaslState.VERIFYING:
            assert sasl.verification is not None
            sasl.resolve(sasl.verification())


def outcome(sasl: SaslServer) -> int:
    """The code of the outcome, which must be the last frame."""
    code, fields = frames(sasl.take_output())[-1]
    assert code == 0x44
    assert type(fields[0]) is UByte
    return int(fields[0])


PIECES = pytest.mark.parametrize("whole", [True, False], ids=["whole", "byte by byte"])

# --- protocol headers ---


@PIECES
def test_plain_amqp_is_anonymous_where_sasl_is_not_required(whole: bool) -> None:
    """A peer without SASL is anonymous, and the engine gets its header and all that follows it."""
    sasl = server(sasl_required=False, anonymous_user="nobody")
    feed(sasl, AMQP_HEADER + b"frames", whole=whole)
    assert sasl.state is SaslState.DONE
    assert sasl.identity == Identity("nobody", "NONE")
    assert sasl.leftover == AMQP_HEADER + b"frames"
    assert sasl.take_output() == b""


@PIECES
def test_plain_amqp_is_told_to_use_sasl_where_it_is_required(whole: bool) -> None:
    """A peer without SASL gets the SASL header, and no identity (§2.2)."""
    sasl = server()
    feed(sasl, AMQP_HEADER + b"frames", whole=whole)
    assert sasl.state is SaslState.FAILED
    assert sasl.take_output() == SASL_HEADER
    assert (sasl.identity, sasl.leftover) == (None, b"")
    assert sasl.failure == "the peer wants to go without SASL, which is not allowed here"


@pytest.mark.parametrize("required", [True, False])
@PIECES
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
def test_other_protocols_get_the_header_we_support(header: bytes, whole: bool, required: bool) -> None:
    """Whatever else a peer speaks, it gets the header it should have sent, and that is all (§2.2)."""
    sasl = server(sasl_required=required)
    feed(sasl, header, whole=whole)
    assert sasl.state is SaslState.FAILED
    assert sasl.take_output() == (SASL_HEADER if required else AMQP_HEADER)
    assert "where an AMQP 1.0 header should be" in (sasl.failure or "")


@pytest.mark.parametrize(
    "bad",
    [SASL_HEADER, b"AMQP\x00\x01\x00\x01", init("ANONYMOUS")],
    ids=["SASL again", "other version", "frame"],
)
@PIECES
def test_after_sasl_the_amqp_header_must_follow(bad: bytes, whole: bool) -> None:
    """A peer that has logged in and goes on with anything but the plain AMQP header is sent that header."""
    sasl = server()
    feed(sasl, SASL_HEADER + init("ANONYMOUS"), whole=whole)
    assert outcome(sasl) == 0
    assert (sasl.state, sasl.identity) == (SaslState.NEGOTIATING, None)
    feed(sasl, bad, whole=whole)
    assert sasl.state is SaslState.FAILED
    assert sasl.take_output() == AMQP_HEADER
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
    """The frame is an array of symbols, even of one, as configured; EXTERNAL needs a certificate's user."""
    sasl = server(*mechanisms, external_user=external)
    sasl.receive(SASL_HEADER)
    output = sasl.take_output()
    assert output.startswith(SASL_HEADER)
    [(code, [array])] = frames(output)
    assert (code, array) == (0x40, offered)
    assert type(array) is Array
    assert {type(name) for name in array} == {Symbol}


@pytest.mark.parametrize("mechanisms", [[], ["GSSAPI"], ["PLAIN", "plain"]])
def test_unknown_mechanisms_are_a_mistake_of_the_caller(mechanisms: list[str]) -> None:
    """A server cannot be made without mechanisms or with one it does not have."""
    with pytest.raises(ValueError, match="mechanisms must be some of ANONYMOUS"):
        server(mechanisms=mechanisms)


@pytest.mark.parametrize("mechanism", ["GSSAPI", "anonymous", "EXTERNAL", ""])
def test_a_mechanism_that_was_not_offered_is_refused(mechanism: str) -> None:
    """Choosing what was not offered gives outcome auth, and the log says what was on offer."""
    sasl = server()
    feed(sasl, SASL_HEADER + init(mechanism, b""))
    assert outcome(sasl) == 1
    assert sasl.state is SaslState.FAILED
    assert "is not among ANONYMOUS, PLAIN, SCRAM-SHA-256, SCRAM-SHA-512" in (sasl.failure or "")


# --- ANONYMOUS, EXTERNAL, PLAIN ---


@PIECES
@pytest.mark.parametrize("response", [None, b"", b"trace@example.com"])
def test_anonymous(response: bytes | None, whole: bool) -> None:
    """ANONYMOUS gives the configured user, whatever trace it sends (RFC 4505)."""
    sasl = server("ANONYMOUS", anonymous_user="guest")
    feed(sasl, SASL_HEADER + init("ANONYMOUS", response) + AMQP_HEADER + b"open", whole=whole)
    assert outcome(sasl) == 0
    assert (sasl.state, sasl.identity) == (SaslState.DONE, Identity("guest", "ANONYMOUS"))
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
    """EXTERNAL gives the certificate's user to a peer that asks for no other."""
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


@PIECES
@pytest.mark.parametrize("initial", [True, False], ids=["initial response", "challenged"])
@pytest.mark.parametrize(("response", "code", "user"), PLAIN)
def test_plain(response: bytes, code: int, user: str | None, initial: bool, whole: bool) -> None:
    """PLAIN takes user and password, for oneself only (RFC 4616), at once or after an empty challenge."""
    sasl = server("PLAIN")
    if initial:
        feed(sasl, SASL_HEADER + init("PLAIN", response), whole=whole)
    else:
        feed(sasl, SASL_HEADER + init("PLAIN"), whole=whole)
        assert frames(sasl.take_output())[-1] == (0x42, [b""])
        feed(sasl, frame(RESPONSE, response), whole=whole)
    assert outcome(sasl) == code
    feed(sasl, AMQP_HEADER, whole=whole)
    assert sasl.identity == (Identity(user, "PLAIN") if user else None)
    assert sasl.state is (SaslState.FAILED if code else SaslState.DONE)
    assert "secret" not in (sasl.failure or "")


def test_a_password_is_checked_by_the_caller_in_its_own_time() -> None:
    """PLAIN waits in VERIFYING, answers nothing meanwhile, and keeps what the peer sends ahead."""
    sasl = server("PLAIN")
    sasl.receive(SASL_HEADER + init("PLAIN", b"\0ann\0secret"))
    sasl.take_output()
    assert sasl.state is SaslState.VERIFYING
    verification = sasl.verification
    assert verification is not None
    sasl.receive(AMQP_HEADER)
    sasl.receive(b"open")
    assert (sasl.state, sasl.take_output(), sasl.identity) == (SaslState.VERIFYING, b"", None)
    sasl.resolve(verification())
    assert (sasl.state, sasl.leftover) == (SaslState.DONE, AMQP_HEADER + b"open")
    sasl.resolve(False)
    assert sasl.identity == Identity("ann", "PLAIN")


def test_what_is_sent_ahead_of_the_outcome_is_bounded() -> None:
    """A peer that floods us while its password is checked fails, and the answer comes too late."""
    sasl = server("PLAIN")
    sasl.receive(SASL_HEADER + init("PLAIN", b"\0ann\0secret"))
    sasl.receive(bytes(MAX_PIPELINED_BYTES))
    before = sasl.failure
    assert before is None
    sasl.receive(b"x")
    assert sasl.failure == f"more than {MAX_PIPELINED_BYTES} bytes came before the outcome"
    sasl.resolve(True)
    assert (sasl.state, sasl.identity, sasl.verification) == (SaslState.FAILED, None, None)


# --- SCRAM ---


def scram_login(
    sasl: SaslServer, user: str, password: str, mechanism: str, *, initial: bool = True, whole: bool = True
) -> Any:
    """Drive scramp's client through the exchange as far as the server goes along."""
    client = ScramClient([mechanism], user, password, c_nonce="client-nonce")
    first = client.get_client_first().encode()
    feed(sasl, SASL_HEADER + init(mechanism, first if initial else None), whole=whole)
    if not initial:
        assert frames(sasl.take_output())[-1] == (0x42, [b""])
        feed(sasl, frame(RESPONSE, first), whole=whole)
    code, [challenge] = frames(sasl.take_output())[-1]
    assert code == 0x42
    client.set_server_first(challenge.decode())
    feed(sasl, frame(RESPONSE, client.get_client_final().encode()), whole=whole)
    return client


SCRAM = pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])


@SCRAM
@PIECES
@pytest.mark.parametrize("initial", [True, False], ids=["initial response", "challenged"])
@pytest.mark.parametrize(
    ("user", "password"), [("ann", "secret"), ("caf\u00e9", "p\u00e4ss"), ("o,d=d", "x")]
)
def test_scram(mechanism: str, initial: bool, whole: bool, user: str, password: str) -> None:
    """A SCRAM client logs in, and the outcome's additional data proves to it that we know its keys, too."""
    sasl = server(mechanism)
    client = scram_login(sasl, user, password, mechanism, initial=initial, whole=whole)
    [(code, [verdict, signature])] = frames(sasl.take_output())
    assert (code, verdict) == (0x44, 0)
    client.set_server_final(signature.decode())
    feed(sasl, AMQP_HEADER + b"open", whole=whole)
    assert (sasl.state, sasl.identity) == (SaslState.DONE, Identity(user, mechanism))
    assert sasl.leftover == AMQP_HEADER + b"open"


@SCRAM
def test_a_wrong_password_and_an_unknown_user_look_alike(mechanism: str) -> None:
    """Both get a challenge of the same form and the outcome auth without additional data."""
    answers = []
    for user in ("ann", "bob"):
        sasl = server(mechanism)
        client = ScramClient([mechanism], user, "wrong", c_nonce="client-nonce")
        feed(sasl, SASL_HEADER + init(mechanism, client.get_client_first().encode()))
        _, [challenge] = frames(sasl.take_output())[-1]
        client.set_server_first(challenge.decode())
        feed(sasl, frame(RESPONSE, client.get_client_final().encode()))
        assert sasl.state is SaslState.FAILED
        assert f"unknown user '{user}'" in (sasl.failure or "")
        answers.append(
            ([part[:2] for part in challenge.split(b",")], len(challenge), frames(sasl.take_output()))
        )
    assert answers[0] == answers[1]
    assert answers[0][2] == [(0x44, [1])]


def salt_for(user: str, **changes: Any) -> bytes:
    sasl = server("SCRAM-SHA-256", **changes)
    sasl.receive(SASL_HEADER + init("SCRAM-SHA-256", f"n,,n={user},r=nonce".encode()))
    _, [challenge] = frames(sasl.take_output())[-1]
    return bytes(challenge.split(b",")[1])


def test_the_salt_of_an_unknown_user_is_steady_and_depends_on_the_key() -> None:
    """Asking twice shows the same salt, as for a known user, and nobody without the key can compute it."""
    assert salt_for("bob") == salt_for("bob") != salt_for("eve")
    assert salt_for("bob", decoy_key=b"another") != salt_for("bob")
    assert salt_for("bob", decoy_key=None, nonce=lambda: "n1") != salt_for(
        "bob", decoy_key=None, nonce=lambda: "n2"
    )


@SCRAM
@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"n,,",
        b"n,,n=ann",
        b"n,,n=ann,r=",
        b"n,a=bob,n=ann,r=nonce",
        b"p=tls-unique,,n=ann,r=nonce",
        b"n,,n=,r=nonce",
        b"n,,n=a=n,r=nonce",
        b"n,,m=x,n=ann,r=nonce",
        b"\xff",
        b"n,,n=ann,r=n\x00nce",
        b"n,," + b"n" * 3000,
    ],
)
def test_a_malformed_first_message_is_refused(mechanism: str, first: bytes) -> None:
    """Whatever is wrong with SCRAM's first message, the peer gets the outcome auth."""
    sasl = server(mechanism)
    feed(sasl, SASL_HEADER + init(mechanism, first))
    assert outcome(sasl) == 1
    assert sasl.state is SaslState.FAILED
    assert f"{mechanism} cannot start" in (sasl.failure or "")


@SCRAM
@pytest.mark.parametrize(
    "final",
    [
        b"",
        b"c=biws,r=other,p=AAAA",
        b"c=biws,r=client-nonceserver-nonce-0,p=AAAA",
        b"\xff",
        b"p=?",
        b"c=AAAA",
    ],
)
def test_a_malformed_final_message_is_refused(mechanism: str, final: bytes) -> None:
    """A proof that is none, or belongs to another exchange, gives the outcome auth."""
    sasl = server(mechanism)
    feed(sasl, SASL_HEADER + init(mechanism, b"n,,n=ann,r=client-nonce"))
    feed(sasl, frame(RESPONSE, final))
    assert outcome(sasl) == 1
    assert sasl.state is SaslState.FAILED


def test_a_proof_cannot_be_played_back() -> None:
    """The messages of a good login do not work a second time, as the server's nonce differs."""
    client = ScramClient(["SCRAM-SHA-256"], "ann", "secret", c_nonce="client-nonce")
    recorded = server("SCRAM-SHA-256")
    first = SASL_HEADER + init("SCRAM-SHA-256", client.get_client_first().encode())
    feed(recorded, first)
    client.set_server_first(frames(recorded.take_output())[-1][1][0].decode())
    proof = frame(RESPONSE, client.get_client_final().encode())
    again = server("SCRAM-SHA-256", nonce=lambda: "another")
    for sasl, code in ((recorded, 0), (again, 1)):
        if sasl is again:
            feed(sasl, first)
        feed(sasl, proof)
        assert outcome(sasl) == code


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [("PLAIN", b"\0ann\0secret"), ("SCRAM-SHA-256", b"n,,n=ann,r=nonce")],
)
def test_credentials_that_cannot_be_read_are_our_own_trouble(mechanism: str, response: bytes) -> None:
    """When a user cannot be looked up, the peer gets the outcome sys and the log gets the cause."""

    def broken(user: str) -> StoredPassword | None:
        raise OSError("disk on fire")

    sasl = server(mechanism, credentials=broken)
    feed(sasl, SASL_HEADER + init(mechanism, response))
    assert outcome(sasl) == 2
    assert sasl.failure == "the credentials of 'ann' cannot be read: OSError('disk on fire')"


# --- frames ---


@pytest.mark.parametrize(
    "good",
    [
        frame(INIT, Symbol("ANONYMOUS")),
        frame(INIT, Symbol("ANONYMOUS"), None, None),
        raw_frame(encode(Described("amqp:sasl-init:list", [Symbol("ANONYMOUS")]))),
        raw_frame(encode(Described(INIT, [Symbol("ANONYMOUS")])), extended=b"\xde\xad\xbe\xef"),
    ],
    ids=["short", "nulls", "symbolic", "extended header"],
)
def test_every_legal_form_of_a_frame_is_read(good: bytes) -> None:
    """Fields may be left out, descriptors be symbols, headers be extended (§2.3.1, §1.3)."""
    sasl = server()
    feed(sasl, SASL_HEADER + good + AMQP_HEADER)
    assert sasl.state is SaslState.DONE


BAD_FRAMES = {
    "too small": (b"\x00\x00\x00\x07\x02\x01\x00\x00", "SASL frame of 7 bytes"),
    "too large": (b"\x00\x00\x10\x01\x02\x01\x00\x00", "SASL frame of 4097 bytes; 8 to 4096 are accepted"),
    "huge": (b"\xff\xff\xff\xff\x02\x01\x00\x00", "SASL frame of 4294967295 bytes"),
    "type": (raw_frame(encode(Described(INIT, [Symbol("ANONYMOUS")])), kind=0), "frame of type 0"),
    "offset too small": (b"\x00\x00\x00\x08\x01\x01\x00\x00", "its body at 4 is not a SASL frame"),
    "offset too large": (b"\x00\x00\x00\x08\x03\x01\x00\x00", "its body at 12 is not a SASL frame"),
    "empty": (raw_frame(b""), "malformed"),
    "not AMQP": (raw_frame(b"\xff\xff"), "malformed"),
    "not described": (raw_frame(encode([Symbol("ANONYMOUS")])), "one described list and nothing else"),
    "trailing": (raw_frame(encode(Described(INIT, [Symbol("ANONYMOUS")])) + b"\x40"), "nothing else"),
    "not a list": (raw_frame(encode(Described(INIT, {Symbol("a"): 1}))), "sasl-init should come here"),
    "array": (raw_frame(encode(Described(INIT, Array([Symbol("PLAIN")])))), "sasl-init should come here"),
    "open": (raw_frame(encode(Described(0x10, ["container"]))), "sasl-init should come here, not 16"),
    "unknown symbol": (raw_frame(encode(Described("amqp:open:list", []))), "not 'amqp:open:list'"),
    "response first": (frame(RESPONSE, b"x"), "sasl-init should come here, not 67"),
    "no mechanism": (frame(INIT), "must name a mechanism"),
    "string mechanism": (frame(INIT, "PLAIN"), "must name a mechanism"),
    "string response": (frame(INIT, Symbol("PLAIN"), "text"), "its response must be binary"),
}


@PIECES
@pytest.mark.parametrize(("bad", "reason"), BAD_FRAMES.values(), ids=BAD_FRAMES)
def test_a_bad_frame_ends_the_handshake(bad: bytes, reason: str, whole: bool) -> None:
    """A frame that is malformed or out of place fails at once, without an outcome, whatever follows."""
    sasl = server()
    feed(sasl, SASL_HEADER + bad + init("ANONYMOUS") + AMQP_HEADER, whole=whole)
    assert sasl.state is SaslState.FAILED
    assert reason in (sasl.failure or "")
    assert [code for code, _ in frames(sasl.take_output())] == [0x40]
    assert (sasl.identity, sasl.leftover) == (None, b"")


@pytest.mark.parametrize("bad", [init("PLAIN", b"x"), frame(RESPONSE), frame(RESPONSE, "text")])
def test_a_bad_response_ends_the_handshake(bad: bytes) -> None:
    """Where a response is due, a second init or a response that is no binary fails."""
    sasl = server()
    feed(sasl, SASL_HEADER + init("PLAIN") + bad)
    assert sasl.state is SaslState.FAILED
    assert "sasl-response" in (sasl.failure or "")


def test_after_the_end_nothing_changes() -> None:
    """FAILED ignores what comes; DONE only adds it to the leftover."""
    failed = server()
    failed.receive(b"HTTP")
    reason = failed.failure
    failed.receive(SASL_HEADER + init("ANONYMOUS") + AMQP_HEADER)
    assert (failed.state, failed.failure, failed.identity) == (SaslState.FAILED, reason, None)
    done = server()
    done.receive(SASL_HEADER + init("ANONYMOUS") + AMQP_HEADER)
    done.receive(b"more")
    assert (done.state, done.leftover) == (SaslState.DONE, AMQP_HEADER + b"more")


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
        answer = sasl.take_output()
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
def test_proton_logs_in(
    mechanism: str, user: str | None, password: str | None, external: str | None, whole: bool
) -> None:
    """proton's client accepts our mechanisms and outcome, and what is left over opens a proton server."""
    client = proton_client(mechanism, user, password)
    sasl = server(external_user=external)
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


@PIECES
def test_one_mechanism_is_enough_for_proton(whole: bool) -> None:
    """proton's client understands the offer of a single mechanism."""
    client = proton_client("ANONYMOUS")
    sasl = server("ANONYMOUS")
    converse(client, sasl, whole=whole)
    assert sasl.identity == Identity("anonymous", "ANONYMOUS")


# --- hostile peers ---


def check_hostile(sasl: SaslServer, pieces: Iterable[bytes]) -> None:
    for piece in pieces:
        sasl.receive(piece)
        if sasl.state is SaslState.VERIFYING:
            sasl.resolve(False)
        assert len(sasl._input) < 4096
        assert len(sasl.take_output()) < 1000
        assert (sasl.failure is not None) == (sasl.state is SaslState.FAILED)
        assert (sasl.identity is not None) == (sasl.state is SaslState.DONE)


GOOD = [
    SASL_HEADER,
    AMQP_HEADER,
    init("ANONYMOUS"),
    init("PLAIN", b"\0ann\0secret"),
    init("PLAIN"),
    init("SCRAM-SHA-256", b"n,,n=ann,r=nonce"),
    frame(RESPONSE, b"\0ann\0secret"),
    frame(RESPONSE, b"c=biws,r=nonceserver-nonce-0,p=AAAA"),
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
        sasl, [SASL_HEADER + init(mechanism, first), frame(RESPONSE, final.encode("utf-8", "replace"))]
    )
    assert sasl.state is SaslState.FAILED
    again = server(mechanism)
    check_hostile(again, [SASL_HEADER + init(mechanism, b"n,,n=ann,r=nonce"), frame(RESPONSE, first)])
    assert again.state is SaslState.FAILED


@given(st.lists(st.integers(1, 60), max_size=20))
def test_pieces_make_no_difference(sizes: list[int]) -> None:
    """A handshake gives the same output and the same leftover however its bytes are cut."""
    stream = SASL_HEADER + init("PLAIN") + frame(RESPONSE, b"\0ann\0secret") + AMQP_HEADER + b"open"
    whole, cut = server(), server()
    feed(whole, stream)
    offset = 0
    for size in [*sizes, len(stream)]:
        feed(cut, stream[offset : offset + size])
        offset += size
    assert cut.take_output() == whole.take_output()
    assert (cut.state, cut.identity, cut.leftover) == (whole.state, whole.identity, whole.leftover)
    assert whole.state is SaslState.DONE


def test_scramp_would_notice_a_false_signature() -> None:
    """The client's check of our signature is real: another server's signature fails it."""
    sasl = server("SCRAM-SHA-256")
    client = scram_login(sasl, "ann", "secret", "SCRAM-SHA-256")
    with pytest.raises(ScramException, match="signature"):
        client.set_server_final("v=AAAA")
