"""Stored passwords, whose keys other implementations compute alike, and SCRAM."""

from __future__ import annotations

import hashlib
from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scramp import ScramClient, ScramMechanism  # type: ignore[import-untyped]

from amqp_ext.sasl import (
    AMQP_HEADER,
    ITERATIONS,
    SALT_BYTES,
    SASL_HEADER,
    Identity,
    SaslState,
    StoredPassword,
    decoy,
    hash_password,
    normalise,
    parse,
)
from tests.amqp_ext.sasl.exchange import (
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

# --- Stored passwords -----------------------------------------------------------------------------------------------

SALT = bytes(range(16))
ROUNDS = 4_096  # the least that is allowed, so that tests are fast


GOOD = hash_password("secret", salt=SALT, iterations=ROUNDS)


def stored(password: str) -> StoredPassword:
    return parse(hash_password(password, salt=SALT, iterations=ROUNDS))


def test_the_text_reads_back_to_what_was_hashed() -> None:
    """The text is one printable line that starts with scheme and cost, and ``parse`` reads it back."""
    assert GOOD.startswith("scram$4096$AAECAwQFBgcICQoLDA0ODw==$")
    assert GOOD.isascii() and GOOD.isprintable()
    assert str(parse(GOOD)) == GOOD == str(parse(f"  {GOOD}\n"))


def test_the_default_cost_is_stored_and_used() -> None:
    """Without a number of iterations the default is taken, which is well above the minimum of RFC 7677."""
    password = parse(hash_password("secret", salt=SALT))
    assert password.iterations == ITERATIONS >= 4_096
    assert password.verify("secret")


def test_only_the_password_verifies() -> None:
    """The right password verifies; another, an empty and an inadmissible one do not."""
    password = stored("secret")
    assert password.verify("secret")
    for wrong in ("Secret", "secret ", "", "secret\0", "\ud800"):
        assert not password.verify(wrong)


def test_spellings_that_saslprep_makes_equal_are_one_password() -> None:
    """Composed or decomposed characters, space or no-break space: the same password (RFC 4013)."""
    password = stored("caf\u00e9 noir")
    assert password.verify("cafe\u0301\u00a0noir")
    assert normalise("I\u00adX") == "IX"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@given(password=st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=20))
def test_keys_are_those_another_implementation_computes(mechanism: str, password: str) -> None:
    """Salt, StoredKey, ServerKey and iterations are what scramp makes of the same password."""
    theirs = ScramMechanism(mechanism).make_auth_info(password, iteration_count=ROUNDS, salt=SALT)
    assert stored(password).for_scram(mechanism) == theirs


def test_keys_are_those_of_rfc_7677() -> None:
    """The keys verify the exchange printed in RFC 7677, section 3, and sign it as printed there."""
    pencil = parse(hash_password("pencil", salt=b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), iterations=4096))
    server = ScramMechanism("SCRAM-SHA-256").make_server(
        lambda user: pencil.for_scram("SCRAM-SHA-256"), s_nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    )
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    server.set_client_first("n,,n=user,r=rOprNGfwEbeRWgbNEkqO")
    assert server.get_server_first() == f"r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    server.set_client_final(f"c=biws,r={nonce},p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    assert server.get_server_final() == "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "starts with `scram\\$`"),
        ("hunter2", "starts with `scram\\$`"),
        ("$2b$12$hash", "starts with `scram\\$`"),
        ("scram$4096$c2FsdA==", "7 parts"),
        ("scram$4096$1$2$3$4$5$6", "7 parts"),
        ("scram$many$a$b$c$d$e", "iterations of a stored password must be a whole number"),
        ("scram$-4096$a$b$c$d$e", "whole number"),
        ("scram$999999999999$a$b$c$d$e", "whole number"),
        ("scram$4096$?$b$c$d$e", "must be base64"),
        ("scram$4096$\u00e9$b$c$d$e", "must be base64"),
        ("scram$4096$AAAA$AAAA$AAAA$AAAA$AAAA", "must have 32, 32, 64 and 64 bytes"),
        # scramp would refuse these at the first login.
        (GOOD.replace("$4096$", "$4095$"), "out of range"),
        (GOOD.replace("$4096$", "$10000001$"), "out of range"),
    ],
)
def test_what_is_no_stored_password_is_refused(text: str, reason: str) -> None:
    """Each malformed text is refused with what is wrong with it, and without showing it."""
    with pytest.raises(ValueError, match=reason) as caught:
        parse(text)
    assert "hunter2" not in str(caught.value)


