"""The verbs of the command line, and every operation of replay, against a running gateway."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock, patch

import apsw
import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from gateway.cli import main, replays
from gateway.cli.api import Api as CliApi
from gateway.cli.words import label_of
from tests.gateway.admin.conftest import LOG, Api, stop_and_check
from tests.support.client import Client, texts
from tests.support.messages import data
from tests.support.publishing import Publishing
from tests.support.running import RunningGateway
from tests.support.waiting import wait_until

# --- What a person sees of a replay that is waited for, the verbs of the log, and completion --------------------------


def test_waiting_shows_how_far_a_replay_is(api: Api, client: Client) -> None:
    """`--wait` returns once a client has acknowledged all; the progress bar shows the state and how many are left."""
    client.sender("q").send_all([data(i) for i in range(50)])
    labels: list[str] = []
    progressbar = click.progressbar

    def watched(**options: object) -> object:
        bar = progressbar(**options)  # type: ignore[call-overload]
        render = bar.render_progress

        def rendered() -> None:
            labels.append(f"{bar.label}; {bar.pos} of {bar.length}, {bar.format_eta()}")
            render()

        bar.render_progress = rendered
        return bar

    def wait() -> None:
        with patch.object(replays.click, "progressbar", watched), patch.object(replays, "LOOK_SECONDS", 0.01):
            ran.append(api.rewind("replay", "start", "q", "--wait"))

    ran: list[object] = []
    waiting = threading.Thread(target=wait)
    waiting.start()
    client.wait(lambda: any("50 unacknowledged" in label for label in labels), "all is on the queue")
    assert waiting.is_alive()
    receiver = client.receiver("q")
    receiver.settle(receiver.drain())
    client.wait(lambda: not waiting.is_alive(), "the verb returned")
    (done,) = ran
    assert (done.exit_code, done.stdout) == (0, "the replay of q is complete\n")
    assert any("pending-complete" in label and "50 of 50" in label for label in labels)


def test_waiting_for_a_replay_that_is_cancelled_fails(api: Api, client: Client) -> None:
    """The exit status is 1, and a sentence says why."""
    client.sender("q").send_all([data(i) for i in range(5)])
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(api.rewind, "replay", "start", "q", "--wait")
        client.wait(lambda: api.queue("q")["replayState"] == "pending-complete", "all is on the queue")
        api.act("/queues/q/cancelReplay", {})
        done = waiting.result(20)
    last = "Error: the replay is failed: it was cancelled"
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (1, last)


def test_ctrl_c_ends_the_waiting_alone(api: Api, client: Client) -> None:
    """It is said that the replay goes on, and how it would be ended."""
    client.sender("q").send_all([data("x")])
    with patch.object(replays, "time", Mock(**{"sleep.side_effect": KeyboardInterrupt})):
        done = api.rewind("replay", "start", "q", "--wait")
    last = "rewind: the replay of q goes on; `rewind replay cancel` ends it"
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (130, last)
    assert api.queue("q")["replayState"] != "failed"


def test_replays_of_the_past_are_listed_and_shown(api: Api, client: Client) -> None:
    """Requester, target and outcome: over HTTP by page and by endpoint, and with the verbs."""
    client.sender("q").send_all([data(i) for i in range(5)])
    client.sender("r").send_all([data(i) for i in range(5)])

    def run(*words: str) -> tuple[int, str]:
        ran = api.rewind("replay", *words)
        return ran.exit_code, ran.output

    assert run("list") == (0, "There are no replays.\n")
    assert run("start", "q", "--name", "monday", "--from", "#2")[0] == 0
    assert run("start", "q", "--name", "monday")[0] == 1
    started = api.act("/queues/r/startReplay", {})
    client.wait(lambda: api.queue("r")["replayState"] == "pending-complete", "all was read")
    api.act("/queues/r/cancelReplay", {})
    receiver = client.receiver("q", credit=4)
    assert [message.annotations["x-opt-replay-name"] for message in receiver.take_and_accept(4)] == [
        "monday"
    ] * 4
    client.wait(lambda: api.queue("q")["replayState"] == "complete", "it is complete")
    found = api.seen("/replays")
    shown = ("replayNumber", "replayName", "kind", "target", "requester", "state", "sentMsgCount", "start")
    assert [tuple(one[name] for name in shown) for one in found] == [
        (1, "monday", "endpoint", "q", "anonymous", "complete", 4, "#2"),
        (2, started["replayName"], "endpoint", "r", "anonymous", "cancelled", 5, "beginning"),
    ]
    of_r = api.seen("/replays", where="target==r", select="state")
    assert of_r == [{"state": "cancelled"}]
    assert api.seen("/replays/monday") == found[0]
    assert "every message was acknowledged" in run("show", "monday")[1]
    assert "replays started" in run("show", "r")[1]
    assert run("show", "nothing")[0] == 1
    listed = run("list", "--endpoint", "q")[1]
    assert "monday" in listed and "cancelled" not in listed


def test_a_person_types_the_name_of_the_queue(api: Api, client: Client) -> None:
    """On a terminal, nothing is replayed unless the name is typed. `--yes` skips the question; so does a script."""
    client.sender("q").send_all([data(0)])

    def run(typed: str, *options: str) -> int:
        with patch.object(replays, "is_terminal", lambda: True):
            return api.rewind("replay", "start", "q", *options, input=typed).exit_code

    assert run("r\n") == 1
    assert run("\n") == 1
    assert api.queue("q")["replayState"] == "n/a"
    assert run("q\n") == 0
    assert run("", "--yes") == 0
    assert api.queue("q")["replayStartCount"] == 2


def test_what_the_log_does_not_have_is_kept_by_the_verbs(api: Api, client: Client) -> None:
    """The preview counts the kept messages, the prompt names them, and the queue has them after the replay."""
    client.sender("q").send_all([data(i) for i in range(3)])
    api.act(f"{LOG}/trimLoggedMsgs", {"before": "#2"})

    def run(*words: str) -> str:
        with patch.object(replays, "is_terminal", lambda: True):
            done = api.rewind("replay", *words, "q", "--keep-unlogged", input="q\n")
        assert done.exit_code == 0, done.output
        return done.output

    assert "messages kept           1\n" in run("preview")
    assert "1 message will stay" in run("start")
    assert texts(client.receiver("q", credit=5).take(3)) == ["0", "1", "2"]


def test_the_log_is_configured_by_verbs(api: Api) -> None:
    """What the log takes, its quota and its points; an invalid value ends with exit status 1."""

    def run(words: str) -> int:
        return api.rewind("log", *words.split()).exit_code

    assert run("filter on") == 1
    on = "disable, disable --reads, quota 250, filter add a/>, filter on, keep-until-archived on"
    off = "enable, enable --reads, filter off, filter remove a/>, keep-until-archived off"
    for verbs, is_on in ((on, True), (off, False)):
        for verb in verbs.split(", "):
            assert run(verb) == 0, verb
        found = api.done("GET", "config", LOG)
        assert (found["ingressEnabled"], found["egressEnabled"]) == (not is_on, not is_on)
        assert (found["topicFilterEnabled"], found["keepUntilArchivedEnabled"]) == (is_on, is_on)
        assert found["maxSpoolUsage"] == 250
    assert run("quota much") == 2
    assert run("filter remove a/>") == 1


def test_dead_messages_go_where_the_administrator_says_now(api: Api, client: Client) -> None:
    """After the dead message queue is changed, the next dead message goes to the new one."""
    api.make("/queues", {"queueName": "q", "maxRedeliveryCount": 1, "deadMsgQueue": "dead1"})
    for number, dead in enumerate(("dead1", "dead2")):
        api.change("/queues/q", {"deadMsgQueue": dead})
        client.sender("q").send_all([data(number)])
        receiver = client.receiver("q", credit=10)
        for _ in range(2):
            receiver.modify(receiver.take(1), failed=True)
        client.wait(lambda dead=dead: api.queue(dead)["spooledMsgCount"] == 1, "it is dead")
        receiver.close()
        assert texts(client.receiver(dead).drain()) == [str(number)]


def test_verbs_and_options_are_completed() -> None:
    """The completion that a shell asks for on TAB has all verbs and options."""
    complete = ShellComplete(main, {}, "rewind", "_REWIND_COMPLETE")
    for typed, offered in (
        ([""], {"replay", "log", "queue", "topic-endpoint", "subscription", "point", "client", "status"}),
        (["replay", ""], {"start", "cancel", "list", "show", "preview"}),
        (["log", "filter", ""], {"list", "add", "remove", "on", "off"}),
        (["replay", "start", "q", "--w"], {"--wait"}),
    ):
        found = complete.get_completions(typed[:-1], typed[-1])
        assert offered <= {one.value for one in found}, typed


def test_each_shell_has_its_script() -> None:
    """bash, zsh and fish are given a script to source, as the documentation says."""
    for shell in ("bash", "zsh", "fish"):
        with patch.dict("os.environ", {"_REWIND_COMPLETE": f"{shell}_source"}):
            ran = CliRunner().invoke(main, prog_name="rewind")
        assert ran.exit_code == 0
        assert "rewind" in ran.output


# --- Every operation in Solace's documentation of replay, under load --------------------------------------------------


@pytest.fixture
def publishing(api: Api, gateway: RunningGateway) -> Iterator[Publishing]:
    """Publishes while the test runs, also to a queue while the log is disabled."""
    api.make_queue("load", "load/>")
    with Publishing(gateway.url, "topic://load/1", limit=60_000) as publishing:
        publishing.wait_for(500)
        yield publishing


def test_every_operation_is_done_under_load(
    api: Api, client: Client, gateway: RunningGateway, publishing: Publishing
) -> None:
    """Each verb, and its request, does what it says under load, as an AMQP client sees."""

    def do(verb: str) -> Any:
        ran = api.rewind(*verb.split(), "--json")
        assert ran.exit_code == 0, (verb, ran.output)
        return json.loads(ran.stdout.splitlines()[-1])

    # Endpoints: a queue with a subscription and an exception, a topic endpoint.
    do("queue create q --set accessType=exclusive")
    do("subscription add q a/>")
    do("subscription add q !a/no")
    do("topic-endpoint create te a/>")
    sender, unwanted = client.sender("topic://a/1"), client.sender("topic://a/no")
    sender.send_all([data(i) for i in range(3)])
    unwanted.send_all([data("no")])
    do("point create release")
    sender.send_all([data(i) for i in range(3, 6)])
    receiver = client.receiver("q")
    first = receiver.drain()
    assert texts(first) == ["0", "1", "2", "3", "4", "5"]
    receiver.settle(first)
    receiver.close()
    ids = [str(one.annotations["x-opt-replay-id"]) for one in first]

    # Replays: of all, after a message, from a message, from a point; the preview says how many messages.
    for start, expected in (("beginning", 6), (ids[1], 4), (f"#{first[5].id}", 1), ("point:release", 3)):
        assert do(f"replay preview q --from {start}")["msgCount"] == expected
        do(f"replay start q --from {start}")
        receiver = client.receiver("q")
        replayed = receiver.drain()
        assert texts(replayed) == [str(i) for i in range(6 - expected, 6)]
        assert do("replay show q")["replayState"] in ("active", "pending-complete")
        receiver.settle(replayed)
        receiver.close()
        wait_until(lambda: do("replay show q")["replayState"] == "complete", "acknowledged")

    # A consumer is detached because a replay started, and attaches again; replays are cancelled and dropped or kept.
    receiver = client.receiver("q", credit=10)
    do("replay start q --from point:release")
    assert receiver.detached_by_peer().subcode == 141
    wait_until(lambda: do("replay show q")["replayState"] == "pending-complete", "all is on the queue")
    do("replay cancel q --force-complete")
    assert do("replay show q")["replayState"] == "complete"
    receiver = client.receiver("q")
    assert texts(receiver.drain()) == ["3", "4", "5"]
    receiver.close()
    do("replay start te --topic-endpoint")
    wait_until(
        lambda: do("replay show te --topic-endpoint")["replayState"] == "pending-complete", "all is on it"
    )
    do("replay cancel te --topic-endpoint")
    assert do("replay show te --topic-endpoint")["replayState"] == "failed"
    assert gateway.depth("te") == 0

    # A queue is purged; then a message of the log is copied to it.
    do("queue purge q")
    assert gateway.depth("q") == 0
    do(f"queue copy q {ids[2]}")
    receiver = client.receiver("q")
    assert texts(receiver.drain()) == ["2"]
    receiver.close()
    do("queue purge q")

    # The log: whether it takes messages, its quota, and its oldest message.
    do("log disable")
    sender.send_all([data("not logged")])
    do("log enable")
    do("log filter add a/1")
    do("log filter on")
    client.sender("topic://a/2").send_all([data("filtered out")])
    do("log filter off")
    do("log filter remove a/1")
    do("log quota 500")
    sender.send_all([data("logged")])
    assert do("log trim point:release")["firstMsgId"] > 1
    log = client.receiver("log://a/>", filters={"rewind:replay-start": "beginning"})
    assert texts(log.drain()) == ["3", "4", "5", "logged"]
    log.close()

    # Clients are disconnected.
    with Client(gateway.url) as other:
        name = other.connection.container
        assert name in [one["clientName"] for one in api.seen("/clients", count=100)]
        do(f"client disconnect {name}")
        other.wait(lambda: other.connection.remote_condition, "closed by the gateway")
    do("queue delete q")
    assert "q" not in gateway.endpoints()
    publishing.stop()
    assert publishing.accepted == publishing.next == gateway.depth("load")
    stop_and_check(api, client)


# --- The verbs of the command line, against a running gateway ---------------------------------------------------------


class Rewind:
    """Runs `rewind VERB… --admin …`."""

    def __init__(self, api: Api) -> None:
        self.run = api.rewind

    def __call__(self, *words: str) -> str:
        ran = self.run(*words)
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))


@pytest.fixture
def rewind(api: Api) -> Rewind:
    """The command, for `gateway`."""
    return Rewind(api)


def test_what_is_shown_is_told_in_words(rewind: Rewind) -> None:
    """Labels are unique, and none is an attribute's name; for queues that name follows, for `set`."""
    rewind("queue", "create", "q")
    for words in (("status",), ("vpn", "show"), ("log", "show"), ("queue", "show", "q")):
        names = list(rewind.json(*words))
        labels = [label_of(name) for name in names]
        assert len(set(labels)) == len(labels)
        assert not any(re.search("[a-z][A-Z]", label) for label in labels)
        has_all = ("--all",) if words[0] in ("status", "queue") else ()
        lines = rewind(*words, *has_all).splitlines()
        shown = {re.split(r"  +", line)[0] for line in lines}
        assert set(labels) <= shown
        assert len(shown) == len(lines)
        assert {line.split()[-1] for line in lines}.issuperset(names) == (words[0] == "queue")


