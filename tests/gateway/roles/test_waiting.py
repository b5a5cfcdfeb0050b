"""A gateway whose store another one has: what it tells whom, and how it takes over."""

from __future__ import annotations

from typing import Any

import pytest
from proton import Event, Message, symbol
from proton.handlers import MessagingHandler
from proton.reactor import Container

from gateway.config import VpnStore
from store.errors import StoreError
from tests.gateway.roles.conftest import Connect, Start, ask, is_active
from tests.support.client import WAIT_SECONDS, Client, texts
from tests.support.messages import data
from tests.support.running import RunningGateway
from tests.support.shared_store import URL, SharedDatabase
from tests.support.waiting import wait_until


def closed(gateway: RunningGateway, *, product: str, hostname: str = "localhost") -> Any:
    """With what a client's connection is closed; `product` is what it calls itself."""
    with Client(gateway.url, hostname=hostname, properties={symbol("product"): product}) as client:
        refused = client.closed_by_peer()
        assert client.connection.remote_properties[symbol("amqp:connection-establishment-failed")] is True
        return refused


def test_it_starts_and_says_who_is_active(database: SharedDatabase, start: Start) -> None:
    """Another's store stops no gateway: it is alive, not ready, and names the active one."""
    database.hold("other.example.com:5672")
    gateway = start()
    assert not is_active(gateway)
    assert ask(gateway, "/healthz").status_code == 200
    answer = ask(gateway, "/readyz")
    assert answer.status_code == 503
    told = answer.json()
    assert (told["state"], told["active"]) == ("waiting", "other.example.com:5672")
    assert ask(gateway, "/readyz?vpn=default").status_code == 503
    assert ask(gateway, "/readyz?vpn=another").status_code == 404


def test_a_client_that_follows_is_redirected(database: SharedDatabase, start: Start) -> None:
    """Qpid JMS gets open, and then close with the address of the active gateway (AMQP 1.0 section 2.8.18)."""
    database.hold("other.example.com:5673")
    refused = closed(start(), product="QpidJMS")
    assert refused.name == "amqp:connection:redirect"
    assert refused.info == {"network-host": "other.example.com", "port": 5673}
    assert isinstance(refused.info["network-host"], str)


def test_the_hostname_that_chose_the_message_vpn_goes_along(database: SharedDatabase, start: Start) -> None:
    """A client that named the Message VPN by its hostname is to say the same over there."""
    database.hold("[::1]:5673")
    refused = closed(start(), product="QpidJMS", hostname="vhost:default")
    assert refused.info == {"network-host": "::1", "port": 5673, "hostname": "vhost:default"}


def test_any_other_client_is_told_where_it_is(database: SharedDatabase, start: Start) -> None:
    """Clients that reconnect by themselves do so for `forced` alone: that is what they get, with the address."""
    database.hold("other.example.com:5673")
    refused = closed(start(), product="another")
    assert refused.name == "amqp:connection:forced"
    assert refused.info == {"network-host": "other.example.com", "port": 5673}
    assert "other.example.com:5673" in refused.text


def test_a_client_of_proton_goes_on_with_its_next_address(start: Start) -> None:
    """Whatever the order of its addresses: one that we had opened would begin with the first again."""
    active, waiting = start("a"), start("b")
    told: list[str] = []

    class Sending(MessagingHandler):
        def on_start(self, event: Event) -> None:
            self.connection = event.container.connect(urls=[waiting.url, active.url])
            event.container.create_sender(self.connection, "orders")
            self.timer = event.container.schedule(WAIT_SECONDS, self)

        def on_sendable(self, event: Event) -> None:
            if event.sender.credit and not told:
                told.append("sent")
                event.sender.send(Message(body="x"))

        def on_accepted(self, event: Event) -> None:
            told.append("accepted")
            self.timer.cancel()
            event.connection.close()

        def on_timer_task(self, event: Event) -> None:
            self.connection.close()

    Container(Sending()).run()
    assert told == ["sent", "accepted"]


