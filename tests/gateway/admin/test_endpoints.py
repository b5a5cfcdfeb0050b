"""Queues, topic endpoints and subscriptions over HTTP, as an AMQP client sees them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from amqp_ext.codec import Symbol, UByte
from gateway.config import ConfigError, Listener, Queue, ReplayLog, Vpn, parse, read
from store.errors import StoreError
from tests.gateway.admin.conftest import LOG, Administer, Api, Serve
from tests.support.client import Client, texts
from tests.support.management import Pair, declaration
from tests.support.messages import APPLICATION_PROPERTIES, HEADER, MESSAGE_ANNOTATIONS, data, section
from tests.support.running import ConfigurationFile, RunningGateway, settings_for

# --- Queues, topic endpoints and subscriptions over HTTP, and what an AMQP client sees of it ------------------------


def test_a_queue_with_subscriptions_attracts_what_they_say(
    api: Api, client: Client, gateway: RunningGateway
) -> None:
    """A queue with a subscription and an exception, also after a restart."""
    api.make("/queues", {"queueName": "o/r", "accessType": "exclusive", "maxMsgCount": 5})
    for topic in ("a/>", "!a/secret"):
        api.make("/queues/o%2Fr/subscriptions", {"subscriptionTopic": topic})
    client.sender("topic://a/open").send_all([data("seen")])
    client.sender("topic://a/secret").send_all([data("unseen")])
    assert texts(client.receiver("queue://o/r").drain()) == ["seen"]
    client.close()
    api.restart()
    shown = api.done("GET", "config", "/queues/o%2Fr")
    assert (shown["accessType"], shown["exclusivity"], shown["maxMsgCount"]) == ("exclusive", "wait", 5)
    listed = api.done("GET", "config", "/queues/o%2Fr/subscriptions")
    assert [one["subscriptionTopic"] for one in listed] == ["!a/secret", "a/>"]
    api.delete("/queues/o%2Fr/subscriptions/a%2F%3E")
    assert gateway.subscriptions("o/r") == ["!a/secret"]
    api.delete("/queues/o%2Fr")
    assert gateway.endpoints() == set()


def test_a_limit_changed_live_holds_for_the_next_message(api: Api, client: Client) -> None:
    """A quota set with PATCH applies to the next message, and changes nothing else of the queue."""
    api.make("/queues", {"queueName": "q", "maxBindCount": 3})
    client.sender("q").send_all([data(1)])
    changed = api.change("/queues/q", {"maxMsgCount": 1})
    assert (changed["maxMsgCount"], changed["maxBindCount"]) == (1, 3)
    sender = client.sender("q")
    delivery = sender.send(data(2))
    client.wait(lambda: sender.outcome(delivery) is not None, "settled")
    assert sender.outcome(delivery) == "REJECTED"
    assert api.queue("q")["spooledMsgCount"] == 1


def _delayed(text: str, delay_ms: int) -> bytes:
    return section(MESSAGE_ANNOTATIONS, {Symbol("x-opt-delivery-delay"): delay_ms}) + data(text)


HOUR_MS = 3_600_000


def test_what_waits_for_its_time_is_listed_and_cancelled(api: Api, client: Client) -> None:
    """Delayed messages are listed by delivery time. One that is cancelled is not delivered, and stays in the log."""
    later = [_delayed(str(hours), hours * HOUR_MS) for hours in (3, 1, 2)]
    client.sender("q").send_all([data("now"), *later])
    state = api.queue("q")
    assert (state["spooledMsgCount"], state["delayedMsgCount"]) == (1, 3)
    assert state["delayedMsgUsage"] > 0
    path = "/queues/q/delayedMsgs"
    first, second = api.pages("monitor", path, count=2)
    assert [one["msgId"] for one in (*first, *second)] == [3, 4, 2]
    assert abs(first[1]["deliveryTimeMs"] - first[0]["deliveryTimeMs"] - HOUR_MS) < 60_000
    refused = api.refused("GET", "monitor", path, where="msgId>1")
    assert "`where` does not select" in refused["description"]
    body = {"replicationGroupMsgId": first[0]["replicationGroupMsgId"]}
    api.act("/queues/q/cancelDelayedMsg", body)
    assert [one["msgId"] for one in api.seen(path)] == [4, 2]
    assert api.queue("q")["delayedMsgCount"] == 2
    again = api.refused("PUT", "action", "/queues/q/cancelDelayedMsg", body)
    assert again["status"] == "NOT_FOUND"
    assert "message 3 is not delayed on 'q'" in again["description"]
    assert api.seen(path)[0] | {"deliveryCount": 0, "isRetry": False} == api.seen(path)[0]
    api.act("/queues/q/releaseDelayedMsg", {"replicationGroupMsgId": second[0]["replicationGroupMsgId"]})
    assert (api.queue("q")["spooledMsgCount"], api.queue("q")["delayedMsgCount"]) == (2, 1)
    assert api.refused("PUT", "action", "/queues/q/releaseDelayedMsg", body)["status"] == "NOT_FOUND"
    log = client.receiver("log://>", filters={"rewind:replay-start": "beginning"}, credit=5)
    assert texts(log.take(4)) == ["now", "3", "1", "2"]
    # A purge deletes delayed messages, too, and counts them.
    assert api.act("/queues/q/deleteMsgs", {})["deletedMsgCount"] == 3
    assert api.queue("q")["delayedMsgCount"] == 0
    assert api.seen(path) == []


def test_the_newest_values_are_listed_and_deleted(api: Api, client: Client) -> None:
    """In the order of the log, page by page, or by key; a long key is cut. A plain queue has no values."""
    api.make_queue("v", "p/>", kind="last-value", valueKey="k", maxMsgCount=100)
    long = "x" * 60_000
    sent = [("a", "1"), (long, "2"), ("b", "3"), ("a", "4")]
    client.sender("topic://p/a").send_all(
        section(APPLICATION_PROPERTIES, {"k": key}) + data(text) for key, text in sent
    )
    path = "/queues/v/values"
    first, second = api.pages("monitor", path, count=2)
    found = [(one["key"], one["isKeyCut"], one["msgId"]) for one in (*first, *second)]
    assert found == [("x" * 1_000, True, 2), ("b", False, 3), ("a", False, 4)]
    assert [one["msgId"] for one in api.seen(path, key="b")] == [3]
    assert api.seen(path, key="c") == []
    assert [one["msgId"] for one in api.seen("/queues/v/msgs")] == [2, 3, 4]
    state = api.queue("v")
    assert (state["kind"], state["valueKey"], state["spooledMsgCount"]) == ("last-value", "k", 3)
    api.act("/queues/v/deleteValue", {"replicationGroupMsgId": first[0]["replicationGroupMsgId"]})
    api.act("/queues/v/deleteValue", {"key": "b"})
    assert [one["key"] for one in api.seen(path)] == ["a"]
    for body, status in (({"key": "b"}, "NOT_FOUND"), ({}, "INVALID_PARAMETER")):
        assert api.refused("PUT", "action", "/queues/v/deleteValue", body)["status"] == status
    assert "name a `key`" in api.refused("GET", "monitor", path, where="msgId>1")["description"]
    api.make("/queues", {"queueName": "q"})
    assert api.seen("/queues/q/values") == []
    assert api.act("/queues/v/deleteMsgs", {})["deletedMsgCount"] == 1
    assert api.queue("v")["spooledMsgCount"] == 0


def test_what_is_purged_is_in_the_log_and_can_be_copied_into_its_place(api: Api, client: Client) -> None:
    """A copy of an old message is delivered before newer ones, and can be made once; a replay has all of them."""
    sender = client.sender("q")
    sender.send_all([data(i) for i in range(5)])
    first = str(api.seen(f"{LOG}/msgs/1")["replicationGroupMsgId"])
    assert api.act("/queues/q/deleteMsgs", {}) == {"deletedMsgCount": 5}
    sender.send_all([data("new")])
    wanted = {"replicationGroupMsgId": first}
    api.act("/queues/q/copyMsgFromReplayLog", wanted)
    assert "message 1 is on 'q' already" in api.why("PUT", "action", "/queues/q/copyMsgFromReplayLog", wanted)
    assert texts(client.receiver("q").drain()) == ["0", "new"]
    api.act("/queues/q/startReplay", {})
    assert len(client.receiver("q").drain()) == 6


def test_the_topic_of_a_topic_endpoint_is_changed_while_nobody_consumes(api: Api, client: Client) -> None:
    """Messages by the old topic stay; the new one attracts from now on. With a consumer, a change is refused."""
    te = "/topicEndpoints/te"
    api.make("/topicEndpoints", {"topicEndpointName": "te", "topic": "a/>"})
    client.sender("topic://a/1").send_all([data("old")])
    assert (api.seen(te)["topicEndpointName"], api.seen(te)["spooledMsgCount"]) == ("te", 1)
    assert api.seen("/queues") == [], "it is listed apart from queues"
    assert api.change(te, {"topic": "b/>", "maxBindCount": 1})["topic"] == "b/>"
    client.sender("topic://a/1").send_all([data("unseen")])
    client.sender("topic://b/1").send_all([data("new")])
    receiver = client.receiver("topic://b/>", name="te", durable=True)
    assert texts(receiver.drain()) == ["old", "new"]
    error = api.refused("PATCH", "config", te, {"topic": "c/>"})
    assert error["code"] == 89
    assert "has a consumer" in error["description"]
    assert api.done("GET", "config", te)["topic"] == "b/>"


def test_lists_are_paged_chosen_and_cut(api: Api) -> None:
    """All pages together have every queue once; `where` and `select` work; the total count is there."""
    for i in range(23):
        api.make("/queues", {"queueName": f"q{i:02}", "maxBindCount": i})
    pages = api.pages("config", "/queues", count=10, select="queueName")
    assert [one for page in pages for one in page] == [{"queueName": f"q{i:02}"} for i in range(23)]
    assert api.ask("GET", "config", "/queues", count=10).json()["meta"]["count"] == 23
    chosen = api.done("GET", "config", "/queues", where="queueName==q1*,maxBindCount>=17", select="queueName")
    assert chosen == [{"queueName": "q17"}, {"queueName": "q18"}, {"queueName": "q19"}]


def test_what_the_configuration_declares_is_changed_there(serve: Serve) -> None:
    """A queue that the configuration declares is not changed or deleted over HTTP: the next start would undo it."""
    api = serve(Vpn(queues={"d": Queue()}))
    for method, path, body in (
        ("PATCH", "/queues/d", {"maxBindCount": 1}),
        ("DELETE", "/queues/d", None),
        ("POST", "/queues/d/subscriptions", {"subscriptionTopic": "a"}),
    ):
        assert "configuration" in api.why(method, "config", path, body)


WRONG: tuple[tuple[str, str, Any, str, str], ...] = (
    ("GET", "/queues/none", None, "NOT_FOUND", "no queue 'none'"),
    ("POST", "/queues", {"queueName": "q"}, "ALREADY_EXISTS", "exists already"),
    ("POST", "/queues", {}, "MISSING_PARAMETER", "'queueName' is missing"),
    ("POST", "/queues", {"queueName": "a>b"}, "INVALID_PARAMETER", "queueName"),
    ("POST", "/queues", {"queueName": "r", "colour": 1}, "INVALID_PARAMETER", "allowed here: accessType"),
    ("PATCH", "/queues/q", {"maxBindCount": "5"}, "INVALID_PARAMETER", "maxBindCount"),
    ("PATCH", "/queues/q", {"maxBindCount": -1}, "INVALID_PARAMETER", "greater than or equal to 0"),
    ("PATCH", "/queues/q", {"deadMsgQueue": "q"}, "INVALID_PARAMETER", "its own dead message queue"),
    ("POST", "/queues", {"queueName": "r", "deadMsgQueue": "r"}, "INVALID_PARAMETER", "name another"),
    ("PATCH", "/queues/q", {"accessType": "both"}, "INVALID_PARAMETER", "'exclusive' or 'non-exclusive'"),
    (
        "PATCH",
        "/queues/q",
        {"respectMsgPriorityEnabled": True},
        "NOT_ALLOWED",
        "when the endpoint is created",
    ),
    ("DELETE", "/queues/q/subscriptions/x", None, "NOT_FOUND", "no subscription 'x'"),
    ("POST", "/replayPoints", {"replayPointName": "p", "start": "soon"}, "INVALID_PARAMETER", "'soon'"),
    ("PATCH", LOG, {"topicFilterEnabled": True}, "NOT_ALLOWED", "log nothing"),
    ("GET", "/replayLogs/other", None, "NOT_FOUND", "named 'default'"),
    (
        "POST",
        "/topicEndpoints",
        {"topicEndpointName": "t", "topic": "!a"},
        "INVALID_PARAMETER",
        "an exception",
    ),
    ("PATCH", "/topicEndpoints/te", {"topic": "!a"}, "INVALID_PARAMETER", "is an exception"),
)
CODES = {
    "NOT_FOUND": 6,
    "ALREADY_EXISTS": 10,
    "INVALID_PARAMETER": 11,
    "NOT_ALLOWED": 89,
    "MISSING_PARAMETER": 228,
}
"""The error codes of Solace."""


def test_what_is_wrong_is_named(api: Api) -> None:
    """A wrong name, type, range or state is status 400, with the attribute and what is allowed."""
    api.make_queue("q", "a>/b>")
    api.make("/topicEndpoints", {"topicEndpointName": "te", "topic": "a/>"})
    for method, path, body, status, says in WRONG:
        error = api.refused(method, "config", path, body)
        assert (error["status"], error["code"]) == (status, CODES[status]), (method, path, body)
        assert says in error["description"], (method, path, body)


# --- Dead message queues that would bring dead messages back are refused everywhere ---------------------------------

CIRCLE = "'a' to 'b' to 'a'"


def test_over_http(api: Api) -> None:
    """When a queue is created or changed, and by a subscription to what is sent to a dead message queue."""
    api.make_queue("a", deadMsgQueue="b")
    for method, path, body in (
        ("PATCH", "/queues/b", {"deadMsgQueue": "a"}),
        ("POST", "/queues/a/subscriptions", {"subscriptionTopic": "#queue/b"}),
        ("POST", "/queues/a/subscriptions", {"subscriptionTopic": "#queue/>"}),
    ):
        refused = api.refused(method, "config", path, body)
        assert refused["status"] == "INVALID_PARAMETER"
        assert "would come back to it, from " in refused["description"]
    api.delete("/queues/b")
    body = {"queueName": "b", "deadMsgQueue": "a"}
    assert "from 'b' to 'a' to 'b'" in api.why("POST", "config", "/queues", body)
    api.make_queue("b", deadMsgQueue="c")
    api.make_queue("d", deadMsgQueue="a")
    assert "'c' to 'a'" in api.why("PATCH", "config", "/queues/c", {"deadMsgQueue": "a"})
    assert api.done("GET", "config", "/queues/a/subscriptions") == []
    body = {"topicEndpointName": "te", "topic": "#queue/d", "deadMsgQueue": "d"}
    assert "'te' to 'te'" in api.why("POST", "config", "/topicEndpoints", body)


def test_in_the_configuration() -> None:
    """Each circle is reported once, with the setting that closes it."""
    text = "".join(
        f"[vpn.default.queue.{one}]\ndead_message_queue = '{other}'\n" for one, other in ("ab", "bc", "ca")
    )
    with pytest.raises(ConfigError) as failed:
        parse(text)
    (problem,) = failed.value.problems
    assert problem.startswith(
        "vpn.default.queue.a.dead_message_queue brings dead messages back, from 'a' to 'b' to 'c'"
    )
    with pytest.raises(ConfigError, match="from 'a' to 'a'"):
        parse("[vpn.default.queue.a]\ndead_message_queue = 'd'\nsubscriptions = ['#queue/d']\n")


def test_by_a_configuration_beside_what_an_administrator_made(tmp_path: Path, administer: Administer) -> None:
    """The gateway refuses to start and says why; a reload refuses the change, and the queue stays as it is."""
    file = ConfigurationFile(tmp_path)
    said = "[vpn.default.queue.a]\ndead_message_queue = 'b'\n"
    with RunningGateway(read(file.path)) as gateway:
        api = administer(gateway)
        api.make_queue("b", deadMsgQueue="a")
        file.write(said)
        reloaded = gateway.run_coroutine(lambda running: running.reload())
        assert [CIRCLE in str(one) for one in reloaded.refused] == [True]
        assert api.done("GET", "config", "/queues/a")["deadMsgQueue"] == ""
    with pytest.raises(StoreError, match="would come back to it"):
        RunningGateway(read(file.path)).start()


def test_windows_of_ids_have_a_bound(tmp_path: Path, administer: Administer) -> None:
    """
    The sum of all dedup windows is limited: over HTTP, by the command line, in a reload and at a start. An age needs a
    window. A window that is made smaller makes room for another.
    """
    file = ConfigurationFile(tmp_path)
    said = "[vpn.default.queue.{}]\ndedup_window = {}\n".format
    file.write(said("a", 3_000_000) + said("b", 1))
    with RunningGateway(read(file.path)) as gateway:
        api = administer(gateway)
        api.make_queue("c", dedupWindow=900_000)
        for path, body, why in (
            ("/queues", {"queueName": "d", "dedupWindow": 100_000}, "the others have 3900001"),
            ("/queues", {"queueName": "d", "dedupWindowMs": 5}, "and no dedup_window: set the number"),
            ("/queues", {"queueName": "d", "dedupWindow": 4_000_001}, "4000000"),
        ):
            assert why in api.why("POST", "config", path, body)
        assert "dedup_window" in api.why(
            "PATCH", "config", "/queues/c", {"dedupWindowMs": 5, "dedupWindow": 0}
        )
        ran = api.rewind("queue", "create", "d", "--set", "dedupWindowMs=5")
        assert (ran.exit_code != 0, "set the number of messages" in ran.output) == (True, True)
        file.write(said("b", 200_000) + said("a", 3_000_000))
        (refused,) = gateway.run_coroutine(lambda running: running.reload()).refused
        assert "vpn.default.queue.b.dedup_window" in str(refused)
        file.write(said("b", 3_000_000) + said("a", 1))
        assert not gateway.run_coroutine(lambda running: running.reload()).refused
    file.write(said("b", 3_000_000) + said("a", 200_000))
    with pytest.raises(StoreError, match="more than 4000000"):
        RunningGateway(read(file.path)).start()


def test_as_rabbitmq_declares_queues(tmp_path: Path) -> None:
    """A declaration with a wrong argument is refused with the reason."""
    settings = settings_for(
        tmp_path,
        Vpn(queues={"a": Queue(dead_message_queue="b")}),  # type: ignore[call-arg]
        listeners=(Listener(port=0, rabbitmq_mode=True),),
    )
    with RunningGateway(settings) as gateway, Client(gateway.address) as client:
        pair = Pair(client)
        assert pair.ask("DELETE", "/queues/b")[0] == 200
        arguments = declaration(x_dead_letter_exchange="", x_dead_letter_routing_key="a")
        status, body = pair.ask("PUT", "/queues/b", arguments)
        assert (status, "would come back to it" in str(body)) == (400, True)
        assert gateway.endpoints() == {"a"}


# --- The messages on endpoints, as an administrator sees them -------------------------------------------------------


def on_endpoint(api: Api, name: str = "queues/q", count: int = 10) -> list[dict[str, Any]]:
    """All messages on an endpoint, read page by page."""
    return [one for page in api.pages("monitor", f"/{name}/msgs", count=count) for one in page]


def ids(api: Api, *more: Any) -> list[int]:
    return [one["msgId"] for one in on_endpoint(api, *more)]


@pytest.mark.parametrize("writes", [True, False])
def test_it_is_all_that_lies_there(serve: Serve, *, writes: bool) -> None:
    """The list has ready and unsettled messages, not settled ones, and takes nothing away. With and without a log."""
    api = serve(Vpn(replay_log=ReplayLog(write=writes)))
    with Client(api.gateway.url) as client:
        client.sender("q").send_all(data(i) for i in range(10))
        receiver = client.receiver("q")
        messages = receiver.drain()
        receiver.settle([messages[i] for i in (0, 1, 4, 8)])
        client.wait(lambda: api.queue("q")["spooledMsgCount"] == 6, "they are settled")
        found = on_endpoint(api, count=2)
        there = [3, 4, 6, 7, 8, 10]
        assert [(one["msgId"], one["isUnacked"]) for one in found] == [(i, True) for i in there]
        assert {one["deliveryCount"] for one in found} == {0}
        receiver.close()
        client.wait(lambda: api.queue("q")["txUnackedMsgCount"] == 0, "they are given back")
        found = on_endpoint(api, count=4)
        assert [(one["msgId"], one["isUnacked"]) for one in found] == [(i, False) for i in there]
        assert {one["deliveryCount"] for one in found} == {1}, (
            "delivery has failed, as the next header will say"
        )
        assert {one["topic"] for one in found} == {"#queue/q"}
        assert found[0]["contentSize"] == len(data(2))
        assert len(client.receiver("q").drain()) == 6


def test_it_is_by_age_whatever_the_priorities(api: Api, client: Client) -> None:
    """Each message once, the oldest first, also after messages of higher priority were settled."""
    api.make("/queues", {"queueName": "q", "respectMsgPriorityEnabled": True})
    client.sender("q").send_all(section(HEADER, [True, UByte(i % 10)]) + data(i) for i in range(30))
    receiver = client.receiver("q", credit=6)
    receiver.settle(receiver.take(6))
    client.wait(lambda: api.queue("q")["spooledMsgCount"] == 24, "they are settled")
    found = on_endpoint(api, count=7)
    assert [one["msgId"] for one in found] == [i for i in range(1, 31) if (i - 1) % 10 not in (9, 8)]
    assert all(one["priority"] == (one["msgId"] - 1) % 10 for one in found)


def test_what_a_replay_or_a_copy_put_there_is_in_its_place(api: Api, client: Client) -> None:
    """In the order of ids, between the messages that came by routes."""
    client.sender("topic://a").send_all(data(i) for i in range(5))
    client.sender("q").send_all([data("q")])
    third = api.seen(f"{LOG}/msgs/3")["replicationGroupMsgId"]
    api.act("/queues/q/copyMsgFromReplayLog", {"replicationGroupMsgId": third})
    assert ids(api) == [3, 6]
    api.make("/topicEndpoints", {"topicEndpointName": "te", "topic": "a"})
    api.act("/topicEndpoints/te/startReplay", {})
    client.sender("topic://a").send_all([data("live")])
    client.wait(lambda: len(on_endpoint(api, "topicEndpoints/te")) == 6, "it was replayed")
    assert ids(api, "topicEndpoints/te", 2) == [1, 2, 3, 4, 5, 7]


def test_the_oldest_is_known_by_its_time(api: Api, client: Client) -> None:
    """The oldest that is still there: with and without priorities, and after a copy; None when the queue is empty."""
    client.sender("topic://a").send_all([data("old")])
    api.make("/queues", {"queueName": "p", "respectMsgPriorityEnabled": True})
    times = {}
    for name in ("q", "p"):
        client.sender(name).send_all(section(HEADER, [True, UByte(9 - i)]) + data(i) for i in range(3))
        times[name] = [one["spooledTimeMs"] for one in on_endpoint(api, f"queues/{name}")]
        assert api.queue(name)["oldestMsgTimeMs"] == times[name][0]
        receiver = client.receiver(name, credit=1)
        receiver.settle(receiver.take(1))
        client.wait(lambda name=name: api.queue(name)["spooledMsgCount"] == 2, "it is settled")  # type: ignore[misc]
        assert api.queue(name)["oldestMsgTimeMs"] == times[name][1]
        receiver.close()
    old = api.seen(f"{LOG}/msgs/1")
    body = {"replicationGroupMsgId": old["replicationGroupMsgId"]}
    api.act("/queues/q/copyMsgFromReplayLog", body)
    assert api.queue("q")["oldestMsgTimeMs"] == old["spooledTimeMs"]
    api.act("/queues/q/deleteMsgs", {})
    assert api.queue("q")["oldestMsgTimeMs"] is None


def test_an_endpoint_with_nothing_has_an_empty_list(api: Api, client: Client) -> None:
    """Also after a purge, and for a stream. Something that is no endpoint has no list."""
    client.sender("q").send_all([data(0)])
    api.act("/queues/q/deleteMsgs", {})
    assert on_endpoint(api) == []
    api.make("/queues", {"queueName": "s", "kind": "stream"})
    assert on_endpoint(api, "queues/s") == []
    assert api.refused("GET", "monitor", "/queues/none/msgs")["status"] == "NOT_FOUND"
    assert api.refused("GET", "monitor", "/topicEndpoints/q/msgs")["status"] == "NOT_FOUND"
    assert api.refused("GET", "monitor", "/queues/q/msgs", where="msgId>1")["status"] == "INVALID_PARAMETER"


def test_one_message_says_all(serve: Serve) -> None:
    """Also without a log; a message of another queue is not found here."""
    api = serve(Vpn(replay_log=ReplayLog(write=False)))
    with Client(api.gateway.url) as client:
        client.sender("q").send_all([data("mine")])
        client.sender("other").send_all([data("theirs")])
        assert api.seen("/queues/q/msgs/1")["body"]["text"] == "mine"
        for message in (2, 3):
            assert api.refused("GET", "monitor", f"/queues/q/msgs/{message}")["status"] == "NOT_FOUND"