def test_what_one_looks_for_comes_first(rewind: Rewind, client: Client) -> None:
    """State, depth, consumers, oldest message and replay; values that are zero, unset or default need `--all`."""
    rewind("queue", "create", "q", "--set", "maxBindCount=2")
    assert _labels(rewind("queue", "show", "q")) == ["queue", "messages", "consumers", "max consumers"]
    client.sender("q").send_all([data(0), data(1)])
    first = ["queue", "messages", "size", "oldest message", "consumers"]
    assert _labels(rewind("queue", "show", "q")) == [*first, "max consumers", "messages behind"]
    rewind("replay", "start", "q", "--yes")
    shown = rewind("queue", "show", "q")
    assert _labels(shown)[:6] == [*first, "replay"]
    assert "replays failed" not in shown
    assert re.search(r"^max consumers +2$", shown, re.MULTILINE)
    state = rewind("status")
    assert _labels(state)[:6] == [
        "message VPN", "state", "replay log usage", "oldest logged message", "clients", "endpoints",
    ]  # fmt: skip
    assert "replays failed" not in state
    assert "replays failed" in rewind("status", "--all")
    # A program gets all attributes.
    assert {"replayFailureCount", "maxMsgCount", "oldestMsgTimeMs"} <= set(rewind.json("queue", "show", "q"))
    assert "msgReplayFailedCount" in rewind.json("status")
    # The store's engine and version, which every bug report needs.
    [(version,)] = apsw.Connection(":memory:").execute("select sqlite_version()")
    assert rewind.json("status")["storeEngine"] == f"SQLite {version}"
    assert f"SQLite {version}" in rewind("status")


