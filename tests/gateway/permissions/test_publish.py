"""Who may send what, by a link or by a job."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import httpx
import pytest
from proton import Described, Link, Terminus, symbol, ulong

from amqp_ext.sasl import hash_password
from gateway.amqp.links.publisher import DENIED_ADDRESSES
from gateway.config import Listener, Queue, User, Vpn
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings, Exclusivity
from tests.gateway.permissions.conftest import HASH, PASSWORD, Line, Login, Reloaded, Start, user
from tests.support.client import Client, Receiver, Refused, browsing, texts
from tests.support.event_source import EventSource
from tests.support.frames import SASL_HEADER
from tests.support.messages import data, message_to, section
from tests.support.running import PLAIN_HTTP, STOP_SECONDS, RunningGateway, settings_for
from tests.support.waiting import wait_until

# --- Who may send what ----------------------------------------------------------------------------------------------

UNAUTHORIZED = "amqp:unauthorized-access"


def refusals(logged: list[Line], event: str) -> list[tuple[str, str]]:
    """Address and rule of each refusal logged."""
    return [(line["address"], line["rule"]) for line in logged if line["event"] == event]


AUDIT = Vpn(queues={"audit": Queue(kind="stream", subscriptions=("flights/>",)), "orders": Queue()})
LISTS = {
    "sends": {"publish": ["queue://orders*", "queue://new", "topic://flights/>", "!topic://flights/secret/>"]},
    "takes": {"consume": ["queue://orders", "topic://flights/>", "!topic://flights/secret"]},
    "reads": {"consume": ["log://flights/>"]},
    "rewinds": {"consume": ["queue://>", "topic://>"], "replay": ["topic://a/>"]},
    "watches": {"consume": ["queue://audit", "queue://made", "queue://later"], "replay": []},
    "looks": {"browse": ["queue://audit"]},
}  # fmt: skip


START = {"filters": {"rewind:replay-start": "beginning"}}
LIVE = {"filters": {"rewind:replay-start": "live"}}
COPY = {"set_up": browsing}
DURABLE = {"name": "for good", "durable": True}

PERMITTED: list[tuple[str, str, str, dict[str, Any]]] = [
    # The user, the role of the link, its address, and further options of the link.
    ("sends", "sender", "queue://orders-eu", {}),
    ("sends", "sender", "new?kind=stream", {}),
    # A `replay` list does not affect live consumption.
    ("rewinds", "receiver", "others", LIVE),
    # A stream needs `consume` on it only, for any start, whatever `replay` and `log` say.
    ("watches", "receiver", "audit", START),
    ("watches", "receiver", "made?kind=stream", START),
    ("looks", "receiver", "audit", COPY | START),
]

ALL = ": everything that it matches has to be permitted"
ANOTHER_HUB = "other/ConsumerGroups/$default/Partitions/0"

REFUSED: list[tuple[str, str, str, dict[str, Any], str, str]] = [
    # The same; what the client is told that the user may not do; and the rule, which only the gateway's log has.
    ("sends", "sender", "elsewhere", {}, "publish to queue://elsewhere", "no pattern of publish"),
    ("sends", "sender", "other?kind=stream", {}, "publish to queue://other", "no pattern of publish"),
    ("sends", "sender", "topic://flights/secret/x", {}, "publish to topic://flights/secret/x", "publish !topic://flights/secret/>"),
    ("sends", "receiver", "orders", {}, "consume queue://orders", "no consume list"),
    ("takes", "sender", "orders", {}, "publish to queue://orders", "no publish list"),
    ("takes", "receiver", "no", {}, "consume queue://no", "no pattern of consume"),
    ("takes", "receiver", "no", START, "consume queue://no", "no pattern of consume"),
    ("takes", "receiver", "topic://>", DURABLE, f"consume topic://>{ALL}", "consume !topic://flights/secret"),
    ("reads", "receiver", "log://>", START, f"consume log://>{ALL}", "no pattern of consume"),
    ("reads", "receiver", ANOTHER_HUB, START, f"consume log://#queue/other{ALL}", "no pattern of consume"),
    ("reads", "receiver", "audit", START, "consume queue://audit", "no pattern of consume"),
    ("reads", "receiver", "other?kind=stream", START, "consume queue://other", "no pattern of consume"),
    ("rewinds", "receiver", "others", START, "replay queue://others", "no pattern of replay"),
    ("rewinds", "receiver", "topic://*/b", START, f"replay topic://*/b{ALL}", "no pattern of replay"),
    ("watches", "receiver", "later", START, "replay queue://later", "no pattern of replay"),
    ("looks", "receiver", "no", COPY, "browse queue://no", "no pattern of browse"),
    ("looks", "receiver", "audit", START, "consume queue://audit", "no consume list"),
    ("looks", "receiver", "topic://orders", COPY, f"consume topic://orders{ALL}", "no consume list"),
]  # fmt: skip


def test_links_are_made_as_lists_permit_and_no_others(start: Start, login: Login, logged: list[Line]) -> None:
    """
    A refusal is `amqp:unauthorized-access` with a sentence. Only the gateway's log has the rule: a client must not
    learn the user's other rights. A refused attach creates nothing, and the connection stays open.
    """
    gateway = start(vpn=AUDIT, all={}, **LISTS)
    clients = {name: login(gateway, name) for name in LISTS}
    login(gateway, "all").sender("orders").send_all([data("x")])
    for name, role, address, more in PERMITTED:
        link = getattr(clients[name], role)(address, **more)
        if role == "sender":
            link.send_all([data("x")])
        link.close()
    assert logged == []
    there = gateway.endpoints()
    for name, role, address, more, what, rule in REFUSED:
        with pytest.raises(Refused) as refused:
            getattr(clients[name], role)(address, **more)
        assert refused.value.name == UNAUTHORIZED
        assert (refused.value.text, refused.value.info) == (f"user {name!r} may not {what}", {}), address
        (line,) = logged
        assert (line["event"], line["user"], line["condition"]) == ("attach_refused", name, UNAUTHORIZED)
        assert (line["address"], line["rule"]) == (address, rule)
        logged.clear()
    assert gateway.endpoints() == there


def test_every_message_of_the_relay_is_decided_on(start: Start, login: Login, logged: list[Line]) -> None:
    """On the anonymous relay, a message to a forbidden address is rejected; those before and after are accepted."""
    gateway = start(ann={"publish": ["queue://orders"], "consume": ["queue://orders"]})
    client = login(gateway, "ann")
    sender = client.sender(None)
    for _ in range(2):
        deliveries = [
            sender.send(message_to(to, to)) for to in ("orders", "others", "queue://orders", "topic://orders")
        ]
        assert sender.outcome(deliveries[0]) == sender.outcome(deliveries[2]) == "ACCEPTED"
        for denied in (deliveries[1], deliveries[3]):
            assert sender.rejection(denied).name == UNAUTHORIZED
    assert gateway.endpoints() == {"orders"}
    assert texts(client.receiver("orders").drain()) == ["orders", "queue://orders"] * 2
    nowhere = "no pattern of publish"
    assert refusals(logged, "publish_refused") == [("others", nowhere), ("topic://orders", nowhere)]


def test_a_settled_message_that_is_not_permitted_goes_nowhere(
    start: Start, login: Login, logged: list[Line]
) -> None:
    """It can only be refused by a detach; the gateway's log has its address and the rule."""
    gateway = start(ann={"publish": ["queue://orders"]}, bob={})
    ann = login(gateway, "ann")
    sender = ann.sender(None)
    sender.send(message_to("others", "x"), settled=True)
    assert sender.detached_by_peer().name == UNAUTHORIZED
    ann.sender(None).send_all([message_to("orders", "y")])
    assert gateway.endpoints() == {"orders"}
    assert refusals(logged, "publish_refused") == [("others", "no pattern of publish")]


