"""
Last-value queues over the wire: a reader gets the newest message of each key, and then all later messages, with no gap
and no duplicate, whatever happens to log, index and gateway meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from proton import Delivery

from amqp_ext.codec import UInt
from gateway.app import Gateway
from gateway.config import Queue, ReplayLog, Vpn
from gateway.config.vpn import Retention
from gateway.core.endpoint.settings import EndpointKind, EndpointSettings
from gateway.core.errors import Refused
from gateway.vpn.administration import Administration
from gateway.vpn.committer import Committer
from gateway.vpn.upkeep import last_values
from store.errors import ReadFailed, WriteFailed
from tests.gateway.amqp.conftest import Clock, Connect, Start
from tests.support.chance import times
from tests.support.client import BEGINNING, SELECTOR, Client, Receiver, browsing, refusal, texts
from tests.support.messages import APPLICATION_PROPERTIES, HEADER, data, section
from tests.support.running import RunningGateway, no_log, trim_before


def prices(**more: Any) -> Vpn:
    """A Message VPN with a last-value queue `prices`, whose key is the topic by default."""
    return Vpn(queues={"prices": Queue(kind="last-value", subscriptions=("p/>",), **more)})


def keyed(key: Any, text: str, *, ttl_ms: int | None = None) -> bytes:
    """A message with a key in its property `isin`."""
    header = b"" if ttl_ms is None else section(HEADER, [True, None, UInt(ttl_ms)])
    return header + section(APPLICATION_PROPERTIES, {"isin": key}) + data(text)


def publish(client: Client, **messages: str) -> None:
    """Publish a text to each of these topics below `p/`, in order."""
    for level, text in messages.items():
        client.sender(f"topic://p/{level}").send_all([data(text)])


def values(client: Client, queue: str = "prices", **more: Any) -> list[str]:
    """The messages that a reader gets that attaches now."""
    receiver = client.receiver(queue, **more)
    found = texts(receiver.drain())
    receiver.close()
    return found


def administer(gateway: RunningGateway, order: Callable[[Administration], Coroutine[Any, Any, Any]]) -> Any:
    """Run an operation as an administrator."""

    async def ask(running: Gateway) -> Any:
        return await order(Administration(running.vpns["default"]))

    return gateway.run_coroutine(ask)


def on(name: str, order: str, *values: Any) -> Callable[[Administration], Coroutine[Any, Any, Any]]:
    """An operation on a queue."""

    async def ask(administration: Administration) -> Any:
        endpoint = administration.vpn.endpoints.by_name[name]
        return await getattr(administration, order)(endpoint, *values)

    return ask


def make(running: RunningGateway, name: str, *subscriptions: str, **more: Any) -> None:
    """Create a last-value queue as an administrator."""
    made = EndpointSettings(**more)
    administer(running, lambda a: a.create(name, EndpointKind.LAST_VALUE, made, subscriptions))


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    """A gateway with a last-value queue `prices`, whose key is the topic."""
    return start(prices())


# --- what a reader gets -----------------------------------------------------------------------------------------------


def test_a_reader_gets_the_newest_of_each_key_and_then_all_that_comes(client: Client) -> None:
    """In the order of the log; readers do not affect each other, whatever outcomes they give."""
    publish(client, a="a1", b="b1", c="c1")
    publish(client, a="a2", c="c2")
    first = client.receiver("prices", credit=10)
    assert texts(first.take_and_accept(3)) == ["b1", "a2", "c2"]
    second = client.receiver("prices?kind=last-value", credit=10, set_up=browsing)
    second.settle(got := second.take(3), Delivery.REJECTED)
    assert texts(got) == ["b1", "a2", "c2"]
    publish(client, b="b2", d="d1")
    publish(client, b="b3")
    assert texts(first.take(3)) == texts(second.take(3)) == ["b2", "d1", "b3"]
    assert values(client) == ["a2", "c2", "d1", "b3"]


EMPTY = [
    b"\x00\x53\x75\xa0\x00",
    b"\x00\x53\x75\xb0\0\0\0\0\x00\x53\x75\xa0\x00",
    b"\x00\x53\x77\x40",
    b"\x00\x53\x77\xa1\x00",
    b"\x00\x53\x77\xb1\0\0\0\0",
]


def test_an_empty_message_takes_a_key_away(client: Client) -> None:
    """Attached readers get the empty message; later ones get neither that nor the key's old value."""
    for body in EMPTY:
        publish(client, a="a1", b="b1")
        reader = client.receiver("prices", credit=10)
        assert texts(reader.take(2)) == ["a1", "b1"]
        client.sender("topic://p/a").send_all([body])
        assert reader.take(1)[0].bare == body
        assert values(client) == ["b1"]
        publish(client, a="a2")
        assert values(client) == ["b1", "a2"]


