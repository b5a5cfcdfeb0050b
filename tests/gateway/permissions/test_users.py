"""Which rules a connection is under: by its user, over whatever client and mechanism."""

from __future__ import annotations

from pathlib import Path

import pytest
from proton import Message
from proton.utils import BlockingConnection, LinkDetached, SendException

from gateway.config import Listener, User, Vpn
from tests.gateway.permissions.conftest import HASH, PASSWORD, Login, Start
from tests.support.client import Client, Refused
from tests.support.running import RunningGateway, settings_for


def test_a_user_without_rules_uses_everything(start: Start, login: Login) -> None:
    """Who is configured with a password and nothing else publishes, consumes, replays and reads the log."""
    client = login(start(ann={}, bob={"publish": []}), "ann")
    client.sender("orders")
    client.receiver("orders", filters={"rewind:replay-start": "beginning"})
    client.receiver("topic://>", durable=True)
    client.receiver("log://>")


def test_rules_hold_in_every_vpn_the_user_may_enter(tmp_path: Path, login: Login) -> None:
    """Rules are the user's: they are the same in each Message VPN, and give none that `vpns` does not."""
    users = {"ann": User(password=HASH, vpns=("default", "eu"), publish=("queue://orders",))}
    vpns = {"eu": Vpn(), "us": Vpn()}
    with RunningGateway(settings_for(tmp_path, vpns=vpns, users=users)) as gateway:
        for vpn in ("default", "eu"):
            client = login(gateway, "ann", hostname=vpn)
            client.sender("orders")
            with pytest.raises(Refused, match="unauthorized-access"):
                client.sender("others")
        assert login(gateway, "ann", hostname="us").closed_by_peer().name == "amqp:unauthorized-access"


def test_a_client_without_a_name_is_under_the_rules_of_anonymous(tmp_path: Path, login: Login) -> None:
    """Where a listener takes clients without a name beside users, `[user.anonymous]` says what those may do."""
    users = {"ann": User(password=HASH), "anonymous": User(consume=("log://public/>",))}
    listeners = (Listener(port=0, sasl=("ANONYMOUS", "PLAIN")),)
    with RunningGateway(settings_for(tmp_path, users=users, listeners=listeners)) as gateway:
        login(gateway, "ann").sender("orders")
        with Client(gateway.url) as nobody:
            nobody.receiver("log://public/>")
            with pytest.raises(Refused, match="user 'anonymous' may not publish to queue://orders"):
                nobody.sender("orders")


def test_nothing_is_said_of_clients_without_a_name(tmp_path: Path) -> None:
    """Settings made past the configuration's rules do not open a door: who is not a user enters no VPN."""
    listeners = (Listener(port=0, sasl=("ANONYMOUS",)),)
    settings = settings_for(tmp_path, users={"ann": User(password=HASH)}, listeners=listeners)
    with RunningGateway(settings) as gateway, Client(gateway.url) as nobody:
        assert nobody.closed_by_peer().name == "amqp:unauthorized-access"


def test_proton_s_own_client_sees_a_refusal_as_one(start: Start) -> None:
    """With proton's blocking client and SCRAM or PLAIN, a denial is a detached link or a rejected message."""
    gateway = start(ann={"publish": ["queue://orders"], "consume": ["queue://orders"]})
    connection = BlockingConnection(gateway.url, user="ann", password=PASSWORD, allow_insecure_mechs=True)
    try:
        connection.create_sender("orders").send(Message(body="x"))
        with pytest.raises(LinkDetached, match="amqp:unauthorized-access"):
            connection.create_sender("others")
        with pytest.raises(LinkDetached, match="amqp:unauthorized-access"):
            connection.create_receiver("log://>")
        with pytest.raises(SendException):
            connection.create_sender(None).send(Message(address="others", body="x"))
        receiver = connection.create_receiver("orders", credit=1)
        assert receiver.receive(timeout=10).body == "x"
        receiver.accept()
    finally:
        connection.close()
    assert gateway.endpoints() == {"orders"}