def test_a_peer_cannot_fill_the_log_with_refusals(start: Start, login: Login, logged: list[Line]) -> None:
    """Of any number of forbidden addresses that a link sends to, only some are logged."""
    sender = login(start(ann={"publish": []}), "ann").sender(None)
    deliveries = [sender.send(message_to(f"q{i}", "x")) for i in range(DENIED_ADDRESSES + 20)]
    assert {sender.rejection(delivery).name for delivery in deliveries} == {UNAUTHORIZED}
    assert 0 < len(refusals(logged, "publish_refused")) <= DENIED_ADDRESSES


def test_a_temporary_queue_that_is_gone_needs_one(start: Start, login: Login) -> None:
    """Once the queue is deleted its name permits nothing, whatever was remembered of it."""
    gateway = start(asking={"publish": []}, answering={"publish": []})
    asking, answering = login(gateway, "asking"), login(gateway, "answering")
    replies = asking.receiver(None, dynamic=True, credit=1)
    answer = answering.sender(None)
    assert answer.outcome(answer.send(message_to(replies.address, "!"))) == "ACCEPTED"
    replies.close()
    assert answer.rejection(answer.send(message_to(replies.address, "!"))).name == UNAUTHORIZED
    with pytest.raises(Refused, match=UNAUTHORIZED):
        asking.sender(replies.address)
    assert gateway.endpoints() == set()


