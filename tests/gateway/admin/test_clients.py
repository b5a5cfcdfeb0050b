"""Clients over HTTP: their links, of every kind."""

from __future__ import annotations

from typing import Any

from tests.gateway.admin.conftest import Api
from tests.support.client import Client
from tests.support.event_source import TYPE
from tests.support.messages import data

NAMED = ("in", "out", "log")


def links(api: Api, client: str) -> dict[str, dict[str, Any]]:
    """By name."""
    found = api.seen(f"/clients/{client}/links", count=100)
    return {one["linkName"]: one for one in found}


def test_links_say_what_they_are_for_and_what_came_over_them(api: Api, client: Client) -> None:
    """A publisher, a consumer that has not settled all, a reader of the log; by the client's id and by its name."""
    sender = client.sender("topic://a", name="out")
    sender.send_all([data(i) for i in range(3)])
    client.sender("q").send_all([data(i) for i in range(5)])
    receiver = client.receiver("q", credit=9, name="in")
    receiver.settle(receiver.take(5)[:2])
    client.receiver("log://a?replay-start=beginning", credit=10, name="log").take(3)
    (there,) = api.seen("/clients")
    assert there["linkCount"] == 4
    client.wait(lambda: links(api, there["clientName"])["in"]["unackedMsgCount"] == 3, "two are settled")
    found = links(api, there["clientName"])
    assert links(api, there["clientId"].replace("#", "%23")) == found
    assert {
        name: (one["role"], one["kind"], one["address"]) for name, one in found.items() if name in "inoutlog"
    } == {
        "out": ("sender", "publisher", "topic://a"),
        "in": ("receiver", "consumer", "q"),
        "log": ("receiver", "reader", "log://a?replay-start=beginning"),
    }
    assert {name: one["sentMsgCount"] for name, one in found.items() if name in NAMED} == {
        "out": 3,
        "in": 5,
        "log": 3,
    }
    assert found["in"]["credit"] == 4
    assert found["log"]["credit"] == 7
    assert found["out"]["credit"] > 0
    (flow,) = api.seen("/queues/q/txFlows")
    assert (flow["credit"], flow["unackedMsgCount"]) == (4, 3)


def test_a_request_over_http_stands_for_a_link(api: Api, client: Client) -> None:
    """What reads the log as events has one, and is told of by its name."""
    client.sender("topic://a").send_all([data(0)])
    with api.http.stream(
        "GET", "/v1/log", params={"subscribe": "a", "from": "beginning"}, headers={"Accept": TYPE}
    ):
        (there,) = [one for one in api.seen("/clients") if one["clientName"].startswith("http-")]
        client.wait(
            lambda: [one["sentMsgCount"] for one in links(api, there["clientName"]).values()] == [1],
            "it is sent",
        )
        (link,) = links(api, there["clientName"]).values()
        assert (link["role"], link["kind"], link["address"]) == ("receiver", "http", "log://a")
    for nobody in ("nobody", "%23999"):
        assert api.refused("GET", "monitor", f"/clients/{nobody}/links")["status"] == "NOT_FOUND"
