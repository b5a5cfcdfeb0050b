"""Message VPNs and their clients: created, seen, changed and deleted while the gateway runs."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import HTTPException, Request

from gateway.admin.semp.resources import while_waiting
from gateway.config import ReplayLog, Vpn, read
from gateway.config.changes import FILE
from gateway.vpn.administration import Administration
from gateway.vpn.log import LoggedMessages, LogListing
from store.ports import LogPage
from store.sqlite.reader import SqliteReader
from tests.gateway.admin.conftest import LOG, Administer, Api, connect
from tests.support.client import WAIT_SECONDS, Client, texts
from tests.support.event_source import TYPE
from tests.support.messages import data
from tests.support.running import ConfigurationFile, RunningGateway
from tests.support.waiting import wait_until

# --- Message VPNs made, changed and deleted while the gateway runs, and what of it a restart finds ------------------


def made(api: Api, name: str, **more: Any) -> httpx.Response:
    """Create a Message VPN; return the response."""
    return api.http.post("/SEMP/v2/config/msgVpns", json={"msgVpnName": name, **more})


def of(api: Api, method: str, vpn: str, body: Any = None) -> httpx.Response:
    """Send a request about a Message VPN; return the response."""
    return api.http.request(method, f"/SEMP/v2/config/msgVpns/{vpn}", json=body)


def why(answer: httpx.Response) -> str:
    """The sentence of a refusal."""
    assert answer.status_code == 400, answer.text
    found: str = answer.json()["meta"]["error"]["description"]
    return found


def test_a_vpn_is_made_used_and_there_after_a_restart(api: Api, gateway: RunningGateway) -> None:
    """Clients enter a new Message VPN immediately; after a restart it has its queue and the message on it."""
    assert "exists already" in why(made(api, "default"))
    for name in ("", "a/b", "..", "x" * 65, "-a"):
        assert "1 to 64 characters" in why(made(api, name)), name
    assert made(api, "trading").json()["data"]["enabled"] is True
    with Client(gateway.url, hostname="vhost:trading") as client:
        client.sender("orders").send_all([data("one")])
    api.restart()
    there = api.http.get("/SEMP/v2/config/msgVpns").json()["data"]
    assert "trading" in [one["msgVpnName"] for one in there]
    with Client(gateway.url, hostname="vhost:trading") as client:
        assert texts(client.receiver("orders").drain()) == ["one"]
    assert gateway.depth("orders") is None, "it is another Message VPN's"


def test_a_disabled_vpn_closes_its_clients_and_lets_none_in(
    api: Api, gateway: RunningGateway, client: Client
) -> None:
    """Its clients are told why they are closed, others are refused, also after a restart, until it is enabled again."""
    client.receiver("q")
    assert of(api, "PATCH", "default", {"enabled": False}).status_code == 200
    error = client.closed_by_peer()
    assert (error.name, error.text) == ("amqp:connection:forced", "the Message VPN 'default' was disabled")
    for _ in range(2):
        with Client(gateway.url) as other:
            assert "not enabled" in other.closed_by_peer().text
        api.restart()
    assert of(api, "PATCH", "default", {"enabled": True}).status_code == 200
    with Client(gateway.url) as again:
        again.sender("q").send_all([data(1)])


def test_a_vpn_is_deleted_once_it_is_empty(api: Api, gateway: RunningGateway, tmp_path: Path) -> None:
    """Each obstacle is named in turn. Then the Message VPN and its file are gone, and its name can be used again."""
    file = tmp_path / "data" / "trading.db"
    assert "clients that name no Message VPN" in why(of(api, "DELETE", "default"))
    made(api, "trading")
    with Client(gateway.url, hostname="vhost:trading") as client:
        client.sender("orders").send_all([data("one")])
    assert "disable it first" in why(of(api, "DELETE", "trading"))
    of(api, "PATCH", "trading", {"enabled": False})
    wait_until(lambda: gateway.connections() == 0, "the client has left")
    assert "queues or topic endpoints, 1 in all: orders; delete" in why(of(api, "DELETE", "trading"))
    api.http.delete("/SEMP/v2/config/msgVpns/trading/queues/orders")
    assert "trim it first" in why(of(api, "DELETE", "trading"))
    trim = "/SEMP/v2/action/msgVpns/trading/replayLogs/default/trimLoggedMsgs"
    assert api.http.put(trim, json={"before": "live"}).status_code == 200
    assert file.exists()
    assert of(api, "DELETE", "trading").status_code == 200
    assert not list(file.parent.glob("trading*"))
    assert of(api, "GET", "trading").status_code == 400
    assert made(api, "trading").status_code == 200
    assert api.http.get("/SEMP/v2/monitor/msgVpns/trading/queues").json()["data"] == []


def test_changes_of_the_log_outlive_a_restart(api: Api, gateway: RunningGateway) -> None:
    """Ingress, quota and the topic filter keep the values that an administrator gave them."""
    topics = f"{LOG}/topicFilterSubscriptions"
    api.make(topics, {"topicFilterSubscription": "a/>"})
    api.make(topics, {"topicFilterSubscription": "!a/no"})
    api.change(LOG, {"topicFilterEnabled": True, "maxSpoolUsage": 7})
    api.change(LOG, {"egressEnabled": False})
    before = api.done("GET", "config", LOG)
    api.restart()
    assert api.done("GET", "config", LOG) == before
    assert {one["topicFilterSubscription"] for one in api.done("GET", "config", topics)} == {"a/>", "!a/no"}
    assert not gateway.call(lambda g: g.vpns["default"].broker.policy.takes("a/no"))
    assert gateway.call(lambda g: g.vpns["default"].broker.policy.takes("a/yes"))


def test_what_the_file_names_is_the_file_s(tmp_path: Path, administer: Administer) -> None:
    """A setting that the file names cannot be changed by an administrator, who is told where it is; any other can."""
    file, said = ConfigurationFile(tmp_path), "[vpn.default.replay_log]\nquota_mb = 9\n"
    file.write(said)
    with RunningGateway(read(file.path)) as gateway:
        api = administer(gateway)
        error = api.refused("PATCH", "config", LOG, {"maxSpoolUsage": 7})
        assert "vpn.default.replay_log.quota_mb is set in" in error["description"]
        assert "rewind reload" in error["description"]
        assert api.change(LOG, {"maxSpoolUsage": 9, "ingressEnabled": False})
    # Now the file names the setting that the administrator changed, and wins.
    file.write(said + "write = true\n")
    assert read(file.path).settings.vpns["default"].replay_log.write
    kept = json.loads((tmp_path / "data" / FILE).read_text())
    assert kept == {"vpn": {"default": {"replay_log.write": False}}}


def test_a_change_that_cannot_be_stored_has_no_effect(
    api: Api, gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the disk is full, the administrator is told so, and nothing has changed."""

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gateway.vpn.hosted.write_administered", full)
    answer = of(api, "PATCH", "default", {"enabled": False})
    assert (answer.status_code, "No space left" in answer.text) == (503, True)
    assert made(api, "trading").status_code == 503
    with Client(gateway.url):
        assert [*gateway.call(lambda g: list(g.vpns))] == ["default"]


