"""What a person sees of a replay that is waited for, the verbs of the log, and completion."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import click
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from gateway.cli import main, replays
from tests.gateway.admin.conftest import LOG, Api
from tests.support.client import Client, texts
from tests.support.messages import data


def test_waiting_shows_how_far_a_replay_is(api: Api, client: Client) -> None:
    """`--wait` returns once an AMQP client has acknowledged all; the bar has the states and says how many are left."""
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
            ran.append(CliRunner().invoke(main, words))

    ran: list[object] = []
    words = ["replay", "start", "q", "--wait", "--admin", str(api.http.base_url)]
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
    """The exit status is 1 then, with the reason in a sentence."""
    client.sender("q").send_all([data(i) for i in range(5)])
    words = ["replay", "start", "q", "--wait", "--admin", str(api.http.base_url)]
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(CliRunner().invoke, main, words)
        client.wait(lambda: api.queue("q")["replayState"] == "pending-complete", "all is on the queue")
        api.act("/queues/q/cancelReplay", {})
        done = waiting.result(20)
    last = "Error: the replay is failed: it was cancelled"
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (1, last)


def test_replays_of_the_past_are_listed_and_shown(api: Api, client: Client) -> None:
    """Who asked, onto what, how it ended: by HTTP page by page and by endpoint, and by the verbs."""
    client.sender("q").send_all([data(i) for i in range(5)])
    client.sender("r").send_all([data(i) for i in range(5)])

    def run(*words: str) -> tuple[int, str]:
        ran = CliRunner().invoke(main, ["replay", *words, "--admin", str(api.http.base_url)])
        return ran.exit_code, ran.output

    assert run("list") == (0, "There is no replay on record.\n")
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
    """On a terminal: nothing is replayed when anything else is typed; `--yes` asks nothing, nor does a script."""
    client.sender("q").send_all([data(0)])

    def run(typed: str, *options: str) -> int:
        words = ["replay", "start", "q", *options, "--admin", str(api.http.base_url)]
        with patch.object(replays, "is_terminal", lambda: True):
            return CliRunner().invoke(main, words, input=typed).exit_code

    assert run("r\n") == 1
    assert run("\n") == 1
    assert api.queue("q")["replayState"] == "n/a"
    assert run("q\n") == 0
    assert run("", "--yes") == 0
    assert api.queue("q")["replayStartCount"] == 2


def test_what_the_log_does_not_have_is_kept_by_the_verbs(api: Api, client: Client) -> None:
    """The preview counts it, who is asked for the name is told, and the queue has it afterwards."""
    client.sender("q").send_all([data(i) for i in range(3)])
    api.act(f"{LOG}/trimLoggedMsgs", {"before": "#2"})

    def run(*words: str) -> str:
        options = ("q", "--keep-unlogged", "--admin", str(api.http.base_url))
        with patch.object(replays, "is_terminal", lambda: True):
            done = CliRunner().invoke(main, ["replay", *words, *options], input="q\n")
        assert done.exit_code == 0, done.output
        return done.output

    assert "messages kept           1\n" in run("preview")
    assert "1 message will stay" in run("start")
    assert texts(client.receiver("q", credit=5).take(3)) == ["0", "1", "2"]


def test_the_log_is_configured_by_verbs(api: Api) -> None:
    """What the log takes, keeps and holds is said with verbs; what cannot be is refused with exit status 1."""

    def run(*words: str) -> int:
        return CliRunner().invoke(main, ["log", *words, "--admin", str(api.http.base_url)]).exit_code

    shown = [
        "ingressEnabled",
        "egressEnabled",
        "maxSpoolUsage",
        "topicFilterEnabled",
        "keepUntilArchivedEnabled",
    ]
    assert run("filter", "on") == 1
    for verbs, expected in (
        (
            (
                "disable",
                "disable --reads",
                "quota 250",
                "filter add a/>",
                "filter on",
                "keep-until-archived on",
            ),
            [False, False, 250, True, True],
        ),
        (
            ("enable", "enable --reads", "filter off", "filter remove a/>", "keep-until-archived off"),
            [True, True, 250, False, False],
        ),
    ):
        for verb in verbs:
            assert run(*verb.split()) == 0, verb
        found = api.done("GET", "config", LOG)
        assert [found[name] for name in shown] == expected
    assert run("quota", "much") == 2
    assert run("filter", "remove", "a/>") == 1


def test_dead_messages_go_where_the_administrator_says_now(api: Api, client: Client) -> None:
    """A dead message queue that is changed live gets the next dead message, with what is in it."""
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
    """What a shell asks for after TAB is answered with the verbs and options there are."""
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
