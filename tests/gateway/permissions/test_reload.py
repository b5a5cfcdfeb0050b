"""A reload holds for every path from that moment: what a user was permitted before is worth nothing after it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from amqp_ext.sasl.passwords import hash_password
from tests.gateway.permissions.conftest import HASH, PASSWORD, Login, Reloaded, user
from tests.support.client import Client
from tests.support.event_source import EventSource
from tests.support.frames import SASL_HEADER
from tests.support.messages import data, message_to
from tests.support.running import STOP_SECONDS


def relayed(client: Client, to: str) -> str:
    """What becomes of a message to the anonymous relay: its outcome, or the condition it is rejected with."""
    sender = client.sender(None)
    delivery = sender.send(message_to(to, "x"))
    outcome = sender.outcome(delivery)
    return outcome if outcome == "ACCEPTED" else sender.rejection(delivery).name


@pytest.mark.parametrize("to", ["q", "queue://q", "topic://a/b", "topic://#queue/q"])
def test_the_relay_forgets_what_was_permitted(reloaded: Reloaded, login: Login, to: str) -> None:
    """An address that the relay has found to be permitted is asked about again: the user has lost it meanwhile."""
    gateway = reloaded.start(user("ann", "publish = ['queue://q', 'topic://a/>']"))
    client = login(gateway, "ann")
    client.sender("q").send_all([data("makes it")])
    assert relayed(client, to) == "ACCEPTED"
    reloaded.reload(user("ann", "publish = ['queue://other']"))
    assert client.closed_by_peer().name == "amqp:connection:forced"
    assert relayed(login(gateway, "ann"), to) == "amqp:unauthorized-access"


def test_who_is_not_changed_goes_on(reloaded: Reloaded, login: Login) -> None:
    """Another user's change closes no connection, and takes nothing from it."""
    gateway = reloaded.start(user("ann") + user("bob"))
    client = login(gateway, "ann")
    sender = client.sender(None)
    assert sender.outcome(sender.send(message_to("q", "x"))) == "ACCEPTED"
    reloaded.reload(user("ann") + user("bob", "publish = []"))
    assert sender.outcome(sender.send(message_to("q", "x"))) == "ACCEPTED"


@pytest.mark.parametrize("key", ["password_file", "token_file", "sas_key_file"])
def test_a_secret_that_changes_in_its_file_is_a_change(
    reloaded: Reloaded, login: Login, tmp_path: Path, key: str
) -> None:
    """The settings name the same file as before; what is in it is what a connection was permitted by."""
    contents = {
        "password_file": (HASH, hash_password("other", salt=b"0123456789abcdef", iterations=4_096)),
        "token_file": ("sha256$" + "0" * 64, "sha256$" + "1" * 64),
        "sas_key_file": ("k" * 20, "l" * 20),
    }[key]
    secret = tmp_path / "secret"
    secret.write_text(contents[0])
    password = "" if key == "password_file" else f"password = '{HASH}'\n"
    users = f"[user.ann]\n{password}{key} = '{secret}'\n"
    client = login(reloaded.start(users), "ann")
    client.sender("q").send_all([data("x")])
    secret.write_text(contents[1])
    reloaded.reload(users)
    assert client.closed_by_peer().name == "amqp:connection:forced"


def test_who_is_signing_in_begins_again(reloaded: Reloaded) -> None:
    """A password may have been shown that is right no longer when its connection opens: it is closed."""
    anonymous = "[user.anonymous]\n[limits]\nhandshake_timeout_ms = 600000\n"
    gateway = reloaded.start(anonymous + user("ann"), "sasl = ['ANONYMOUS', 'PLAIN']")
    host, _, port = gateway.address.rpartition(":")
    with socket.create_connection((host, int(port)), STOP_SECONDS) as peer:
        peer.sendall(SASL_HEADER)
        assert peer.recv(len(SASL_HEADER)) == SASL_HEADER
        reloaded.reload(anonymous + user("ann", "publish = []"))
        while peer.recv(4_096):
            pass


def test_a_stream_over_http_ends_with_the_right_to_it(reloaded: Reloaded, login: Login) -> None:
    """Its events stop at the reload, and when it connects again it is refused; another user's goes on."""
    rights = "consume = ['log://>']"
    gateway = reloaded.start(user("all") + user("ann", rights) + user("bob", rights))
    url = gateway.call(lambda running: running.admin[0]) + "/v1/log"
    sender = login(gateway, "all").sender("topic://a")
    with (
        EventSource(lambda: url, auth=("ann", PASSWORD)) as ann,
        EventSource(lambda: url, auth=("bob", PASSWORD)) as bob,
    ):
        ann.wait(lambda: ann.connections, "it is there")
        bob.wait(lambda: bob.connections, "so is the other")
        sender.send_all([data("before")])
        ann.wait(lambda: len(ann.messages) == 1, "it came")
        reloaded.reload(user("all") + user("ann", "consume = ['log://other/>']") + user("bob", rights))
        sender.send_all([data("after")])
        bob.wait(lambda: len(bob.messages) == 2, "it came")
        ann.wait(lambda: not ann.is_open or ann.status, "it ended")
        assert (ann.status, [one["body"] for one in ann.messages]) == (403, ["before"])
        assert bob.is_open