@pytest.mark.parametrize("product", ["another", "QpidJMS"])
def test_nobody_knows_who_is_active(database: SharedDatabase, start: Start, product: str) -> None:
    """There is no redirect without an address."""
    database.hold("")
    refused = closed(start(), product=product)
    assert refused.name == "amqp:connection:forced" and not refused.info


def test_administration_says_that_it_waits(database: SharedDatabase, start: Start) -> None:
    """Its state is shown; whatever needs what is stored is answered with 503 and a sentence."""
    database.hold("other.example.com:5672")
    gateway = start()
    for path in ("/SEMP/v2/monitor/msgVpns", "/SEMP/v2/monitor/msgVpns/default"):
        data = ask(gateway, path).json()["data"]
        shown = data[0] if isinstance(data, list) else data
        assert (shown["state"], shown["activeGateway"]) == ("standby", "other.example.com:5672")
    assert ask(gateway, "/SEMP/v2/config/msgVpns").json()["data"][0]["msgVpnName"] == "default"
    answer = ask(gateway, "/SEMP/v2/monitor/msgVpns/default/queues")
    assert answer.status_code == 503
    assert "other.example.com:5672" in answer.json()["meta"]["error"]["description"]
    assert 'rewind_vpn_active{vpn="default"} 0.0' in ask(gateway, "/metrics").text


def test_it_takes_over(database: SharedDatabase, start: Start, connect: Connect) -> None:
    """Once nobody has the store it is this gateway's, with all that was accepted before."""
    first, second = start("a"), start("b")
    assert is_active(first) and not is_active(second)
    assert ask(second, "/readyz").json()["active"] == "a.example.com:5672"
    with Client(first.url) as client:
        client.sender("orders").send_all(data(number) for number in range(10))
    first.stop()
    wait_until(lambda: is_active(second), "the other takes over")
    assert ask(second, "/readyz").status_code == 200
    received = connect(second).receiver("orders", credit=10).take_and_accept(10)
    assert texts(received) == [str(number) for number in range(10)]
    assert 'rewind_vpn_active{vpn="default"} 1.0' in ask(second, "/metrics").text


def test_a_store_that_cannot_be_opened_is_an_alarm(database: SharedDatabase, start: Start) -> None:
    """Whoever waits goes on trying; that it would be in vain is an alarm as long as it lasts."""
    database.hold("other.example.com:5672")
    gateway = start()

    def alarms() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = ask(gateway, "/SEMP/v2/monitor/msgVpns/default/alarms").json()["data"]
        return found

    assert alarms() == []
    database.fault = "no route to host"
    (alarm,) = wait_until(alarms, "the alarm is raised")
    assert alarm["alarm"] == "store" and "no route to host" in alarm["description"]
    database.fault = None
    wait_until(lambda: not alarms(), "the alarm is cleared")
    database.release()
    wait_until(lambda: is_active(gateway), "it takes over")


def test_a_store_that_is_not_there_yet_is_waited_for(database: SharedDatabase, start: Start) -> None:
    """A gateway that starts before its database does not end; it says why it is not ready, without the password."""
    database.fault = f"cannot connect to {URL}"
    gateway = start()
    told = ask(gateway, "/readyz").json()
    assert (
        told["state"] == "waiting"
        and "cannot connect to postgresql://rewind:***@a,b/double" in told["reason"]
    )
    assert URL not in ask(gateway, "/SEMP/v2/monitor/msgVpns").text
    database.fault = None
    wait_until(lambda: is_active(gateway), "it has the store")


def test_an_engine_that_is_not_installed_stops_the_gateway(start: Start, database: SharedDatabase) -> None:
    """What no waiting mends is told at once."""

    def missing(settings: VpnStore) -> Any:
        raise StoreError("cannot use", settings.url, "no such module", "Install the extra")

    database.engine = missing  # type: ignore[method-assign]
    with pytest.raises(StoreError, match="Install the extra"):
        start()


def test_one_that_waits_stops_cleanly(database: SharedDatabase, start: Start) -> None:
    """A gateway that waits can be stopped, and has the store no more than before."""
    database.hold("other.example.com:5672")
    gateway = start()
    gateway.stop()
    database.release()
    gateway.start()
    assert is_active(gateway)
