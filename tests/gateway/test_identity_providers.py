"""Tokens of identity providers: which are accepted, for which user, and what forged tokens can cause."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from amqp_ext.addresses.address import AddressKind
from amqp_ext.event_hubs.management import PutToken
from amqp_ext.rabbitmq.management import RenewToken
from gateway import identity_providers
from gateway.config import IdentityProvider, Settings, User
from gateway.core.errors import ErrorCode, Refused
from gateway.core.permissions import Action
from gateway.identity_providers import FRESH_S, LEEWAY_S, PAUSE_S, STALE_S, Provider, TokenUser, user_of
from gateway.users import Users
from tests.support.identity import AUDIENCE, ScriptedProvider, encoded, jwk, key, token
from tests.support.log_lines import kept_lines
from tests.support.waiting import Clock

ISSUER = "https://sso.example.com/main"


@pytest.fixture
def jwks(tmp_path: Path) -> Path:
    """A file with keys of each kind, some of which must not be accepted."""
    keys = [
        jwk("one"),
        jwk("ec"),
        jwk("ed"),
        jwk("short"),
        jwk("encrypts", use="enc"),
        jwk("other-alg", alg="RS512"),
        {**jwk("secret"), "d": "x"},
        {"kty": "oct", "k": encoded(b"x" * 32), "kid": "oct"},
        {"kty": "RSA", "n": 1, "e": "AQAB", "kid": "none"},
        "no key",
    ]
    file = tmp_path / "keys.json"
    file.write_text(json.dumps({"keys": keys}))
    return file


def directory(provider: IdentityProvider, **users: User) -> Users:
    return Users(Settings(users=users, identity_providers=(provider,)))


def by_file(jwks: Path, **more: Any) -> IdentityProvider:
    return IdentityProvider(issuer=ISSUER, audience=AUDIENCE, jwks_file=jwks, **more)


def who(users: Users, text: str) -> TokenUser:
    """The user of a token."""
    return asyncio.run(users.of_token(text))


def refusal(users: Users, text: str) -> Refused:
    """The refusal of a token."""
    with pytest.raises(Refused) as refused:
        who(users, text)
    assert len(text) < 10 or text[:40] not in refused.value.text, "no token stands in what is said"
    return refused.value


def made(**said: Any) -> Callable[[], str]:
    """A token that is made when the test runs."""
    return lambda: token(ISSUER, **said)


def forged(header: dict[str, Any], sign: Callable[[bytes], bytes], **claims: Any) -> str:
    """A token such as no library makes."""
    said = {"iss": ISSUER, "aud": AUDIENCE, "sub": "ann", "exp": int(time.time()) + 600, **claims}
    head = f"{encoded(header)}.{encoded(said)}"
    return f"{head}.{encoded(sign(head.encode()))}"


def by_public_key(text: bytes) -> bytes:
    """Signs with the public key as an HMAC secret: the attack on a verifier that believes the token's algorithm."""
    public = key("one").public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return hmac.digest(public, text, hashlib.sha256)


def nothing(_: bytes) -> bytes:
    return b"-"


