"""Reading the configuration again while the gateway runs: what is applied, and what is not."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Settings, parse, read, reconcile
from gateway.vpn.message_vpn import MessageVpn
from store.errors import StoreError
from tests.gateway.admin.conftest import HASH, LOG, OTHER_HASH, Administer, Api, connect
from tests.support.client import Client, Refused, texts
from tests.support.messages import data
from tests.support.running import ConfigurationFile, RunningGateway


@pytest.fixture
def file(tmp_path: Path) -> ConfigurationFile:
    return ConfigurationFile(tmp_path)


@pytest.fixture
def gateway(file: ConfigurationFile) -> Iterator[RunningGateway]:
    """A gateway with the configuration file `file`."""
    with RunningGateway(read(file.path)) as running:
        yield running


def reload(api: Api) -> dict[str, Any]:
    """Reload; return what was applied and what was refused."""
    answer = api.http.put("/SEMP/v2/action/reload")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()["data"]
    return found


def test_what_can_change_does(
    file: ConfigurationFile, gateway: RunningGateway, api: Api, client: Client
) -> None:
    """A Message VPN, queues, the log's quota and limits take effect as the file has them; no client is disconnected."""
    receiver = client.receiver("q", credit=10)
    file.write(
        "[limits]\nmax_connections = 3\n[vpn.default]\ncreate_queues = false\n[vpn.default.replay_log]\nquota_mb = 5\n"
        "[vpn.default.queue.orders]\nsubscriptions = ['a/>']\nquota_messages = 2\n[vpn.trading]"
    )
    assert reload(api) == {
        "applied": [
            "vpn.default.create_queues: true became false",
            "vpn.default.replay_log.quota_mb: 0 became 5",
            "vpn.default.queue.orders: not there became there",
            "vpn.trading: not there became there",
            "limits.max_connections: 10000 became 3",
        ],
        "refused": [],
    }
    client.sender("topic://a/1").send_all([data(1), data(2)])
    assert gateway.depth("orders") == 2
    with pytest.raises(Refused, match="not created on first use"):
        client.receiver("new")
    with Client(gateway.url, hostname="vhost:trading") as other:
        other.sender("q").send_all([data("elsewhere")])
    assert api.done("GET", "config", LOG)["maxSpoolUsage"] == 5
    assert gateway.call(lambda g: g.settings.limits.max_connections) == 3
    client.sender("q").send_all([data("here")])
    assert texts(receiver.take(1)) == ["here"]
    assert reload(api) == {"applied": [], "refused": []}


def test_a_declared_queue_changes_and_is_set_free(
    file: ConfigurationFile, gateway: RunningGateway, api: Api, client: Client
) -> None:
    """Messages stay when a declaration changes or goes; without one, administrators can delete the queue."""
    file.write("[vpn.default.queue.orders]\nsubscriptions = ['a/>']")
    reload(api)
    client.sender("topic://a/1").send_all([data(1)])
    file.write("[vpn.default.queue.orders]\nsubscriptions = ['b/>']\nmax_flows = 1")
    assert reload(api)["applied"] == [
        'vpn.default.queue.orders.subscriptions: ["a/>"] became ["b/>"]',
        "vpn.default.queue.orders.max_flows: 0 became 1",
    ]
    assert gateway.subscriptions("orders") == ["b/>"]
    assert "declared in the configuration" in api.why("DELETE", "config", "/queues/orders")
    file.write()
    reload(api)
    assert api.queue("orders")["spooledMsgCount"] == 1
    api.delete("/queues/orders")


def test_what_cannot_change_is_named_and_stays(
    file: ConfigurationFile, gateway: RunningGateway, api: Api, client: Client
) -> None:
    """Each setting that needs a restart is refused with its reason, all in one answer, and the rest is applied."""
    client.receiver("taken")
    file.write(
        "[limits]\nendpoint_window = 30000\nlink_credit = 100\n[store]\nread_threads = 2\n[log]\nlevel = 'debug'\n"
        "[vpn.default.replay_log]\nindex = ['order']\n[vpn.default.queue.taken]\nkind = 'stream'",
        listener="port = 0\nrabbitmq_mode = true",
        admin="port = 1",
    )
    found = reload(api)
    assert found["applied"] == ["limits.link_credit: 2000 became 100"]
    assert [text.partition(" ")[0] for text in found["refused"]] == [
        "listener[0].rabbitmq_mode",
        "admin.port",
        "vpn.default.replay_log.index",
        "limits.endpoint_window",
        "store.read_threads",
        "log.level",
        "vpn.default.queue.taken",
    ]
    assert (
        "admin.port is bound at the start: it stays 0 until the next start, and is not 1" in found["refused"]
    )
    assert gateway.call(lambda g: g.vpns["default"].broker.endpoints["taken"].kind.value) == "queue"
    assert gateway.call(lambda g: (g.settings.admin.port, g.settings.limits.endpoint_window)) == (0, 20_000)


