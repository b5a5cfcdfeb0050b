"""Jobs that publish a part of the log again, here or at another gateway: what arrives, what delays it, how it ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme
from proton import Delivery

from gateway.config import Limits, Listener, Queue, ReplayLog, ReplayTarget, User, Vpn
from gateway.config.vpn import Retention
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.jobs.job import Job
from tests.gateway.admin.conftest import LOG, Api, Serve, tls_of
from tests.gateway.permissions.conftest import HASH, PASSWORD
from tests.support.client import Client, Received, texts
from tests.support.messages import data, section
from tests.support.publishing import Publishing
from tests.support.running import RunningGateway, settings_for
from tests.support.tcp_proxy import Fate, Proxy, Way
from tests.support.waiting import wait_until

# --- A part of the log published again, as a job: what comes, what hinders it, and how it ends ------------------------


def copy(api: Api, **body: Any) -> str:
    """Begin a copy; return the name of its job."""
    return str(api.act(f"{LOG}/startCopy", body)["replayName"])


def record(api: Api, name: str) -> Any:
    """The record of a replay."""
    return api.gateway.call(lambda running: running.vpns["default"].broker.replay_records.get(name))


def ended(api: Api, name: str) -> Any:
    """The record of a replay, once the replay has ended."""
    wait_until(lambda: record(api, name).is_ended, f"{name} ends")
    return record(api, name)


def test_a_copy_has_the_bare_message_and_says_what_it_is(api: Api, client: Client) -> None:
    """A copy keeps the header and annotations of the original, and adds annotations that name replay and source."""
    bare = section(0x73, ["an id"]) + data("content")
    plain, with_header = bare, section(0x70, [True]) + bare
    annotated = section(0x70, [True]) + section(0x72, {"x-opt-theirs": "kept"}) + bare
    client.sender("topic://orders/1").send_all([plain, with_header, annotated])
    name = copy(api, target="queue://test", subscriptions=["orders/>"], name="try version 2")
    assert ended(api, name).outcome == "3 copies of 3 messages read"
    found = client.receiver("test").drain()
    assert [received.bare for received in found] == [bare] * 3
    assert [received.annotations["x-opt-replay-source-id"] for received in found] == [1, 2, 3]
    for received in found:
        assert received.annotations["x-opt-replay-name"] == "try version 2"
        assert received.annotations["x-opt-replay-source-topic"] == "orders/1"
    assert found[2].annotations["x-opt-theirs"] == "kept"
    assert [received.header is not None for received in found] == [False, True, True]
    # A copy of a copy names the original message, and the later replay.
    ended(api, copy(api, target="topic://b", subscriptions=["orders/>"], until="#1", name="first"))
    ended(api, copy(api, target="queue://test", subscriptions=["b"], name="second"))
    again = client.receiver("test").drain()[-1].annotations
    assert (again["x-opt-replay-name"], again["x-opt-replay-source-id"]) == ("second", 1)
    assert again["x-opt-replay-source-topic"] == "orders/1"


def test_a_copy_of_the_log_into_itself_ends(gateway: RunningGateway, api: Api, client: Client) -> None:
    """The end is fixed when the job begins, so it leaves out its own copies and live messages."""
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
    The job says why it waits, and continues once there is room: each message arrives once. A message that is erased
    while its copy waits to be published arrives without its content.
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
    """A paused job stays paused over a restart, and later continues where it was: each message once."""
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
    """What was published stays. The job cannot be resumed, and its record says how it ended."""
    client.sender("topic://a").send_all([data(n) for n in range(2_000)])
    name = copy(api, target="queue://test", rate=100)
    wait_until(lambda: record(api, name).sent, "it has begun")
    api.act(f"{LOG}/cancelReplay", {"replayName": name})
    done = record(api, name)
    assert (done.state, done.outcome) == ("cancelled", "cancelled")
    assert api.queue("test")["spooledMsgCount"] == done.sent
    error = api.refused("PUT", "action", f"{LOG}/resumeReplay", {"replayName": name})
    assert "is cancelled" in error["description"]


@pytest.mark.parametrize("command", ["pauseReplay", "cancelReplay"])
def test_a_copy_goes_on_where_a_command_could_not_be_stored(
    api: Api, client: Client, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command failed, so nothing has happened. A job that has ended has no rate."""
    client.sender("topic://a").send_all([data(n) for n in range(500)])
    name = copy(api, target="queue://test", rate=1_000)
    wait_until(lambda: record(api, name).sent, "it has begun")
    save = Job._save

    async def fail(job: Job, record: Any) -> None:
        monkeypatch.setattr(Job, "_save", save)
        raise Refused(ErrorCode.INTERNAL, "the store could not write")

    monkeypatch.setattr(Job, "_save", fail)
    assert api.ask("PUT", "action", f"{LOG}/{command}", {"replayName": name}).status_code != 200
    assert ended(api, name).state == "complete"
    assert api.queue("test")["spooledMsgCount"] == 500
    assert api.done("GET", "monitor", f"/replays/{name}")["msgRate"] == 0