@pytest.mark.parametrize(
    "good",
    [
        made(),
        made(by="ec", alg="ES256"),
        made(by="ed", alg="EdDSA"),
        made(alg="PS256"),
        made(alg="RS512", by="other-alg"),
        made(aud=["others", AUDIENCE]),
        made(seconds=-LEEWAY_S + 10),
        made(nbf=int(time.time()) + LEEWAY_S - 10),
        made(header={"kid": None}, by="ec", alg="ES256"),
    ],
)
def test_a_good_token_is_its_user_s(jwks: Path, good: Callable[[], str]) -> None:
    """With each kind of key, with several audiences, and with clocks that differ a little."""
    found = who(directory(by_file(jwks)), good())
    assert found.name == "ann"
    assert 0 < found.left_s(time.time()) <= 600 + LEEWAY_S


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (lambda: forged({"alg": "none"}, nothing), "signed by 'none'"),
        (lambda: forged({"alg": "none"}, nothing).rpartition(".")[0] + ".", "no signed JWT"),
        (lambda: forged({"alg": "HS256", "kid": "one"}, by_public_key), "signed by 'HS256'"),
        (
            lambda: forged(
                {"alg": "HS256", "kid": "oct"}, lambda text: hmac.digest(b"x" * 32, text, "sha256")
            ),
            "HS256",
        ),
        (lambda: forged({"alg": ["RS256"]}, nothing), "signed by"),
        (lambda: forged({"alg": "RS256", "kid": 7}, nothing), "kid is no text"),
        (lambda: forged({"alg": "RS256", "kid": "one", "crit": ["b64"], "b64": False}, nothing), "crit"),
        (lambda: forged({"alg": "RS256", "kid": "one"}, nothing), "signature"),
        (lambda: forged({"alg": "ES256", "kid": "one"}, nothing), "no key of its kid"),
        (made(header={"jwk": {}, "jku": "http://127.0.0.1:1/keys", "kid": "mine"}), "no key of its kid"),
        (made(by="two"), "no key of its kid"),
        (made(by="two", header={"kid": "one"}), "signature"),
        (made(header={"kid": None}, alg="RS512"), "no key of its kid"),  # more than one key could be meant
        (made(by="other-alg"), "no key of its kid"),
        *((made(by=name), "no key of its kid") for name in ("encrypts", "secret")),
        (made(aud="others"), "another audience"),
        (made(aud=None), "exp, iss, aud"),
        (made(iss="https://sso.example.com/other"), "issuer is none"),
        (made(iss=f"{ISSUER}/"), "issuer is none"),
        (made(iss=None), "issuer is none"),
        (lambda: forged({"alg": "RS256", "kid": "one"}, nothing, iss=[ISSUER]), "issuer is none"),
        (made(seconds=-LEEWAY_S - 1), "expired"),
        (made(exp=None), "exp, iss, aud"),
        (made(exp="soon"), "cannot be read"),
        (made(exp=float("inf")), "cannot be read"),
        (made(nbf=int(time.time()) + 86_400), "not valid yet"),
        (made(iat=int(time.time()) + 86_400), "not valid yet"),
        (made(sub=None), "no name of 1 to 250"),
        (made(sub=""), "no name of 1 to 250"),
        (made(sub="x" * 251), "no name of 1 to 250"),
        (made(sub="anonymous"), "no user's name"),
        (made(sub="a\u00adnn"), "no user's name"),  # SASLprep would make it ann
        (made(more="x" * 65_536), "more than 16,384"),
        (lambda: "x" * 65_536, "more than 16,384"),
        (lambda: f"{encoded(b'[' * 9_000)}.{encoded(b'[' * 3_000)}.x", "cannot be read"),
        (lambda: f"{encoded([])}.{encoded([])}.x", "cannot be read"),
        (lambda: f"{encoded(b'{')}.{encoded({})}.x", "cannot be read"),
        *(
            (lambda text=text: text, "no signed JWT")
            for text in ("", "ann", "a.b", "a.b.c.d", "é.é.é", "a.b.c\n")
        ),
    ],
)
def test_no_other_token_is(jwks: Path, bad: Callable[[], str], why: str) -> None:
    """The refusal says why."""
    refused = refusal(directory(by_file(jwks), ann=User()), bad())
    assert refused.code is ErrorCode.UNAUTHORIZED
    assert why in refused.text


def test_a_short_rsa_key_is_none() -> None:
    """A key of 1,024 bits can be broken."""
    assert [found.kid for found in identity_providers._keys_of({"keys": [jwk("short"), jwk("one")]})] == [
        "one"
    ]


# --- Who a token's user is, and what he may do ------------------------------------------------------------------------

ANN = User(publish=("queue://hers",))
HERS = ("ann", "hers", ("default",), "none")
"""The configured rights of ann."""


