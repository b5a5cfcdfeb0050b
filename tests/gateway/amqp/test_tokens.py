"""Signing in by a token over real sockets: each mechanism, its rights, its expiry, and its renewal."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from typing import Any

import pytest

from amqp_ext.codec import Symbol
from gateway.config import IdentityProvider, Limits, Listener, User
from gateway.identity_providers import LEEWAY_S
from tests.gateway.amqp.conftest import Start
from tests.gateway.amqp.dialects.event_hubs.test_event_hubs import Node
from tests.gateway.permissions.conftest import HASH, PASSWORD
from tests.support import frames as amqp
from tests.support.client import Client, refusal
from tests.support.identity import ScriptedProvider, id_token, provider_process
from tests.support.log_lines import kept_lines
from tests.support.management import Pair
from tests.support.messages import data
from tests.support.peer import OK, SYS_TEMP, Peer
from tests.support.ports import free_port
from tests.support.running import RunningGateway

AUTH = 1
WAYS = ("OAUTHBEARER", "XOAUTH2", "PLAIN")
LISTENERS = (
    Listener(port=0, rabbitmq_mode=True),
    Listener(port=0, event_hubs_mode=True),
    Listener(port=0),
    Listener(port=0, rabbitmq_mode=True, event_hubs_mode=True),
)
USERS = {"ann": User(password=HASH)}
RIGHTS = "publish:queue://hers consume:queue://hers"


@pytest.fixture
def gateway(start: Start, provider: ScriptedProvider) -> RunningGateway:
    """A gateway that accepts the provider's tokens, with the rights in them."""
    return start(listeners=LISTENERS, identity_providers=(provider.settings(rights_claim="scope"),))


def response(way: str, token: str, name: str = "") -> bytes:
    match way:
        case "OAUTHBEARER":
            return f"n,a={name},\1auth=Bearer {token}\1\1".encode()
        case "XOAUTH2":
            return f"user={name}\1auth=Bearer {token}\1\1".encode()
    return f"\0{name or 'any'}\0{token}".encode()


def peer_of(gateway: RunningGateway, listener: int = 0) -> Peer:
    return Peer.connect(gateway.host_and_port(listener))


def begin(peer: Peer, way: str, token: str, name: str = "") -> None:
    peer.mechanisms()
    fields = [Symbol(way), response(way, token, name)]
    peer.send(amqp.frame(amqp.SASL_INIT, fields, kind=amqp.SASL_FRAME))


def outcome(peer: Peer, way: str, token: str, name: str = "") -> int:
    """The code of the SASL outcome; a challenge before it is answered."""
    begin(peer, way, token, name)
    found = peer.frame()
    while found is None or found.code == amqp.SASL_CHALLENGE:
        if found is not None:
            peer.send(amqp.frame(amqp.SASL_RESPONSE, [b"\1"], kind=amqp.SASL_FRAME))
        found = peer.frame()
    assert found.code == amqp.SASL_OUTCOME
    code = int(found.fields[0])
    if code == OK:
        peer.send(amqp.AMQP_HEADER)
        assert peer.take(8) == amqp.AMQP_HEADER
    return code


@pytest.mark.parametrize("way", WAYS)
def test_a_token_signs_in_with_the_rights_in_it(
    gateway: RunningGateway, provider: ScriptedProvider, way: str
) -> None:
    """
    By each mechanism. One queue is hers, and no other; a wrong token, or one with another user's name, is refused.
    """
    token = provider.token(scope=RIGHTS)
    with peer_of(gateway) as peer:
        assert outcome(peer, way, token) == OK
        peer.open()
        peer.begin()
        peer.attach_sender("queue://hers")
        peer.publish(b"one")
        with pytest.raises(AssertionError, match="unauthorized-access"):
            peer.attach_sender("queue://others")
    with peer_of(gateway) as peer:
        assert outcome(peer, way, provider.token(aud="others")) == AUTH
    if way != "PLAIN":
        for name, code in (("ann", OK), ("ben", AUTH)):
            with peer_of(gateway) as peer:
                assert outcome(peer, way, token, name) == code
        with peer_of(gateway, 2) as peer:
            assert outcome(peer, way, token) == OK, "on any listener"


def test_what_is_offered(start: Start, provider: ScriptedProvider) -> None:
    """Passwords first, as clients might send one as a token; a token as a password is for RabbitMQ's clients only."""
    gateway = start(listeners=LISTENERS, users=USERS, identity_providers=(provider.settings(),))
    for listener in range(3):
        with peer_of(gateway, listener) as peer:
            offered = [name for name in peer.mechanisms() if name != "MSSBCBS"]
        assert offered[:5] == ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER", "XOAUTH2"]
        assert offered[5:] in ([], ["ANONYMOUS"])
    token = provider.token()
    with peer_of(gateway, 2) as peer:
        assert outcome(peer, "PLAIN", token) == AUTH
    with peer_of(gateway) as peer:
        assert outcome(peer, "PLAIN", token) == OK
        peer.open()


