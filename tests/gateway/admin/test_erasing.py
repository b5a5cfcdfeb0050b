"""Erasing messages: what AMQP clients receive afterwards, what queues count, and that no file has the bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from proton import Message

from amqp_ext.codec import Long, Symbol
from amqp_ext.message.annotations import ERASED_REASON, ERASED_TIME
from gateway.cli import main
from gateway.config import Limits, Queue, ReplayLog, Vpn, VpnStore
from store.postgresql.database import schema_name
from tests.gateway.admin.conftest import LOG, Api, Serve, stop_and_check
from tests.gateway.admin.jobs.test_copy import copy, ended
from tests.store.port.postgresql_vpn import check_url
from tests.support.client import Client, Received, browsing
from tests.support.messages import data, section
from tests.support.postgresql import Server
from tests.support.running import RunningGateway, trim_before

ERASE = f"{LOG}/redactMsg"
SECRET = "a-secret-of-one-person-"


def erase(api: Api, **body: Any) -> dict[str, Any]:
    """Erase messages; return the answer's data."""
    found: dict[str, Any] = api.act(ERASE, body)
    return found


def decoded(received: Received) -> Message:
    """A delivery, as a client decodes it."""
    message = Message()
    message.decode(received.raw)
    return message


def is_marker(received: Received, reason: str = "") -> bool:
    """Whether a delivery is the marker that replaces an erased message."""
    message = decoded(received)
    annotations = {str(key): value for key, value in (message.annotations or {}).items()}
    return message.body is None and ERASED_TIME in annotations and annotations[ERASED_REASON] == reason


def test_an_erased_message_is_a_marker_for_everybody(api: Api, client: Client) -> None:
    """On the queue, in the log, in a replay and after a restart; id, time and topic stay, and the file is sound."""
    api.make_queue("q", "a")
    client.sender("topic://a").send_all([data(f"{SECRET}{i}") for i in range(5)])
    before = client.receiver("log://a?replay-start=beginning").drain()
    done = erase(api, msgId=[2, 4, 77], reason="asked to")
    assert (done["msgIds"], done["missingMsgIds"], done["scrubbed"]) == ([2, 4], [77], True)
    logged = client.receiver("log://a?replay-start=beginning").drain()
    lying = client.receiver("q").drain()
    assert [one.id for one in logged] == [one.id for one in lying] == [1, 2, 3, 4, 5]
    for found in (logged, lying):
        assert [is_marker(one, "asked to") for one in found] == [False, True, False, True, False]
    kept = ("x-opt-enqueued-time", "x-opt-topic", "x-opt-replay-id")
    for old, new in zip(before, logged, strict=True):
        assert [old.annotations[key] for key in kept] == [new.annotations[key] for key in kept]
    api.act("/queues/q/startReplay", {})
    replaying = client.receiver("q", credit=5)
    replayed = replaying.take_and_accept(5)
    assert [is_marker(one, "asked to") for one in replayed] == [False, True, False, True, False]
    stop_and_check(api, client)


@pytest.mark.parametrize("size", [10, 300, 20_000])
def test_no_file_has_the_bytes(serve: Serve, tmp_path: Path, size: int) -> None:
    """
    When the answer comes, no file has the bytes of a message, small or large, held or logged, indexed or not. Its
    message-id is in no dedup window any more: if it is sent again, it is a new message.
    """
    api = serve(Vpn(replay_log=ReplayLog(index=("who",))))
    api.make_queue("q", "a", dedupWindow=10)
    with Client(api.gateway.url) as client:
        secret = f"{SECRET}in-the-body"
        said = {"who": f"{SECRET}in-a-property"}
        message = Message(body=secret + "x" * size, properties=said, id=f"{SECRET}id")
        sender, other = client.sender("topic://a"), Message(body="behind", id="other").encode()
        sender.send_all([data("before"), message.encode(), other])
        client.sender("topic://b").send_all([message.encode(), data("last")])
        assert any(SECRET.encode() in content for content in files(tmp_path))
        assert erase(api, msgId=[2, 4])["scrubbed"] is True
        assert not [name for name in files(tmp_path) if SECRET.encode() in name]
        assert is_marker(client.receiver("q").drain()[1])
        sender.send_all([Message(id=f"{SECRET}id").encode(), other])
        assert api.queue("q")["spooledMsgCount"] == 4
        assert erase(api, msgId=[6])["scrubbed"] is True
        assert api.queue("q")["dedupIdCount"] == 1
        stop_and_check(api, client)
    assert not [name for name in files(tmp_path) if SECRET.encode() in name]