@given(st.text(max_size=60), st.integers(0, 250), st.booleans())
def test_any_text_is_parsed_or_a_value_error(noise: str, place: int, damage: bool) -> None:
    """Random text, alone or in the middle of a good hash, gives a stored password or ValueError."""
    good = str(decoy("user", b"key", ROUNDS))
    text = good[:place] + noise + good[place:] if damage else noise
    try:
        parse(text)
    except ValueError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("password", "salt", "iterations", "reason"),
    [
        ("", SALT, ROUNDS, "may not be empty"),
        ("\u00ad", SALT, ROUNDS, "may not be empty"),
        ("bell\a", SALT, ROUNDS, "control characters forbidden"),
        ("secret", b"short", ROUNDS, "salt of 5 bytes is too short"),
        ("secret", SALT, 4_095, "4095 iterations are out of range"),
        ("secret", SALT, 10_000_001, "10000001 iterations are out of range"),
    ],
    ids=["empty", "nothing left", "control", "salt", "cheap", "dear"],
)
def test_hashing_refuses_what_cannot_be_used(
    password: str, salt: bytes, iterations: int, reason: str
) -> None:
    """An empty or inadmissible password, a short salt and a cost out of range are refused with the reason."""
    with pytest.raises(ValueError, match=reason):
        hash_password(password, salt=salt, iterations=iterations)


def test_nothing_secret_is_shown() -> None:
    """The repr of a stored password has its cost, and no bytes of it."""
    assert repr(stored("secret")) == "StoredPassword(iterations=4096)"


def test_a_decoy_is_steady_secret_and_never_right() -> None:
    """The same user and key give the same decoy, which looks like a hash and verifies nothing."""
    one = decoy("user", b"key", ROUNDS)
    assert one == decoy("user", b"key", ROUNDS)
    others = [decoy("user", b"other", ROUNDS), decoy("else", b"key", ROUNDS)]
    assert len({one.salt, *(other.salt for other in others)}) == 3
    assert len(one.salt) == SALT_BYTES
    assert one.salt not in (hashlib.sha512(b"user").digest()[:16], hashlib.sha256(b"user").digest()[:16])
    assert parse(str(one)) == one
    assert not one.verify("user")


# --- SCRAM against scramp's client, and against clients that get it wrong -------------------------------------------


@SCRAM
@pytest.mark.parametrize("initial", [True, False], ids=["initial response", "challenged"])
@pytest.mark.parametrize(
    ("user", "password"), [("ann", "secret"), ("caf\u00e9", "p\u00e4ss"), ("o,d=d", "x")]
)
def test_scram(mechanism: str, initial: bool, user: str, password: str) -> None:
    """A SCRAM client logs in, and verifies the server's signature in the outcome's additional data."""
    sasl = server(mechanism)
    client = scram_login(sasl, user, password, mechanism, initial=initial)
    [(code, [verdict, signature])] = frames(sasl.drain_output())
    assert (code, verdict) == (0x44, 0)
    client.set_server_final(signature.decode())
    feed(sasl, AMQP_HEADER + b"open")
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
    assert salt_for("bob", nonce=lambda: "n1") == salt_for("bob", nonce=lambda: "n2")


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
    """A malformed proof, or one of another exchange, gives the outcome auth."""
    sasl = server(mechanism)
    feed(sasl, SASL_HEADER + init(mechanism, b"n,,n=ann,r=client-nonce"))
    feed(sasl, frame(SASL_RESPONSE, final))
    assert outcome(sasl) == 1


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
