"""The verbs of the command line, against a running gateway."""

from __future__ import annotations

import json
import re
from typing import Any

import apsw
import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.cli.api import Api
from gateway.cli.words import label_of
from tests.support.client import Client, texts
from tests.support.messages import data
from tests.support.running import RunningGateway


class Rewind:
    """`rewind VERB… --admin …`."""

    def __init__(self, gateway: RunningGateway) -> None:
        self._url = gateway.call(lambda running: running.admin[0])

    def run(self, *words: str) -> Result:
        return CliRunner().invoke(main, [*words, "--admin", self._url])

    def __call__(self, *words: str) -> str:
        ran = self.run(*words)
        assert ran.exit_code == 0, ran.output
        return ran.stdout

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))


@pytest.fixture
def rewind(gateway: RunningGateway) -> Rewind:
    """The command, for `gateway`."""
    return Rewind(gateway)


def test_what_is_shown_is_told_in_words(rewind: Rewind) -> None:
    """No two lines are called alike, and none as a program calls it; queues have that behind, for `set`."""
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
    """State, depth, consumers, oldest message and replay; what is zero, unset or a default is behind `--all`."""
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
    # A program is told all, as ever.
    assert {"replayFailureCount", "maxMsgCount", "oldestMsgTimeMs"} <= set(rewind.json("queue", "show", "q"))
    assert "msgReplayFailedCount" in rewind.json("status")
    # The store's engine with its version is the first thing asked in a bug report.
    [(version,)] = apsw.Connection(":memory:").execute("select sqlite_version()")
    assert rewind.json("status")["storeEngine"] == f"SQLite {version}"
    assert f"SQLite {version}" in rewind("status")


