"""Who reads and publishes over HTTP is a user as over AMQP, with the same rights; administrators' rights are none."""

from __future__ import annotations

import pytest

from amqp_ext.sasl import hash_password
from gateway.config import User, token_hash
from tests.gateway.admin.conftest import Administer, Api, Start

HASH = hash_password("secret", salt=b"0123456789abcdef", iterations=4096)
USERS = {
    "all": User(password=HASH),
    "reader": User(password=HASH, consume=("log://a/>",)),
    "writer": User(password=HASH, publish=("queue://q",)),
    "root": User(password=HASH, administer=("queue://>", "topic://>", "log://>"), global_access="read-write"),
    "elsewhere": User(password=HASH, vpns=()),
    "token": User(token=token_hash("the-token"), consume=("log://>",)),
}


@pytest.fixture
def api(start: Start, administer: Administer) -> Api:
    """The administration of a gateway with users."""
    return administer(start(users=USERS))


def read(api: Api, subscribe: str = ">") -> int:
    return api.http.get("/v1/log", params={"subscribe": subscribe}).status_code


def publish(api: Api, address: str = "q") -> int:
    return api.http.post("/v1/publish", params={"address": address}, content='{"body":"x"}').status_code


def test_the_rights_are_those_of_an_amqp_client(api: Api) -> None:
    """To consume the log, and to publish; to administer everything is neither."""
    for user, can in {
        "all": (200, 200, 200, 200),
        "reader": (403, 200, 403, 403),
        "writer": (403, 403, 200, 403),
        "root": (403, 403, 403, 403),
        "elsewhere": (403, 403, 403, 403),
        "nobody": (401, 401, 401, 401),
    }.items():
        api.http.auth = (user, "secret")
        found = read(api), read(api, "a/>"), publish(api), publish(api, "topic://a/1")
        assert found == can, user


def test_a_token_is_as_good_and_without_anything_nobody_is_let_in(api: Api) -> None:
    """What is wrong is told before anything else, with how to sign in."""
    assert (read(api), publish(api)) == (401, 401)
    api.http.headers["Authorization"] = "Bearer the-token"
    assert (read(api), publish(api)) == (200, 403)
    api.http.headers["Authorization"] = "Bearer another"
    assert read(api) == 401


def test_who_has_the_least_learns_and_does_nothing(api: Api) -> None:
    """Whatever is asked in whatever spelling: not what is there, nor is a queue made."""
    api.http.auth = ("writer", "secret")
    for subscribe in (">", "a/>", "#queue/q", "!a", "*", "a/b"):
        assert read(api, subscribe) == 403
    for address in (
        "r",
        "queue://r",
        "/queues/r",
        "topic://#queue/r",
        "r?create=always",
        "topic://q",
        "amqp://h/r",
    ):
        assert publish(api, address) in (400, 403), address
    api.http.auth = ("root", "secret")
    shown = api.done("GET", "monitor", "/queues")
    assert shown == []


def test_a_client_without_a_name_is_the_user_for_those(start: Start, administer: Administer) -> None:
    """On this machine, where such a user is configured; a wrong password is no name either way."""
    api = administer(start(users={**USERS, "anonymous": User(consume=("log://a/>",))}))
    assert (read(api), read(api, "a/>"), publish(api)) == (403, 200, 403)
    assert api.http.get("/SEMP/v2/monitor/msgVpns").status_code == 401
    api.http.auth = ("reader", "wrong")
    assert read(api, "a/>") == 401