def test_a_log_trimmed_under_a_copy_fails_it(api: Api, client: Client) -> None:
    """The job does not skip the gap: it names the id at which it failed, and where another copy can begin."""
    client.sender("topic://a").send_all([data(n) for n in range(3_000)])
    name = copy(api, target="queue://test", rate=100)
    api.act(f"{LOG}/pauseReplay", {"replayName": name})
    api.act(f"{LOG}/trimLoggedMsgs", {"before": "#2900"})
    client.cut()
    api.restart()  # so that the messages are no longer in the cache
    api.act(f"{LOG}/resumeReplay", {"replayName": name})
    done = ended(api, name)
    assert done.state == "failed"
    assert f"at id {done.position}" in done.outcome
    assert "another copy can begin at #2900" in done.outcome


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_rule_that_takes_messages_out_under_a_paused_copy_fails_it(serve: Serve, is_stopped: bool) -> None:
    """Also over a restart; another copy can begin at the id that is named. A copy of other topics continues."""
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
    """Whether a retention rule has messages to take out of the log."""
    return api.gateway.call(lambda g: g.vpns["default"].broker.retention.is_over_quota)


def taken_below(api: Api) -> int:
    """The id below which a retention rule has taken messages out."""
    return api.gateway.call(lambda g: g.vpns["default"].broker.retention.taken_from(()).below)


def test_a_target_that_is_deleted_is_waited_for(api: Api, client: Client) -> None:
    """The job waits: it does not publish to a queue that does not exist, as the messages would be in the log only."""
    client.sender("topic://a").send_all([data(n) for n in range(500)])
    name = copy(api, target="queue://test", rate=1_000)
    wait_until(lambda: record(api, name).sent, "it has begun")
    api.delete("/queues/test")
    wait_until(lambda: "no queue" in record(api, name).outcome, "it waits")
    sent = record(api, name).sent
    api.make("/queues", {"queueName": "test"})
    assert ended(api, name).sent == 500
    assert api.queue("test")["spooledMsgCount"] == 500 - sent


def test_what_cannot_be_copied_is_refused(serve: Serve) -> None:
    """
    Nothing is published, and the text says what is wrong. A request can name a replay target of the configuration, but
    not the address of a host.
    """
    api = serve(sends_to("amqp://127.0.0.1:1"))
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
        ({"target": "q", "replayTarget": "nobody"}, "no replay target"),
        ({"target": "q", "replayTarget": "amqp://elsewhere:5672"}, "no replay target"),
        ({"target": "amqp://elsewhere:5672/q", "replayTarget": "test"}, "another host"),
        ({"target": " ", "replayTarget": "test"}, "queue://orders"),
    )
    for body, said in wrong:
        assert said in api.why("PUT", "action", f"{LOG}/startCopy", body), body


def test_jobs_are_bounded(serve: Serve) -> None:
    """Paused jobs count towards the limit; jobs that have ended do not."""
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
    """The log's filter applies to copies as to anything that is published: they reach the queue, and not the log."""
    api = serve(Vpn(replay_log=ReplayLog(topics=("a",))))
    with Client(api.gateway.url) as client:
        client.sender("topic://a").send_all([data(n) for n in range(10)])
        assert ended(api, copy(api, target="queue://test")).sent == 10
        assert texts(client.receiver("test").drain()) == [str(n) for n in range(10)]
        logged = api.seen(f"{LOG}/msgs", count=100)
        assert {one["topic"] for one in logged} == {"a"}


