"""Changing what an endpoint receives needs a second right, and an operation on the gateway needs global access."""

from __future__ import annotations

from urllib.parse import quote

import pytest

from amqp_ext.sasl import hash_password
from gateway.config import User, Vpn
from tests.gateway.admin.conftest import Administer, Api, Start
from tests.support.client import Client
from tests.support.messages import data

HASH = hash_password("secret", salt=b"0123456789abcdef", iterations=4096)
MINE = ("queue://mine*",)


def user(**lists: tuple[str, ...]) -> User:
    return User(password=HASH, **lists)  # type: ignore[arg-type]


@pytest.fixture
def api(start: Start, administer: Administer) -> Api:
    """The administration of a gateway with users."""
    users = {
        "root": user(administer=("queue://*", "topic://>", "log://>")),
        "clerk": user(administer=MINE),
        "reader": user(administer=MINE, consume=("topic://a/>", "!topic://a/secret")),
        "log": user(administer=MINE, consume=("log://a/>",)),
        "owner": user(administer=(*MINE, "topic://a/>")),
        "sender": user(administer=(*MINE, "topic://a/>"), publish=("queue://dead",)),
        "undertaker": user(administer=(*MINE, "queue://dead", "topic://a/>")),
    }
    api = administer(start(users=users))
    api.http.auth = ("root", "secret")
    for name in ("mine", "victim"):
        api.done("POST", "config", "/queues", {"queueName": name})
    api.done("POST", "config", "/topicEndpoints", {"topicEndpointName": "te", "topic": "a/b"})
    return api


@pytest.mark.parametrize(
    ("name", "topic", "is_permitted"),
    [
        ("clerk", ">", False),
        ("clerk", "a/b", False),
        ("clerk", "#queue/victim", False),
        ("clerk", "!a/b", True),
        ("reader", ">", False),
        ("reader", "a/b", True),
        ("reader", "a/secret", False),
        ("reader", "a/>", False),
        ("log", "a/>", True),
        ("log", "#queue/victim", False),
        ("owner", "a/>", True),
        ("owner", ">", False),
        ("root", ">", True),
        ("root", "#queue/victim", True),
    ],
)
def test_a_queue_is_subscribed_to_what_may_be_read(
    api: Api, name: str, topic: str, is_permitted: bool
) -> None:
    """Who administers a queue receives from it: its subscription takes the right to read what that brings."""
    api.http.auth = (name, "secret")
    path, body = "/queues/mine/subscriptions", {"subscriptionTopic": topic}
    answer = api.ask("POST", "config", path, body)
    assert answer.status_code == (200 if is_permitted else 403), answer.text
    api.http.auth = ("root", "secret")
    assert len(api.done("GET", "config", path)) == is_permitted


@pytest.mark.parametrize(
    ("name", "exception", "is_permitted"),
    [
        ("clerk", "!a/b", False),
        ("reader", "!a/b", True),
        ("reader", "!a/secret", False),
        ("clerk", "a/>", True),
    ],
)
def test_to_take_an_exception_away_is_to_subscribe(
    api: Api, name: str, exception: str, is_permitted: bool
) -> None:
    """What it kept off the queue comes then; a subscription that brings messages is taken away by anybody."""
    path = "/queues/mine/subscriptions"
    api.done("POST", "config", path, {"subscriptionTopic": exception})
    api.http.auth = (name, "secret")
    answer = api.ask("DELETE", "config", f"{path}/{quote(exception, safe='')}")
    assert answer.status_code == (200 if is_permitted else 403), answer.text


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/queues", {"queueName": "mine2"}),
        ("PATCH", "/queues/mine", {}),
        ("PATCH", "/topicEndpoints/te", {}),
    ],
)
def test_a_dead_message_queue_is_one_that_may_be_sent_to(
    api: Api, method: str, path: str, body: dict[str, str]
) -> None:
    """Where dead messages go, they are sent; who may administer that queue may have them sent there, too."""
    for name, is_permitted in (("owner", False), ("sender", True), ("undertaker", True)):
        api.http.auth = (name, "secret")
        for queue in ("victim", "dead"):
            answer = api.ask(method, "config", path, {**body, "deadMsgQueue": queue})
            expected = 200 if is_permitted and queue == "dead" else 403
            assert answer.status_code == expected, (name, queue, answer.text)
        if is_permitted and method == "POST":
            api.done("DELETE", "config", "/queues/mine2")


