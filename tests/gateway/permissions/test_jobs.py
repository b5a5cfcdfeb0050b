"""What somebody with few rights can have a job do for him: nothing that he could not do himself."""

from __future__ import annotations

import httpx
import pytest

from tests.gateway.permissions.conftest import PASSWORD, Login, Reloaded, Start, user
from tests.support.client import texts
from tests.support.messages import data, section
from tests.support.running import PLAIN_HTTP, RunningGateway
from tests.support.waiting import wait_until

ACTION = "/SEMP/v2/action/msgVpns/default"
LOG = f"{ACTION}/replayLogs/default"


def asked(gateway: RunningGateway, user: str, path: str, body: object) -> httpx.Response:
    """A user's request to the administration."""
    url = gateway.call(lambda running: running.admin[0])
    return httpx.put(f"{url}{path}", json=body, auth=(user, PASSWORD), **PLAIN_HTTP, timeout=30)


@pytest.mark.parametrize(
    ("rules", "body"),
    [
        ({"publish": ["queue://mine"]}, {"target": "queue://mine"}),
        ({"publish": ["queue://mine"], "consume": ["topic://>"]}, {"target": "queue://mine"}),
        ({"consume": ["log://open/>"], "publish": ["queue://mine"]}, {"target": "queue://mine"}),
        (
            {"consume": ["log://open/>"], "publish": ["queue://mine"]},
            {"target": "queue://mine", "subscriptions": ["open/>", "secret/>"]},
        ),
        (
            {"consume": ["log://open/>"], "publish": ["queue://mine"]},
            {"target": "queue://mine", "subscriptions": ["!open/a"]},
        ),
        (
            {"consume": ["log://open/>"], "publish": ["queue://mine"]},
            {"target": "queue://mine", "subscriptions": []},
        ),
        (
            {"consume": ["log://open/>"], "publish": ["queue://mine"]},
            {"target": "queue://mine", "subscriptions": {"0": "open/a"}},
        ),
        ({"consume": ["log://>"], "publish": ["topic://>"]}, {"target": "queue://theirs"}),
        ({"consume": ["log://>"], "publish": ["topic://>"]}, {"target": "topic://#queue/theirs"}),
        ({"consume": ["log://>"], "publish": ["queue://mine"]}, {"target": "amqp://h/theirs"}),
        ({"consume": ["log://>"], "publish": ["queue://mine"]}, {"target": ["queue://mine"]}),
        ({"consume": ["log://>"], "publish": ["queue://mine"]}, {}),
        (
            {"consume": ["log://>"], "publish": ["queue://mine"]},
            {"target": "queue://mine", "replayTarget": "far"},
        ),
        (
            {"consume": ["log://>"], "publish": ["queue://mine"]},
            {"target": "queue://mine", "replayTarget": ["far"]},
        ),
    ],
)
def test_nobody_copies_what_he_may_not_read_to_where_he_may_not_send(
    start: Start, rules: dict[str, list[str]], body: dict[str, object]
) -> None:
    """The request is turned away before anything of it is looked at."""
    gateway = start(least=rules, root={"administer": ["log://>"]})
    assert asked(gateway, "least", f"{LOG}/startCopy", body).status_code == 403


def test_who_may_read_and_send_may_copy(start: Start, login: Login) -> None:
    """With these two rights and no other; his job is his to end, and nobody's without rights over the log."""
    gateway = start(
        least={"consume": ["log://open/>"], "publish": ["queue://mine"]},
        other={"consume": ["log://>"], "publish": ["queue://mine"]},
        root={"administer": ["log://>"]},
        all={},
    )
    client = login(gateway, "all")
    client.sender("topic://open/a").send_all([data("open")])
    client.sender("topic://secret/a").send_all([data("secret")])
    body = {"target": "queue://mine", "subscriptions": ["open/>"], "name": "a", "rate": 0.001}
    assert asked(gateway, "least", f"{LOG}/startCopy", body).status_code == 200
    assert texts(client.receiver("mine").drain()) == ["open"]
    for name in ("b", "c"):
        more = {**body, "name": name, "selector": "1 = 2"}
        assert asked(gateway, "least", f"{LOG}/startCopy", more).status_code == 200
    url = gateway.call(lambda running: running.admin[0])
    for name, status in (("least", 200), ("other", 403), ("root", 200)):
        path = f"{url}/SEMP/v2/monitor/msgVpns/default/replays/a"
        assert httpx.get(path, auth=(name, PASSWORD), **PLAIN_HTTP).status_code == status
    for action in ("pauseReplay", "resumeReplay", "cancelReplay"):
        for name in ("a", "none", "", None, ["a"]):
            assert asked(gateway, "other", f"{LOG}/{action}", {"replayName": name}).status_code == 403
        assert asked(gateway, "least", f"{LOG}/{action}", {"replayName": "a"}).status_code in (200, 400)
        assert asked(gateway, "root", f"{LOG}/{action}", {"replayName": "none"}).status_code == 400