def test_what_administrators_did_outlives_a_reload(
    file: ConfigurationFile, gateway: RunningGateway, api: Api, tmp_path: Path
) -> None:
    """Their Message VPNs and settings stay, as the file does not name them, even if it names another data folder."""
    api.http.post("/SEMP/v2/config/msgVpns", json={"msgVpnName": "trading"})
    api.change(LOG, {"maxSpoolUsage": 7})
    file.path.write_text(file.path.read_text().replace(str(tmp_path / "data"), str(tmp_path / "elsewhere")))
    found = reload(api)
    assert found["applied"] == []
    assert [text.partition(" ")[0] for text in found["refused"]] == ["data"]
    assert [*gateway.call(lambda g: list(g.vpns))] == ["default", "trading"]
    assert api.done("GET", "config", LOG)["maxSpoolUsage"] == 7


def test_a_vpn_that_users_may_enter_is_not_deleted(file: ConfigurationFile, api: Api) -> None:
    """The configuration would then be wrong, and the next start would fail."""
    api.http.post("/SEMP/v2/config/msgVpns", json={"msgVpnName": "trading", "enabled": False})
    user = f"[user.ann]\npassword = '{HASH}'\nglobal_access = 'read-write'\n"
    file.write(user + "vpns = ['default', 'trading']\n")
    reload(api)
    api.http.auth = ("ann", "secret")
    refused = api.http.delete("/SEMP/v2/config/msgVpns/trading")
    assert (refused.status_code, "ann may enter it" in refused.text) == (400, True)
    assert read(file.path).settings.users["ann"].vpns == ("default", "trading")


def test_a_bad_file_changes_nothing(file: ConfigurationFile, gateway: RunningGateway, api: Api) -> None:
    """Every problem is reported, and nothing of the file is applied."""
    before = gateway.call(lambda g: g.settings)
    file.write("[limits]\nmax_connections = 'many'\nlink_credit = 5\n[vpn.default]\nenable = false")
    answer = api.http.put("/SEMP/v2/action/reload")
    assert answer.status_code == 400
    said = answer.json()["meta"]["error"]["description"]
    assert "limits.max_connections" in said
    assert "vpn.default.enable is not a setting" in said
    file.path.unlink()
    assert "cannot be read" in api.http.put("/SEMP/v2/action/reload").text
    assert gateway.call(lambda g: g.settings) == before


def test_without_a_file_there_is_nothing_to_read(tmp_path: Path, administer: Administer) -> None:
    """A gateway without a configuration file says so."""
    settings = parse(f'data = "{tmp_path}"\nlistener = [{{ port = 0 }}]\nadmin.port = 0')
    with RunningGateway(settings) as running:
        answer = administer(running).http.put("/SEMP/v2/action/reload")
        assert (answer.status_code, "--config" in answer.text) == (400, True)


def test_users_change(file: ConfigurationFile, gateway: RunningGateway, api: Api) -> None:
    """A user who is changed or removed is disconnected, others stay; administration requires a user immediately."""
    ann = f"[user.ann]\npassword = '{HASH}'\npublish = ['queue://*']\nglobal_access = 'read-write'\n"
    bob = f"[user.bob]\npassword = '{HASH}'\n"
    with Client(gateway.url) as nameless:
        file.write(ann + bob)
        reload(api)
        assert nameless.closed_by_peer().name == "amqp:connection:forced"
    assert api.http.put("/SEMP/v2/action/reload").status_code == 401
    api.http.auth = ("ann", "secret")
    with (
        Client(gateway.url, user=("ann", "secret")) as of_ann,
        Client(gateway.url, user=("bob", "secret")) as of_bob,
    ):
        file.write(ann + f"[user.bob]\npassword = '{OTHER_HASH}'\n")
        assert reload(api)["applied"] == ["user.bob.password: a secret became a secret"]
        assert "connect again" in of_bob.closed_by_peer().text
        of_ann.sender("q").send_all([data(1)])
    with Client(gateway.url, user=("bob", "other")) as of_bob:
        of_bob.sender("q").send_all([data(2)])


