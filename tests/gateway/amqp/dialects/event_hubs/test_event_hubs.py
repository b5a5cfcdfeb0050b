"""Event Hubs mode over real sockets: nodes, batches, whole performatives, consumer groups, and tokens."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus
from uuid import uuid4

import pytest
from proton import Link, Message

from amqp_ext.codec import Described, UInt, ULong, encode
from amqp_ext.event_hubs.frames import BATCH_FORMAT, FIELDS
from amqp_ext.event_hubs.management import sign
from gateway.config import Listener, Queue, User, Vpn
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import Client, Receiver, refusal, texts, with_properties
from tests.support.frames import AMQP_HEADER, DISPOSITION, TRANSFER, Frame, frame
from tests.support.management import Pair, declaration
from tests.support.messages import data
from tests.support.peer import Peer
from tests.support.running import RunningGateway

EVENT_HUBS = (Listener(port=0, event_hubs_mode=True),)
KEY = "0123456789abcdef0123"
HUB = "flights/ConsumerGroups/$Default/Partitions/0"


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    return start(listeners=EVENT_HUBS)


def ann(tmp_path: Path, **rules: Any) -> dict[str, User]:
    """The user ann, who has a shared access key."""
    key = tmp_path / "ann.key"
    key.write_text(f"{KEY}\n")
    return {"ann": User(sas_key_file=key, **rules)}


class Node:
    """The two links to a request node, as the Python client attaches them: the node is source and target of both."""

    def __init__(self, client: Client, node: str) -> None:
        def set_up(link: Link) -> None:
            link.source.address = link.target.address = node

        self.sender = client.sender(node, set_up=set_up)
        self.receiver = client.receiver(node, set_up=set_up, credit=100)

    def ask(self, body: Any = None, **asked: str) -> tuple[int, Any]:
        """Send a request; the answer's status, and its body, or its description if the request is refused."""
        request = Message(id=uuid4(), body=body, properties=asked)
        self.sender.send(request.encode(), settled=True)
        answer = Message()
        answer.decode(self.receiver.take(1)[0].raw)
        assert answer.correlation_id == request.id
        status = answer.properties["status-code"]
        return status, answer.body if status < 300 else answer.properties["status-description"]


def read_hub(node: Node, name: str) -> tuple[int, Any]:
    return node.ask(operation="READ", type="com.microsoft:eventhub", name=name)


def read_partition(node: Node, name: str, partition: str = "0") -> tuple[int, Any]:
    return node.ask(operation="READ", type="com.microsoft:partition", name=name, partition=partition)


def hub_reader(client: Client, address: str = HUB, level: int | None = None, **more: Any) -> Receiver:
    """A receiver that starts at the beginning, with this owner level."""
    return client.receiver(
        f"{address}?replay-start=beginning",
        credit=100,
        set_up=with_properties({"com.microsoft:epoch": level}),
        **more,
    )


# --- hubs -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["flights", "flights/Partitions/0", "amqps://host/flights"])
def test_a_hub_is_a_stream_that_its_first_sender_makes(
    gateway: RunningGateway, client: Client, target: str
) -> None:
    """Two consumer groups each read everything."""
    client.sender(target).send_all([data(i) for i in range(3)])
    for group in ("$Default", "audit"):
        reader = hub_reader(client, f"flights/ConsumerGroups/{group}/Partitions/0")
        received = reader.take_and_accept(3)
        assert texts(received) == ["0", "1", "2"]
    assert gateway.call(lambda g: g.vpns["default"].broker.endpoints["flights"].kind.value) == "stream"


def test_a_hub_is_described_by_its_part_of_the_log(client: Client) -> None:
    """A new hub is empty; one with events is described by its first and last, whatever else is in the log."""
    node = Node(client, "$management")
    status, found = read_hub(node, "flights")
    assert (status, found["name"], list(found["partition_ids"].elements)) == (200, "flights", ["0"])
    status, found = read_partition(node, "flights")
    assert (status, found["is_partition_empty"]) == (200, True)
    assert found["last_enqueued_sequence_number"] == -1
    client.sender("others").send_all([data("a")])
    client.sender("flights").send_all([data(i) for i in range(3)])
    client.sender("others").send_all([data("b")])
    _, found = read_partition(node, "flights")
    assert (found["begin_sequence_number"], found["last_enqueued_sequence_number"]) == (2, 4)
    assert (found["last_enqueued_offset"], found["is_partition_empty"]) == ("4", False)
    assert abs(found["last_enqueued_time_utc"] / 1_000 - time.time()) < 60