def test_what_is_kept_can_be_read_by_check_config(tmp_path: Path) -> None:
    """A broken file of administrative changes is reported before the gateway starts; a sound one takes effect."""
    kept = tmp_path / FILE
    kept.write_text('{"vpn": {"trading": {"replay_log.quota_mb": 5}}}')
    config = tmp_path / "c.toml"
    config.write_text(f'data = "{tmp_path}"\n')
    assert read(config).settings.vpns["trading"] == Vpn(replay_log=ReplayLog(quota_mb=5))
    for text in ("{", '{"vpn": {"trading": {"replay_log.quota": 5}}}', '{"vpn": []}', '{"vpn": {"a/b": {}}}'):
        kept.write_text(text)
        with pytest.raises(ValueError, match=r"administered.json is not as the gateway wrote it"):
            read(config)


# --- What ends when a client of HTTP leaves before it has its answer ------------------------------------------------


def request_of(messages: asyncio.Queue[dict[str, Any]]) -> Request:
    """A request whose client sends these ASGI messages."""
    return Request({"type": "http", "headers": []}, messages.get)


def test_work_is_cancelled_when_the_client_leaves() -> None:
    """An endless search is cancelled when its client disconnects; a client that stays gets the answer or the error."""

    async def leave() -> None:
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        messages.put_nowait({"type": "http.request", "body": b""})
        ended, begun = asyncio.Event(), asyncio.Event()

        async def search() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        waiting = asyncio.ensure_future(while_waiting(request_of(messages), search()))
        await begun.wait()
        messages.put_nowait({"type": "http.disconnect"})
        with pytest.raises(HTTPException, match="left"):
            await waiting
        await asyncio.wait_for(ended.wait(), 10)

    async def stay() -> None:
        async def refuse() -> int:
            raise ValueError("no")

        assert await while_waiting(request_of(asyncio.Queue()), asyncio.sleep(0, 7)) == 7
        with pytest.raises(ValueError, match="no"):
            await while_waiting(request_of(asyncio.Queue()), refuse())

    asyncio.run(leave())
    asyncio.run(stay())


