"""Dead letters: counting them, and returning them in batches of one transaction each."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest
from proton import Delivery

from amqp_ext.addresses.address import queue_topic
from gateway.config import Queue, Vpn
from tests.gateway.admin.conftest import Api, Start, stop_and_check
from tests.gateway.admin.jobs.test_copy import ended, record
from tests.support.client import Client, Received, Refused, texts
from tests.support.messages import data, section
from tests.support.running import RunningGateway
from tests.support.waiting import wait_until

VPN = Vpn(
    queues={
        "orders": Queue(dead_message_queue="dead"),
        "bills": Queue(dead_message_queue="dead", quota_messages=30),
        "dead": Queue(),
    }
)


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    """A gateway with two queues that share a dead message queue."""
    return start(VPN)


def die(api: Api, client: Client, queue: str, messages: list[bytes]) -> None:
    """Publish messages to a queue, and reject them, so that they are on the dead message queue."""
    before = depth(api, "dead")
    client.sender(queue).send_all(messages)
    receiver = client.receiver(queue, credit=len(messages))
    receiver.settle(receiver.take(len(messages)), Delivery.REJECTED)
    receiver.close()
    wait_until(lambda: depth(api, "dead") == before + len(messages), "all are dead")


def give_back(api: Api, queue: str = "dead", **body: Any) -> str:
    """Begin to return dead letters; return the job's name."""
    return str(api.act(f"/queues/{queue}/returnDead", body)["replayName"])


def depth(api: Api, queue: str) -> int:
    return int(api.queue(queue)["spooledMsgCount"])


def test_dead_letters_go_back_to_where_they_died(api: Api, client: Client) -> None:
    """All of them, with bare message and header, and without the annotations of a dead letter."""
    raw = section(0x70, [True]) + section(0x72, {"x-opt-theirs": "kept"}) + data("0")
    die(api, client, "orders", [raw, *(data(n) for n in range(1, 600))])
    die(api, client, "bills", [data("bill")])
    done = ended(api, give_back(api))
    assert (done.state, done.sent, done.outcome) == ("complete", 601, "601 messages returned")
    assert depth(api, "dead") == 0
    found = client.receiver("orders").drain()
    assert texts(found) == [str(n) for n in range(600)]
    assert found[0].annotations["x-opt-theirs"] == "kept"
    assert [received.annotations["x-opt-replay-source-id"] for received in found] == [*range(1, 601)]
    for received in found:
        assert not [key for key in received.annotations if "dead" in key]
        assert received.delivery_count == 0
    assert texts(client.receiver("bills").drain()) == ["bill"]
    stop_and_check(api, client)


def test_a_returned_message_may_die_again(api: Api, client: Client) -> None:
    """It has one set of annotations again. The same job does not return it a second time."""
    die(api, client, "orders", [data("1")])
    rejecting = client.receiver("orders", credit=10)
    name = give_back(api)
    rejecting.settle(rejecting.take(1), Delivery.REJECTED)
    assert ended(api, name).sent == 1
    client.wait(lambda: depth(api, "dead") == 1, "it is dead again")
    (dead,) = client.receiver("dead").drain()
    assert dead.annotations["x-opt-dead-reason"] == "rejected"
    assert dead.bare == data("1")


def test_a_selector_a_limit_and_a_target_choose(api: Api, client: Client) -> None:
    """A message that does not match, or is beyond the limit, stays. A target takes all that is returned."""
    die(api, client, "orders", [section(0x74, {"n": n}) + data(n) for n in range(10)])
    assert ended(api, give_back(api, selector="n >= 4", limit=3, target="queue://other")).sent == 3
    assert texts(client.receiver("other").drain()) == ["4", "5", "6"]
    assert ended(api, give_back(api, selector="n >= 4", target="topic://nobody/logs/it")).sent == 3
    assert texts(client.receiver("dead").drain()) == ["0", "1", "2", "3"]


def test_what_has_no_queue_to_go_back_to_stays_and_is_counted(api: Api, client: Client) -> None:
    """Messages stay if their endpoint was deleted, or if they do not name an endpoint."""
    api.make("/queues", {"queueName": "gone", "deadMsgQueue": "dead"})
    die(api, client, "gone", [data("1"), data("2")])
    api.delete("/queues/gone")
    client.sender("dead").send_all([data("3")])
    die(api, client, "orders", [data("4")])
    done = ended(api, give_back(api))
    assert done.outcome == (
        "1 message returned; 2 stay: there is no 'gone' any more; 1 stay: they do not say where they died"
    )
    assert depth(api, "dead") == 3
    assert texts(client.receiver("orders").drain()) == ["4"]
    # A publisher can forge the annotation: it is taken as the name of a queue only, never as a topic.
    for forged in (queue_topic("orders"), "orders/x", "topic://orders", ""):
        client.sender("dead").send_all([section(0x72, {"x-opt-dead-endpoint": forged}) + data(forged)])
    assert (ended(api, give_back(api)).sent, depth(api, "dead")) == (0, 7)