def test_a_temporary_queue_made_by_a_sender_is_read_by_its_connection(start: Start, login: Login) -> None:
    """A temporary queue made by a sender can be consumed by another link of the same connection, as JMS clients do."""
    client = login(start(ann={"publish": []}), "ann")
    maker = client.sender(None, dynamic=True)
    receiver = client.receiver(maker.address, credit=1)
    maker.send_all([data("x")])
    assert texts(receiver.take(1)) == ["x"]


@pytest.mark.parametrize("maker", ["sender", "receiver"])
def test_a_temporary_topic_is_open_as_a_temporary_queue_is(start: Start, login: Login, maker: str) -> None:
    """Who knows its name may send to it; only its maker's connection may subscribe, as long as it exists."""
    gateway = start(ann={"publish": []}, bob={"publish": [], "consume": ["topic://>"]})
    ann, bob = login(gateway, "ann"), login(gateway, "bob")
    made = getattr(ann, maker)(None, dynamic=True, capabilities=["temporary-topic"])
    receiver = ann.receiver(made.address, credit=1)
    bob.sender(made.address).send_all([data("!")])
    assert texts(receiver.take(1)) == ["!"]
    with pytest.raises(Refused, match=UNAUTHORIZED):
        bob.receiver(made.address)
    made.close()
    for refused in (bob.sender, ann.receiver):
        with pytest.raises(Refused, match=UNAUTHORIZED):
            refused(made.address)


def test_a_temporary_queue_that_lives_on_is_its_users(start: Start, login: Login) -> None:
    """After its connection has gone, any connection of the same user may consume from it, and no other user's."""
    gateway = start(ann={"publish": []}, bob={"publish": [], "consume": ["queue://>"]})
    first, second, bob = login(gateway, "ann"), login(gateway, "ann"), login(gateway, "bob")

    def until_empty(link: Link) -> None:
        link.target.properties.put_object({symbol("lifetime-policy"): Described(ulong(0x2D), [])})

    maker = first.sender(None, dynamic=True, set_up=until_empty)
    maker.send_all([data("x")])
    with pytest.raises(Refused, match=UNAUTHORIZED):
        second.receiver(maker.address)
    first.close()
    with pytest.raises(Refused, match=UNAUTHORIZED):
        bob.receiver(maker.address)
    assert texts(second.receiver(maker.address, credit=1).take_and_accept(1)) == ["x"]
    second.wait(lambda: maker.address not in gateway.endpoints(), "the queue is deleted")


def test_a_replay_that_the_queue_asks_for_is_not_the_user_s(start: Start, login: Login) -> None:
    """The queue's `default_start` is a decision of its configuration: the right to consume is enough."""
    vpn = Vpn(queues={"orders": Queue(default_start="beginning")})
    gateway = start(vpn=vpn, ann={"publish": ["queue://orders"], "consume": ["queue://orders"], "replay": []})
    client = login(gateway, "ann")
    client.sender("orders").send_all([data("x")])
    for _ in range(2):
        receiver = client.receiver("orders", credit=1)
        assert texts(receiver.take_and_accept(1)) == ["x"]
        receiver.close()


# --- A durable subscription belongs to its user, whatever topics others may receive ---------------------------------


def durable(link: Link) -> None:
    link.source.durability = Terminus.DELIVERIES
    link.source.expiry_policy = Terminus.EXPIRE_NEVER


def subscribe(client: Client, topic: str = "a/>", name: str = "sub", **more: Any) -> Receiver:
    """Attach to a durable subscription."""
    return client.receiver(f"topic://{topic}", name=name, set_up=durable, credit=10, **more)


def unsubscribe(client: Client, name: str = "sub", **more: Any) -> None:
    """Delete a durable subscription."""
    client.receiver(None, name=name, set_up=durable, **more).close()


SHARED = {"capabilities": ["topic", "shared"]}
GLOBAL = {"capabilities": ["topic", "shared", "global"]}


@pytest.mark.parametrize("more", [{}, SHARED], ids=["plain", "shared"])
def test_nobody_else_has_it(start: Start, login: Login, more: Any) -> None:
    """Another user with a right to its topics, and the same container id, can neither consume from it nor end it."""
    gateway = start(ann={}, all={}, topics={"consume": ["topic://>"]}, topic={"consume": ["topic://a/>"]})
    ann = login(gateway, "ann", container="same")
    subscribe(ann, **more).detach()
    login(gateway, "all").sender("topic://a/1").send_all([data("kept")])
    for thief in (login(gateway, name, container="same") for name in ("all", "topics", "topic")):
        for steal in (
            lambda thief=thief: subscribe(thief, **more),
            lambda thief=thief: subscribe(thief, "a/1", **more),
            lambda thief=thief: unsubscribe(thief, **more),
        ):
            with pytest.raises(Refused) as refused:
                steal()
            assert refused.value.name == UNAUTHORIZED
    assert texts(subscribe(ann, **more).take(1)) == ["kept"]


