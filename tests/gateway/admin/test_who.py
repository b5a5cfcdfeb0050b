"""Which endpoints a topic leads to, what a user may do, and what is configured."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from gateway.config import User
from tests.gateway.admin.conftest import HASH, Api, Serve


def matches(api: Api, topic: str) -> set[tuple[str, str, str]]:
    found = api.seen("/topicMatches", topic=topic, count=100)
    return {(one["endpointName"], one["endpointType"], one["subscriptionTopic"]) for one in found}


def test_who_would_get_a_topic(api: Api) -> None:
    """With the subscription that matches; an exception leaves an endpoint out; a queue's own topic leads to it."""
    for name, kind in (("q", "queue"), ("other", "queue"), ("s", "stream")):
        api.make("/queues", {"queueName": name, "kind": kind})
    for name, topic in (("q", "b"), ("q", "a/*"), ("other", "a/>"), ("other", "!a/no"), ("s", ">")):
        api.make(f"/queues/{name}/subscriptions", {"subscriptionTopic": topic})
    api.make("/topicEndpoints", {"topicEndpointName": "te", "topic": "*/b"})
    assert matches(api, "a/b") == {
        ("q", "queue", "a/*"),
        ("other", "queue", "a/>"),
        ("s", "stream", ">"),
        ("te", "topic-endpoint", "*/b"),
    }
    assert matches(api, "a/no") == {("q", "queue", "a/*"), ("s", "stream", ">")}
    assert matches(api, "#queue/q") == {("q", "queue", "#queue/q")}
    assert matches(api, "#queue/te") == set()
    assert matches(api, "c") == {("s", "stream", ">")}
    for topic in ("", "a//\0", "x" * 900):
        assert api.refused("GET", "monitor", "/topicMatches", topic=topic)["status"] == "INVALID_PARAMETER"
    assert api.refused("GET", "monitor", "/topicMatches")["status"] == "MISSING_PARAMETER"


def decision(api: Api, user: str, **query: Any) -> dict[str, Any]:
    answer = api.http.get(f"/SEMP/v2/monitor/users/{user}/decision", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["data"]
    return found


@pytest.fixture
def users(serve: Serve) -> Api:
    """The administration of a gateway with users; requests come from its administrator."""
    ann = User(
        password=HASH,
        consume=("topic://a/>", "!topic://a/no/>", "queue://q*"),
        publish=("topic://a/>",),
    )
    root, out = User(password=HASH, global_access="read-only"), User(password=HASH, vpns=())
    api = serve(users={"root": root, "ann": ann, "out": out})
    api.http.auth = ("root", "secret")
    return api


def test_a_decision_names_its_rule(users: Api) -> None:
    """The rule that permits or forbids, or None, and a sentence."""
    for user, action, address, is_allowed, rule in (
        ("ann", "consume", "topic://a/>", False, "consume !topic://a/no/>"),
        ("ann", "consume", "topic://a/b/>", True, "consume topic://a/>"),
        ("ann", "consume", "queue://q1", True, "consume queue://q*"),
        ("ann", "browse", "queue://q1", True, "consume queue://q*"),
        ("ann", "consume", "log://a/b", False, None),
        ("ann", "publish", "topic://a/b", True, "publish topic://a/>"),
        ("ann", "administer", "log://>", False, None),
        ("root", "consume", "topic://x", True, None),
        ("out", "consume", "topic://x", False, None),
    ):
        found = decision(users, user, action=action, address=address)
        assert (found["isAllowed"], found["rule"]) == (is_allowed, rule), (user, action, address)
        may = "may" if is_allowed else "may not"
        assert found["sentence"].startswith(f"{user} {may} {action} {address}: ")


def test_what_cannot_be_decided_is_refused(users: Api) -> None:
    """An unknown user or Message VPN, or a wrong address or action; without global access a user sees no other."""
    path = "/SEMP/v2/monitor/users"
    for user, query, status in (
        ("nobody", {"action": "consume", "address": "q"}, "NOT_FOUND"),
        ("ann", {"action": "consume", "address": "q", "msgVpnName": "x"}, "NOT_FOUND"),
        ("ann", {"action": "consume", "address": "topic://"}, "INVALID_PARAMETER"),
        ("ann", {"action": "consume", "address": "$cbs"}, "INVALID_PARAMETER"),
        ("ann", {"action": "dance", "address": "q"}, "INVALID_PARAMETER"),
        ("ann", {"action": "consume"}, "MISSING_PARAMETER"),
    ):
        error = users.http.get(f"{path}/{user}/decision", params=query).json()["meta"]["error"]
        assert error["status"] == status, (user, query)
    query = {"action": "consume", "address": "q"}
    for url in (path, f"{path}/root/decision", "/SEMP/v2/monitor/configuration"):
        assert users.http.get(url, params=query, auth=("ann", "secret")).status_code == 403


def test_where_nobody_is_configured_everything_is_permitted(api: Api) -> None:
    """The sentence says that no users are configured; the list of users is empty."""
    assert api.http.get("/SEMP/v2/monitor/users").json()["data"] == []
    found = decision(api, "anybody", action="administer", address="log://>")
    assert (found["isAllowed"], found["rule"]) == (True, None)
    assert "no users are configured" in found["sentence"]


def test_users_and_the_configuration_are_shown_without_secrets(users: Api) -> None:
    """Users with their global access, and the configuration as TOML, without hashes."""
    assert users.http.get("/SEMP/v2/monitor/users").json()["data"] == [
        {"userName": "ann", "globalAccess": "none"},
        {"userName": "out", "globalAccess": "none"},
        {"userName": "root", "globalAccess": "read-only"},
    ]
    text = users.http.get("/SEMP/v2/monitor/configuration").json()["data"]["toml"]
    assert HASH not in text
    assert "scram$" not in text
    assert tomllib.loads(text)["user"]["ann"]["publish"] == ["topic://a/>"]


def test_what_an_administrator_changed_is_in_the_configuration(api: Api) -> None:
    """A change that an administrator made appears in the configuration in effect."""
    api.change("/replayLogs/default", {"maxSpoolUsage": 4_321})
    text = api.http.get("/SEMP/v2/monitor/configuration").json()["data"]["toml"]
    assert tomllib.loads(text)["vpn"]["default"]["replay_log"]["quota_mb"] == 4_321