def test_a_property_is_the_key(start: Start, connect: Connect) -> None:
    """
    Keys are compared as text: 7 is '7'. In long ones every character counts. A message without the property goes to
    attached readers, and is no value.
    """
    client = connect(start(prices(value_key="isin")))
    reader = client.receiver("prices", credit=20)
    long = "k" * 65_000
    sent = [
        keyed("x", "x1"),
        keyed(7, "seven"),
        data("no key"),
        keyed("7", "7"),
        keyed("x", "x2"),
        keyed([1], "l"),
    ]
    sent += [keyed(long + "a", "la"), keyed(long + "b", "lb")]
    client.sender("topic://p/a").send_all(sent)
    assert texts(reader.take(8)) == ["x1", "seven", "no key", "7", "x2", "l", "la", "lb"]
    assert values(client) == ["7", "x2", "la", "lb"]


def test_a_selector_chooses_among_values_and_what_comes(start: Start, connect: Connect) -> None:
    """It affects no other reader, and a value that it leaves out is still a value."""
    client = connect(start(prices(value_key="isin")))
    sender = client.sender("topic://p/a")
    sender.send_all([keyed("a", "a1"), keyed("b", "b1")])
    reader = client.receiver("prices", filters={SELECTOR: "isin = 'b'"}, credit=10)
    assert texts(reader.take(1)) == ["b1"]
    sender.send_all([keyed("a", "a2"), keyed("b", "b2")])
    assert texts(reader.take(1)) == ["b2"]
    assert values(client) == ["a2", "b2"]


def test_a_start_reads_the_log_by_the_queue_s_topics(client: Client) -> None:
    """History, then live; `live` alone is live. A reader that asks for no start gets the values."""
    publish(client, a="a1", b="b1")
    publish(client, a="a2")
    client.sender("topic://other").send_all([data("no")])
    assert values(client, filters=BEGINNING) == ["a1", "b1", "a2"]
    live = client.receiver("prices?replay-start=live", credit=5)
    publish(client, b="b2")
    assert texts(live.take(1)) == ["b2"]
    assert values(client) == ["a2", "b2"]


def test_a_reader_that_takes_nothing_gets_no_value_that_is_one_no_more(client: Client) -> None:
    """A reader without credit gets the value that replaced it instead, once."""
    publish(client, a="a1", b="b1")
    reader = client.receiver("prices")
    publish(client, a="a2")
    assert values(client) == ["b1", "a2"]
    reader.flow(10)
    assert texts(reader.take(2)) == ["b1", "a2"]
    assert reader.drain(1) == []


@pytest.mark.slow
def test_readers_come_to_what_a_dictionary_has(start: Start, connect: Connect) -> None:
    """
    Whatever is published, and whenever they attach: ids rise, all that was published since is there, and a reader's
    messages give the same values by key as a dictionary.
    """
    running = start(prices(value_key="isin"))
    client = connect(running)
    sender = client.sender("topic://p/a")
    count = 0

    @settings(max_examples=times(25, 2_000))
    @given(
        steps=st.lists(
            st.tuples(st.integers(0, 5), st.sampled_from(["set", "set", "set", "del", "read"])), max_size=40
        )
    )
    def run(steps: list[tuple[int, str]]) -> None:
        nonlocal count
        administer(running, on("prices", "purge"))
        published: list[tuple[str, str]] = []
        readers: list[tuple[Receiver, int]] = []
        for number, what in steps:
            if what == "read":
                readers.append((client.receiver("prices", credit=number * 20), len(published)))
                continue
            count += 1
            published.append((f"k{number}", "" if what == "del" else str(count)))
            sender.send_all([keyed(*published[-1])])
        readers.append((client.receiver("prices"), len(published)))
        for reader, since in readers:
            received = reader.drain()
            ids = [message.id for message in received]
            assert ids == sorted(set(ids))
            said = [(_key_of(message.raw), message.text) for message in received]
            assert known_by(said) == known_by(published)
            assert said[len(said) - (len(published) - since) :] == published[since:]
            reader.close()

    run()


def known_by(said: list[tuple[str, str]]) -> dict[str, str]:
    """A dictionary of these messages: a key without a text is gone."""
    return {key: text for key, text in dict(said).items() if text}


