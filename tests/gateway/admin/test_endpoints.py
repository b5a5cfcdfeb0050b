"""Queues, topic endpoints and subscriptions over HTTP, and what an AMQP client sees of it."""

from __future__ import annotations

import pytest

from gateway.config import Queue, Vpn
from tests.gateway.admin.conftest import Administer, Api, Start
from tests.support.client import Client, texts
from tests.support.messages import data
from tests.support.running import RunningGateway


def test_a_queue_with_subscriptions_attracts_what_they_say(
    api: Api, client: Client, gateway: RunningGateway, administer: Administer
) -> None:
    """A queue made over HTTP, with a subscription and an exception, is there for clients, over a restart too."""
    api.done("POST", "config", "/queues", {"queueName": "o/r", "accessType": "exclusive", "maxMsgCount": 5})
    for topic in ("a/>", "!a/secret"):
        api.done("POST", "config", "/queues/o%2Fr/subscriptions", {"subscriptionTopic": topic})
    client.sender("topic://a/open").send_all([data("seen")])
    client.sender("topic://a/secret").send_all([data("unseen")])
    assert texts(client.receiver("queue://o/r").drain()) == ["seen"]
    client.close()
    gateway.restart()
    again = administer(gateway)
    shown = again.done("GET", "config", "/queues/o%2Fr")
    assert (shown["accessType"], shown["exclusivity"], shown["maxMsgCount"]) == ("exclusive", "wait", 5)
    listed = again.done("GET", "config", "/queues/o%2Fr/subscriptions")
    assert [one["subscriptionTopic"] for one in listed] == ["!a/secret", "a/>"]
    again.done("DELETE", "config", "/queues/o%2Fr/subscriptions/a%2F%3E")
    assert gateway.subscriptions("o/r") == ["!a/secret"]
    again.done("DELETE", "config", "/queues/o%2Fr")
    assert gateway.endpoints() == set()


def test_a_limit_changed_live_holds_for_the_next_message(api: Api, client: Client) -> None:
    """A quota said with PATCH rejects what goes over it, and nothing else of the queue has changed."""
    api.done("POST", "config", "/queues", {"queueName": "q", "maxBindCount": 3})
    client.sender("q").send_all([data(1)])
    changed = api.done("PATCH", "config", "/queues/q", {"maxMsgCount": 1})
    assert (changed["maxMsgCount"], changed["maxBindCount"]) == (1, 3)
    sender = client.sender("q")
    delivery = sender.send(data(2))
    client.wait(lambda: sender.outcome(delivery) is not None, "settled")
    assert sender.outcome(delivery) == "REJECTED"
    assert api.queue("q")["spooledMsgCount"] == 1


def test_purging_drops_what_lies_there_and_the_log_keeps_it(
    api: Api, client: Client, gateway: RunningGateway
) -> None:
    """After deleteMsgs the queue is empty and takes new messages; its old ones can be replayed."""
    sender = client.sender("q")
    sender.send_all([data(i) for i in range(5)])
    assert api.done("PUT", "action", "/queues/q/deleteMsgs", {}) == {"deletedMsgCount": 5}
    sender.send_all([data("new")])
    assert texts(client.receiver("q").drain()) == ["new"]
    api.done("PUT", "action", "/queues/q/startReplay", {})
    assert len(client.receiver("q").drain()) == 6


def test_a_message_is_copied_into_its_place(api: Api, client: Client) -> None:
    """A logged message that was consumed is copied back before a younger one; a second copy is refused."""
    client.sender("q").send_all([data(0)])
    first = client.receiver("q")
    (received,) = first.drain()
    first.settle([received])
    first.close()
    client.wait(lambda: api.queue("q")["spooledMsgCount"] == 0, "acknowledged")
    client.sender("q").send_all([data(1)])
    wanted = {"replicationGroupMsgId": received.annotations["x-opt-replay-id"]}
    api.done("PUT", "action", "/queues/q/copyMsgFromReplayLog", wanted)
    assert "lies on" in api.refused("PUT", "action", "/queues/q/copyMsgFromReplayLog", wanted)["description"]
    assert texts(client.receiver("q").drain()) == ["0", "1"]


def test_a_topic_endpoint_is_taken_by_its_link(api: Api, client: Client) -> None:
    """A topic endpoint made over HTTP keeps messages, and is listed apart from queues."""
    api.done("POST", "config", "/topicEndpoints", {"topicEndpointName": "te", "topic": "a/>"})
    client.sender("topic://a/1").send_all([data("kept")])
    shown = api.done("GET", "monitor", "/topicEndpoints/te")
    assert (shown["topicEndpointName"], shown["spooledMsgCount"]) == ("te", 1)
    assert api.done("GET", "monitor", "/queues") == []


