"""Who may administer, where users are configured."""

from __future__ import annotations

import pytest

from amqp_ext.sasl import hash_password
from gateway.config.settings import User
from tests.gateway.admin.conftest import Administer, Api, Start

HASH = hash_password("secret", salt=b"0123456789abcdef", iterations=4096)


@pytest.fixture
def api(start: Start, administer: Administer) -> Api:
    """The administration of a gateway with users."""
    users = {
        "root": User(password=HASH, administer=("queue://*", "topic://>", "log://>")),
        "clerk": User(password=HASH, administer=("queue://orders*",)),
        "guest": User(password=HASH),
        "other": User(password=HASH, vpns=(), administer=("queue://*", "log://>")),
    }
    return administer(start(users=users))


def test_only_a_user_with_rules_may_administer(api: Api) -> None:
    """Without a password it is 401; with one, 403 but for what the user's `administer` rules say."""
    create = ("POST", "config", "/queues", {"queueName": "orders1"})
    for auth, status in (
        (None, 401),
        (("clerk", "wrong"), 401),
        (("nobody", "secret"), 401),
        (("guest", "secret"), 403),
        (("other", "secret"), 403),
        (("clerk", "secret"), 200),
    ):
        api.http.auth = auth
        assert api.ask(*create).status_code == status, auth
    for path, status in (
        ("/queues/orders1", 200),
        ("/queues/mine", 403),
        ("/queues", 403),
        ("/replayLogs", 403),
    ):
        assert api.ask("GET", "monitor", path).status_code == status, path
    assert api.ask("POST", "config", "/queues", {"queueName": "mine"}).status_code == 403
    api.http.auth = ("root", "secret")
    assert [queue["queueName"] for queue in api.done("GET", "monitor", "/queues")] == ["orders1"]


def test_health_is_open_to_everybody(api: Api) -> None:
    """Probes need no password, and a refusal names how to log in."""
    assert api.http.get("/healthz").status_code == 200
    refused = api.ask("GET", "monitor", "/queues")
    assert refused.headers["www-authenticate"].startswith("Basic")
    assert refused.json()["meta"]["error"]["status"] == "UNAUTHORIZED"


def test_a_topic_endpoint_is_administered_by_the_rules_for_its_topics(
    start: Start, administer: Administer
) -> None:
    """Who may administer `topic://a/>` may replay a topic endpoint of `a/…` and no other, nor give it another topic."""
    users = {
        "root": User(password=HASH, administer=("queue://*", "topic://>", "log://>")),
        "clerk": User(password=HASH, administer=("topic://a/>",)),
    }
    api = administer(start(users=users))
    api.http.auth = ("root", "secret")
    for name, topic in (("ours", "a/1"), ("theirs", "b/1")):
        api.done("POST", "config", "/topicEndpoints", {"topicEndpointName": name, "topic": topic})
    api.http.auth = ("clerk", "secret")
    for name, status in (("ours", 200), ("theirs", 403), ("none", 403)):
        path = f"/topicEndpoints/{name}"
        assert api.ask("GET", "monitor", path).status_code == status, name
        assert api.ask("PUT", "action", f"{path}/startReplay", {}).status_code == status, name
        assert api.ask("PATCH", "config", path, {"maxBindCount": 2}).status_code == status, name
    assert api.ask("PATCH", "config", "/topicEndpoints/ours", {"topic": "b/1"}).status_code == 403
    assert api.done("PATCH", "config", "/topicEndpoints/ours", {"topic": "a/2"})["topic"] == "a/2"
    assert api.ask("GET", "monitor", "/topicEndpoints").status_code == 403