def test_what_is_not_there_is_404(start: Start, connect: Connect) -> None:
    """A hub that may not be created, and a partition other than 0. Without the switch, $management does not exist."""
    vpn = Vpn(create_queues=False, queues={"there": Queue(kind="stream"), "queue": Queue()})
    gateway = start(vpn, listeners=(*EVENT_HUBS, Listener(port=0)))
    client = connect(gateway)
    node = Node(client, "$management")
    status, text = read_hub(node, "flights")
    assert (status, "'flights'" in text) == (404, True)
    asked = (("flights",), ("there",), ("there", "1"))
    assert [read_partition(node, *one)[0] for one in asked] == [404, 200, 404]
    assert refusal(hub_reader, client).name == "amqp:not-found"
    refused = refusal(hub_reader, client, "there/ConsumerGroups/$Default/Partitions/7")
    assert refused.name == "amqp:not-found"
    assert "no partition '7'" in refused.text and "'0'" in refused.text
    with Client(gateway.urls[1]) as plain:
        refusal(plain.sender, "$management")


# --- owner levels -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("older", "level"), [((2,), 2), ((2,), 3), ((None, None), 0), ((2,), None), ((2,), 0), ((2,), 1)]
)
def test_a_level_as_high_or_higher_steals(
    client: Client, older: tuple[int | None, ...], level: int | None
) -> None:
    """
    Older receivers (several, if none has a level) are detached with the new level in the text. A lower level or none is
    refused while a receiver with a level is attached, but not in another group.
    """
    readers = [hub_reader(client, level=one) for one in older]
    if level is None or level < (older[0] or 0):
        refused = refusal(hub_reader, client, level=level)
        assert (refused.name, "owner level (epoch) 2" in refused.text) == ("amqp:link:stolen", True)
        hub_reader(client, "flights/ConsumerGroups/audit/Partitions/0", level=level)
        readers.pop().close()
    new = hub_reader(client, level=level)
    for reader in readers:
        gone = reader.detached_by_peer()
        assert (gone.name, f"owner level (epoch) {level}" in gone.text) == ("amqp:link:stolen", True)
    client.sender("flights").send_all([data("a")])
    assert texts(new.take(1)) == ["a"]


# --- frames, raw ------------------------------------------------------------------------------------------------------