def test_the_topic_of_a_topic_endpoint_is_changed_while_nobody_consumes(api: Api, client: Client) -> None:
    """What came by the old topic stays, what comes by the new one is attracted; a consumer's topic is not changed."""
    te = "/topicEndpoints/te"
    api.done("POST", "config", "/topicEndpoints", {"topicEndpointName": "te", "topic": "a/>"})
    client.sender("topic://a/1").send_all([data("old")])
    assert api.done("PATCH", "config", te, {"topic": "b/>", "maxBindCount": 1})["topic"] == "b/>"
    client.sender("topic://a/1").send_all([data("unseen")])
    client.sender("topic://b/1").send_all([data("new")])
    receiver = client.receiver("topic://b/>", name="te", durable=True)
    assert texts(receiver.drain()) == ["old", "new"]
    error = api.refused("PATCH", "config", te, {"topic": "c/>"})
    assert error["code"] == 89
    assert "has a consumer" in error["description"]
    assert api.done("GET", "config", te)["topic"] == "b/>"


def test_errors_have_the_codes_of_solace(api: Api) -> None:
    """Each kind of mistake has Solace's number for it; a path or a method that is none is told in the same shape."""
    api.done("POST", "config", "/queues", {"queueName": "q"})
    for method, path, body, code in (
        ("GET", "/queues/none", None, 6),
        ("POST", "/queues", {"queueName": "q"}, 10),
        ("PATCH", "/queues/q", {"colour": 1}, 11),
        ("POST", "/queues", {}, 228),
        ("PATCH", "/queues/q", {"respectMsgPriorityEnabled": True}, 89),
    ):
        assert api.refused(method, "config", path, body)["code"] == code, (method, path, body)
    url = "/SEMP/v2/config/msgVpns/default/queues/q"
    broken = api.http.patch(url, content="{", headers={"Content-Type": "application/json"})
    assert broken.json()["meta"]["error"]["status"] == "PARSE_ERROR"
    for answer, status, name in (
        (api.http.get(f"{url}/colour"), 404, "NOT_FOUND"),
        (api.http.put(url), 405, "NOT_SUPPORTED"),
    ):
        assert (answer.status_code, answer.json()["meta"]["error"]["status"]) == (status, name)


def test_lists_are_paged_chosen_and_cut(api: Api) -> None:
    """Pages by cursor hold every queue once; `where` and `select` do what they say; the total is told."""
    for i in range(23):
        api.done("POST", "config", "/queues", {"queueName": f"q{i:02}", "maxBindCount": i})
    names: list[str] = []
    query = {"count": 10, "select": "queueName"}
    while True:
        answer = api.ask("GET", "config", "/queues", **query).json()
        names += [one["queueName"] for one in answer["data"]]
        assert answer["meta"]["count"] == 23
        if "paging" not in answer["meta"] or not answer["meta"]["paging"]:
            break
        query["cursor"] = answer["meta"]["paging"]["cursorQuery"]
    assert names == [f"q{i:02}" for i in range(23)]
    chosen = api.done("GET", "config", "/queues", where="queueName==q1*,maxBindCount>=17", select="queueName")
    assert chosen == [{"queueName": "q17"}, {"queueName": "q18"}, {"queueName": "q19"}]


def test_what_the_configuration_declares_is_changed_there(start: Start, administer: Administer) -> None:
    """A declared queue is neither changed nor deleted over HTTP: the next start would undo it."""
    api = administer(start(Vpn(queues={"d": Queue()})))
    for method, path, body in (
        ("PATCH", "/queues/d", {"maxBindCount": 1}),
        ("DELETE", "/queues/d", None),
        ("POST", "/queues/d/subscriptions", {"subscriptionTopic": "a"}),
    ):
        assert "configuration" in api.refused(method, "config", path, body)["description"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
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
        ("PATCH", "/queues/q", {"respectMsgPriorityEnabled": True}, "NOT_ALLOWED", "when it is made"),
        ("POST", "/queues/q/subscriptions", {"subscriptionTopic": "a>/b>"}, None, ""),
        ("DELETE", "/queues/q/subscriptions/x", None, "NOT_FOUND", "no subscription 'x'"),
        ("POST", "/replayPoints", {"replayPointName": "p", "start": "soon"}, "INVALID_PARAMETER", "'soon'"),
        ("PATCH", "/replayLogs/default", {"topicFilterEnabled": True}, "NOT_ALLOWED", "log nothing"),
        ("GET", "/replayLogs/other", None, "NOT_FOUND", "named 'default'"),
    ],
)
def test_what_is_wrong_is_named(
    api: Api, method: str, path: str, body: object, status: str | None, says: str
) -> None:
    """A wrong name, type, range or state is status 400 with a sentence that names the attribute and what is right."""
    api.done("POST", "config", "/queues", {"queueName": "q"})
    if status is None:
        api.done(method, "config", path, body)
        return
    error = api.refused(method, "config", path, body)
    assert error["status"] == status
    assert says in error["description"]


def test_a_client_is_shown_and_disconnected(api: Api, client: Client) -> None:
    """A consumer is seen as a flow and a client; disconnecting it closes its connection with the reason."""
    client.receiver("q")
    (flow,) = api.done("GET", "monitor", "/queues/q/txFlows")
    (shown,) = api.done("GET", "monitor", "/clients")
    assert flow["clientId"] == shown["clientId"]
    assert shown["linkCount"] == 1
    api.done("PUT", "action", f"/clients/{shown['clientId'].replace('#', '%23')}/disconnect", {})
    client.wait(lambda: client.connection.remote_condition, "closed by the gateway")
    assert client.connection.remote_condition.name == "amqp:connection:forced"
    assert "administrator" in client.connection.remote_condition.description
