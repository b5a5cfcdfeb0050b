"""SCRAM against scramp's client, and against clients that get it wrong."""

from __future__ import annotations

from typing import Any

import pytest
from scramp import ScramClient, ScramException  # type: ignore[import-untyped]

from amqp_ext.sasl.passwords import StoredPassword
from amqp_ext.sasl.server import (
    AMQP_HEADER,
    SASL_HEADER,
    Identity,
    SaslState,
)
from tests.amqp_ext.sasl.exchange import (
    PIECES,
    SCRAM,
    feed,
    frame,
    frames,
    init,
    outcome,
    scram_login,
    server,
)
from tests.support.frames import SASL_RESPONSE


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
    [(code, [verdict, signature])] = frames(sasl.drain_output())
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
        _, [challenge] = frames(sasl.drain_output())[-1]
        client.set_server_first(challenge.decode())
        feed(sasl, frame(SASL_RESPONSE, client.get_client_final().encode()))
        assert sasl.state is SaslState.FAILED
        assert f"unknown user '{user}'" in (sasl.failure or "")
        answers.append(
            ([part[:2] for part in challenge.split(b",")], len(challenge), frames(sasl.drain_output()))
        )
    assert answers[0] == answers[1]
    assert answers[0][2] == [(0x44, [1])]


def salt_for(user: str, **changes: Any) -> bytes:
    sasl = server("SCRAM-SHA-256", **changes)
    sasl.receive(SASL_HEADER + init("SCRAM-SHA-256", f"n,,n={user},r=nonce".encode()))
    _, [challenge] = frames(sasl.drain_output())[-1]
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
    feed(sasl, frame(SASL_RESPONSE, final))
    assert outcome(sasl) == 1
    assert sasl.state is SaslState.FAILED


def test_a_proof_cannot_be_played_back() -> None:
    """The messages of a good login do not work a second time, as the server's nonce differs."""
    client = ScramClient(["SCRAM-SHA-256"], "ann", "secret", c_nonce="client-nonce")
    recorded = server("SCRAM-SHA-256")
    first = SASL_HEADER + init("SCRAM-SHA-256", client.get_client_first().encode())
    feed(recorded, first)
    client.set_server_first(frames(recorded.drain_output())[-1][1][0].decode())
    proof = frame(SASL_RESPONSE, client.get_client_final().encode())
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


def test_scramp_would_notice_a_false_signature() -> None:
    """The client's check of our signature is real: another server's signature fails it."""
    sasl = server("SCRAM-SHA-256")
    client = scram_login(sasl, "ann", "secret", "SCRAM-SHA-256")
    with pytest.raises(ScramException, match="signature"):
        client.set_server_final("v=AAAA")