def test_what_is_erased_before_it_is_copied_is_copied_without_its_content(api: Api, client: Client) -> None:
    """Even if the job had read it already. A copy that was published before is a message of its own, and stays."""
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


# --- A part of the log published at another gateway: what comes, what hinders it, and who may have it done ------------

Other = Callable[..., RunningGateway]


@pytest.fixture
def other(tmp_path: Path, _ending: ExitStack) -> Other:
    """Starts the gateway to which copies are sent."""

    def other(vpn: Vpn | None = None, **more: Any) -> RunningGateway:
        return _ending.enter_context(RunningGateway(settings_for(tmp_path / "other", vpn, **more)))

    return other


@pytest.fixture
def between(_ending: ExitStack) -> Callable[[RunningGateway], Proxy]:
    """Puts a proxy in front of a gateway."""

    def between(far: RunningGateway) -> Proxy:
        return _ending.enter_context(Proxy(("127.0.0.1", int(far.address.rpartition(":")[2]))))

    return between


def sends_to(url: str, **more: Any) -> Vpn:
    """A Message VPN with a replay target `test`."""
    return Vpn(replay_targets={"test": ReplayTarget(url=url, **more)})


def fill(gateway: RunningGateway, count: int) -> None:
    """Publish numbers to the topic `past`."""
    with Client(gateway.url) as client:
        client.sender("topic://past").send_all([data(n) for n in range(count)])


def on(gateway: RunningGateway, queue: str, count: int) -> list[Received]:
    """The messages on a queue, in order."""
    with Client(gateway.url) as client:
        return client.receiver(queue).drain(count + 1)


def ids(found: list[Received]) -> list[Any]:
    return [one.annotations["x-opt-replay-source-id"] for one in found]


def test_a_copy_at_another_gateway_says_what_it_is(serve: Serve, other: Other) -> None:
    """The copies have the annotations of copies; the replay's record, and a preview of erasing, name the target."""
    far = other()
    api = serve(sends_to(far.url))
    fill(api.gateway, 2)
    name = copy(api, target="queue://new", replayTarget="test", subscriptions=["past"], name="try")
    assert ended(api, name).outcome == "2 copies of 2 messages read"
    found = on(far, "new", 2)
    assert [one.bare for one in found] == [data(0), data(1)]
    assert {one.annotations["x-opt-replay-name"] for one in found} == {"try"}
    shown = api.seen(f"/replays/{name}")
    assert (shown["target"], shown["replayTarget"]) == ("queue://new", "test")
    erased = api.act(f"{LOG}/redactMsg", {"msgId": [1], "preview": True})
    assert (erased["copyMsgIds"], erased["copiedTo"]) == ([], ["try: test queue://new"])


def test_a_connection_that_is_cut_is_made_again_and_nothing_is_left_out(
    serve: Serve, other: Other, between: Callable[[RunningGateway], Proxy]
) -> None:
    """Copies without an outcome are sent again: some may arrive twice, with the same source id, but none is missing."""
    far = other()
    proxy = between(far)
    cuts = iter(range(3))

    def fate(way: Way, number: int, chunk: bytes) -> Fate:
        if way is Way.TO_CLIENT and number > 3 and next(cuts, None) is not None:
            return Fate.CUT
        return Fate.PASS

    proxy.fate = fate
    api = serve(sends_to(f"amqp://127.0.0.1:{proxy.port}"))
    fill(api.gateway, 2_000)
    name = copy(api, target="queue://new", replayTarget="test", subscriptions=["past"])
    assert ended(api, name).state == "complete"
    assert proxy.connections > 3
    found = on(far, "new", 4_000)
    assert sorted({*ids(found)}) == [*range(1, 2_001)]
    once = {
        one.annotations["x-opt-replay-source-id"]: text for one, text in zip(found, texts(found), strict=True)
    }
    assert [once[place] for place in range(1, 2_001)] == [str(n) for n in range(2_000)]