@pytest.mark.parametrize(("stays", "status"), [(True, b"200"), (False, b"401")])
def test_who_asks_is_known_by_the_users_there_are_when_the_body_is(
    file: ConfigurationFile, api: Api, stays: bool, status: bytes
) -> None:
    """A reload while the body is received: the sender is authenticated again, and refused if removed meanwhile."""
    rights = f"password = '{HASH}'\nadminister = ['queue://*']\nglobal_access = 'read-write'\n"
    ann, bob = f"[user.ann]\n{rights}", f"[user.bob]\n{rights}"
    file.write(ann + bob)
    reload(api)
    api.http.auth = ("ann", "secret")
    body = b'{"queueName": "q"}'
    with connect(api.http) as sock:
        sock.sendall(
            b"POST /SEMP/v2/config/msgVpns/default/queues HTTP/1.1\r\nHost: localhost\r\n"
            b"Authorization: Basic " + base64.b64encode(b"bob:secret") + b"\r\nExpect: 100-continue\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        assert sock.recv(65_536).startswith(b"HTTP/1.1 100 ")
        file.write(ann + (bob if stays else "") + f"[user.carl]\npassword = '{HASH}'\n")
        reload(api)
        sock.sendall(body)
        assert sock.recv(65_536).split()[1] == status


def test_a_vpn_of_the_file_is_disabled_by_it(file: ConfigurationFile, api: Api, client: Client) -> None:
    """`enabled = false` in the file disconnects the clients, and an administrator cannot enable the Message VPN."""
    file.write("[vpn.default]\nenabled = false\n[vpn.trading]")
    reload(api)
    assert "was disabled" in client.closed_by_peer().text
    assert "vpn.default.enabled is set in" in api.why("PATCH", "config", "", {"enabled": True})
    file.write("[vpn.default]\nenabled = true\n")
    found = reload(api)
    assert found["applied"] == ["vpn.default.enabled: false became true"]
    assert found["refused"][0].startswith("vpn.trading is gone from the file, and has data")


def test_the_verb_says_what_became_of_it(file: ConfigurationFile, api: Api) -> None:
    """`rewind reload` exits with 0 if everything is applied, and with 1 if a change needs a restart."""
    for text, status, line in (
        ("", 0, "nothing has changed"),
        ("[limits]\nlink_credit = 7", 0, "limits.link_credit: 2000 became 7"),
        ("[store]\nread_threads = 2", 1, "store.read_threads takes effect"),
    ):
        file.write(text)
        ran = api.rewind("reload")
        assert (ran.exit_code, line in ran.output) == (status, True), ran.output


def test_every_difference_is_either_applied_or_refused() -> None:
    """Each difference is applied or refused: reconciled a second time, only the refused ones are left."""
    new = parse(
        "allow_anonymous_beyond_loopback = true\n[[listener]]\nsasl = ['ANONYMOUS']\n[[listener]]\nport = 1\n"
        "[vpn.default]\nmax_topic_levels = 3\n[vpn.default.queue.q]\n[limits]\nread_page_rows = 3\nmax_channels = 9\n"
    )
    once = reconcile(Settings(), new)
    assert [one.path for one in once.applied] == [
        "allow_anonymous_beyond_loopback",
        "vpn.default.max_topic_levels",
        "vpn.default.queue.q",
        "limits.max_channels",
    ]
    again = reconcile(once.settings, new)
    assert (again.applied, again.settings) == ([], once.settings)
    assert [one.path for one in again.refused] == ["listener", "limits.read_page_rows"]


def test_a_vpn_whose_file_cannot_be_used_is_not_created(gateway: RunningGateway, api: Api) -> None:
    """A refused command leaves nothing behind: the next start would otherwise fail, as it would for this file."""
    (gateway.settings.settings.data / "bad.db").write_bytes(b"this is no database" * 1_000)
    answer = api.http.post("/SEMP/v2/config/msgVpns", json={"msgVpnName": "bad"})
    assert answer.status_code >= 400 and "bad.db" in answer.text
    gateway.restart()
    assert gateway.call(lambda running: sorted(running.vpns)) == ["default"]


def test_a_vpn_that_cannot_be_started_is_closed_again(
    file: ConfigurationFile, gateway: RunningGateway, api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one is whose queues cannot become what the file declares: it serves nobody half started."""

    def start(vpn: MessageVpn) -> None:
        raise StoreError("cannot declare the queues of", vpn.name, "they have messages", "have them consumed")

    file.write("[vpn.bad]")
    with monkeypatch.context() as patched:
        patched.setattr(MessageVpn, "start", start)
        (refused,) = reload(api)["refused"]
        assert "they have messages" in refused
    assert gateway.call(lambda running: sorted(running.vpns)) == ["default"]
    gateway.run_coroutine(lambda running: running.vpns._departures.close())
    assert reload(api) == {"applied": ["vpn.bad: not there became there"], "refused": []}
    assert gateway.call(lambda running: sorted(running.vpns)) == ["bad", "default"]


def test_a_vpn_whose_file_cannot_be_used_keeps_no_other_change_from_being_applied(
    file: ConfigurationFile, gateway: RunningGateway, api: Api
) -> None:
    """It is among the refused changes, and opened by the next reload if its file is right then."""
    bad = file.path.parent / "data" / "bad.db"
    bad.write_bytes(b"this is no database" * 1_000)
    file.write("[vpn.bad]\n[vpn.trading]")
    found = reload(api)
    assert found["applied"] == ["vpn.trading: not there became there"]
    assert [text for text in found["refused"] if text.startswith("vpn.bad") and "bad.db" in text]
    assert gateway.call(lambda running: sorted(running.vpns)) == ["default", "trading"]
    bad.unlink()
    assert reload(api)["refused"] == []
    assert gateway.call(lambda running: sorted(running.vpns)) == ["bad", "default", "trading"]