def test_a_forged_dead_letter_goes_nowhere_for_whom_may_not_send_there(start: Start, login: Login) -> None:
    """Who administers the dead message queue alone names the target: a publisher may have made the origin up."""
    gateway = start(least={"administer": ["queue://dead"], "publish": ["queue://mine"]}, all={})
    client = login(gateway, "all")
    client.sender("payments")
    client.sender("dead").send_all([section(0x72, {"x-opt-dead-endpoint": "payments"}) + data("forged")])
    path = f"{ACTION}/queues/dead/returnDead"
    assert asked(gateway, "least", path, {}).status_code == 403
    assert asked(gateway, "least", path, {"target": ""}).status_code == 403
    assert asked(gateway, "least", path, {"target": "payments"}).status_code == 403
    assert asked(gateway, "least", path, {"target": "mine"}).status_code == 200
    assert texts(client.receiver("mine").drain()) == ["forged"]
    assert client.receiver("payments").drain() == []


def test_a_job_pauses_whose_requester_may_not_do_it_any_more(reloaded: Reloaded, login: Login) -> None:
    """
    Copies, returns of dead letters: what is published in a user's name is what he may publish now. It says so, nobody
    has it go on; once he may again, it does.
    """
    root = user("root", "administer = ['log://>']")
    rights = "consume = ['log://>']\npublish = ['queue://mine']\nadminister = ['queue://dead']"
    gateway = reloaded.start(user("all") + root + user("least", rights) + user("other", rights))
    client = login(gateway, "all")
    client.sender("dead").send_all([data(n) for n in range(3)])
    client.sender("mine")
    copy = {"target": "queue://mine", "rate": 0.001}
    dead = f"{ACTION}/queues/dead/returnDead"
    assert asked(gateway, "least", f"{LOG}/startCopy", {**copy, "name": "copy"}).status_code == 200
    assert asked(gateway, "other", f"{LOG}/startCopy", {**copy, "name": "other"}).status_code == 200
    assert asked(gateway, "least", dead, {"target": "mine", "rate": 0.001, "name": "dead"}).status_code == 200
    lost = "consume = ['log://>']\nadminister = ['queue://dead']"
    reloaded.reload(user("all") + root + user("least", lost) + user("other", rights))

    def shown(name: str) -> tuple[str, str]:
        found = gateway.call(lambda running: running.vpns["default"].broker.replay_records.get(name))
        return found.state, found.outcome

    def resumed(by: str, name: str) -> int:
        return asked(gateway, by, f"{LOG}/resumeReplay", {"replayName": name}).status_code

    wait_until(lambda: shown("copy")[0] == shown("dead")[0] == "paused", "the jobs pause")
    for name in ("copy", "dead"):
        assert "user 'least', who began it, may no longer publish to queue://mine" in shown(name)[1]
        assert [resumed(by, name) for by in ("least", "root")] == [400, 400]
    assert shown("other") == ("running", "")
    reloaded.reload(user("all") + root + user("least", rights) + user("other", lost))
    assert resumed("least", "copy") == 200
    wait_until(lambda: shown("other")[0] == "paused", "the other user's job pauses")


def test_a_start_pauses_what_may_not_go_on(reloaded: Reloaded, login: Login) -> None:
    """A copy to another gateway takes the right to administer the log: without it in the file, a start pauses it."""
    far = "[vpn.default.replay_target.far]\nurl = 'amqp://127.0.0.1:1'\n"
    root = user("root", "administer = ['log://>']")
    gateway = reloaded.start(user("all") + root + far)
    login(gateway, "all").sender("q").send_all([data("x")])
    body = {"target": "queue://theirs", "replayTarget": "far", "name": "away"}
    assert asked(gateway, "root", f"{LOG}/startCopy", body).status_code == 200
    gateway.stop()
    again = reloaded.start(user("all") + user("root", "administer = ['queue://q']") + far)

    def state() -> str:
        return str(
            again.call(lambda running: running.vpns["default"].broker.replay_records.get("away").state)
        )

    wait_until(lambda: state() == "paused", "the copy pauses")