SOON_S = 3
"""Seconds in which a client signs in and does its work before its token expires."""


def expiring(provider: ScriptedProvider, seconds: float = SOON_S) -> str:
    """A token that is accepted for ``seconds``, with the leeway included."""
    return provider.token(seconds=seconds - LEEWAY_S, scope=RIGHTS)


def when_expired(client: Client, since: float) -> None:
    """Wait until a token made before ``since`` has expired; the client must still be connected."""
    client.wait(lambda: time.time() > since + SOON_S + 0.2, "the first token has expired")
    client.sender("hers").send_all([data("one")])


def test_a_token_that_expires_closes_its_connection(
    gateway: RunningGateway, provider: ScriptedProvider
) -> None:
    """With an error that says so; messages accepted before are stored."""
    with Client(gateway.address, user=("any", expiring(provider))) as client:
        client.sender("hers").send_all([data("one")])
        refused = client.closed_by_peer()
    assert (refused.name, "the token has expired" in refused.text) == ("amqp:unauthorized-access", True)
    assert gateway.depth("hers") == 1
    with peer_of(gateway) as peer:
        assert outcome(peer, "OAUTHBEARER", expiring(provider, -1)) == AUTH


def test_rabbitmq_s_clients_renew_their_token(gateway: RunningGateway, provider: ScriptedProvider) -> None:
    """`PUT /auth/tokens` keeps the connection open; it refuses another user's token, other rights, and a bad token."""
    with Client(gateway.address, user=("any", expiring(provider))) as client:
        pair, since = Pair(client), time.time()
        for bad, why in (
            (provider.token(sub="ben", scope=RIGHTS), "'ann'"),
            (provider.token(scope="publish:queue://>"), "other rights"),
            (provider.token(scope=RIGHTS, aud="others"), "audience"),
            ("x", "no signed JWT"),
        ):
            status, text = pair.ask("PUT", "/auth/tokens", bad.encode())
            assert (status >= 400, why in text, bad in text) == (True, True, False), text
        for seconds in (600, SOON_S):  # the longer one holds
            token = expiring(provider, seconds)
            assert pair.ask("PUT", "/auth/tokens", token.encode()) == (204, None)
        when_expired(client, since)


def test_who_has_signed_in_otherwise_renews_nothing(start: Start, provider: ScriptedProvider) -> None:
    """A connection that signed in with a password is refused a renewal."""
    providers = (provider.settings(),)
    gateway = start(listeners=LISTENERS, users=USERS, identity_providers=providers)
    with Client(gateway.address, user=("ann", PASSWORD)) as client:
        status, text = Pair(client).ask("PUT", "/auth/tokens", provider.token().encode())
        assert (status >= 400, "not signed in by a token" in text) == (True, True)


def test_event_hubs_clients_put_a_token(gateway: RunningGateway, provider: ScriptedProvider) -> None:
    """
    At `$cbs`, as type jwt: before that nothing is permitted, then what the token says; it can be renewed, and expires.
    """
    with Client(gateway.urls[1]) as client:
        assert refusal(client.sender, "hers").name == "amqp:unauthorized-access"
        cbs = Node(client, "$cbs")

        def put(token: str, kind: str = "jwt") -> tuple[int, Any]:
            return cbs.ask(token, operation="put-token", type=kind, name="sb://host/hers")

        for bad, why in (
            (provider.token(aud="others"), "audience"),
            ("x", "no signed JWT"),
            (provider.token(sub="ben"), "may not use the Message VPN"),
        ):
            status, text = put(bad)
            assert (status, why in text) == (401, True), text
        assert put(provider.token(), "saml")[0] == 401
        assert put(expiring(provider))[0] == 202
        since = time.time()
        assert refusal(client.sender, "others").name == "amqp:unauthorized-access"
        assert put(provider.token(sub="ben", scope=RIGHTS))[0] == 401
        assert put(expiring(provider, 2 * SOON_S))[0] == 202
        when_expired(client, since)
        assert "expired" in client.closed_by_peer().text