@pytest.mark.parametrize(
    ("claims", "more", "expected"),
    [
        ({}, {}, HERS),
        ({"sub": "ben"}, {}, ("ben", "", (), "none")),
        ({"name": "ann", "sub": "ben"}, {"user_claim": "name"}, HERS),
        ({"a": {"b": "ann"}}, {"user_claim": "a.b"}, HERS),
        ({"https://x.y/name": "ann"}, {"user_claim": "https://x.y/name"}, HERS),
        ({"scope": "publish:queue://q openid"}, {}, HERS),
        ({"scope": "openid email"}, {"rights_claim": "scope"}, HERS),
        (
            {"scope": "publish:queue://q openid"},
            {"rights_claim": "scope"},
            ("ann", "q", ("default",), "none"),
        ),
        ({"scope": "consume:queue://q"}, {"rights_claim": "scope"}, ("ann", "", ("default",), "none")),
        ({"scope": "vpn:eu", "sub": "ben"}, {"rights_claim": "scope"}, ("ben", "", ("eu",), "none")),
        (
            {
                "r": {
                    "roles": [
                        "publish:queue://q",
                        "publish:queue://p",
                        "vpn:eu",
                        "global_access:read-only",
                        "x",
                    ]
                }
            },
            {"rights_claim": "r.roles"},
            ("ann", "p q", ("eu",), "read-only"),
        ),
        (
            {
                "r": [
                    "global_access:read-write",
                    "global_access:none",
                    "publish:queue://*",
                    "publish:!queue://p",
                ]
            },
            {"rights_claim": "r"},
            ("ann", "hers q", ("default",), "read-write"),
        ),
    ],
)
def test_claims_say_who_somebody_is_and_what_he_may_do(
    jwks: Path, claims: dict[str, Any], more: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    """Rights in the token replace the user's configured ones, which apply otherwise; an unknown user has none."""
    users = directory(by_file(jwks, **more), ann=ANN)
    found = who(users, token(ISSUER, **claims))
    permissions = users.permissions(found)
    queues = [
        name
        for name in ("hers", "p", "q")
        if permissions.decide(Action.PUBLISH, AddressKind.QUEUE, name).is_allowed
    ]
    vpns = tuple(name for name in ("default", "eu") if users.may_enter(found, name))
    assert (found.name, " ".join(queues), vpns, users.global_access(found)) == expected
    assert not permissions.decide(Action.ADMINISTER, AddressKind.QUEUE, "q").is_allowed


@pytest.mark.parametrize(
    "rights",
    ["publish:nothing://x", "vpn:", "global_access:all", "publish:!nothing://a", {"a": 1}, ["a", 1], 7],
)
def test_a_right_that_is_none_lets_nobody_in(jwks: Path, rights: Any) -> None:
    """If it were left out, a rule that forbids something might be lost."""
    refused = refusal(directory(by_file(jwks, rights_claim="rights")), token(ISSUER, rights=rights))
    assert (refused.code, "'rights'" in refused.text) == (ErrorCode.UNAUTHORIZED, True)


def test_a_provider_alone_leaves_no_gateway_open(jwks: Path) -> None:
    """Without a user, a client without a token may do nothing; once the provider is removed, nobody may."""
    users = directory(by_file(jwks, rights_claim="scope"))
    assert users.are_configured
    assert not users.may_enter("ann", "default")
    found = who(users, token(ISSUER, scope="publish:queue://q global_access:read-write"))
    assert users.may_enter(found, "default")
    users.reload(Settings(users={"ben": User()}))
    assert not users.may_enter(found, "default")
    assert users.global_access(found) == "none"
    assert not users.permissions(found).decide(Action.PUBLISH, AddressKind.QUEUE, "q").is_allowed
    assert users.has_changed(found, ())


def test_who_stays_as_he_was_keeps_his_connections(jwks: Path) -> None:
    """A reload that does not change a provider or user ends nothing; another one does."""
    users = directory(by_file(jwks), ann=ANN)
    found = who(users, token(ISSUER))
    before = users.facts_of(found)
    assert users.reload(Settings(users={"ann": ANN}, identity_providers=(by_file(jwks),))) == frozenset()
    assert (users.has_changed(found, ()), users.facts_of(found)) == (False, before)
    changed = users.reload(Settings(users={"ann": User()}, identity_providers=(by_file(jwks),)))
    assert users.has_changed(found, changed)
    users.reload(Settings(users={"ann": ANN}, identity_providers=(by_file(jwks, user_claim="name"),)))
    assert users.has_changed(found, ())


# --- keys -------------------------------------------------------------------------------------------------------------


def asked(provider: Provider, *texts: str) -> list[str]:
    """The user's name, or the text of the refusal, of each of these tokens, presented at the same time."""

    async def ask(text: str) -> str:
        try:
            return (await user_of((provider,), text)).name
        except Refused as refused:
            return "later" if refused.code is ErrorCode.INTERNAL else refused.text

    async def run() -> list[str]:
        return await asyncio.gather(*map(ask, texts))

    return asyncio.run(run())


def test_keys_rotate(provider: ScriptedProvider, clock: Clock) -> None:
    """A new key is found by the first token that names it; a withdrawn key is accepted for ten minutes at most."""
    known = Provider(provider.settings(), clock)
    assert asked(known, provider.token()) == ["ann"]
    provider.keys = [jwk("two")]
    clock.seconds += PAUSE_S
    assert asked(known, provider.token(by="two")) == ["ann"]
    provider.keys = [jwk("one")]
    clock.seconds += PAUSE_S
    assert asked(known, provider.token(by="two")) == ["ann"]
    clock.seconds += FRESH_S
    assert "no key" in asked(known, provider.token(by="two"))[0]
    provider.keys = [jwk("two")]
    known.outdate()
    assert asked(known, provider.token(by="two")) == ["ann"], "a reload has them read at once"


def test_keys_in_a_file_rotate(jwks: Path, clock: Clock) -> None:
    """A changed file of keys is read without a reload."""
    provider = Provider(by_file(jwks), clock)
    assert asked(provider, token(ISSUER)) == ["ann"]
    jwks.write_text(json.dumps({"keys": [jwk("two")]}))
    clock.seconds += PAUSE_S
    assert asked(provider, token(ISSUER, by="two")) == ["ann"]
    jwks.write_text("{")
    clock.seconds += STALE_S
    assert asked(provider, token(ISSUER, by="two")) == ["ann"], (
        "what cannot be read changes nothing, for a day"
    )


def test_a_flood_of_unknown_keys_asks_a_provider_hardly_at_all(
    provider: ScriptedProvider, clock: Clock
) -> None:
    """For hundreds of tokens with unknown keys, keys are fetched once in PAUSE_S; good tokens are accepted."""
    known = Provider(provider.settings(), clock)
    assert asked(known, provider.token()) == ["ann"]
    flood = [provider.token(header={"kid": f"x{number}"}) for number in range(200)]
    for count in (1, 1, 2):
        found = asked(known, *flood, provider.token())
        assert found[-1] == "ann"
        assert {"no key" in one for one in found[:-1]} == {True}
        assert provider.asked.count("/keys") == count
        clock.seconds += PAUSE_S - 1


def test_a_provider_that_is_away_is_asked_for_again(provider: ScriptedProvider, clock: Clock) -> None:
    """Without keys every token may be tried again later; keys that were fetched are used for a day."""
    provider.answers["/keys"] = lambda handler: handler.say({}, 503)
    known = Provider(provider.settings(), clock)
    good = provider.token()
    assert asked(known, *[good] * 50) == ["later"] * 50
    assert asked(known, good) == ["later"]
    assert provider.asked.count("/keys") == 1
    away = provider.answers.pop("/keys")
    clock.seconds += PAUSE_S
    assert asked(known, good) == ["ann"]
    provider.answers["/keys"] = away
    clock.seconds += STALE_S
    assert asked(known, good) == ["ann"]
    clock.seconds += 1
    assert asked(known, good) == ["later"]


def flood(handler: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(1_600):
        handler.wfile.write(b" " * 65_536)  # 100 MiB


def drip(handler: Any) -> None:
    handler.send_response(200)
    handler.end_headers()
    while not handler.server.provider.released.wait(0.05):
        handler.wfile.write(b" ")


METADATA = "/.well-known/openid-configuration"


@pytest.mark.parametrize(
    ("path", "answer", "why"),
    [
        ("/keys", lambda handler: handler.server.provider.hang(handler), "not answered within"),
        ("/keys", drip, "not answered within"),
        ("/keys", flood, "more than 262,144 bytes"),
        ("/keys", lambda handler: handler.say({"keys": [1]}, 302, Location="/other"), "answers 302"),
        ("/keys", lambda handler: handler.say(b"<html>"), "is no JSON"),
        ("/keys", lambda handler: handler.say(b"[" * 100_000), "is no JSON"),
        ("/keys", lambda handler: handler.say([]), "not a JSON Web Key Set"),
        ("/keys", lambda handler: handler.wfile.write(b"SSH-2.0-x\r\n"), "cannot be asked"),
        (METADATA, lambda handler: handler.say({"issuer": "https://evil.example.com"}), "another issuer's"),
        (METADATA, lambda handler: handler.say({"issuer": handler.server.provider.issuer}), "no jwks_uri"),
        (
            METADATA,
            lambda handler: handler.say(
                {"issuer": handler.server.provider.issuer, "jwks_uri": "http://sso.example.com/keys"}
            ),
            "`http://` to another machine",
        ),
    ],
)
def test_what_a_provider_answers_is_bounded(
    provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch, path: str, answer: Any, why: str
) -> None:
    """In bytes and in time, and by the configured address; the log says what was wrong, without the token."""
    monkeypatch.setattr(identity_providers, "ANSWER_S", 0.5 if "within" in why else 30)
    provider.answers[path] = answer
    good = provider.token()
    started = time.monotonic()
    with kept_lines(logging.INFO) as lines:
        assert asked(Provider(provider.settings()), good) == ["later"]
    assert time.monotonic() - started < 15
    assert {line["event"] for line in lines} == {"provider_unavailable"}
    assert any(why in line["reason"] for line in lines), lines
    assert good[:40] not in repr(lines)


def test_a_token_is_shown_nowhere(jwks: Path) -> None:
    """Neither in the user made from it nor in a command that carries it."""
    text = token(ISSUER, scope="publish:queue://q")
    found = who(directory(by_file(jwks, rights_claim="scope")), text)
    for one in (found, PutToken(text, "jwt"), RenewToken(text.encode())):
        assert text not in repr(one) and "queue://q" not in repr(one)
