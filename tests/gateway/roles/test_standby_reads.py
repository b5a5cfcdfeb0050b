"""A waiting gateway serves readers from a standby, and sends all other clients to the active gateway."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
from proton import symbol

from amqp_ext.sasl import hash_password
from tests.gateway.admin.test_erasing import is_marker
from tests.gateway.roles.conftest import published_by_proton
from tests.gateway.roles.test_pair import LEASE_SECONDS, is_ready, readiness, url_of
from tests.support.client import Client, Received, Receiver, Refused, refusal, texts
from tests.support.messages import data
from tests.support.ports import free_port
from tests.support.postgresql import server
from tests.support.running import PLAIN_HTTP
from tests.support.waiting import wait_until
from tests.system.gateway_process import GatewayProcess

pytestmark = [pytest.mark.system, pytest.mark.postgresql]

ALL = ("all", "secret")
LEAST = ("least", "secret")

HASHED = hash_password("secret", salt=b"0123456789abcdef", iterations=4_096)

CONFIG = """
[vpn.default.store]
url = "{url}"
read_url = "{read_url}"
standby_reads = true
lease_seconds = {lease}

[[vpn.default.replay_log.retention]]
topics = ["debug/>"]
quota_mb = 1

[vpn.default.queue.shown]
kind = "stream"
subscriptions = ["s/>"]

[user.all]
password = "{hashed}"
publish = ["topic://>", "queue://>"]
consume = ["topic://>", "queue://>", "log://>"]
replay = ["queue://>"]
administer = ["queue://>", "log://>"]