def test_a_status_without_a_log_to_be_read(rewind: Rewind, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that cannot be read is when a status is wanted most: it comes without the log's part."""
    look = Api.look

    def without_log(self: Api, *names: str, **query: Any) -> Any:
        if names:
            raise self.not_done("the store cannot be read")
        return look(self)

    monkeypatch.setattr(Api, "look", without_log)
    assert _labels(rewind("status"))[:3] == ["message VPN", "state", "clients"]


def _labels(shown: str) -> list[str]:
    return [re.split(r"  +", line)[0] for line in shown.splitlines()]


def test_a_queue_is_made_filled_and_purged(rewind: Rewind, client: Client) -> None:
    """What an administrator does with a queue in its life, in words; `--wait` returns when a replay is complete."""
    rewind("queue", "create", "q", "--set", "accessType=exclusive", "--set", "maxBindCount=2")
    assert rewind.json("replay", "start", "q", "--wait")["replayState"] == "complete", (
        "of an empty log at once"
    )
    rewind("subscription", "add", "q", "a/>")
    assert "a/>" in rewind("subscription", "list", "q")
    client.sender("topic://a/1").send_all([data("more")])
    assert "1 message dropped" in rewind("queue", "purge", "q")
    assert "exclusive" in rewind("queue", "list")
    rewind("subscription", "remove", "q", "a/>")
    rewind("queue", "delete", "q")
    assert rewind("queue", "list") == "no queues\n"


def test_the_log_is_shown_listed_and_trimmed(rewind: Rewind, client: Client, gateway: RunningGateway) -> None:
    """The log's verbs say what it holds, and its file is sound while it is in use."""
    client.sender("topic://a/1").send_all([data(i) for i in range(5)])
    assert rewind.json("log", "show")["lastMsgId"] == 5
    lines = rewind("log", "messages", "--from", "#4", "--json").splitlines()
    assert [json.loads(line)["msgId"] for line in lines] == [4, 5]
    assert rewind.json("log", "trim", "#3") == {"firstMsgId": 3}
    file = gateway.call(lambda running: str(running.vpns["default"].place))
    ran = CliRunner().invoke(main, ["store", "check", file])
    assert (ran.exit_code, ran.stdout) == (0, f"{file}: sound\n")


def test_what_the_gateway_refuses_is_said(rewind: Rewind) -> None:
    """A refusal is one sentence on stderr and exit status 1; so is a gateway that is not there."""
    refused = rewind.run("queue", "show", "none")
    sentence = "Error: there is no queue 'none'; `rewind queue list` shows those there are\n"
    assert (refused.exit_code, refused.stderr) == (1, sentence)
    absent = CliRunner().invoke(main, ["status", "--admin", "http://127.0.0.1:9"])
    assert absent.exit_code == 1
    assert "no gateway's administration at http://127.0.0.1:9" in absent.stderr
    # A program is told the same as an object, with the gateway's code.
    refused = rewind.run("queue", "show", "none", "--json")
    assert (refused.exit_code, refused.stdout) == (1, "")
    error = {"description": "there is no queue 'none'", "code": 6, "status": "NOT_FOUND"}
    assert json.loads(refused.stderr) == {"error": error}
    absent = CliRunner().invoke(main, ["status", "--json", "--admin", "http://127.0.0.1:9"])
    assert absent.exit_code == 1
    assert "no gateway's administration" in json.loads(absent.stderr)["error"]["description"]
    assert rewind.run("queue", "set", "q", "novalue").exit_code == 2
    negative = rewind.run("log", "quota", "-5")  # is no unknown option
    assert (negative.exit_code, "-5 is not in the range x>=0" in negative.stderr) == (2, True)
    assert rewind.run("log", "quota", "--bogus").exit_code == 2


def test_a_name_mistyped_is_answered_with_those_like_it(rewind: Rewind) -> None:
    """A person is told what was probably meant, and which verb lists what there is; a program is not."""
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
            rewind("queue", "delete", "orders")


def test_clients_are_listed_and_disconnected(rewind: Rewind, client: Client) -> None:
    """A client can be found by its id and its connection closed."""
    found = rewind.json("client", "list")
    assert "1 connection closed" in rewind("client", "disconnect", found["clientId"])
    client.wait(lambda: client.connection.remote_condition, "closed by the gateway")


def test_message_vpns_are_listed(rewind: Rewind) -> None:
    """All of them, whichever `--vpn` says."""
    rewind("vpn", "create", "--vpn", "trading")
    lines = rewind("vpn", "list", "--json").splitlines()
    assert [json.loads(line)["msgVpnName"] for line in lines] == ["default", "trading"]
    assert "trading" in rewind("vpn", "list", "--vpn", "trading")


def test_a_start_before_the_log_can_be_clamped(rewind: Rewind, client: Client) -> None:
    """What the refusal offers can be had: the replay then begins with the first message that there is."""
    client.sender("q").send_all([data(i) for i in range(3)])
    refused = rewind.run("replay", "start", "q", "--from", "10D")
    assert refused.exit_code == 1
    assert "say --clamp" in refused.stderr
    assert rewind.json("replay", "preview", "q", "--from", "10D", "--clamp")["msgCount"] == 3
    assert rewind.json("replay", "start", "q", "--from", "10D", "--clamp")["firstMsgId"] == 1
    assert texts(client.receiver("q").drain()) == ["0", "1", "2"]


def test_what_waits_for_its_time(rewind: Rewind, gateway: RunningGateway) -> None:
    """Sent with a delay, listed with when it is due, cancelled."""
    url = f"amqp://{gateway.address}"
    rewind("queue", "create", "q")
    ran = CliRunner().invoke(main, ["send", "q", "--delay", "2h", "--url", url], input="later\n")
    assert ran.exit_code == 0, ran.output
    (line,) = (
        one for one in rewind("queue", "show", "q").splitlines() if one.startswith("messages that wait for")
    )
    assert "1" in line
    shown = rewind("queue", "delayed", "q")
    assert "due" in shown
    assert "rmid1:" in shown
    (found,) = [json.loads(line) for line in rewind("queue", "delayed", "q", "--json").splitlines()]
    replay_id = found["replicationGroupMsgId"]
    assert (found["deliveryCount"], found["isRetry"]) == (0, False)
    assert rewind("queue", "release-delayed", "q", replay_id).strip() == f"{replay_id} waits no longer"
    assert rewind("queue", "delayed", "q").strip() == "no message waits for its time"
    ran = CliRunner().invoke(main, ["send", "q", "--delay", "2h", "--url", url], input="later\n")
    (found,) = [json.loads(line) for line in rewind("queue", "delayed", "q", "--json").splitlines()]
    replay_id = found["replicationGroupMsgId"]
    assert rewind("queue", "cancel-delayed", "q", replay_id).strip() == f"{replay_id} will not be delivered"
    assert rewind("queue", "delayed", "q").strip() == "no message waits for its time"


def test_the_newest_values(rewind: Rewind, gateway: RunningGateway) -> None:
    """Keys listed with their messages, one alone, one deleted."""
    rewind("queue", "create", "v", "--set", "kind=last-value")
    rewind("subscription", "add", "v", "p/>")
    for topic, text in (("p/a", "a1"), ("p/b", "b1"), ("p/a", "a2")):
        ran = CliRunner().invoke(
            main, ["send", "--topic", topic, "--url", f"amqp://{gateway.address}"], input=text
        )
        assert ran.exit_code == 0, ran.output

    def keys(*more: str) -> list[tuple[str, int]]:
        listed = rewind("queue", "values", "v", "--json", *more).splitlines()
        return [(found["key"], found["msgId"]) for found in map(json.loads, listed)]

    assert keys() == [("p/b", 2), ("p/a", 3)]
    assert keys("--key", "p/a") == [("p/a", 3)]
    assert rewind("queue", "delete-value", "v", "p/b").strip() == "p/b has no value"
    assert keys() == [("p/a", 3)]
    assert rewind("queue", "values", "v", "--key", "p/b").strip() == "no values"


def test_words_that_mean_nothing_are_wrong_usage() -> None:
    """A delay, and an administration's address without its scheme: refused with what to write."""
    for text in ("soon", "-5s", "5", "1w"):
        ran = CliRunner().invoke(main, ["send", "q", "--delay", text], input="x\n")
        assert (ran.exit_code, "write 30s, 10m, 2h or 1D" in ran.stderr) == (2, True), text
    ran = CliRunner().invoke(main, ["status", "--admin", "127.0.0.1:8672"])
    assert (ran.exit_code, "write http://HOST:PORT" in ran.stderr) == (2, True)