class WholePeer(Peer):
    """A scripted peer that checks that the gateway's performatives have all their fields."""

    def frame(self) -> Frame | None:
        """The next frame; it must have all its fields."""
        received = super().frame()
        if received is not None:
            assert len(received.fields) == FIELDS.get(received.code, len(received.fields))
        return received

    def send_batch(self, events: list[bytes], *, settled: bool = False, cuts: int = 1) -> None:
        """Attach a sender, and send these events as one batch, in ``cuts`` transfers."""
        self.attach_sender("flights")
        content = b"".join(data(event) for event in events)
        step = -(-len(content) // cuts)
        for number, at in enumerate(range(0, len(content), step)):
            head = (
                [UInt(0), UInt(0), b"tag", UInt(BATCH_FORMAT)] if not number else [UInt(0), None, None, None]
            )
            more = at + step < len(content)
            self.send(frame(TRANSFER, [*head, settled, more], content[at : at + step]))

    def outcome_of_batch(self) -> Described:
        """The outcome of the batch."""
        found: Described = self.skip_to(DISPOSITION).field(4)
        return found


@pytest.fixture
def peer(gateway: RunningGateway) -> Iterator[WholePeer]:
    """A connection without SASL, with a session."""
    with WholePeer.connect(gateway.host_and_port()) as peer:
        peer.send(AMQP_HEADER)
        assert peer.take(len(AMQP_HEADER)) == AMQP_HEADER
        peer.open()
        peer.begin()
        yield peer


@pytest.mark.parametrize("cuts", [1, 3])
@pytest.mark.parametrize("settled", [False, True])
def test_a_batch_is_its_events(client: Client, peer: WholePeer, cuts: int, settled: bool) -> None:
    """
    Each event is a message of its own, with consecutive ids; an unsettled batch is accepted once. All performatives
    have all their fields.
    """
    peer.send_batch([data(i) for i in range(4)], cuts=cuts, settled=settled)
    if not settled:
        assert peer.outcome_of_batch().descriptor == 0x24
    received = hub_reader(client).take(4)
    assert texts(received) == ["0", "1", "2", "3"]
    assert [one.id for one in received] == [1, 2, 3, 4]


def test_a_batch_is_taken_as_a_whole_or_not_at_all(client: Client, peer: WholePeer) -> None:
    """
    One event that is not a message has the whole batch rejected, with a text, and none of it is in the log. Only the
    message format makes a batch: otherwise a message within a data section is not unpacked.
    """
    peer.send_batch([data("a"), b"no message"])
    outcome = peer.outcome_of_batch()
    assert outcome.descriptor == 0x25
    assert "event 1 of the batch" in outcome.value[0].value[1]
    nested = encode(Described(ULong(0x75), data("inner")))
    client.sender("flights").send_all([nested])
    assert hub_reader(client).take(1)[0].raw.endswith(nested)


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def guarded(start: Start, connect: Connect, tmp_path: Path) -> Client:
    """A client of a gateway whose user ann has a key, and may use only the hub flights."""
    flights = ("queue://flights",)
    return connect(start(listeners=EVENT_HUBS, users=ann(tmp_path, publish=flights, consume=flights)))


def token(
    resource: str = "sb://host/flights", *, key: str = KEY, name: str = "ann", seconds: int = 600
) -> str:
    """A shared access signature that is valid for ``seconds``."""
    encoded, expires = quote_plus(resource), int(time.time()) + seconds
    return f"SharedAccessSignature sr={encoded}&sig={quote_plus(sign(key, encoded, expires))}&se={expires}&skn={name}"


def put(cbs: Node, text: str, kind: str = "servicebus.windows.net:sastoken") -> tuple[int, Any]:
    return cbs.ask(text, operation="put-token", type=kind, name="sb://host/flights")


def test_nothing_is_permitted_before_a_token_came(guarded: Client) -> None:
    """An attach is refused, and a hub is not described; once a token is put, both are permitted."""
    for refused in (refusal(guarded.sender, "flights"), refusal(hub_reader, guarded)):
        assert (refused.name, "put one at $cbs" in refused.text) == ("amqp:unauthorized-access", True)
    node = Node(guarded, "$management")
    assert read_hub(node, "flights")[0] == 401
    assert put(Node(guarded, "$cbs"), token())[0] == 202
    guarded.sender("flights").send_all([data("a")])
    assert texts(hub_reader(guarded).take(1)) == ["a"]
    assert read_hub(node, "flights")[0] == 200


def test_a_token_for_reading_about_a_hub_permits_that_alone(guarded: Client) -> None:
    """The Go client puts a token for <hub>/$management, and no other, to have the hub described."""
    assert put(Node(guarded, "$cbs"), token("sb://host/flights/$management"))[0] == 202
    node = Node(guarded, "$management")
    assert read_hub(node, "flights")[0] == 200
    assert read_hub(node, "orders")[0] == 401
    assert "no token for 'flights'" in str(refusal(guarded.sender, "flights"))


def test_a_token_in_a_request_permits_that_request(guarded: Client) -> None:
    """
    To have a hub described, the Java client sends the token in the request. It permits nothing else; one for another
    hub is 401.
    """
    node = Node(guarded, "$management")
    asked = {"operation": "READ", "type": "com.microsoft:eventhub", "name": "flights"}
    assert node.ask(**asked, security_token=token(key="another key altogether"))[0] == 401
    status, words = node.ask(**asked, security_token=token("sb://host/orders"))
    assert (status, "not for 'flights'" in words) == (401, True)
    assert node.ask(**asked, security_token=token())[0] == 200
    asked |= {"type": "com.microsoft:partition", "partition": "0"}
    assert node.ask(**asked, security_token=token())[0] == 200
    assert node.ask(**asked)[0] == 401
    assert "no token for 'flights'" in str(refusal(guarded.sender, "flights"))


def test_a_bad_token_is_401(guarded: Client) -> None:
    """The answer says what is wrong with the token, which permits nothing."""
    cbs = Node(guarded, "$cbs")
    for text, words in (
        (token(key="another key altogether"), "not one of key 'ann'"),
        (token(name="bob"), "no key 'bob'"),
        (token(seconds=-5), "expired"),
        ("SharedAccessSignature sr=", "has no sr"),
    ):
        status, said = put(cbs, text)
        assert (status, words in said) == (401, True), said
        refusal(guarded.sender, "flights")


def test_a_token_is_for_its_entity_and_its_user(guarded: Client) -> None:
    """A token for one hub opens no other, and one for all hubs only those that its user may use."""
    cbs = Node(guarded, "$cbs")
    put(cbs, token("sb://host/orders"))
    assert "no token for 'flights'" in str(refusal(guarded.sender, "flights"))
    assert "user 'ann' may not publish" in str(refusal(guarded.sender, "orders"))
    put(cbs, token("sb://host/"))
    guarded.sender("flights").send_all([data("a")])
    assert "user 'ann' may not publish" in str(refusal(guarded.sender, "others"))


def test_a_connection_ends_with_its_token(guarded: Client) -> None:
    """The gateway closes the connection when the token has expired and no other was put."""
    put(Node(guarded, "$cbs"), token(seconds=2))
    guarded.sender("flights").send_all([data("a")])
    assert guarded.closed_by_peer().name == "amqp:unauthorized-access"


# --- rights -----------------------------------------------------------------------------------------------------------


def test_a_token_is_held_against_the_address_as_it_was_read(
    start: Start, connect: Connect, tmp_path: Path
) -> None:
    """It opens no address that only resembles its entity: a log, a topic, another queue, the same name in capitals."""
    gateway = start(listeners=EVENT_HUBS, users=ann(tmp_path))
    client = connect(gateway)
    put(Node(client, "$cbs"), token())
    for address in (
        "log://*/flights/>",
        "log://flights",
        "topic://flights",
        "topic://victim/flights",
        "queue://victim/flights",
        "Flights",
        "FLIGHTS/ConsumerGroups/$Default/Partitions/0",
        "/queues/flights2",
        "amqps://host/log://*/flights",
    ):
        assert refusal(client.receiver, address).name == "amqp:unauthorized-access", address
        # An address that is not a target at all is refused as such first.
        syntax = ("amqp:not-allowed", "amqp:invalid-field")
        assert refusal(client.sender, address).name in ("amqp:unauthorized-access", *syntax), address
    assert gateway.endpoints() == set()


def test_every_spelling_of_an_entity_is_the_token_s(start: Start, connect: Connect, tmp_path: Path) -> None:
    """A sender's token for the hub, for its partition or for everything opens the hub, however it is spelled."""
    gateway = start(listeners=EVENT_HUBS, users=ann(tmp_path))
    for resource in ("flights", "flights/Partitions/0", ""):
        client = connect(gateway)
        put(Node(client, "$cbs"), token(f"sb://host/{resource}"))
        for prefix in ("", "queue://", "/queues/", "amqps://host/"):
            client.sender(f"{prefix}flights").send_all([data("a")])
        client.sender("flights/Partitions/0").send_all([data("a")])
    assert gateway.endpoints() == {"flights"}


def test_another_dialect_s_node_takes_a_token_for_everything(
    start: Start, connect: Connect, tmp_path: Path
) -> None:
    """
    Requests at RabbitMQ's node are about any entity: without a token, or with one for a single hub, its links are
    refused.
    """
    both = (Listener(port=0, event_hubs_mode=True, rabbitmq_mode=True),)
    client = connect(start(listeners=both, users=ann(tmp_path)))
    cbs = Node(client, "$cbs")
    for resource in (None, "sb://host/flights"):
        if resource is not None:
            put(cbs, token(resource))
        assert "no token for 'all entities'" in refusal(client.sender, "/management").text
    put(cbs, token("sb://host/"))
    assert Pair(client).ask("PUT", "/queues/flights", declaration())[0] == 201