[user.least]
password = "{hashed}"
consume = ["log://r/>"]
"""


class Pair:
    """A primary with a standby, and two gateways: one is active, the other waits and serves readers."""

    def __init__(self, folder: Path, ending: ExitStack) -> None:
        primary = ending.enter_context(server())
        database = primary.new_database()
        self.standby = primary.standby()
        url, read_url = primary.url(database), self.standby.url(database)
        config = CONFIG.format(url=url, read_url=read_url, lease=LEASE_SECONDS, hashed=HASHED)
        self.active, self.waiting = (self._start(folder / name, config, ending) for name in "ab")

    def _start(self, folder: Path, config: str, ending: ExitStack) -> GatewayProcess:
        process = GatewayProcess(folder, config, listen=(f"127.0.0.1:{free_port()}",))
        ending.callback(process.stop)
        return process

    def on_active(self) -> Client:
        """A client of the active gateway."""
        return Client(url_of(self.active), user=ALL)

    def reader(self, user: tuple[str, str] = ALL) -> Client:
        """A client of the waiting gateway, once that serves readers."""
        wait_until(self.reads, "the standby is read")
        return Client(url_of(self.waiting), user=user)

    def reads(self) -> bool:
        """Whether the waiting gateway serves readers."""
        return "standby_reads_begin" in self.waiting.log_text()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """Shared by tests that do not change it, except the last one; each uses topics of its own."""
    with ExitStack() as ending:
        yield Pair(tmp_path_factory.mktemp("pair"), ending)


def test_readers_get_history_and_then_live(pair: Pair) -> None:
    """From log and stream, each message once and in order, with the ids of the active gateway."""
    with pair.on_active() as publisher, pair.reader() as client:
        sender = publisher.sender("topic://s/1")
        sender.send_all(data(number) for number in range(50))
        log = client.receiver("log://s/>?replay-start=beginning", credit=1_000)
        stream = client.receiver("queue://shown", credit=1_000, filters={"rewind:replay-start": "beginning"})
        found = [log.take(50), stream.take(50)]
        sender.send_all(data(number) for number in range(50, 80))
        sender_of_others = publisher.sender("topic://other")
        sender_of_others.send_all([data("other")])
        found = [[*found[0], *log.take(30)], [*found[1], *stream.take(30)]]
        told = publisher.receiver("log://s/>?replay-start=beginning", credit=1_000).take(80)
    for messages in found:
        assert texts(messages) == [str(number) for number in range(80)]
        assert [one.id for one in messages] == [one.id for one in told]
    assert readiness(pair.waiting).json()["state"] == "waiting"


def test_readers_keep_up_under_load(pair: Pair) -> None:
    """A reader that is attached from the beginning gets every accepted message once."""
    with pair.on_active() as publisher, pair.reader() as client:
        receiver = client.receiver("log://load?replay-start=beginning", credit=100)
        sender = publisher.sender("topic://load")
        found: list[Received] = []
        for start in range(0, 2_000, 500):
            sender.send_all(data(number) for number in range(start, start + 500))
            receiver.collect(found, start + 250)
        receiver.collect(found, 2_000)
    assert texts(found) == [str(number) for number in range(2_000)]


def test_nothing_is_read_that_was_not_told(pair: Pair) -> None:
    """While the standby does not apply changes, its readers wait for newer messages, and go on afterwards."""
    with pair.on_active() as publisher, pair.reader() as client:
        sender = publisher.sender("topic://a/b")
        sender.send_all([data("before")])
        receiver = client.receiver("log://a/>?replay-start=beginning", credit=10)
        assert texts(receiver.take(1)) == ["before"]
        pair.standby.execute("select pg_wal_replay_pause()")
        sender.send_all([data("after")])
        assert texts(publisher.receiver("log://a/>?replay-start=beginning", credit=9).take(2))[1] == "after"
        client.open_session()
        assert not receiver.arrived
        pair.standby.execute("select pg_wal_replay_resume()")
        assert texts(receiver.take(1)) == ["after"]


def test_what_a_rule_takes_out_of_the_log_is_told_on_the_standby(pair: Pair) -> None:
    """A reader that has not read them yet is told; a start there is refused, and one for other topics is granted."""
    with pair.on_active() as publisher, pair.reader() as client:
        sender = publisher.sender("topic://debug/a")
        publisher.sender("topic://orders/a").send_all([data("other")])
        sender.send_all(data(number) for number in range(20))
        slow = client.receiver("log://debug/>?replay-start=beginning", credit=5)
        first = slow.take(5)[0].id
        for _ in range(20):
            sender.send_all([data(b"x" * 1_000)] * 100)
        told = slow.detached_by_peer()
        assert (told.replay_error, told.subcode) == ("message-unavailable", 140)
        with pytest.raises(Refused) as refused:
            client.receiver(f"log://debug/>?replay-start=%23{first}")
        assert refused.value.replay_error == "start-message-unavailable"
        other = client.receiver(f"log://orders/>?replay-start=%23{first - 1}&until=now").take_to_end()
        assert texts(other) == ["other"]


@pytest.mark.parametrize(
    "attach",
    [
        lambda client: client.sender("topic://s/1"),
        lambda client: client.sender(None),
        lambda client: client.receiver("queue://orders"),
        lambda client: client.receiver("topic://s/1"),
        lambda client: client.receiver("queue://orders?replay-start=beginning"),
    ],
    ids=["publisher", "relay", "queue", "topic", "replay"],
)
def test_everything_else_is_sent_to_the_active_one(pair: Pair, attach: Callable[[Client], object]) -> None:
    """It is closed with that gateway's address, as without `standby_reads`, and nothing is created."""
    wait_until(pair.reads, "the standby is read")
    with Client(url_of(pair.waiting), user=ALL, properties={symbol("product"): "any"}) as client:
        with pytest.raises(AssertionError):
            attach(client)
        refused = client.closed_by_peer()
    assert refused.name == "amqp:connection:forced"
    host, port = pair.active.address
    assert (refused.info["network-host"], refused.info["port"]) == (host, port)
    with pair.on_active() as client, pytest.raises(Refused, match="no queue"):
        client.receiver("queue://orders?create=never")


def test_rights_are_those_of_the_active_one(pair: Pair) -> None:
    """A user reads the log of the topics that he may, and gets the same refusal for others as at the active gateway."""
    with pair.on_active() as publisher:
        publisher.sender("topic://r/1").send_all([data("a")])
        publisher.sender("topic://x/1").send_all([data("s")])
    with pair.reader(LEAST) as client, Client(url_of(pair.active), user=LEAST) as at_active:
        assert texts(client.receiver("log://r/>?replay-start=beginning", credit=2).take(1)) == ["a"]
        for address in ("log://x/>", "log://>", "queue://shown"):
            refused = refusal(client.receiver, address)
            assert refused.name == "amqp:unauthorized-access"
            assert str(refused) == str(refusal(at_active.receiver, address))