def test_its_user_has_it_on_any_connection(start: Start, login: Login) -> None:
    """Consumed from, given another topic, and deleted, each on another connection of its user."""
    gateway = start(ann={}, bob={})
    subscribe(login(gateway, "ann")).detach()
    login(gateway, "bob").sender("topic://a/1").send_all([data("kept")])
    other = login(gateway, "ann")
    receiver = subscribe(other)
    assert texts(receiver.take(1)) == ["kept"]
    receiver.detach()
    subscribe(other, "b/>").detach()
    assert gateway.subscriptions("sub") == ["b/>"]
    unsubscribe(login(gateway, "ann"))
    other.wait(lambda: "sub" not in gateway.endpoints(), "it is gone")


def test_what_everybody_shares_is_ended_by_who_made_it(start: Start, login: Login) -> None:
    """Who may receive its topics consumes from it; only its user changes its topic or deletes it."""
    gateway = start(ann={}, bob={"consume": ["topic://a/>"], "publish": ["topic://a/>"]})
    subscribe(login(gateway, "ann"), **GLOBAL).detach()
    bob = login(gateway, "bob")
    receiver = subscribe(bob, **GLOBAL)
    bob.sender("topic://a/1").send_all([data(1)])
    receiver.settle(receiver.take(1))
    receiver.detach()
    for end in (lambda: subscribe(bob, "a/1", **GLOBAL), lambda: unsubscribe(bob, **GLOBAL)):
        with pytest.raises(Refused, match="belongs to another user"):
            end()
    unsubscribe(login(gateway, "ann"), **GLOBAL)


def made_by_administrator(gateway: RunningGateway) -> None:
    """A topic endpoint that belongs to no user."""

    async def make(running: Any) -> None:
        vpn = running.vpns["default"]
        settings = EndpointSettings(exclusive=Exclusivity.REFUSE)
        vpn.endpoints.create("sub", EndpointKind.TOPIC_ENDPOINT, settings, ["a/>"])
        await vpn.committer.committed()

    gateway.run_coroutine(make)


def test_what_an_administrator_made_is_ended_by_one(start: Start, login: Login) -> None:
    """Who may receive its topics consumes from it; to change or end it needs the right to administer them."""
    gateway = start(
        ann={"consume": ["topic://a/>"]},
        bob={"consume": ["topic://b/>"], "administer": ["topic://>"]},
        root={"consume": ["topic://a/>"], "administer": ["topic://a/>"]},
    )
    made_by_administrator(gateway)
    with pytest.raises(Refused, match="may not consume topic://a/>"):
        subscribe(login(gateway, "bob"), "b/>")
    ann = login(gateway, "ann")
    subscribe(ann).detach()
    for end in (lambda: subscribe(ann, "a/1"), lambda: unsubscribe(ann)):
        with pytest.raises(Refused, match="may not administer"):
            end()
    root = login(gateway, "root")
    unsubscribe(root)
    root.wait(lambda: "sub" not in gateway.endpoints(), "it is gone")


# --- What a user with few rights can have done by a job -------------------------------------------------------------

ACTION = "/SEMP/v2/action/msgVpns/default"
LOG = f"{ACTION}/replayLogs/default"


def asked(gateway: RunningGateway, user: str, path: str, body: object) -> httpx.Response:
    """Send a user's request to administration."""
    url = gateway.call(lambda running: running.admin[0])
    return httpx.put(f"{url}{path}", json=body, auth=(user, PASSWORD), **PLAIN_HTTP)


MINE = {"target": "queue://mine"}
READ_OPEN = {"consume": ["log://open/>"], "publish": ["queue://mine"]}
READ_ALL = {"consume": ["log://>"], "publish": ["queue://mine"]}
COPIES: list[tuple[dict[str, list[str]], list[dict[str, Any]]]] = [
    # The rights of a user, and copies that they do not permit.
    ({"publish": ["queue://mine"]}, [MINE]),
    ({"publish": ["queue://mine"], "consume": ["topic://>"]}, [MINE]),
    (READ_OPEN, [MINE, MINE | {"subscriptions": ["open/>", "secret/>"]}, MINE | {"subscriptions": ["!open/a"]}]),
    (READ_OPEN, [MINE | {"subscriptions": []}, MINE | {"subscriptions": {"0": "open/a"}}]),
    ({"publish": ["topic://>"], "consume": ["log://>"]}, [{"target": "queue://theirs"}, {"target": "topic://#queue/theirs"}]),
    (READ_ALL, [{"target": "amqp://h/theirs"}, {"target": ["queue://mine"]}, {}]),
    (READ_ALL, [MINE | {"replayTarget": "far"}, MINE | {"replayTarget": ["far"]}]),
]  # fmt: skip