def test_a_full_target_there_is_waited_for(serve: Serve, other: Other) -> None:
    """A copy that is rejected is sent again once there is room; the job says what it waits for."""
    far = other(Vpn(queues={"small": Queue(quota_messages=50)}))
    api = serve(sends_to(far.url))
    fill(api.gateway, 300)
    name = copy(api, target="queue://small", replayTarget="test", subscriptions=["past"])
    wait_until(lambda: "quota" in record(api, name).outcome, "it says what it waits for")
    assert record(api, name).state == "running"
    with Client(far.url) as client:
        found: list[Received] = []
        client.receiver("small").collect(found, 300)
    assert {*texts(found)} == {str(n) for n in range(300)}
    assert ended(api, name).sent == 300


def test_pause_and_a_restart_keep_the_place(serve: Serve, other: Other) -> None:
    """Copies that the peer accepted before the pause are not sent again."""
    far = other()
    api = serve(sends_to(far.url))
    fill(api.gateway, 300)
    name = copy(api, target="queue://new", replayTarget="test", subscriptions=["past"], rate=1_000)
    wait_until(lambda: record(api, name).sent, "it has begun")
    api.act(f"{LOG}/pauseReplay", {"replayName": name})
    api.restart()
    assert record(api, name).state == "paused"
    api.act(f"{LOG}/resumeReplay", {"replayName": name})
    assert ended(api, name).sent == 300
    assert ids(on(far, "new", 300)) == [*range(1, 301)]


def test_a_peer_that_is_away_is_waited_for_and_the_job_can_be_ended(
    serve: Serve, other: Other, between: Callable[[RunningGateway], Proxy]
) -> None:
    """The job says that there is no connection, and continues when the peer is available again."""
    far = other()
    proxy = between(far)
    proxy.refuses = True
    api = serve(sends_to(f"amqp://127.0.0.1:{proxy.port}"))
    fill(api.gateway, 10)
    for name in ("waits", "goes on"):
        copy(api, target="queue://new", replayTarget="test", subscriptions=["past"], name=name)
        wait_until(lambda name=name: "127.0.0.1" in record(api, name).outcome, "it says that it waits")
    api.act(f"{LOG}/cancelReplay", {"replayName": "waits"})
    assert record(api, "waits").state == "cancelled"
    proxy.refuses = False
    assert ended(api, "goes on").sent == 10


def test_user_password_and_tls(serve: Serve, other: Other, tmp_path: Path) -> None:
    """
    With a wrong password, or an unknown certificate, the job waits and says why, without the secret. It uses a
    corrected password file at its next connect.
    """
    tls = tls_of(trustme.CA(), tmp_path)
    far = other(
        Vpn(),
        listeners=(
            Listener(port=0, tls=replace(tls, client_ca=None)),
            Listener(port=0),
        ),
        users={"copier": User(password=HASH, publish=("queue://new",))},
    )
    secret = tmp_path / "password"
    secret.write_text("a wrong one")
    trusting = ReplayTarget(url=far.url, user="copier", password_file=secret, tls_ca=tmp_path / "ca.pem")
    vpn = Vpn(replay_targets={"test": trusting, "stranger": replace(trusting, tls_ca=None)})
    api = serve(vpn)
    fill(api.gateway, 10)
    asked = {"target": "queue://new", "subscriptions": ["past"]}
    copy(api, replayTarget="stranger", name="stranger", **asked)
    wait_until(lambda: "certificate" in record(api, "stranger").outcome, "it is not trusted")
    copy(api, replayTarget="test", name="test", **asked)
    wait_until(lambda: "refused the sign-in" in record(api, "test").outcome, "the password is wrong")
    assert "a wrong one" not in record(api, "test").outcome
    secret.write_text(PASSWORD)
    assert ended(api, "test").sent == 10
    copy(api, replayTarget="test", name="elsewhere", **{**asked, "target": "queue://other"})
    wait_until(lambda: "refused there" in record(api, "elsewhere").outcome, "it may not send there")
    assert api.http.get("/readyz").status_code == 200