def test_what_died_on_a_topic_endpoint_goes_back_there_alone(api: Api, client: Client) -> None:
    """Other subscribers get no second copy, and no publisher can use this address. A replay is waited for."""
    subscription = "topic://a/>"
    client.receiver(subscription, name="mine", durable=True).detach()
    (te,) = [one["topicEndpointName"] for one in api.seen("/topicEndpoints")]
    changes = {"deadMsgQueue": "dead", "maxDeliveredUnackedMsgsPerFlow": 1}
    api.change(f"/topicEndpoints/{quote(te, safe='')}", changes)
    api.make_queue("other", "a/>")
    client.sender("topic://a/1").send_all([data("1"), data("2")])
    receiver = client.receiver(subscription, name="mine", durable=True, credit=2)
    for _ in range(2):
        receiver.settle(receiver.take(1), Delivery.REJECTED)
    receiver.detach()
    wait_until(lambda: depth(api, "dead") == 2, "they are dead")
    again = f"{subscription}?replay-start=beginning"
    replaying = client.receiver(again, name="mine", durable=True)
    name = give_back(api)
    wait_until(
        lambda: "is under way; messages that died" in record(api, name).outcome, "it waits for the replay"
    )
    replaying.flow(4)
    for _ in range(2):
        replaying.take_and_accept(1)
    assert ended(api, name).sent == 2
    assert depth(api, "other") == 2
    with pytest.raises(Refused, match="for the gateway only"):
        client.sender(f"topic://#topic-endpoint/{te}")
    assert [texts(replaying.take_and_accept(1)) for _ in range(2)] == [["1"], ["2"]]
    stop_and_check(api, client)


def test_what_a_consumer_has_in_delivery_is_left_alone(api: Api, client: Client) -> None:
    """The consumer settles it as usual; the job returns the rest."""
    die(api, client, "orders", [data(n) for n in range(10)])
    receiver = client.receiver("dead", credit=3)
    held = receiver.take(3)
    assert ended(api, give_back(api)).sent == 7
    assert depth(api, "dead") == 3
    receiver.settle(held)
    client.wait(lambda: depth(api, "dead") == 0, "it was settled")
    assert texts(client.receiver("orders").drain()) == [str(n) for n in range(3, 10)]


def test_a_full_queue_is_waited_for(api: Api, client: Client) -> None:
    """What does not fit goes back to the dead message queue, and is returned later when there is room."""
    die(api, client, "bills", [data(n) for n in range(20)])
    die(api, client, "bills", [data(n) for n in range(20, 40)])
    name = give_back(api)
    wait_until(lambda: "quota" in record(api, name).outcome, "it says what it waits for")
    assert (depth(api, "bills"), depth(api, "dead")) == (30, 10)
    found: list[Received] = []
    client.receiver("bills").collect(found, 40)
    assert texts(found) == [str(n) for n in range(40)]
    assert ended(api, name).sent == 40


def test_a_return_is_paused_and_goes_on_after_a_stop(api: Api, client: Client) -> None:
    """At any time each message is on exactly one of the two queues."""
    die(api, client, "orders", [data(n) for n in range(400)])
    name = give_back(api, rate=500)
    wait_until(lambda: record(api, name).sent, "it has begun")
    path = "/replayLogs/default"
    api.act(f"{path}/pauseReplay", {"replayName": name})
    sent = record(api, name).sent
    assert (depth(api, "orders"), depth(api, "dead")) == (sent, 400 - sent)
    api.act(f"{path}/resumeReplay", {"replayName": name})
    client.cut()
    api.restart()
    assert ended(api, name).sent == 400
    with Client(api.gateway.url) as reader:
        assert texts(reader.receiver("orders").drain()) == [str(n) for n in range(400)]
        stop_and_check(api, reader)


def test_dead_letters_are_counted_by_why_and_where(api: Api, client: Client) -> None:
    """By reason, by endpoint, or by both; messages without these annotations are a group, too."""
    die(api, client, "orders", [data(n) for n in range(300)])
    die(api, client, "bills", [data("1")])
    client.sender("dead").send_all([data("2"), data("3")])

    def groups(by: str) -> list[tuple[str, str, int]]:
        found = api.seen("/queues/dead/deadMsgs", by=by)
        return sorted((one["deadReason"], one["deadEndpointName"], one["msgCount"]) for one in found)

    assert groups("both") == [("", "", 2), ("rejected", "bills", 1), ("rejected", "orders", 300)]
    assert groups("reason") == [("", "", 2), ("rejected", "", 301)]
    assert groups("endpoint") == [("", "", 2), ("", "bills", 1), ("", "orders", 300)]


def test_what_cannot_be_returned_is_refused(api: Api, client: Client) -> None:
    """Nothing is returned, no consumer of an exclusive queue is displaced, and the text says what is wrong."""
    api.make("/queues", {"queueName": "mine", "accessType": "exclusive"})
    client.receiver("mine")
    for queue, body, said in (
        ("nowhere", {}, "no queue"),
        ("dead", {"selector": "="}, "selector"),
        ("dead", {"target": "log://a"}, "nothing can be sent"),
        ("dead", {"limit": -1}, "limit"),
        ("dead", {"rate": -1}, "rate"),
        ("mine", {}, "one consumer"),
    ):
        error = api.refused("PUT", "action", f"/queues/{queue}/returnDead", body)
        assert said in error["description"], (queue, body)