def _key_of(raw: bytes) -> str:
    at = raw.index(b"isin") + 4
    return raw[at + 2 : at + 2 + raw[at + 1]].decode()


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_history_counts_for_a_queue_that_is_made_and_for_topics_it_gets(
    gateway: RunningGateway, client: Client, connect: Connect
) -> None:
    """Values come from all of the log; a message on a topic that the queue no longer subscribes to is no value."""
    publish(client, a="a1", b="b1")
    publish(client, a="a2")
    client.sender("topic://q/z").send_all([data("z1")])
    make(gateway, "late", "p/>")
    assert values(client, "late") == ["b1", "a2"]
    administer(gateway, on("late", "subscribe", "q/*"))
    assert values(client, "late") == ["b1", "a2", "z1"]
    administer(gateway, on("late", "unsubscribe", "p/>"))
    assert values(client, "late") == ["z1"]
    client.wait(lambda: gateway.depth("late") == 1, "the others are no values any more")
    gateway.restart()
    administer(gateway, on("late", "subscribe", "p/>"))
    client = connect(gateway)
    reader = client.receiver("late", credit=9)
    assert texts(reader.take(3)) == ["b1", "a2", "z1"]
    administer(gateway, on("late", "unsubscribe", "q/*"))
    publish(client, c="c1")
    client.sender("topic://q/z").send_all([data("z2")])
    publish(client, c="c2")
    assert texts(reader.take(2)) == ["c1", "c2"]


def test_values_of_former_topics_go_although_a_read_failed(gateway: RunningGateway, client: Client) -> None:
    """The store could not be read when the topics changed: it is read again a moment later."""
    publish(client, a="a1", b="b1")
    make(gateway, "late", "p/>")
    assert values(client, "late") == ["a1", "b1"]
    failed: list[int] = []

    def fail_once(running: Gateway) -> None:
        reader = running.vpns["default"].reader
        read = reader.values_page

        def values_page(*arguments: Any) -> Any:
            if not failed:
                failed.append(1)
                raise ReadFailed("the disk is gone")
            return read(*arguments)

        reader.values_page = values_page  # type: ignore[method-assign]

    gateway.call(fail_once)
    administer(gateway, on("late", "unsubscribe", "p/>"))
    client.wait(lambda: gateway.depth("late") == 0, "they are no values any more")
    assert failed


def test_the_log_is_trimmed_and_values_stay(gateway: RunningGateway, connect: Connect) -> None:
    """Only values stay; one that is replaced can be trimmed."""
    client = connect(gateway)
    publish(client, a="a1", b="b1", c="c1")
    publish(client, a="a2", d="")
    trim_before(gateway, 6)
    assert client.read_log() == []
    assert values(client) == ["b1", "c1", "a2"]
    gateway.restart()
    client = connect(gateway)
    assert values(client) == ["b1", "c1", "a2"]
    publish(client, b="b2", c="")
    assert values(client) == ["a2", "b2"]
    trim_before(gateway, 8)
    assert values(client) == ["a2", "b2"]
    assert administer(gateway, on("prices", "purge")) == 2
    assert values(client) == []


def test_a_small_log_loses_no_value(start: Start, connect: Connect) -> None:
    """
    The log is trimmed only as far as it is indexed: after several times its quota, each key has its newest message.
    """
    vpn = Vpn(queues=prices().queues, replay_log=ReplayLog(quota_mb=1))
    running = start(vpn)
    client = connect(running)
    for turn in range(4):
        for level in range(20):
            client.sender(f"topic://p/{level}").send_all([data(f"{turn}-{level}-" + "x" * 40_000)])
    client.wait(lambda: running.ask(lambda v: v.broker.log.first_id) > 40, "the log was trimmed")
    found = [text.split("-x")[0] for text in values(client)]
    assert found == [f"3-{level}" for level in range(20)]


def test_a_rule_of_retention_takes_no_value(start: Start, connect: Connect, clock: Clock) -> None:
    """It takes all messages of its topics out of the log, and the values stay."""
    rule = Retention(topics=("p/>",), max_age_hours=1)
    running = start(Vpn(queues=prices().queues, replay_log=ReplayLog(retention=(rule,))))
    client = connect(running)
    publish(client, a="a1", b="b1")
    publish(client, a="a2")
    clock.ms += 7_200_000
    running.call(lambda g: g.vpns["default"].topic_retention.run())
    client.wait(lambda: running.ask(lambda v: v.broker.log.size_bytes) == 0, "they left the log")
    assert values(client) == ["b1", "a2"]


@pytest.mark.parametrize(("setting", "of_message"), [(60_000, None), (0, 60_000), (90_000, 60_000)])
def test_a_value_goes_when_its_time_has_come(
    start: Start, connect: Connect, clock: Clock, setting: int, of_message: int | None
) -> None:
    """After the header's ttl or the queue's, whichever is shorter; readers are not told, and the log keeps it."""
    running = start(prices(value_key="isin", max_ttl_ms=setting))
    client = connect(running)
    client.sender("topic://p/a").send_all([keyed("a", "a1", ttl_ms=of_message)])
    clock.ms += 30_000
    client.sender("topic://p/a").send_all([keyed("b", "b1", ttl_ms=of_message)])
    assert values(client) == ["a1", "b1"]
    clock.ms += 30_000
    assert values(client) == ["b1"]
    client.wait(lambda: running.depth("prices") == 1, "it went by itself")
    assert values(client, filters=BEGINNING) == ["a1", "b1"]


