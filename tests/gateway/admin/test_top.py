"""`rewind top`: what it shows of AMQP clients' traffic, and that it survives a gateway that goes away."""

from __future__ import annotations

import io
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from gateway.cli import main
from gateway.cli import top as looking
from gateway.cli.api import Api as CliApi
from gateway.cli.api import NotDone
from gateway.cli.top import Look, Watch
from gateway.config import AdminListener
from tests.gateway.admin.conftest import Api
from tests.support.client import Client
from tests.support.messages import data
from tests.support.ports import free_port
from tests.support.running import RunningGateway, settings_for


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long timeout, so that a slow machine does not count as a gateway that is unavailable."""
    monkeypatch.setattr(looking, "ANSWER_S", 100.0)


def top(url: str, *words: str) -> Result:
    """Run `rewind top` with its shortest interval."""
    return CliRunner().invoke(main, ["top", "--interval", "0.5", *words, "--admin", url])


def watch(url: str, seconds: list[float]) -> Watch:
    """A watch whose clock the test sets."""
    return Watch(CliApi(url, "default", None, None, as_json=True), lambda: seconds[0])


def test_rates_are_what_clients_did_between_two_looks(api: Api, client: Client) -> None:
    """Messages published and settled a second, and each queue's growth; the deepest queue is first."""
    seconds = [100.0]
    looks = watch(str(api.http.base_url), seconds)
    client.sender("shallow").send_all([data(i) for i in range(1)])
    client.sender("deep").send_all([data(i) for i in range(4)])
    first = looks.look()
    assert set(first.rates.values()) == {None}
    client.sender("deep").send_all([data(i) for i in range(10)])
    receiver = client.receiver("shallow")
    receiver.settle(receiver.drain())
    client.wait(lambda: api.queue("shallow")["spooledMsgCount"] == 0, "it is consumed")
    seconds[0] += 2
    second = looks.look()
    assert second.rates["publishedMsgsPerSecond"] == 5
    assert second.rates["settledMsgsPerSecond"] == 0.5
    (deep,) = second.queues
    assert (deep["queueName"], deep["spooledMsgCount"], deep["msgsPerSecond"]) == ("deep", 14, 5.0)
    assert second.log["lastMsgId"] == 15


def test_what_is_replayed_is_shown_while_it_goes_on(api: Api, client: Client) -> None:
    """A running job with its name and progress; once it has ended, it is not shown."""
    client.sender("topic://a").send_all([data(i) for i in range(3)])
    looks = watch(str(api.http.base_url), [100.0])
    copy = {"target": "queue://copies", "rate": 0.01, "name": "slow"}
    api.act("/replayLogs/default/startCopy", copy)
    (shown,) = looks.look().replays
    assert (shown["replayName"], shown["kind"], shown["target"]) == ("slow", "copy", "queue://copies")
    ran = top(str(api.http.base_url), "--count", "1")
    assert "queue://copies" in ran.stdout
    api.act("/replayLogs/default/cancelReplay", {"replayName": "slow"})
    client.wait(lambda: looks.look().replays == [], "it has ended")


