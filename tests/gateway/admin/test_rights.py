"""Which right each operation of administration declares, and what a user may do with which rules."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.routing import APIRoute

from gateway.admin import rights
from gateway.admin.administered_gateway import HttpClients
from gateway.admin.application import create_app, rights_needed
from gateway.admin.operations import LazyRoute
from gateway.config import AdminListener, User, Vpn, token_hash
from tests.gateway.admin.conftest import HASH, QUEUES, Api, EmptyGateway, Serve
from tests.support.client import Client
from tests.support.messages import data

OPEN = {"/healthz", "/readyz", "/openapi.json", "/session"}
"""Paths that need no right."""

RIGHTS = [right for right in vars(rights).values() if isinstance(right, rights.Right)]
"""All rights."""


def operations() -> list[APIRoute | LazyRoute]:
    """All routes of the application."""
    gateway = EmptyGateway()
    app = create_app(gateway, AdminListener, HttpClients(gateway))
    return [route for route in app.routes if isinstance(route, APIRoute | LazyRoute)]


def declared(route: APIRoute | LazyRoute) -> list[rights.Right]:
    """The rights that a route declares."""
    checks = [depends.dependency for depends in route.dependencies]
    return [right for right in RIGHTS if right.check in checks]


def test_every_operation_declares_one_right() -> None:
    """
    Only the paths in OPEN need no right, and every right is needed somewhere. The reference (docs/reference/http.md)
    lists the right of each operation.
    """
    found = {(min(route.methods), route.path): declared(route) for route in operations()}
    needed = {operation: declared for operation, declared in found.items() if declared}
    assert len(needed) > 50
    assert {path for _, path in found.keys() - needed.keys()} == OPEN
    assert needed == {operation: [right] for operation, right in rights_needed().items()}
    assert all(right.demands for (right,) in needed.values())
    assert {id(right) for (right,) in needed.values()} == set(map(id, RIGHTS))


# --- What a user may do with which rules ----------------------------------------------------------------------------


def user(*administer: str, **lists: Any) -> User:
    return User(password=HASH, **{"administer": administer, **lists})


MINE = "queue://mine*"
USERS = {
    "root": user("queue://*", "topic://>", "log://>", global_access="read-write"),
    "guest": User(password=HASH),
    "outside": user("queue://*", "log://>", vpns=()),
    "clerk": user(MINE),
    "reader": user(MINE, consume=("topic://a/>", "!topic://a/secret")),
    "log": user(MINE, consume=("log://a/>",)),
    "owner": user(MINE, "topic://a/>"),
    "sender": user(MINE, "topic://a/>", publish=("queue://dead",)),
    "undertaker": user(MINE, "queue://dead", "topic://a/>"),
    "writer": User(password=HASH, publish=("queue://q",)),
    "token": User(token=token_hash("the-token"), consume=("log://>",)),
}


@pytest.fixture
def api(serve: Serve) -> Api:
    """The administration of a gateway with these users, two queues and two topic endpoints."""
    api = serve(users=USERS)
    sign_in(api, "root")
    for name in ("mine", "victim"):
        api.make("/queues", {"queueName": name})
    for name, topic in (("te", "a/b"), ("theirs", "b/1")):
        api.make("/topicEndpoints", {"topicEndpointName": name, "topic": topic})
    return api


def sign_in(api: Api, name: str, password: str = "secret") -> None:
    """Send further requests as this user; without a name, as nobody."""
    api.http.auth = (name, password) if name else None


SUBSCRIPTIONS = "/queues/mine/subscriptions"
ASKED: tuple[tuple[str, str, str, str, dict[str, Any] | None, int], ...] = (
    # Without a password it is 401; with one, 403 unless the user's `administer` rules permit it.
    ("", "POST", "config", "/queues", {"queueName": "mine1"}, 401),
    ("nobody", "POST", "config", "/queues", {"queueName": "mine1"}, 401),
    ("guest", "POST", "config", "/queues", {"queueName": "mine1"}, 403),
    ("outside", "POST", "config", "/queues", {"queueName": "mine1"}, 403),
    ("clerk", "POST", "config", "/queues", {"queueName": "mine1"}, 200),
    ("clerk", "POST", "config", "/queues", {"queueName": "yours"}, 403),
    ("clerk", "GET", "monitor", "/queues/mine1", None, 200),
    ("clerk", "GET", "monitor", "/queues/victim", None, 403),
    ("clerk", "GET", "monitor", "/queues", None, 403),
    ("clerk", "GET", "monitor", "/replayLogs", None, 403),
    # The rules for its topic apply to a topic endpoint, for the old topic and for a new one.
    ("owner", "GET", "monitor", "/topicEndpoints/te", None, 200),
    ("owner", "GET", "monitor", "/topicEndpoints/theirs", None, 403),
    ("owner", "GET", "monitor", "/topicEndpoints/none", None, 403),
    ("owner", "GET", "monitor", "/topicEndpoints", None, 403),
    ("owner", "PUT", "action", "/topicEndpoints/te/startReplay", {}, 200),
    ("owner", "PUT", "action", "/topicEndpoints/theirs/startReplay", {}, 403),
    ("owner", "PUT", "action", "/topicEndpoints/none/startReplay", {}, 403),
    ("owner", "PATCH", "config", "/topicEndpoints/te", {"maxBindCount": 2}, 200),
    ("owner", "PATCH", "config", "/topicEndpoints/theirs", {"maxBindCount": 2}, 403),
    ("owner", "PATCH", "config", "/topicEndpoints/none", {"maxBindCount": 2}, 403),
    ("owner", "PATCH", "config", "/topicEndpoints/te", {"topic": "b/1"}, 403),
    ("owner", "PATCH", "config", "/topicEndpoints/te", {"topic": "a/2"}, 200),
    # Who administers a queue receives from it: a subscription needs the right to read what it attracts.
    ("clerk", "POST", "config", SUBSCRIPTIONS, {"subscriptionTopic": ">"}, 403),
    ("clerk", "POST", "config", SUBSCRIPTIONS, {"subscriptionTopic": "a/b"}, 403),
    ("clerk", "POST", "config", SUBSCRIPTIONS, {"subscriptionTopic": "#queue/victim"}, 403),
    ("clerk", "POST", "config", SUBSCRIPTIONS, {"subscriptionTopic": "!a/b"}, 200),
    ("reader", "POST", "config", SUBSCRIPTIONS, {"subscriptionTopic": ">"}, 403),
    ("reader", "POST", "config", SUBSCRIPTIONS, {"subscriptionTopic": "a/secret"}, 403),
    ("reader", "POST", "config", SUBSCRIPTIONS, {"subscriptionTopic": "a/>"}, 403),
    ("reader", "POST", "config", SUBSCRIPTIONS, {"subscriptionTopic": "a/b"}, 200),
    ("log", "POST", "config", SUBSCRIPTIONS, {"subscriptionTopic": "#queue/victim"}, 403),
    ("log", "POST", "config", SUBSCRIPTIONS, {"subscriptionTopic": "a/>"}, 200),
    ("owner", "POST", "config", SUBSCRIPTIONS, {"subscriptionTopic": ">"}, 403),
    ("owner", "POST", "config", SUBSCRIPTIONS, {"subscriptionTopic": "a/*"}, 200),
    ("root", "POST", "config", SUBSCRIPTIONS, {"subscriptionTopic": ">"}, 200),
    ("root", "POST", "config", SUBSCRIPTIONS, {"subscriptionTopic": "#queue/victim"}, 200),
    ("root", "POST", "config", SUBSCRIPTIONS, {"subscriptionTopic": "!a/secret"}, 200),
    # Removing an exception attracts messages, so it needs that right; removing a subscription does not.
    ("clerk", "DELETE", "config", f"{SUBSCRIPTIONS}/%21a%2Fb", None, 403),
    ("reader", "DELETE", "config", f"{SUBSCRIPTIONS}/%21a%2Fb", None, 200),
    ("reader", "DELETE", "config", f"{SUBSCRIPTIONS}/%21a%2Fsecret", None, 403),
    ("clerk", "DELETE", "config", f"{SUBSCRIPTIONS}/a%2F%3E", None, 200),
    # An unchanged dead message queue needs no right: a request may repeat it.
    ("root", "PATCH", "config", "/queues/mine", {"deadMsgQueue": "dead"}, 200),
    ("clerk", "PATCH", "config", "/queues/mine", {"deadMsgQueue": "dead", "maxBindCount": 2}, 200),
)


def test_each_user_does_what_his_rules_permit_and_nothing_else(api: Api) -> None:
    """One request after the other; a refused request changes nothing."""
    for name, method, tree, path, body, status in ASKED:
        sign_in(api, name)
        answer = api.ask(method, tree, path, body)
        assert answer.status_code == status, (name, method, path, body, answer.text)
    sign_in(api, "clerk", "wrong")
    assert api.ask("POST", "config", "/queues", {"queueName": "mine2"}).status_code == 401
    sign_in(api, "root")
    assert [queue["queueName"] for queue in api.seen("/queues")] == ["dead", "mine", "mine1", "victim"]
    kept = [one["subscriptionTopic"] for one in api.done("GET", "config", SUBSCRIPTIONS)]
    assert kept == ["!a/secret", "#queue/victim", ">", "a/*", "a/b"]
    assert api.seen("/topicEndpoints/te")["topic"] == "a/2"


def test_half_a_character_is_no_error_of_ours(api: Api) -> None:
    """A name in a body that is not valid Unicode is refused like any other name."""
    sign_in(api, "clerk")
    for body in (b'{"queueName": "\\ud800"}', b'{"queueName": "mine2", "deadMsgQueue": "\\ud800"}'):
        answer = api.http.post(QUEUES, content=body, headers={"Content-Type": "application/json"})
        assert (answer.status_code, "queue://\\\\ud800" in answer.text) == (403, True), answer.text


def test_health_is_open_to_everybody(api: Api) -> None:
    """Health probes need no password; other refusals say how to authenticate."""
    sign_in(api, "")
    assert api.http.get("/healthz").status_code == 200
    refused = api.ask("GET", "monitor", "/queues")
    assert refused.headers["www-authenticate"].startswith("Basic")
    assert refused.json()["meta"]["error"]["status"] == "UNAUTHORIZED"


def test_a_dead_message_queue_is_one_that_may_be_sent_to(api: Api) -> None:
    """Setting a dead message queue needs the right to publish to it, or to administer it."""
    for method, path, body in (
        ("POST", "/queues", {"queueName": "mine2"}),
        ("PATCH", "/queues/mine", {}),
        ("PATCH", "/topicEndpoints/te", {}),
    ):
        for name, is_permitted in (("owner", False), ("sender", True), ("undertaker", True)):
            sign_in(api, name)
            for queue in ("victim", "dead"):
                answer = api.ask(method, "config", path, {**body, "deadMsgQueue": queue})
                expected = 200 if is_permitted and queue == "dead" else 403
                assert answer.status_code == expected, (method, path, name, queue, answer.text)
            if is_permitted and method == "POST":
                api.delete("/queues/mine2")
        sign_in(api, "root")
        if method == "PATCH":
            api.done(method, "config", path, {"deadMsgQueue": ""})


def test_a_message_that_is_copied_may_be_read(api: Api) -> None:
    """To copy a logged message to a queue, a user must be able to read it, or a replay of the queue must include it."""
    with Client(api.gateway.url, user=("guest", "secret")) as guest:
        for address in ("topic://a/1", "topic://b/1", "victim"):
            guest.sender(address).send_all([data(address)])
    ids = {one["topic"]: one["replicationGroupMsgId"] for one in api.seen("/replayLogs/default/msgs")}

    def copied(name: str, topic: str) -> int:
        sign_in(api, name)
        body = {"replicationGroupMsgId": ids[topic]}
        return api.ask("PUT", "action", "/queues/mine/copyMsgFromReplayLog", body).status_code

    assert [copied("clerk", topic) for topic in ids] == [403, 403, 403]
    assert [copied("log", topic) for topic in ids] == [200, 403, 403]
    assert copied("root", "#queue/victim") == 200
    api.make(SUBSCRIPTIONS, {"subscriptionTopic": "b/>"})
    assert copied("clerk", "b/1") == 200


GATEWAY = (
    ("GET", "/SEMP/v2/config/msgVpns", {}),
    ("GET", "/SEMP/v2/monitor/msgVpns", {}),
    ("GET", "/metrics", {}),
    ("POST", "/SEMP/v2/config/msgVpns", {"msgVpnName": "b"}),
    ("DELETE", "/SEMP/v2/config/msgVpns/b", {}),
    ("PUT", "/SEMP/v2/action/reload", {}),
)


def test_the_gateway_as_a_whole_takes_a_right_of_its_own(serve: Serve) -> None:
    """Rules for one Message VPN, however broad, permit nothing on the gateway or on another Message VPN."""
    accesses = {"none": 0, "read-only": 3, "read-write": len(GATEWAY)}
    everything = ("log://>", "queue://>", "topic://>")
    users = {name: user(*everything, vpns=("a",), global_access=name) for name in accesses}
    api = serve(users=users, vpns={"a": Vpn(), "c": Vpn()})
    for name, permitted in accesses.items():
        sign_in(api, name)
        answers = [api.http.request(method, path, json=body) for method, path, body in GATEWAY]
        found = [answer.status_code != 403 for answer in answers]
        assert found == [number < permitted for number in range(len(GATEWAY))], name
        assert api.http.get("/SEMP/v2/config/msgVpns/a").status_code == 200
        for other in ("/SEMP/v2/config/msgVpns/default", "/SEMP/v2/config/msgVpns/c"):
            assert api.http.get(other).status_code == 403
            assert api.http.patch(other, json={"enabled": False}).status_code == 403


# --- Reading and publishing over HTTP: the same users and rights as over AMQP ----------------------------------------


def read(api: Api, subscribe: str = ">") -> int:
    return api.http.get("/v1/log", params={"subscribe": subscribe}).status_code


def publish(api: Api, address: str = "q") -> int:
    return api.http.post("/v1/publish", params={"address": address}, content='{"body":"x"}').status_code


def test_who_has_the_least_learns_and_does_nothing(api: Api) -> None:
    """However the address is written, the user learns nothing and creates no queue."""
    sign_in(api, "writer")
    for subscribe in (">", "a/>", "#queue/q", "!a", "*", "a/b"):
        assert read(api, subscribe) == 403
    for queue in (
        "r",
        "queue://r",
        "/queues/r",
        "topic://#queue/r",
        "r?create=always",
        "topic://q",
        "amqp://h/r",
    ):
        assert publish(api, queue) in (400, 403), queue
    sign_in(api, "root")
    assert [queue["queueName"] for queue in api.seen("/queues")] == ["mine", "victim"]


def test_who_is_not_known_or_may_not_enter_neither_reads_nor_publishes(api: Api) -> None:
    """By password or token. What known users may do is tested with AMQP's rights (tests/gateway/permissions)."""
    for name, status in (("outside", 403), ("nobody", 401), ("", 401)):
        sign_in(api, name)
        assert (read(api), publish(api)) == (status, status), name
    api.http.headers["Authorization"] = "Bearer the-token"
    assert (read(api), publish(api)) == (200, 403)
    api.http.headers["Authorization"] = "Bearer another"
    assert read(api) == 401


def test_a_client_without_a_name_is_the_user_for_those(serve: Serve) -> None:
    """From this machine, if the user `anonymous` is configured; a wrong password does not fall back to it."""
    api = serve(users={**USERS, "anonymous": User(consume=("log://a/>",))})
    assert (read(api), read(api, "a/>"), publish(api)) == (403, 200, 403)
    assert api.http.get("/SEMP/v2/monitor/msgVpns").status_code == 401
    sign_in(api, "reader", "wrong")
    assert read(api, "a/>") == 401