def test_a_target_that_is_taken_out_of_the_configuration_is_waited_for(serve: Serve, other: Other) -> None:
    """The job looks up its target in the settings in effect each time, so it continues when the target is back."""
    far = other()
    api = serve(sends_to(far.url))
    fill(api.gateway, 500)

    def reconfigure(vpn: Vpn) -> None:
        api.gateway.call(lambda running: running.vpns["default"].reconfigure(vpn))

    name = copy(api, target="queue://new", replayTarget="test", subscriptions=["past"], rate=500)
    reconfigure(Vpn())
    wait_until(lambda: "any more" in record(api, name).outcome, "it says that it waits")
    reconfigure(sends_to(far.url))
    assert ended(api, name).sent == 500


# --- The verbs of jobs, as a person types them ------------------------------------------------------------------------


def said(api: Api, *words: str) -> str:
    """Run a verb that has to succeed; return what it prints."""
    ran = api.rewind(*words)
    assert ran.exit_code == 0, ran.output
    return str(ran.stdout)


def test_a_copy_by_verb(api: Api, client: Client) -> None:
    """
    `rewind replay copy` copies what a log reader with the same options would receive, up to the end; with `--wait` it
    prints the outcome.
    """
    for number in range(10):
        address = "topic://a/x" if number % 2 else "topic://a/y"
        client.sender(address).send_all([section(0x74, {"n": number}) + data(number)])
    words = ["--from", "#3", "--until", "#9", "--subscribe", "a/*", "--subscribe", "!a/y"]
    words += ["--selector", "n <> 5", "--to", "queue://q", "--name", "it", "--wait"]
    assert said(api, "replay", "copy", *words) == "it is complete: 2 copies of 7 messages read\n"
    assert texts(client.receiver("q").drain()) == ["3", "7"]


def test_a_job_rests_goes_on_and_is_cancelled_by_its_name(api: Api, client: Client) -> None:
    """`rewind replay cancel` takes the name of a job or of a queue; a name of neither is refused."""
    client.sender("topic://a").send_all([data(n) for n in range(5)])
    begun = said(api, "replay", "copy", "--to", "queue://q", "--rate", "0.001", "--name", "slow")
    assert begun == "slow: messages 1 to 5 are copied to queue://q\n"
    assert said(api, "replay", "pause", "slow") == "slow is paused\n"
    assert said(api, "replay", "resume", "slow") == "slow is resumed\n"
    assert said(api, "replay", "cancel", "slow") == "slow was cancelled; what it has published stays\n"
    again = api.rewind("replay", "cancel", "slow")
    assert (again.exit_code, "is cancelled" in again.stderr) == (1, True)
    nobody = api.rewind("replay", "cancel", "nobody")
    assert (nobody.exit_code, "no queue 'nobody'" in nobody.stderr) == (1, True)
    never = api.rewind("replay", "copy", "--from", "#99", "--to", "q", "--wait")
    assert (never.exit_code, "offset 99" in never.stderr) == (1, True)


def test_dead_letters_by_verb(api: Api, client: Client) -> None:
    """They are counted, as a table and as JSON, and returned."""
    assert api.rewind("queue", "create", "q", "--set", "deadMsgQueue=dead").exit_code == 0
    client.sender("q").send_all([data(n) for n in range(3)])
    receiver = client.receiver("q", credit=3)
    receiver.settle(receiver.take(3), Delivery.REJECTED)
    receiver.close()
    wait_until(lambda: api.queue("dead")["spooledMsgCount"] == 3, "all are dead")
    (row,) = said(api, "dead", "list", "dead").splitlines()[1:]
    assert row.split()[:3] == ["rejected", "q", "3"]
    (group,) = map(json.loads, said(api, "dead", "list", "dead", "--json", "--by", "reason").splitlines())
    assert (group["deadReason"], group["deadEndpointName"], group["msgCount"]) == ("rejected", "", 3)
    assert said(
        api, "dead", "return", "dead", "--limit", "1", "--to", "other", "--name", "one", "--wait"
    ) == ("one is complete: 1 message returned\n")
    assert (
        said(api, "dead", "return", "dead", "--name", "all")
        == "all: dead letters of dead go to where they died\n"
    )
    wait_until(lambda: api.queue("dead")["spooledMsgCount"] == 0, "all went back")
    assert texts(client.receiver("q").drain()) == ["1", "2"]
    assert said(api, "dead", "list", "dead") == "There is no message on dead.\n"