def files(folder: Path) -> list[bytes]:
    """The contents of all files in a folder."""
    return [path.read_bytes() for path in folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize("has_priorities", [False, True])
def test_what_queues_count_stays_exact(serve: Serve, has_priorities: bool) -> None:
    """For ready and unsettled messages, by routes, replays and copies: once all are settled, zero is left."""
    api = serve(limits=Limits(endpoint_window=20, read_page_rows=10))
    for name in ("q", "r", "s"):
        api.make_queue(name, "a", respectMsgPriorityEnabled=has_priorities)
    with Client(api.gateway.url) as client:
        client.sender("topic://a").send_all(
            [Message(body="x" * 400, priority=i % 10, durable=True).encode() for i in range(100)]
        )
        size = api.queue("q")["msgSpoolUsage"] // 100
        api.act("/queues/r/startReplay", {"start": "#50"})
        receiver, replayed = client.receiver("q"), client.receiver("r")
        receiver.flow(30)
        taken = receiver.take(30)
        replayed.flow(10)
        put = replayed.take(10)
        some = sorted({1, *[one.id for one in taken[10:20]], *[one.id for one in put[:5]], 90, 95})
        erase(api, msgId=some)
        counted = {name: api.queue(name)["msgSpoolUsage"] for name in ("q", "r", "s")}
        assert counted["q"] == counted["s"] < 100 * size
        receiver.settle(taken)
        receiver.close()
        replayed.settle(put)
        replayed.close()
        for name in ("q", "r", "s"):
            client.receiver(name).settle(client.receiver(name).drain())
        stop_and_check(api, client)


def everybody(client: Client, count: int) -> Callable[[], list[list[int]]]:
    """
    A log reader, a browser and a consumer have five messages each; their next ones are in memory and wait for credit.
    Returns a function that reads the rest, and returns the ids of the markers for each of the three.
    """
    links = [client.receiver("log://a?replay-start=beginning"), client.receiver("q", set_up=browsing)]
    links.append(client.receiver("q"))
    for receiver in links:
        receiver.flow(5)
        assert not any(is_marker(one) for one in receiver.take(5))

    def markers() -> list[list[int]]:
        for receiver in links:
            receiver.flow(count - 5)
        return [[one.id for one in receiver.take(count - 5) if is_marker(one, "r")] for receiver in links]

    return markers


def test_an_erased_message_that_a_reader_waits_for(api: Api, client: Client) -> None:
    """Links whose next messages are already in memory, waiting for credit or for their pace, deliver the marker."""
    api.make_queue("q", "a")
    client.sender("topic://a").send_all([data(f"{SECRET}{i}") for i in range(50)])
    markers = everybody(client, 50)
    erase(api, msgId=[6, 7, 30], reason="r")
    assert markers() == [[6, 7, 30]] * 3


@pytest.mark.postgresql
def test_on_postgresql_everybody_is_given_markers(serve: Serve, postgresql: Server) -> None:
    """Links that wait for credit or attach later, and a search by an index; after a restart, too. Counts stay exact."""
    database = postgresql.new_database()
    url = postgresql.url(database)
    log = ReplayLog(index=("who",))
    api = serve(Vpn(store=VpnStore(url=url, lease_seconds=2), replay_log=log))
    gateway = api.gateway
    api.make_queue("q", "a")
    with Client(gateway.url) as client:
        secret = SECRET + "x" * 400
        client.sender("topic://a").send_all(
            [Message(body=secret, properties={"who": f"person {i % 10}"}).encode() for i in range(50)]
        )
        size = api.queue("q")["msgSpoolUsage"]
        markers = everybody(client, 50)
        wanted, erased = {"selector": "who = 'person 6'", "reason": "r"}, [7, 17, 27, 37, 47]
        assert erase(api, **wanted, preview=True)["msgIds"] == erased
        assert erase(api, **wanted, expectedMsgCount=5)["scrubbed"] is True
        assert markers() == [erased] * 3
        assert api.queue("q")["msgSpoolUsage"] < size
        assert erase(api, **wanted, preview=True)["msgCount"] == 0
        client.cut()
    gateway.restart()
    with Client(gateway.url) as client:
        for address in ("log://a?replay-start=beginning", "q"):
            found = client.receiver(address, credit=50).take(50)
            assert [one.id for one in found if is_marker(one, "r")] == erased
        client.cut()
    gateway.stop()
    assert check_url(url, "default") == []
    values = f'select value from "{schema_name("default")}".property_value'
    indexed = [text for (text,) in postgresql.execute(values, database)]
    assert len(indexed) == 45
    assert not any(text.endswith("person 6") for text in indexed)


def copied(api: Api, target: str, subscriptions: list[str]) -> None:
    """Copy the whole log so far, and wait until the copy has ended."""
    ended(api, copy(api, target=target, subscriptions=subscriptions))


def test_copies_that_jobs_made_are_named_and_erased_where_that_is_asked_for(serve: Serve) -> None:
    """A copy, a copy of the copy, and its dead letter; not a message with forged annotations, or of another topic."""
    api = serve(Vpn(queues={"q": Queue(dead_message_queue="dead"), "dead": Queue()}))
    with Client(api.gateway.url) as client:
        client.sender("topic://a").send_all([data(f"{SECRET}{i}") for i in range(3)])
        client.sender("topic://b").send_all(
            [
                section(0x72, {Symbol("x-opt-replay-source-id"): Long(2), **more}) + data("of others")
                for more in (
                    {},
                    {Symbol("x-opt-replay-source-id"): [2], Symbol("x-opt-dead-sequence-number"): {"a": 2}},
                    {Symbol("x-opt-replay-source-topic"): "a", Symbol("x-opt-replay-name"): "elsewhere"},
                )
            ]
        )
        assert erase(api, msgId=[2], preview=True)["copyMsgIds"] == []
        copied(api, "topic://c", ["a"])
        copied(api, "queue://q", ["c"])
        receiver = client.receiver("q", credit=3)
        found = receiver.take(3)
        assert [one.id for one in found] == [10, 11, 12]
        receiver.update(found[1:2], 0x25)
        dead = client.receiver("dead", credit=1).take(1)
        wanted = {"msgId": [2], "reason": "r"}
        preview = erase(api, **wanted, preview=True)
        assert (preview["msgIds"], preview["copyMsgIds"]) == ([2], [8, 11, dead[0].id])
        assert erase(api, msgId=[8], preview=True)["originMsgIds"] == [2]
        whole = erase(api, **wanted, preview=True, withCopies=True)
        assert whole["msgIds"] == [2, 8, 11, dead[0].id]
        refused = api.refused("PUT", "action", ERASE, {**wanted, "withCopies": True, "expectedMsgCount": 1})
        assert "4 messages would be erased" in refused["description"]
        done = erase(api, **wanted, withCopies=True, expectedMsgCount=4)
        assert done["msgIds"] == whole["msgIds"]
        logged = client.receiver("log://>?replay-start=beginning").drain()
        assert [one.id for one in logged if is_marker(one, "r")] == done["msgIds"]


def test_copies_of_a_replay_that_is_off_the_record_are_found(serve: Serve) -> None:
    """Without the replay's record the whole log is searched, which finds the returned dead letter, too."""
    api = serve(
        Vpn(queues={"q": Queue(dead_message_queue="dead"), "dead": Queue()}),
        limits=Limits(replay_records=1),
    )
    with Client(api.gateway.url) as client:
        client.sender("q").send_all([data(SECRET)])
        receiver = client.receiver("q", credit=1)
        receiver.update(receiver.take(1), 0x25)
        dead = client.receiver("dead", credit=1)
        assert [one.id for one in dead.take(1)] == [2]
        dead.close()
        api.act("/queues/dead/returnDead", {})
        receiver.flow(1)
        assert [one.id for one in receiver.take(1)] == [3]
        for _ in range(2):
            copied(api, "topic://c", ["#queue/q"])
        found = erase(api, msgId=[1], preview=True)
        assert (found["msgIds"], found["deadMsgIds"]) == ([1, 2], [2])
        assert found["copyMsgIds"] == [3, 4, 5, 6, 7]
        assert erase(api, msgId=[1])["msgIds"] == [1, 2]
        logged = client.receiver("log://>?replay-start=beginning").drain()
        assert [one.id for one in logged if is_marker(one)] == [1, 2]


def test_a_selector_is_previewed_first(api: Api, client: Client) -> None:
    """Without `expectedMsgCount`, or with a wrong one, nothing is erased."""
    client.sender("topic://a").send_all(
        [Message(body=f"{SECRET}{i}", properties={"who": f"person {i % 3}"}).encode() for i in range(9)]
    )
    client.sender("topic://b").send_all([Message(body="b", properties={"who": "person 1"}).encode()])
    wanted = {"selector": "who = 'person 1'", "subscribe": ["a"]}
    assert "preview" in api.why("PUT", "action", ERASE, wanted)
    preview = erase(api, **wanted, preview=True)
    assert preview["msgIds"] == [2, 5, 8]
    assert erase(api, **wanted, start="#3", until="#5", preview=True)["msgIds"] == [5]
    refused = api.refused("PUT", "action", ERASE, {**wanted, "expectedMsgCount": 4})
    assert "3 messages would be erased" in refused["description"]
    assert erase(api, **wanted, expectedMsgCount=3, reason="r")["msgCount"] == 3
    found = client.receiver("log://>?replay-start=beginning").drain()
    assert [one.id for one in found if is_marker(one, "r")] == [2, 5, 8]
    assert erase(api, **wanted, preview=True)["msgCount"] == 0


def test_what_means_nothing_is_refused(api: Api) -> None:
    """No messages; ids together with a selector; an option of selectors without one; the id of another log."""
    for body in (
        {},
        {"msgId": [1], "selector": "a = 1", "preview": True},
        {"msgId": [1], "start": "beginning"},
        {"replicationGroupMsgId": ["rmid1:1"]},
        {"replicationGroupMsgId": ["rmid1:0000-00000000-00000000-00000000"]},
        {"selector": "a =", "preview": True},
        {"msgId": list(range(1, 1_002))},
        {"msgId": [0]},
    ):
        api.refused("PUT", "action", ERASE, body)


def test_the_verb_asks_before_it_erases(gateway: RunningGateway, client: Client) -> None:
    """Answering no erases nothing; `--yes` asks no question; `--preview` prints what would be erased."""
    client.sender("topic://a").send_all([data(f"{SECRET}{i}") for i in range(3)])
    url = gateway.call(lambda running: running.admin[0])

    def rewind(*words: str, **more: str) -> tuple[int, str]:
        ran = CliRunner().invoke(main, ["log", "erase", *words, "--admin", url], **more)
        return ran.exit_code, ran.output

    assert "2 messages would be erased (1, 2); not found: 9" in rewind("1", "#2", "9", "--preview")[1]
    assert rewind("1", input="n\n")[0] != 0
    reader = client.receiver("log://a?replay-start=beginning").drain()
    assert not any(map(is_marker, reader))
    assert rewind("--selector", "JMSPriority = 4", "--from", "#3", "--reason", "asked", "--yes")[0] == 0
    reader = client.receiver("log://a?replay-start=beginning").drain()
    assert [is_marker(one, "asked") for one in reader] == [False, False, True]
    assert rewind("9", "--yes")[0] != 0
    assert rewind("nine")[0] == 2


def test_messages_that_are_gone_hide_none_that_is_there(serve: Serve) -> None:
    """Not even as many of them as a page of the store has: the message after them is found, and erased."""
    api = serve(limits=Limits(read_page_rows=10))
    api.make_queue("q", "a")
    with Client(api.gateway.url) as client:
        client.sender("topic://a").send_all([data(f"{SECRET}{i}") for i in range(25)])
        client.receiver("q", credit=19).take_and_accept(19)
        client.wait(lambda: api.gateway.depth("q") == 6, "they are consumed")
        trim_before(api.gateway, 25)
        done = erase(api, msgId=list(range(1, 21)))
        assert (done["msgIds"], done["missingMsgIds"]) == ([20], list(range(1, 20)))
        assert is_marker(client.receiver("q").drain()[0])