def test_what_is_there_is_no_new_dead_message_queue(api: Api) -> None:
    """Who changes something else may say what the queue has already."""
    api.done("PATCH", "config", "/queues/mine", {"deadMsgQueue": "dead"})
    api.http.auth = ("clerk", "secret")
    api.done("PATCH", "config", "/queues/mine", {"deadMsgQueue": "dead", "maxBindCount": 2})


def test_a_message_that_is_copied_may_be_read(start: Start, administer: Administer) -> None:
    """A message of the log is put on a queue by who may read it, or where a replay of the queue would bring it."""
    users = {
        "root": user(administer=("queue://*", "log://>")),
        "clerk": user(administer=MINE),
        "reader": user(administer=MINE, consume=("log://a/>",)),
        "ann": user(publish=("topic://>", "queue://victim")),
    }
    gateway = start(users=users)
    api = administer(gateway)
    api.http.auth = ("root", "secret")
    for name in ("mine", "victim"):
        api.done("POST", "config", "/queues", {"queueName": name})
    with Client(gateway.url, user=("ann", "secret")) as ann:
        for address in ("topic://a/1", "topic://b/1", "victim"):
            ann.sender(address).send_all([data(address)])
    logged = api.done("GET", "monitor", "/replayLogs/default/msgs")
    ids = {one["topic"]: one["replicationGroupMsgId"] for one in logged}
    path = "/queues/mine/copyMsgFromReplayLog"

    def copied(name: str, topic: str) -> int:
        api.http.auth = (name, "secret")
        return api.ask("PUT", "action", path, {"replicationGroupMsgId": ids[topic]}).status_code

    assert [copied("clerk", topic) for topic in ids] == [403, 403, 403]
    assert [copied("reader", topic) for topic in ids] == [200, 403, 403]
    assert copied("root", "#queue/victim") == 200
    api.done("POST", "config", "/queues/mine/subscriptions", {"subscriptionTopic": "b/>"})
    assert copied("clerk", "b/1") == 200


GATEWAY = (
    ("GET", "/SEMP/v2/config/msgVpns", {}),
    ("GET", "/SEMP/v2/monitor/msgVpns", {}),
    ("GET", "/metrics", {}),
    ("POST", "/SEMP/v2/config/msgVpns", {"msgVpnName": "b"}),
    ("DELETE", "/SEMP/v2/config/msgVpns/b", {}),
    ("PUT", "/SEMP/v2/action/reload", {}),
)


@pytest.mark.parametrize(
    ("access", "permitted"), [("none", 0), ("read-only", 3), ("read-write", len(GATEWAY))]
)
def test_the_gateway_as_a_whole_takes_a_right_of_its_own(
    start: Start, administer: Administer, access: str, permitted: int
) -> None:
    """A rule for one Message VPN is none for all of them, however much of that one it covers."""
    ann = User(
        password=HASH, vpns=("a",), administer=("log://>", "queue://>", "topic://>"), global_access=access
    )  # type: ignore[arg-type]
    api = administer(start(users={"ann": ann}, vpns={"a": Vpn(), "c": Vpn()}))
    api.http.auth = ("ann", "secret")
    answers = [api.http.request(method, path, json=body) for method, path, body in GATEWAY]
    assert [answer.status_code != 403 for answer in answers] == [
        number < permitted for number in range(len(GATEWAY))
    ], [answer.text[:200] for answer in answers]
    assert api.http.get("/SEMP/v2/config/msgVpns/a").status_code == 200
    for other in ("default", "c"):
        assert api.http.get(f"/SEMP/v2/config/msgVpns/{other}").status_code == 403
        assert api.http.patch(f"/SEMP/v2/config/msgVpns/{other}", json={"enabled": False}).status_code == 403