@pytest.mark.parametrize("quota", [{"quota_messages": 2}, {"quota_bytes": 2 * len(data("aa"))}])
def test_beyond_its_quota_the_oldest_value_goes(
    start: Start, connect: Connect, quota: dict[str, int]
) -> None:
    """No publisher is refused, as the queue is a view of the log."""
    running = start()
    make(running, "prices", "p/>", **quota)
    client = connect(running)
    publish(client, a="a1", b="b1", c="c1")
    assert values(client) == ["b1", "c1"]
    publish(client, b="b2", d="d1")
    assert values(client) == ["b2", "d1"]


def test_keys_without_a_quota_are_bounded(
    start: Start, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any publisher can make up keys; a queue has at most `MOST_KEYS` values, by default a million."""
    monkeypatch.setattr("gateway.core.endpoint.last_values.MOST_KEYS", 50)
    monkeypatch.setattr(last_values, "MOST_GATHERED", 20)
    running = start(prices(value_key="isin"))
    client = connect(running)
    client.sender("topic://p/a").send_all(keyed(f"k{n}", str(n)) for n in range(500))
    assert values(client) == [str(n) for n in range(450, 500)]
    assert running.depth("prices") == 50


def test_an_administrator_deletes_keys_and_erases_values(gateway: RunningGateway, client: Client) -> None:
    """
    Both have no value any more, after a restart as well; a key without a value cannot be deleted. A deleted key has a
    value again with its next message.
    """
    publish(client, a="a1", b="b1", c="c1")

    async def delete(administration: Administration, key: Any = "p/a") -> None:
        vpn = administration.vpn
        await vpn.last_values.delete(vpn.endpoints.by_name["prices"], key)

    administer(gateway, delete)
    assert values(client) == ["b1", "c1"]
    with pytest.raises(Refused, match="no value with the key 'p/a'"):
        administer(gateway, delete)

    async def erase(administration: Administration) -> None:
        await administration.vpn.erasing.erase([2], "")

    administer(gateway, erase)
    assert values(client) == ["c1"]
    gateway.restart()
    assert gateway.depth("prices") == 1
    with Client(gateway.url) as again:
        publish(again, a="a2")
        assert values(again) == ["c1", "a2"]


def test_two_store_failures_do_not_lose_a_value(
    gateway: RunningGateway, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Index entries that could not be written are written a little later."""
    commit, failures = Committer.commit, iter([True, True])

    def failing(self: Any, effects: Any, then: Any = None) -> None:
        effects = list(effects)
        if any(type(effect).__name__ == "KeepValues" for effect in effects) and next(failures, False):
            self._loop.call_soon(then, WriteFailed("disk full"))
            return
        commit(self, effects, then)

    monkeypatch.setattr(Committer, "commit", failing)
    publish(client, a="a1", b="b1")
    client.wait(lambda: gateway.depth("prices") == 2, "the index has them")
    assert values(client) == ["a1", "b1"]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_what_it_is_not(client: Client, gateway: RunningGateway) -> None:
    """
    A client cannot make it, or attach to it as to a queue; it has nothing to rewind, and its key cannot be changed.
    """
    client.sender("plain")
    assert refusal(client.receiver, "fresh?kind=last-value").name == "amqp:not-found"
    assert refusal(client.receiver, "prices?kind=queue").name == "amqp:precondition-failed"
    assert refusal(client.receiver, "plain?kind=last-value").name == "amqp:precondition-failed"
    with pytest.raises(Refused, match="last-value and cannot be rewound"):
        gateway.start_replay("prices", "beginning")
    make(gateway, "made", "p/>")
    with pytest.raises(Refused, match="value_key of 'made' can only be set when the endpoint is created"):
        administer(gateway, on("made", "change", EndpointSettings(value_key="isin")))


def test_without_a_log_there_is_none(start: Start) -> None:
    with pytest.raises(Refused, match="log"):
        make(start(no_log()), "made", "p/>")


def test_a_key_that_is_declared_otherwise_has_its_values_from_the_log(start: Start, connect: Connect) -> None:
    running = start(prices())
    client = connect(running)
    client.sender("topic://p/a").send_all([keyed("x", "x1"), keyed("y", "y1"), keyed("x", "x2")])
    assert values(client) == ["x2"]
    client = connect.again(running, client, prices(value_key="isin"))
    assert values(client) == ["y1", "x2"]