def test_a_status_without_a_log_to_be_read(rewind: Rewind, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store cannot be read, the status is shown without the log."""
    look = CliApi.look

    def without_log(self: CliApi, *names: str, **query: Any) -> Any:
        if names:
            raise self.not_done("the store cannot be read")
        return look(self)

    monkeypatch.setattr(CliApi, "look", without_log)
    assert _labels(rewind("status"))[:3] == ["message VPN", "state", "clients"]


def _labels(shown: str) -> list[str]:
    return [re.split(r"  +", line)[0] for line in shown.splitlines()]


def test_a_queue_is_made_filled_and_purged(rewind: Rewind, client: Client) -> None:
    """Each step as the verbs print it; `--wait` returns when the replay is complete."""
    rewind("queue", "create", "q", "--set", "accessType=exclusive", "--set", "maxBindCount=2")
    assert rewind.json("replay", "start", "q", "--wait")["replayState"] == "complete", (
        "of an empty log at once"
    )
    rewind("subscription", "add", "q", "a/>")
    assert "a/>" in rewind("subscription", "list", "q")
    client.sender("topic://a/1").send_all([data("more")])
    assert "1 message deleted" in rewind("queue", "purge", "q")
    assert "exclusive" in rewind("queue", "list")
    rewind("subscription", "remove", "q", "a/>")
    rewind("queue", "delete", "q")
    assert rewind("queue", "list") == "no queues\n"


def test_the_log_is_shown_listed_and_trimmed(rewind: Rewind, client: Client, gateway: RunningGateway) -> None:
    """The log's verbs say what it holds; `rewind store check` finds its file sound while in use."""
    client.sender("topic://a/1").send_all([data(i) for i in range(5)])
    assert rewind.json("log", "show")["lastMsgId"] == 5
    lines = rewind("log", "messages", "--from", "#4", "--json").splitlines()
    assert [json.loads(line)["msgId"] for line in lines] == [4, 5]
    assert rewind.json("log", "trim", "#3") == {"firstMsgId": 3}
    file = gateway.call(lambda running: str(running.vpns["default"].state.store.place))
    ran = CliRunner().invoke(main, ["store", "check", file])
    assert (ran.exit_code, ran.stdout) == (0, f"{file}: sound\n")


def test_what_the_gateway_refuses_is_said(rewind: Rewind) -> None:
    """A refusal, or an unavailable gateway, is a sentence on stderr and exit status 1."""
    refused = rewind.run("queue", "show", "none")
    sentence = "Error: there is no queue 'none'; `rewind queue list` shows those there are\n"
    assert (refused.exit_code, refused.stderr) == (1, sentence)
    absent = CliRunner().invoke(main, ["status", "--admin", "http://127.0.0.1:9"])
    assert absent.exit_code == 1
    assert "no gateway's administration at http://127.0.0.1:9" in absent.stderr
    # A program gets the same as an object, with the gateway's code.
    refused = rewind.run("queue", "show", "none", "--json")
    assert (refused.exit_code, refused.stdout) == (1, "")
    error = {"description": "there is no queue 'none'", "code": 6, "status": "NOT_FOUND"}
    assert json.loads(refused.stderr) == {"error": error}
    absent = CliRunner().invoke(main, ["status", "--json", "--admin", "http://127.0.0.1:9"])
    assert absent.exit_code == 1
    assert "no gateway's administration" in json.loads(absent.stderr)["error"]["description"]
    assert rewind.run("queue", "set", "q", "novalue").exit_code == 2
    negative = rewind.run("log", "quota", "-5")  # a negative number, not an unknown option
    assert (negative.exit_code, "-5 is not in the range x>=0" in negative.stderr) == (2, True)
    assert rewind.run("log", "quota", "--bogus").exit_code == 2


def test_a_name_mistyped_is_answered_with_those_like_it(rewind: Rewind) -> None:
    """A person is told the most similar name, and the verb that lists all; a program is not."""
    for noun, more, asked in (
        ("queue", [], ["queue", "show", "order"]),
        ("point", [], ["point", "delete", "order"]),
        ("topic-endpoint", ["a/>"], ["replay", "start", "order", "--topic-endpoint"]),
    ):
        rewind(noun, "create", "orders", *more)
        ran = rewind.run(*asked)
        assert ran.exit_code == 1
        assert f"did you mean 'orders'? `rewind {noun} list` shows those there are" in ran.stderr
        assert "orders" not in rewind.run(*asked, "--json").stderr
        if noun == "queue":
            assert "did you mean 'orders'?" in rewind.run("queue", "flows", "order").stderr
        if noun == "queue":
            rewind("queue", "delete", "orders")


def test_clients_are_listed_and_disconnected(rewind: Rewind, client: Client) -> None:
    """A client can be found by its id and its connection closed."""
    found = rewind.json("client", "list")
    assert "1 connection closed" in rewind("client", "disconnect", found["clientId"])
    client.wait(lambda: client.connection.remote_condition, "closed by the gateway")


def test_message_vpns_are_listed(rewind: Rewind) -> None:
    """All of them, whatever `--vpn` says."""
    rewind("vpn", "create", "--vpn", "trading")
    lines = rewind("vpn", "list", "--json").splitlines()
    assert [json.loads(line)["msgVpnName"] for line in lines] == ["default", "trading"]
    assert "trading" in rewind("vpn", "list", "--vpn", "trading")


def test_a_start_before_the_log_can_be_clamped(rewind: Rewind, client: Client) -> None:
    """`--clamp`, which the refusal suggests, begins the replay at the oldest message."""
    client.sender("q").send_all([data(i) for i in range(3)])
    refused = rewind.run("replay", "start", "q", "--from", "10D")
    assert refused.exit_code == 1
    assert "say --clamp" in refused.stderr
    assert rewind.json("replay", "preview", "q", "--from", "10D", "--clamp")["msgCount"] == 3
    assert rewind.json("replay", "start", "q", "--from", "10D", "--clamp")["firstMsgId"] == 1
    assert texts(client.receiver("q").drain()) == ["0", "1", "2"]


def test_what_waits_for_its_time(rewind: Rewind, gateway: RunningGateway) -> None:
    """A delayed message is listed with its delivery time, and then released or cancelled."""
    rewind("queue", "create", "q")
    send = ["send", "q", "--delay", "2h", "--url", gateway.url]
    for verb, told in (
        ("release-delayed", "is no longer delayed"),
        ("cancel-delayed", "will not be delivered"),
    ):
        ran = CliRunner().invoke(main, send, input="later\n")
        assert ran.exit_code == 0, ran.output
        assert re.search("^delayed messages.* 1$", rewind("queue", "show", "q"), re.MULTILINE)
        shown = rewind("queue", "delayed", "q")
        assert "due" in shown
        assert "rmid1:" in shown
        found = rewind.json("queue", "delayed", "q")
        replay_id = found["replicationGroupMsgId"]
        assert (found["deliveryCount"], found["isRetry"]) == (0, False)
        assert rewind("queue", verb, "q", replay_id).strip() == f"{replay_id} {told}"
        assert rewind("queue", "delayed", "q").strip() == "no delayed messages"


def test_the_newest_values(rewind: Rewind, client: Client) -> None:
    """Keys are listed with their messages, all or one; one is deleted."""
    rewind("queue", "create", "v", "--set", "kind=last-value")
    rewind("subscription", "add", "v", "p/>")
    for topic, text in (("p/a", "a1"), ("p/b", "b1"), ("p/a", "a2")):
        client.sender(f"topic://{topic}").send_all([data(text)])

    def keys(*more: str) -> list[tuple[str, int]]:
        listed = rewind("queue", "values", "v", "--json", *more).splitlines()
        return [(found["key"], found["msgId"]) for found in map(json.loads, listed)]

    assert keys() == [("p/b", 2), ("p/a", 3)]
    assert keys("--key", "p/a") == [("p/a", 3)]
    assert rewind("queue", "delete-value", "v", "p/b").strip() == "p/b has no value"
    assert keys() == [("p/a", 3)]
    assert rewind("queue", "values", "v", "--key", "p/b").strip() == "no values"


def test_words_that_mean_nothing_are_wrong_usage() -> None:
    """An invalid delay, or an administration URL without a scheme: refused with what to write."""
    for text in ("soon", "-5s", "5", "1w"):
        ran = CliRunner().invoke(main, ["send", "q", "--delay", text], input="x\n")
        assert (ran.exit_code, "write 30s, 10m, 2h or 1D" in ran.stderr) == (2, True), text
    for url in (
        "127.0.0.1:8672",
        "http://",
        "http://[::1",
        "http://host:port",
        "http://host:99999",
        "http://a b",
    ):
        ran = CliRunner().invoke(main, ["status", "--admin", url])
        assert (ran.exit_code, "write http://HOST:PORT" in ran.stderr) == (2, True), url
    ran = CliRunner().invoke(main, ["log", "erase", "--admin", "http://127.0.0.1:9"])
    assert (ran.exit_code, "by an ID, or by --selector" in ran.stderr) == (2, True)
    ran = CliRunner().invoke(main, ["status", "--vpn", "\udcff"])
    assert (ran.exit_code, "'\\udcff' is not valid Unicode" in ran.stderr) == (2, True)


def test_a_secret_that_no_header_can_have_is_wrong_usage(tmp_path: Path) -> None:
    """A file that is not text, and a token of two lines; the sentence does not show the token."""
    file = tmp_path / "secret"
    file.write_bytes(b"\xff\xfe")
    for options in (["--token-file"], ["--user", "u", "--password-file"]):
        ran = CliRunner().invoke(main, ["status", *options, str(file)])
        assert (ran.exit_code, f"{file} cannot be read" in ran.stderr) == (2, True)
    for token in ("secret\nline", "secret€"):
        ran = CliRunner().invoke(main, ["status"], env={"REWIND_TOKEN": token})
        assert (ran.exit_code, "that a header cannot have" in ran.stderr) == (2, True)
        assert "secret" not in ran.stderr


@pytest.mark.parametrize("answer", [b"AMQP\x03\x01\x00\x00", b"HTTP/1.0 200 OK\r\n\r\n<html>"])
def test_another_server_is_no_administration(answer: bytes) -> None:
    """A server of AMQP, and a web server with pages for people: a sentence and status 1."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as pool:

        def serve() -> None:
            with server.accept()[0] as connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        served = pool.submit(serve)
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        ran = CliRunner().invoke(main, ["status", "--admin", url])
        served.result()
    assert (ran.exit_code, f"administration at {url}: another server is there" in ran.stderr) == (1, True)
