"""What somebody with few rights can have a job do for him: nothing that he could not do himself."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from proton import Message
from proton.utils import BlockingConnection, LinkDetached, SendException

from amqp_ext.sasl import hash_password
from gateway.config import Listener, User, Vpn
from tests.gateway.permissions.conftest import HASH, PASSWORD, Login, Reloaded, Start, user
from tests.support.client import Client, Refused, texts
from tests.support.event_source import EventSource
from tests.support.frames import SASL_HEADER
from tests.support.messages import data, message_to, section
from tests.support.running import PLAIN_HTTP, STOP_SECONDS, RunningGateway, settings_for
from tests.support.waiting import wait_until

# --- What somebody with few rights can have a job do for him --------------------------------------------------------

ACTION = "/SEMP/v2/action/msgVpns/default"
LOG = f"{ACTION}/replayLogs/default"


def asked(gateway: RunningGateway, user: str, path: str, body: object) -> httpx.Response:
    """A user's request to the administration."""
    url = gateway.call(lambda running: running.admin[0])
    return httpx.put(f"{url}{path}", json=body, auth=(user, PASSWORD), **PLAIN_HTTP, timeout=30)


MINE = {"target": "queue://mine"}
READ_OPEN = {"consume": ["log://open/>"], "publish": ["queue://mine"]}
READ_ALL = {"consume": ["log://>"], "publish": ["queue://mine"]}
COPIES: list[tuple[dict[str, list[str]], list[dict[str, Any]]]] = [
    # Rights, and what by them nobody has copied.
    ({"publish": ["queue://mine"]}, [MINE]),
    ({"publish": ["queue://mine"], "consume": ["topic://>"]}, [MINE]),
    (READ_OPEN, [MINE, MINE | {"subscriptions": ["open/>", "secret/>"]}, MINE | {"subscriptions": ["!open/a"]}]),
    (READ_OPEN, [MINE | {"subscriptions": []}, MINE | {"subscriptions": {"0": "open/a"}}]),
    ({"publish": ["topic://>"], "consume": ["log://>"]}, [{"target": "queue://theirs"}, {"target": "topic://#queue/theirs"}]),
    (READ_ALL, [{"target": "amqp://h/theirs"}, {"target": ["queue://mine"]}, {}]),
    (READ_ALL, [MINE | {"replayTarget": "far"}, MINE | {"replayTarget": ["far"]}]),
]  # fmt: skip


def test_nobody_copies_what_he_may_not_read_to_where_he_may_not_send(start: Start) -> None:
    """The request is turned away before anything of it is looked at."""
    users = {f"u{number}": rights for number, (rights, _) in enumerate(COPIES)}
    gateway = start(**users, root={"administer": ["log://>"]})
    for name, (_, bodies) in zip(users, COPIES, strict=True):
        for body in bodies:
            assert asked(gateway, name, f"{LOG}/startCopy", body).status_code == 403, body


def test_who_may_read_and_send_may_copy(start: Start, login: Login) -> None:
    """With these two rights and no other; his job is his to end, and nobody's without rights over the log."""
    gateway = start(
        least=READ_OPEN,
        other=READ_ALL,
        root={"administer": ["log://>"]},
        all={},
    )
    client = login(gateway, "all")
    client.sender("topic://open/a").send_all([data("open")])
    client.sender("topic://secret/a").send_all([data("secret")])
    body = {"target": "queue://mine", "subscriptions": ["open/>"], "name": "a", "rate": 0.001}
    assert asked(gateway, "least", f"{LOG}/startCopy", body).status_code == 200
    assert texts(client.receiver("mine").drain()) == ["open"]
    for name in ("b", "c"):
        more = {**body, "name": name, "selector": "1 = 2"}
        assert asked(gateway, "least", f"{LOG}/startCopy", more).status_code == 200
    url = gateway.call(lambda running: running.admin[0])
    for name, status in (("least", 200), ("other", 403), ("root", 200)):
        path = f"{url}/SEMP/v2/monitor/msgVpns/default/replays/a"
        assert httpx.get(path, auth=(name, PASSWORD), **PLAIN_HTTP).status_code == status
    for action in ("pauseReplay", "resumeReplay", "cancelReplay"):
        for name in ("a", "none", "", None, ["a"]):
            assert asked(gateway, "other", f"{LOG}/{action}", {"replayName": name}).status_code == 403
        assert asked(gateway, "least", f"{LOG}/{action}", {"replayName": "a"}).status_code in (200, 400)
        assert asked(gateway, "root", f"{LOG}/{action}", {"replayName": "none"}).status_code == 400