def test_who_has_signed_in_by_a_token_renews_it_at_cbs(
    gateway: RunningGateway, provider: ScriptedProvider
) -> None:
    """For clients of a listener with both modes: a put token replaces the one of the sign-in."""
    with Client(gateway.urls[3], user=("any", expiring(provider))) as client:
        cbs, since = Node(client, "$cbs"), time.time()
        put = {"operation": "put-token", "type": "jwt", "name": "sb://host/hers"}
        assert cbs.ask(provider.token(sub="ben", scope=RIGHTS), **put)[0] == 401
        assert cbs.ask(expiring(provider, 600), **put)[0] == 202
        when_expired(client, since)


def test_a_provider_that_is_away_at_the_start(start: Start) -> None:
    """
    The gateway starts, and passwords work. A client with a token is told to try again, and is let in once there is a
    provider.
    """
    provider = ScriptedProvider()
    gateway = start(listeners=LISTENERS, users=USERS, identity_providers=(provider.settings(),))
    with provider:
        provider.answers["/keys"] = lambda handler: handler.say({}, 503)
        token = provider.token()
        with peer_of(gateway) as peer:
            assert outcome(peer, "OAUTHBEARER", token) == SYS_TEMP
        with peer_of(gateway) as peer:
            assert peer.plain("ann", PASSWORD) == OK
        del provider.answers["/keys"]
        gateway.call(lambda running: running.users.providers[0].outdate())
        with peer_of(gateway) as peer:
            assert outcome(peer, "OAUTHBEARER", token) == OK


def test_a_provider_that_hangs_costs_who_asks_no_more_than_a_handshake(
    start: Start, provider: ScriptedProvider
) -> None:
    """Twenty clients wait for one answer, each for the handshake timeout at most; others sign in meanwhile."""
    limits = Limits(handshake_timeout_ms=1_000)
    gateway = start(
        limits=limits, listeners=LISTENERS, users=USERS, identity_providers=(provider.settings(),)
    )
    provider.answers["/keys"] = provider.hang
    with ExitStack() as stack:
        peers = [stack.enter_context(peer_of(gateway)) for _ in range(20)]
        for peer in peers:
            begin(peer, "OAUTHBEARER", provider.token(header={"kid": "x"}))
        with peer_of(gateway) as other:
            assert other.plain("ann", PASSWORD) == OK
        for peer in peers:
            assert int(peer.expect(amqp.SASL_OUTCOME).fields[0]) == SYS_TEMP
    assert provider.asked.count("/keys") <= 1


def test_no_token_is_in_the_log(start: Start, provider: ScriptedProvider) -> None:
    """Good, wrong, or too long, wherever it is sent; a connection that sends one of 64 KB ends cleanly."""
    gateway = start(listeners=LISTENERS, identity_providers=(provider.settings(rights_claim="scope"),))
    good, long = provider.token(scope=RIGHTS), provider.token(more="x" * 48_000)
    shown = [good, provider.token(aud="others"), provider.token(by="two"), long]
    with kept_lines(logging.DEBUG) as lines:
        for way in WAYS:
            for token in shown[:-1]:
                with peer_of(gateway) as peer:
                    assert outcome(peer, way, token) == (OK if token is good else AUTH)
            with peer_of(gateway) as peer:
                begin(peer, way, long)
                assert b"\0S\x44" not in peer.rest(), "no outcome, or not that of who is let in"
        with Client(gateway.address, user=("any", good)) as client, Client(gateway.urls[1]) as other:
            pair, cbs = Pair(client), Node(other, "$cbs")
            for token in shown:
                pair.ask("PUT", "/auth/tokens", token.encode())
                cbs.ask(token, operation="put-token", type="jwt", name="sb://host/hers")
    assert any("audience" in repr(line) for line in lines)
    assert not [line for line in lines for token in shown if token[40:100] in repr(line)]


@pytest.mark.slow
def test_tokens_of_a_provider_that_others_wrote(start: Start) -> None:
    """Its metadata and keys are found from its issuer; after it restarts with other keys, those are found, too."""
    port = free_port()
    settings = IdentityProvider(issuer=f"http://127.0.0.1:{port}", audience="rewind", rights_claim="rights")
    gateway = start(listeners=LISTENERS, identity_providers=(settings,))
    ann = '{"sub": "ann", "rights": ["publish:queue://hers", "consume:queue://hers"]}'
    tokens = []
    for _ in range(2):
        with provider_process(port, "--user-claims", ann) as issuer:
            tokens.append(id_token(issuer, "ann"))
            gateway.call(lambda running: running.users.providers[0].outdate())
            with Client(gateway.address, user=("any", tokens[-1])) as client:
                client.sender("hers").send_all([data("one")])
    assert gateway.depth("hers") == 2
    with peer_of(gateway) as peer:
        assert outcome(peer, "OAUTHBEARER", tokens[0]) == AUTH, "that key was withdrawn"