def test_queues_are_not_listed_again_and_again_where_that_takes_long(
    api: Api, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a list takes a second, it is read again only after twenty; until then the old one is shown."""
    seconds = [100.0]
    looks = watch(str(api.http.base_url), seconds)
    ask = CliApi.ask
    asked: list[str] = []

    def slow(self: CliApi, method: str, tree: str, *names: str, **more: Any) -> Any:
        asked.append(names[0] if names else "")
        seconds[0] += names == ("queues",)
        return ask(self, method, tree, *names, **more)

    client.sender("q").send_all([data(1)])
    monkeypatch.setattr(CliApi, "ask", slow)
    for _ in range(10):
        seconds[0] += 1
        assert [one["queueName"] for one in looks.look().queues] == ["q"]
    assert asked.count("queues") == 1
    assert len(asked) <= 5 * 10


def test_a_gateway_that_goes_away_is_seen_again_when_it_is_back(tmp_path: Path) -> None:
    """Meanwhile the last state is shown with the reason. Its counters restart at zero, and no rate is negative."""
    port = free_port()
    settings = settings_for(tmp_path / "data", admin=AdminListener(port=port))
    url = f"http://127.0.0.1:{port}"
    seconds = [100.0]
    looks = watch(url, seconds)
    with RunningGateway(settings) as gateway:
        with Client(gateway.url) as client:
            client.sender("q").send_all([data(i) for i in range(3)])
        assert looks.look().problem is None
        gateway.stop()
        seconds[0] += 1
        away = looks.look()
        assert away.problem is not None and url in away.problem
        assert [one["queueName"] for one in away.queues] == ["q"]
        gateway.start()
        seconds[0] += 1
        back = looks.look()
        assert (back.problem, set(back.rates.values())) == (None, {None})
        seconds[0] += 1
        assert looks.look().rates["publishedMsgsPerSecond"] == 0


def test_looks_are_lines_for_a_program_and_without_a_terminal(api: Api, client: Client) -> None:
    """As many looks as requested: with --json the attributes of the API, otherwise lines of text without colours."""
    client.sender("q").send_all([data(1)])
    ran = top(str(api.http.base_url), "--count", "2", "--json")
    assert ran.exit_code == 0, ran.output
    first, second = map(json.loads, ran.stdout.splitlines())
    rates = [look["rates"]["publishedMsgsPerSecond"] for look in (first, second)]
    assert rates == [None, 0]
    assert second["vpn"]["publishedMsgCount"] == 1
    assert [one["queueName"] for one in second["queues"]] == ["q"]
    assert second["problem"] is None
    ran = top(str(api.http.base_url), "--count", "2")
    assert ran.exit_code == 0, ran.output
    assert ran.stdout.count("default  up") == 2
    assert "known from the next refresh on" in ran.stdout
    assert "in 0.0 messages a second" in ran.stdout
    assert "\x1b" not in ran.stdout


def test_nobody_there_is_waited_for_and_a_refusal_ends_it(api: Api) -> None:
    """An absent gateway is waited for, as it may be about to start; a refusal by a gateway ends the verb."""
    ran = top("http://127.0.0.1:9", "--count", "1")
    assert ran.exit_code == 0
    assert "no gateway's administration at http://127.0.0.1:9" in ran.stdout
    ran = top(str(api.http.base_url), "--vpn", "none")
    assert ran.exit_code == 1
    assert "There is no Message VPN 'none'" in ran.stderr
    for url, names, is_absent in (
        ("http://127.0.0.1:9", (), True),
        (str(api.http.base_url), ("queues", "none"), False),
    ):
        with pytest.raises(NotDone) as caught:
            CliApi(url, "default", None, None, as_json=True).ask("GET", "monitor", *names)
        assert caught.value.is_absent is is_absent


VPN = {
    "msgVpnName": "default",
    "state": "up",
    "clientCount": 1,
    "endpointCount": 50,
    "storeProblem": None,
    "pendingBytes": 0,
}
LOG = {"msgSpoolUsage": 1 << 20, "maxSpoolUsage": 2, "usagePercent": 50, "firstMsgId": 1, "lastMsgId": 9}


def test_a_terminal_has_one_view_as_high_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues that do not fit are counted; control characters in names are escaped; the last view stays at the end."""
    queues = [
        {"queueName": f"q{number}\x1b[2J", "spooledMsgCount": 100 - number, "msgsPerSecond": 1.5}
        for number in range(50)
    ]
    look = Look(1.0, 1_767_323_045_000, VPN, LOG, queues, 60, rates={}, problem="no gateway")
    monkeypatch.setenv("TERM", "xterm")
    screen = io.StringIO()
    terminal = Console(file=screen, force_terminal=True, width=120, height=24, color_system=None)
    monkeypatch.setattr(looking, "console", lambda: terminal)
    looking.show_looks([look, look])
    last = screen.getvalue().rsplit("\x1b[?1049l", 1)[-1]
    assert "no gateway" in last
    assert "50 % of 2.0 MB" in last
    assert "and 44 more" in last
    assert "q15\\x1b[2J" in last and "q16" not in last
    assert "\x1b[2J" not in last
    assert len(last.splitlines()) <= 24


def test_ctrl_c_is_how_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a message, and with status 0."""

    def stop(self: Watch) -> Look:
        raise KeyboardInterrupt

    monkeypatch.setattr(looking.Watch, "look", stop)
    ran = top("http://127.0.0.1:9", "--json")
    assert (ran.exit_code, ran.output) == (0, "")


def test_a_gateway_that_does_not_answer_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a timeout; the view then names the problem."""
    monkeypatch.setattr(looking, "ANSWER_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        found: list[Look] = []
        asking = threading.Thread(target=lambda: found.append(watch(url, [1.0]).look()))
        asking.start()
        asking.join(20)
    (look,) = found
    assert look.problem is not None and "timed out" in look.problem