def test_a_publisher_of_protons_gets_to_the_active_one(pair: Pair) -> None:
    """An open connection would make it try its first address again and again; here it reaches the second one."""
    wait_until(pair.reads, "the standby is read")
    accepted_by = published_by_proton(
        [url_of(pair.waiting), url_of(pair.active)],
        user="all",
        password="secret",
        allowed_mechs="PLAIN",
        allow_insecure_mechs=True,
    )
    assert accepted_by.endswith(str(pair.active.address[1]))


def test_what_is_erased_on_the_active_one_is_a_marker_here(pair: Pair) -> None:
    """For a reader that attaches later, and for one that read from memory, once that is over."""
    with pair.on_active() as publisher, pair.reader() as client:
        publisher.sender("topic://erased").send_all(data(number) for number in range(10))
        found = client.receiver("log://erased?replay-start=beginning", credit=10).take(10)
        ids = [one.id for one in found]
        url = f"{pair.active.ready['admin']}/SEMP/v2/action/msgVpns/default/replayLogs/default/redactMsg"
        answer = httpx.put(url, json={"msgId": ids[3:5]}, auth=ALL, **PLAIN_HTTP)
        assert answer.status_code == 200, answer.text

        def read() -> list[Received]:
            receiver = client.receiver("log://erased?replay-start=beginning", credit=10)
            again = receiver.take(10)
            receiver.close()
            assert [one.id for one in again] == ids
            return again

        wait_until(
            lambda: [is_marker(one) for one in read()] == [False] * 3 + [True] * 2 + [False] * 5, "it follows"
        )


def test_streams_come_and_go(pair: Pair) -> None:
    """A stream that is created or deleted on the active gateway is so here soon after; its readers are told."""

    def attached() -> Receiver | None:
        client = ending.enter_context(pair.reader())
        with suppress(AssertionError, Refused):
            return client.receiver("queue://made", credit=10, filters={"rewind:replay-start": "beginning"})
        return None

    with ExitStack() as ending:
        publisher = ending.enter_context(pair.on_active())
        publisher.receiver("queue://made?kind=stream").close()
        publisher.sender("queue://made").send_all([data("1")])
        receiver = wait_until(attached, "the stream is known here")
        assert texts(receiver.take(1)) == ["1"]
        url = f"{pair.active.ready['admin']}/SEMP/v2/config/msgVpns/default/queues/made"
        assert httpx.delete(url, auth=ALL, **PLAIN_HTTP).status_code == 200
        assert receiver.detached_by_peer().name == "amqp:resource-deleted"


def test_readers_are_sent_away_while_the_standby_is_gone_and_when_it_becomes_active(pair: Pair) -> None:
    """
    Without the standby, readers are closed within seconds and redirected; with it they are served again. When the
    gateway becomes active they get `forced`, connect again, and continue with the same ids.

    This test is the last one, as it kills the active gateway.
    """
    with pair.reader() as client:
        client.receiver("log://>", credit=10)
        pair.standby.stop()
        assert client.closed_by_peer().name == "amqp:connection:forced"
    begun = pair.waiting.log_text().count("standby_reads_begin")
    with pytest.raises((AssertionError, OSError)), Client(url_of(pair.waiting), user=ALL) as client:
        client.receiver("log://>")
    pair.standby.start()
    wait_until(lambda: pair.waiting.log_text().count("standby_reads_begin") > begun, "it is read again")
    with pair.on_active() as publisher, Client(url_of(pair.waiting), user=ALL) as client:
        publisher.sender("topic://again").send_all(data(number) for number in range(10))
        before = client.receiver("log://again?replay-start=beginning", credit=100).take(10)
        pair.active.kill()
        assert client.closed_by_peer().name == "amqp:connection:forced"
    wait_until(lambda: is_ready(pair.waiting), "it is active")
    with Client(url_of(pair.waiting), user=ALL) as client:
        client.sender("topic://again").send_all([data("10")])
        again = client.receiver("log://again?replay-start=beginning", credit=100).take(11)
    assert [one.id for one in again][:10] == [one.id for one in before]
