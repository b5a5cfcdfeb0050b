"""OAUTHBEARER, XOAUTH2, and tokens in place of passwords: how responses are read, accepted and refused."""

from __future__ import annotations

from typing import Any

import pytest

from amqp_ext.sasl import MAX_TOKEN_FRAME_BYTES, SASL_HEADER, SaslServer, SaslState
from tests.amqp_ext.sasl.exchange import frame, frames, init, outcome, server
from tests.support.frames import SASL_CHALLENGE, SASL_OUTCOME, SASL_RESPONSE

TOKEN = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4ifQ.c2ln"
BEARER = f"n,,\1auth=Bearer {TOKEN}\1\1".encode()


def shown(mechanism: str, response: bytes, *, ahead: bool = True, **more: Any) -> SaslServer:
    """A server that has received this response, with the init or after its challenge."""
    sasl = server(**more)
    sasl.receive(SASL_HEADER + init(mechanism, response if ahead else None))
    if not ahead:
        assert frames(sasl.drain_output())[-1] == (SASL_CHALLENGE, [b""])
        sasl.receive(frame(SASL_RESPONSE, response))
    return sasl


@pytest.mark.parametrize("ahead", [True, False])
@pytest.mark.parametrize(
    ("mechanism", "response", "user"),
    [
        ("OAUTHBEARER", BEARER, ""),
        ("OAUTHBEARER", f"n,a=ann,\1host=h\1port=5672\1auth=Bearer {TOKEN}\1\1".encode(), "ann"),
        ("OAUTHBEARER", f"y,a=o=2Cd=3Dd,\1auth=bearer {TOKEN}\1\1".encode(), "o,d=d"),
        ("XOAUTH2", f"user=ann\1auth=Bearer {TOKEN}\1\1".encode(), "ann"),
        ("XOAUTH2", f"user=\1auth=Bearer {TOKEN}\1\1".encode(), ""),
    ],
)
def test_a_token_is_asked_about(mechanism: str, response: bytes, user: str, ahead: bool) -> None:
    """The user is the token's owner; a peer that names another user is refused."""
    for named in {user or "ann", "ben"}:
        sasl = shown(mechanism, response, ahead=ahead)
        assert (sasl.state, sasl.token) == (SaslState.VERIFYING, TOKEN)
        sasl.identify(named)
        assert sasl.token is None
        is_in = user in ("", named)
        assert outcome(sasl) == (0 if is_in else 1)
        if is_in:
            sasl.receive(b"AMQP\x00\x01\x00\x00")
            assert sasl.identity is not None
            assert (sasl.identity.user, sasl.identity.mechanism) == (named, mechanism)
        else:
            assert f"as user '{named}', who may not act as '{user}'" in (sasl.failure or "")


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("OAUTHBEARER", b""),
        ("OAUTHBEARER", b"\xff"),
        ("OAUTHBEARER", TOKEN.encode()),
        ("OAUTHBEARER", BEARER.removesuffix(b"\1")),
        ("OAUTHBEARER", BEARER + b"x"),
        ("OAUTHBEARER", BEARER.replace(b"n,,", b"p=tls-unique,,")),
        ("OAUTHBEARER", BEARER.replace(b"n,,", b"n,")),
        ("OAUTHBEARER", BEARER.replace(b"n,,", b"n,a=\xc2\xad\x07,")),
        ("OAUTHBEARER", BEARER.replace(b"Bearer", b"Basic")),
        ("OAUTHBEARER", b"n,,\1auth=Bearer \1\1"),
        ("OAUTHBEARER", b"n,,\1\1"),
        ("XOAUTH2", BEARER),
        ("XOAUTH2", b"user=ann\1\1"),
    ],
)
def test_what_is_no_response_is_refused(mechanism: str, response: bytes) -> None:
    """A malformed response gives the outcome auth, and the reason does not show the token."""
    sasl = shown(mechanism, response)
    assert outcome(sasl) == 1
    assert mechanism in (sasl.failure or "")
    assert TOKEN not in (sasl.failure or "")


def test_who_is_refused_is_told_as_each_mechanism_has_it() -> None:
    """OAUTHBEARER sends a challenge with the status before the outcome (RFC 7628, section 3.2.2); XOAUTH2 does not."""
    sasl = shown("OAUTHBEARER", BEARER)
    sasl.drain_output()
    sasl.refuse_token("it has expired")
    assert frames(sasl.drain_output()) == [(SASL_CHALLENGE, [b'{"status":"invalid_token"}'])]
    assert sasl.state is SaslState.NEGOTIATING
    sasl.receive(frame(SASL_RESPONSE, b"\1"))
    assert (outcome(sasl), sasl.failure) == (1, "it has expired")
    sasl = shown("XOAUTH2", f"user=\1auth=Bearer {TOKEN}\1\1".encode())
    sasl.refuse_token("it has expired")
    assert (outcome(sasl), sasl.failure) == (1, "it has expired")


@pytest.mark.parametrize("tell", [lambda sasl: sasl.identify("ann"), lambda sasl: sasl.refuse_token("late")])
def test_what_comes_too_late_has_no_effect(tell: Any) -> None:
    """The verdict on a token is ignored after the peer was refused temporarily."""
    sasl = shown("OAUTHBEARER", BEARER)
    sasl.put_off("the provider does not answer")
    assert frames(sasl.drain_output())[-1] == (SASL_OUTCOME, [4])
    tell(sasl)
    assert (sasl.state, sasl.identity, sasl.token, sasl.drain_output()) == (SaslState.FAILED, None, None, b"")


@pytest.mark.parametrize(
    ("user", "password", "tokens", "is_token"),
    [
        ("", TOKEN, True, True),
        ("whoever", TOKEN, True, True),
        ("ann", TOKEN, True, False),  # a user with a password: it is compared with that
        ("whoever", TOKEN, False, False),
        ("whoever", "secret", True, False),
    ],
)
def test_a_token_in_the_place_of_a_password(user: str, password: str, tokens: bool, is_token: bool) -> None:
    """PLAIN may carry a token as password with any unknown user, as RabbitMQ's clients do, if that is enabled."""
    sasl = shown("PLAIN", f"\0{user}\0{password}".encode(), passwords_are_tokens=tokens)
    assert sasl.token == (TOKEN if is_token else None)
    if is_token:
        sasl.identify("ben")
        assert outcome(sasl) == 0


def test_how_long_a_frame_may_be() -> None:
    """Frames may carry a token of 16,384 characters only if a mechanism with tokens is offered."""
    token = "x" * 16_384
    assert shown("OAUTHBEARER", f"n,,\1auth=Bearer {token}\1\1".encode()).token == token
    for mechanisms, size in ((("PLAIN",), 4_096), (("OAUTHBEARER",), MAX_TOKEN_FRAME_BYTES)):
        sasl = server(*mechanisms)
        sasl.receive(SASL_HEADER + (size + 1).to_bytes(4, "big"))
        assert sasl.state is SaslState.FAILED
        assert f"8 to {size} are accepted" in (sasl.failure or "")
