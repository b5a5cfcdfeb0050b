"""A part of the log published again, as a job: what comes, what hinders it, and how it ends."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import Limits, Queue, ReplayLog, Vpn
from gateway.config.vpn import Retention
from tests.gateway.admin.conftest import LOG, Api, Serve
from tests.support.client import Client, Received, texts
from tests.support.messages import data, section
from tests.support.publishing import Publishing
from tests.support.running import RunningGateway
from tests.support.waiting import wait_until


def copy(api: Api, **body: Any) -> str:
    """Begin a copy; its name."""
    return str(api.act(f"{LOG}/startCopy", body)["replayName"])


def record(api: Api, name: str) -> Any:
    """What is known of a replay."""
    return api.gateway.call(lambda running: running.vpns["default"].broker.replay_records.get(name))


def ended(api: Api, name: str) -> Any:
    """The record of a replay, once it is over."""
    wait_until(lambda: record(api, name).is_ended, f"{name} ends")
    return record(api, name)


def test_a_copy_has_the_bare_message_and_says_what_it_is(api: Api, client: Client) -> None:
    """Whatever came in front of the message stays there, its annotations and header; ours are in front, too."""
    bare = section(0x73, ["an id"]) + data("content")
    plain, with_header = bare, section(0x70, [True]) + bare
    annotated = section(0x70, [True]) + section(0x72, {"x-opt-theirs": "kept"}) + bare
    client.sender("topic://orders/1").send_all([plain, with_header, annotated])
    name = copy(api, target="queue://test", subscriptions=["orders/>"], name="try version 2")
    assert ended(api, name).outcome == "3 copies of 3 messages looked at"
    found = client.receiver("test").drain()
    assert [received.bare for received in found] == [bare] * 3
    assert [received.annotations["x-opt-replay-source-id"] for received in found] == [1, 2, 3]
    for received in found:
        assert received.annotations["x-opt-replay-name"] == "try version 2"
        assert received.annotations["x-opt-replay-source-topic"] == "orders/1"
    assert found[2].annotations["x-opt-theirs"] == "kept"
    assert [received.header is not None for received in found] == [False, True, True]
    # A copy of a copy says what it all began with, and the name of the later replay.
    ended(api, copy(api, target="topic://b", subscriptions=["orders/>"], until="#1", name="first"))
    ended(api, copy(api, target="queue://test", subscriptions=["b"], name="second"))
    again = client.receiver("test").drain()[-1].annotations
    assert (again["x-opt-replay-name"], again["x-opt-replay-source-id"]) == ("second", 1)
    assert again["x-opt-replay-source-topic"] == "orders/1"


def test_start_end_subscriptions_and_selector_choose(api: Api, client: Client) -> None:
    """What is copied is what a log reader with the same words would be given, up to the end."""
    for number in range(10):
        client.sender("topic://a/x" if number % 2 else "topic://a/y").send_all(
            [section(0x74, {"n": number}) + data(number)]
        )
    name = copy(
        api,
        target="queue://test",
        start="#3",
        until="#9",
        subscriptions=["a/*", "!a/y"],
        selector="n <> 5",
    )
    assert ended(api, name).sent == 2
    assert texts(client.receiver("test").drain()) == ["3", "7"]


def test_a_copy_of_the_log_into_itself_ends(gateway: RunningGateway, api: Api, client: Client) -> None:
    """Its own copies are behind the end, which was fixed when it began; live messages are, too."""
    client.sender("topic://a").send_all([data(n) for n in range(3_000)])
    with Publishing(gateway.url, "topic://a") as publishing:
        publishing.wait_for(100)
        name = copy(api, target="topic://a", subscriptions=[">"])
        done = ended(api, name)
    assert done.state == "complete"
    assert done.sent == done.end - 1
    assert done.end > 3_000


def test_a_full_target_is_waited_for(serve: Serve) -> None:
    """
    The job says why it waits, and goes on once there is room: nothing is left out, nothing comes twice; and what is
    erased while its copy lies ready comes without its content.
    """
    api = serve(Vpn(queues={"small": Queue(quota_messages=50)}))
    with Client(api.gateway.url) as client:
        client.sender("topic://a").send_all([data(f"secret {n}") for n in range(500)])
        name = copy(api, target="queue://small", subscriptions=["a"])
        wait_until(lambda: "quota" in record(api, name).outcome, "it says what it waits for")
        assert record(api, name).state == "running"
        api.act(f"{LOG}/redactMsg", {"msgId": [60]})
        found: list[Received] = []
        client.receiver("small").collect(found, 500)
    assert [one.annotations["x-opt-replay-source-id"] for one in found] == [*range(1, 501)]
    assert [n for n, one in enumerate(found, 1) if b"secret" not in one.raw] == [60]
    assert ended(api, name).sent == 500


def test_a_copy_is_paused_resumed_and_goes_on_after_a_stop(api: Api, client: Client) -> None:
    """Paused it stays so over a restart; resumed it goes on where it was, to the end, each message once."""
    client.sender("topic://a").send_all([data(n) for n in range(2_000)])
    client.cut()
    name = copy(api, target="queue://test", subscriptions=["a"], rate=2_000)
    wait_until(lambda: record(api, name).sent, "it has begun")
    api.act(f"{LOG}/pauseReplay", {"replayName": name})
    sent = record(api, name).sent
    assert 0 < sent < 2_000
    api.restart()
    assert (record(api, name).state, record(api, name).sent) == ("paused", sent)
    assert api.queue("test")["spooledMsgCount"] == sent
    api.act(f"{LOG}/resumeReplay", {"replayName": name})
    wait_until(lambda: record(api, name).sent > sent, "it goes on")
    api.restart()
    assert ended(api, name).state == "complete"
    with Client(api.gateway.url) as again:
        assert texts(again.receiver("test").drain(2_001)) == [str(n) for n in range(2_000)]


def test_a_cancelled_copy_ends_where_it_is(api: Api, client: Client) -> None:
    """What was published stays; the job cannot be resumed, and its name tells how it ended."""
    client.sender("topic://a").send_all([data(n) for n in range(2_000)])
    name = copy(api, target="queue://test", rate=100)
    wait_until(lambda: record(api, name).sent, "it has begun")
    api.act(f"{LOG}/cancelReplay", {"replayName": name})
    done = record(api, name)
    assert (done.state, done.outcome) == ("cancelled", "cancelled")
    assert api.queue("test")["spooledMsgCount"] == done.sent
    error = api.refused("PUT", "action", f"{LOG}/resumeReplay", {"replayName": name})
    assert "is cancelled" in error["description"]


def test_a_log_trimmed_under_a_copy_fails_it(api: Api, client: Client) -> None:
    """It does not go on behind the gap."""
    client.sender("topic://a").send_all([data(n) for n in range(3_000)])
    name = copy(api, target="queue://test", rate=100)
    api.act(f"{LOG}/pauseReplay", {"replayName": name})
    api.act(f"{LOG}/trimLoggedMsgs", {"before": "#2900"})
    client.cut()
    api.restart()  # what was in memory is gone
    api.act(f"{LOG}/resumeReplay", {"replayName": name})
    done = ended(api, name)
    assert done.state == "failed"
    assert f"at id {done.position}" in done.outcome
    assert "another copy can begin at #2900" in done.outcome


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_rule_that_takes_messages_out_under_a_paused_copy_fails_it(serve: Serve, is_stopped: bool) -> None:
    """Over a stop, too; another copy begins at the place it names. One of other topics goes on."""
    rule = Retention(topics=("debug/>",), quota_mb=1)
    api = serve(Vpn(replay_log=ReplayLog(retention=(rule,)), queues={"test": Queue(), "others": Queue()}))
    with Client(api.gateway.url) as client:
        debug = client.sender("topic://debug/a")
        for topic in ("debug/a", "orders/a"):
            client.sender(f"topic://{topic}").send_all([data(n) for n in range(20)])
        names = [
            copy(api, target="queue://test", subscriptions=["debug/>"], rate=1),
            copy(api, target="queue://others", subscriptions=["orders/>"], rate=1),
        ]
        for name in names:
            api.act(f"{LOG}/pauseReplay", {"replayName": name})
        for _ in range(20):
            debug.send_all([data(b"x" * 1_000)] * 100)
        wait_until(lambda: taken_below(api) > 1_000 and not is_over_quota(api), "the rule is kept to")
    if is_stopped:
        api.restart()
    for name in names:
        api.act(f"{LOG}/resumeReplay", {"replayName": name})
    done = ended(api, names[0])
    assert done.state == "failed"
    assert f"another copy can begin at #{taken_below(api)}" in done.outcome
    assert record(api, names[1]).state == "running"
    again = copy(api, target="queue://test", subscriptions=["debug/>"], start=f"#{taken_below(api)}")
    assert ended(api, again).state == "complete"


def is_over_quota(api: Api) -> bool:
    """Whether rules of retention have something to take out of the log."""
    return api.gateway.call(lambda g: g.vpns["default"].broker.retention.is_over_quota)


def taken_below(api: Api) -> int:
    """Below which id a rule of retention took messages out."""
    return api.gateway.call(lambda g: g.vpns["default"].broker.retention.taken_from(()).below)


def test_a_target_that_is_deleted_is_waited_for(api: Api, client: Client) -> None:
    """Messages to a queue that is not there would be in the log alone."""
    client.sender("topic://a").send_all([data(n) for n in range(500)])
    name = copy(api, target="queue://test", rate=1_000)
    wait_until(lambda: record(api, name).sent, "it has begun")
    api.delete("/queues/test")
    wait_until(lambda: "no queue" in record(api, name).outcome, "it waits")
    sent = record(api, name).sent
    api.make("/queues", {"queueName": "test"})
    assert ended(api, name).sent == 500
    assert api.queue("test")["spooledMsgCount"] == 500 - sent


def test_what_cannot_be_copied_is_refused(api: Api) -> None:
    """Before anything is done; the text says what is wrong."""
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"target": "log://a"}, "nothing can be sent"),
        ({"target": "amqp://elsewhere:5672/q"}, "another host"),
        ({"target": "queue://a?b"}, "a?b"),
        ({"target": "q", "start": "live"}, "live"),
        ({"target": "q", "start": "nonsense"}, "nonsense"),
        ({"target": "q", "start": "#99"}, "99"),
        ({"target": "q", "until": "tomorrow"}, "tomorrow"),
        ({"target": "q", "selector": "a ="}, "selector"),
        ({"target": "q", "subscriptions": ["!a"]}, "exceptions"),
        ({"target": "q", "subscriptions": ["a"] * 101}, "100"),
        ({"target": "q", "name": " "}, "name"),
        ({"target": "q", "rate": 0}, "rate"),
        ({}, "target"),
    )
    for body, said in wrong:
        assert said in api.why("PUT", "action", f"{LOG}/startCopy", body), body


def test_jobs_are_bounded(serve: Serve) -> None:
    """Paused ones count; one that is over does not."""
    api = serve(limits=Limits(replay_jobs=2))
    with Client(api.gateway.url) as client:
        client.sender("topic://a").send_all([data(n) for n in range(100)])
    names = [copy(api, target="queue://test", rate=1) for _ in range(2)]
    api.act(f"{LOG}/pauseReplay", {"replayName": names[0]})
    error = api.refused("PUT", "action", f"{LOG}/startCopy", {"target": "queue://test"})
    assert "replay_jobs" in error["description"]
    api.act(f"{LOG}/cancelReplay", {"replayName": names[0]})
    assert ended(api, copy(api, target="queue://test", subscriptions=["a"])).sent == 100


def test_what_the_log_does_not_take_is_copied_to_a_queue_all_the_same(serve: Serve) -> None:
    """The log's filter decides of copies as of all that is published."""
    api = serve(Vpn(replay_log=ReplayLog(topics=("a",))))
    with Client(api.gateway.url) as client:
        client.sender("topic://a").send_all([data(n) for n in range(10)])
        assert ended(api, copy(api, target="queue://test")).sent == 10
        assert texts(client.receiver("test").drain()) == [str(n) for n in range(10)]
        logged = api.seen(f"{LOG}/msgs", count=100)
        assert {one["topic"] for one in logged} == {"a"}


def test_what_is_erased_before_it_is_copied_is_copied_without_its_content(api: Api, client: Client) -> None:
    """Though the copy had read it, and made it ready; what was copied before is a message of its own."""
    client.sender("topic://a").send_all([data(f"secret {n}") for n in range(100)])
    name = copy(api, target="queue://test", subscriptions=["a"], rate=40)
    wait_until(lambda: record(api, name).sent, "it has begun")
    erased = [95, 96, 100]
    api.act(f"{LOG}/redactMsg", {"msgId": erased})
    assert record(api, name).sent < 95
    assert ended(api, name).sent == 100
    found = client.receiver("test").drain()
    assert [one.annotations["x-opt-replay-source-id"] for one in found] == [*range(1, 101)]
    for one in found:
        is_erased = one.annotations["x-opt-replay-source-id"] in erased
        assert (b"secret" not in one.raw) is is_erased
        assert ("x-opt-erased-time" in one.annotations) is is_erased