def test_nobody_copies_what_he_may_not_read_to_where_he_may_not_send(start: Start) -> None:
    """403, before anything of the request is examined."""
    users = {f"u{number}": rights for number, (rights, _) in enumerate(COPIES)}
    gateway = start(**users, root={"administer": ["log://>"]})
    for name, (_, bodies) in zip(users, COPIES, strict=True):
        for body in bodies:
            assert asked(gateway, name, f"{LOG}/startCopy", body).status_code == 403, body


def test_who_may_read_and_send_may_copy(start: Start, login: Login) -> None:
    """These two rights are enough. The user controls his own job; others need rights over the log."""
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
    """A user who administers only the dead message queue must name the target, as a publisher can forge the origin."""
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
    Copies and returns of dead letters publish with the present rights of the user who began them. Without these the job
    pauses and says why, and nobody can resume it; with them again, it can be resumed.
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
    """A copy to another gateway needs the right to administer the log; without it, a start pauses the copy."""
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


# --- A reload applies to everything immediately ---------------------------------------------------------------------


@pytest.mark.parametrize("key", ["password_file", "token_file", "sas_key_file"])
def test_a_secret_that_changes_in_its_file_is_a_change(
    reloaded: Reloaded, login: Login, tmp_path: Path, key: str
) -> None:
    """The settings name the same file, but its content, by which the connection was authenticated, has changed."""
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
    """A connection in the middle of its handshake is closed: its password may no longer be right."""
    anonymous = "[user.anonymous]\n[limits]\nhandshake_timeout_ms = 600000\n"
    gateway = reloaded.start(anonymous + user("ann"), "sasl = ['ANONYMOUS', 'PLAIN']")
    with socket.create_connection(gateway.host_and_port(), STOP_SECONDS) as peer:
        peer.sendall(SASL_HEADER)
        assert peer.recv(len(SASL_HEADER)) == SASL_HEADER
        reloaded.reload(anonymous + user("ann", "publish = []"))
        while peer.recv(4_096):
            pass


def test_a_stream_over_http_ends_with_the_right_to_it(reloaded: Reloaded, login: Login) -> None:
    """Its events stop at the reload, and it cannot connect again; another user's stream goes on."""
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


# --- Which rules apply to a connection ------------------------------------------------------------------------------


def test_rules_are_the_users_wherever_he_comes_in(tmp_path: Path, login: Login) -> None:
    """
    The same in each Message VPN that `vpns` permits. Where a listener accepts clients without a name,
    `[user.anonymous]` has their rules.
    """
    users = {
        "ann": User(password=HASH, vpns=("default", "eu"), publish=("queue://orders",)),
        "anonymous": User(consume=("log://public/>",)),
    }
    listeners = (Listener(port=0, sasl=("ANONYMOUS", "PLAIN")),)
    vpns = {"eu": Vpn(), "us": Vpn()}
    with RunningGateway(settings_for(tmp_path, vpns=vpns, users=users, listeners=listeners)) as gateway:
        for vpn in ("default", "eu"):
            client = login(gateway, "ann", hostname=vpn)
            client.sender("orders")
            with pytest.raises(Refused, match="unauthorized-access"):
                client.sender("others")
        assert login(gateway, "ann", hostname="us").closed_by_peer().name == "amqp:unauthorized-access"
        with Client(gateway.url) as nobody:
            nobody.receiver("log://public/>")
            with pytest.raises(Refused, match="user 'anonymous' may not publish to queue://orders"):
                nobody.sender("orders")


def test_nothing_is_said_of_clients_without_a_name(tmp_path: Path) -> None:
    """If settings were built without the configuration's checks, clients without a name still enter no Message VPN."""
    listeners = (Listener(port=0, sasl=("ANONYMOUS",)),)
    settings = settings_for(tmp_path, users={"ann": User(password=HASH)}, listeners=listeners)
    with RunningGateway(settings) as gateway, Client(gateway.url) as nobody:
        assert nobody.closed_by_peer().name == "amqp:unauthorized-access"