def test_a_forged_dead_letter_goes_nowhere_for_whom_may_not_send_there(start: Start, login: Login) -> None:
    """Who administers the dead message queue alone names the target: a publisher may have made the origin up."""
    gateway = start(least={"administer": ["queue://dead"], "publish": ["queue://mine"]}, all={})
    client = login(gateway, "all")
    client.sender("payments")
    client.sender("dead").send_all([section(0x72, {"x-opt-dead-endpoint": "payments"}) + data("forged")])
    path = f"{ACTION}/queues/dead/returnDead"
    assert asked(gateway, "least", path, {}).status_code == 403
    assert asked(gateway, "least", path, {"target": ""}).status_code == 403
    assert asked(gateway, "least", path, {"target": "payments"}).status_code == 403
    assert asked(gateway, "least", path, {"target": "mine"}).status_code == 200
    assert texts(client.receiver("mine").drain()) == ["forged"]
    assert client.receiver("payments").drain() == []


def test_a_job_pauses_whose_requester_may_not_do_it_any_more(reloaded: Reloaded, login: Login) -> None:
    """
    Copies, returns of dead letters: what is published in a user's name is what he may publish now. It says so, nobody
    has it go on; once he may again, it does.
    """
    root = user("root", "administer = ['log://>']")
    rights = "consume = ['log://>']\npublish = ['queue://mine']\nadminister = ['queue://dead']"
    gateway = reloaded.start(user("all") + root + user("least", rights) + user("other", rights))
    client = login(gateway, "all")
    client.sender("dead").send_all([data(n) for n in range(3)])
    client.sender("mine")
    copy = {"target": "queue://mine", "rate": 0.001}
    dead = f"{ACTION}/queues/dead/returnDead"
    assert asked(gateway, "least", f"{LOG}/startCopy", {**copy, "name": "copy"}).status_code == 200
    assert asked(gateway, "other", f"{LOG}/startCopy", {**copy, "name": "other"}).status_code == 200
    assert asked(gateway, "least", dead, {"target": "mine", "rate": 0.001, "name": "dead"}).status_code == 200
    lost = "consume = ['log://>']\nadminister = ['queue://dead']"
    reloaded.reload(user("all") + root + user("least", lost) + user("other", rights))

    def shown(name: str) -> tuple[str, str]:
        found = gateway.call(lambda running: running.vpns["default"].broker.replay_records.get(name))
        return found.state, found.outcome

    def resumed(by: str, name: str) -> int:
        return asked(gateway, by, f"{LOG}/resumeReplay", {"replayName": name}).status_code

    wait_until(lambda: shown("copy")[0] == shown("dead")[0] == "paused", "the jobs pause")
    for name in ("copy", "dead"):
        assert "user 'least', who began it, may no longer publish to queue://mine" in shown(name)[1]
        assert [resumed(by, name) for by in ("least", "root")] == [400, 400]
    assert shown("other") == ("running", "")
    reloaded.reload(user("all") + root + user("least", rights) + user("other", lost))
    assert resumed("least", "copy") == 200
    wait_until(lambda: shown("other")[0] == "paused", "the other user's job pauses")


def test_a_start_pauses_what_may_not_go_on(reloaded: Reloaded, login: Login) -> None:
    """A copy to another gateway takes the right to administer the log: without it in the file, a start pauses it."""
    far = "[vpn.default.replay_target.far]\nurl = 'amqp://127.0.0.1:1'\n"
    root = user("root", "administer = ['log://>']")
    gateway = reloaded.start(user("all") + root + far)
    login(gateway, "all").sender("q").send_all([data("x")])
    body = {"target": "queue://theirs", "replayTarget": "far", "name": "away"}
    assert asked(gateway, "root", f"{LOG}/startCopy", body).status_code == 200
    gateway.stop()
    again = reloaded.start(user("all") + user("root", "administer = ['queue://q']") + far)

    def state() -> str:
        return str(
            again.call(lambda running: running.vpns["default"].broker.replay_records.get("away").state)
        )

    wait_until(lambda: state() == "paused", "the copy pauses")


# --- A reload holds for every path from that moment -----------------------------------------------------------------


def relayed(client: Client, to: str) -> str:
    """What becomes of a message to the anonymous relay: its outcome, or the condition it is rejected with."""
    sender = client.sender(None)
    delivery = sender.send(message_to(to, "x"))
    outcome = sender.outcome(delivery)
    return outcome if outcome == "ACCEPTED" else sender.rejection(delivery).name


def test_the_relay_forgets_what_was_permitted(reloaded: Reloaded, login: Login) -> None:
    """An address that the relay has found to be permitted is asked about again: the user has lost it meanwhile."""
    gateway = reloaded.start(user("ann", "publish = ['queue://q', 'topic://a/>']"))
    client = login(gateway, "ann")
    client.sender("q").send_all([data("makes it")])
    addresses = ("q", "queue://q", "topic://a/b", "topic://#queue/q")
    assert {relayed(client, to) for to in addresses} == {"ACCEPTED"}
    reloaded.reload(user("ann", "publish = ['queue://other']"))
    assert client.closed_by_peer().name == "amqp:connection:forced"
    again = login(gateway, "ann")
    assert {relayed(again, to) for to in addresses} == {"amqp:unauthorized-access"}


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


# --- Which rules a connection is under ------------------------------------------------------------------------------


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