@pytest.mark.parametrize("reset", [False, True])
def test_a_search_of_the_log_ends_with_its_connection(
    api: Api, client: Client, monkeypatch: pytest.MonkeyPatch, reset: bool
) -> None:
    """
    A client closes or resets its connection while the log is searched without end: the search ends, and the gateway
    goes on answering others.
    """
    client.sender("q").send_all([data(0)])
    begun, ended = threading.Event(), threading.Event()
    search, log_page = LogListing.oldest_first, SqliteReader.log_page

    async def watched(*arguments: Any) -> LoggedMessages:
        try:
            return await search(*arguments)
        finally:
            ended.set()

    def endless(reader: SqliteReader, position: int, end: int, patterns: Any, *, held: bool) -> LogPage:
        begun.set()
        return log_page(reader, position, end, patterns, held=held)._replace(rows=[], position=position)

    monkeypatch.setattr(LogListing, "oldest_first", watched)
    monkeypatch.setattr(SqliteReader, "log_page", endless)
    with connect(api.http) as sock:
        path = "/SEMP/v2/monitor/msgVpns/default/replayLogs/default/msgs?topic=a"
        sock.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert begun.wait(WAIT_SECONDS)
        assert not ended.is_set()
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert ended.wait(WAIT_SECONDS)
    monkeypatch.undo()
    assert api.seen(f"{LOG}/msgs", topic="a") == []
    assert len(api.seen(f"{LOG}/msgs")) == 1


def test_a_preview_ends_with_its_connection(
    api: Api, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same for a request with a body."""
    client.sender("q").send_all([data(0)])
    begun, ended = threading.Event(), threading.Event()

    async def endless(*arguments: Any, **more: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    monkeypatch.setattr(Administration, "preview", endless)
    with connect(api.http) as sock:
        path = "/SEMP/v2/action/msgVpns/default/queues/q/previewReplay"
        head = f"PUT {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
        sock.sendall(f"{head}Content-Type: application/json\r\n\r\n{{}}".encode())
        assert begun.wait(WAIT_SECONDS)
        assert not ended.is_set()
    assert ended.wait(WAIT_SECONDS)


# --- Clients over HTTP: their links, of every kind --------------------------------------------------------------------


def links(api: Api, client: str) -> dict[str, dict[str, Any]]:
    """The links of a client, by name."""
    found = api.seen(f"/clients/{client}/links", count=100)
    return {one["linkName"]: one for one in found}


def test_links_say_what_they_are_for_and_what_came_over_them(api: Api, client: Client) -> None:
    """Role, kind, address, messages and credit of publisher, consumer and reader; by the client's id or name."""
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
    told = ("role", "kind", "address", "sentMsgCount")
    assert {name: tuple(found[name][one] for one in told) for name in ("out", "in", "log")} == {
        "out": ("sender", "publisher", "topic://a", 3),
        "in": ("receiver", "consumer", "q", 5),
        "log": ("receiver", "reader", "log://a?replay-start=beginning", 3),
    }
    assert found["in"]["credit"] == 4
    assert found["log"]["credit"] == 7
    assert found["out"]["credit"] > 0
    (flow,) = api.seen("/queues/q/txFlows")
    assert (flow["credit"], flow["unackedMsgCount"]) == (4, 3)


def test_a_request_over_http_stands_for_a_link(api: Api, client: Client) -> None:
    """A reader of `/v1/log` is listed as a client with one link."""
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
