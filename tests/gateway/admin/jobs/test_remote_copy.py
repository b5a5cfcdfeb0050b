"""A part of the log published at another gateway: what comes, what hinders it, and who may have it done."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from gateway.config import Listener, Queue, ReplayTarget, User, Vpn
from tests.gateway.admin.conftest import LOG, Serve, tls_of
from tests.gateway.admin.jobs.test_copy import copy, ended, record
from tests.gateway.permissions.conftest import HASH, PASSWORD
from tests.support.client import Client, Received, texts
from tests.support.messages import data, section
from tests.support.running import RunningGateway, settings_for
from tests.support.tcp_proxy import Fate, Proxy, Way
from tests.support.waiting import wait_until

Other = Callable[..., RunningGateway]


@pytest.fixture
def other(tmp_path: Path, _ending: ExitStack) -> Other:
    """Starts the gateway that copies are sent to."""

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
    """Numbers, published to the topic `past`."""
    with Client(gateway.url) as client:
        client.sender("topic://past").send_all([data(n) for n in range(count)])


def on(gateway: RunningGateway, queue: str, count: int) -> list[Received]:
    """What lies on a queue, in order."""
    with Client(gateway.url) as client:
        return client.receiver(queue).drain(count + 1)


def ids(found: list[Received]) -> list[Any]:
    return [one.annotations["x-opt-replay-source-id"] for one in found]


def test_a_copy_at_another_gateway_has_the_bare_message_and_says_what_it_is(
    serve: Serve, other: Other
) -> None:
    """Bit for bit, with the annotations of a copy in front: by its source id a handler knows it again."""
    far = other()
    api = serve(sends_to(far.url))
    bare = section(0x73, ["an id"]) + data("content")
    with Client(api.gateway.url) as client:
        client.sender("topic://past").send_all(
            [bare, section(0x70, [True]) + section(0x72, {"x-opt-theirs": "kept"}) + bare]
        )
    name = copy(api, target="queue://new", replayTarget="test", subscriptions=["past"], name="try")
    assert ended(api, name).outcome == "2 copies of 2 messages looked at"
    found = on(far, "new", 2)
    assert [one.bare for one in found] == [bare] * 2
    assert ids(found) == [1, 2]
    assert {one.annotations["x-opt-replay-name"] for one in found} == {"try"}
    assert found[1].annotations["x-opt-theirs"] == "kept"
    shown = api.seen(f"/replays/{name}")
    assert (shown["target"], shown["replayTarget"]) == ("queue://new", "test")
    erased = api.act(f"{LOG}/redactMsg", {"msgId": [1], "preview": True})
    assert (erased["copyMsgIds"], erased["copiedTo"]) == ([], ["try: test queue://new"])


def test_a_connection_that_is_cut_is_made_again_and_nothing_is_left_out(
    serve: Serve, other: Other, between: Callable[[RunningGateway], Proxy]
) -> None:
    """What the cut left open is sent once more: a copy may come twice, with one source id, and none is missing."""
    far = other()
    proxy = between(far)
    cuts = iter(range(3))

    def fate(way: Way, number: int, chunk: bytes) -> Fate:
        if way is Way.TO_CLIENT and number > 3 and next(cuts, None) is not None:
            return Fate.CUT
        return Fate.PASS

    proxy.fate = fate
    api = serve(sends_to(f"amqp://127.0.0.1:{proxy.port}"))
    fill(api.gateway, 5_000)
    name = copy(api, target="queue://new", replayTarget="test", subscriptions=["past"])
    assert ended(api, name).state == "complete"
    assert proxy.connections > 3
    found = on(far, "new", 10_000)
    assert sorted({*ids(found)}) == [*range(1, 5_001)]
    once = {
        one.annotations["x-opt-replay-source-id"]: text for one, text in zip(found, texts(found), strict=True)
    }
    assert [once[place] for place in range(1, 5_001)] == [str(n) for n in range(5_000)]


def test_a_full_target_there_is_waited_for(serve: Serve, other: Other) -> None:
    """What was refused is sent again once there is room; the job says what it waits for."""
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
    """What the peer accepted before is not sent again after a pause that heard of it."""
    far = other()
    api = serve(sends_to(far.url))
    fill(api.gateway, 1_000)
    name = copy(api, target="queue://new", replayTarget="test", subscriptions=["past"], rate=1_000)
    wait_until(lambda: record(api, name).sent, "it has begun")
    api.act(f"{LOG}/pauseReplay", {"replayName": name})
    api.restart()
    assert record(api, name).state == "paused"
    api.act(f"{LOG}/resumeReplay", {"replayName": name})
    assert ended(api, name).sent == 1_000
    assert ids(on(far, "new", 1_000)) == [*range(1, 1_001)]


def test_a_peer_that_is_away_is_waited_for_and_the_job_can_be_ended(
    serve: Serve, other: Other, between: Callable[[RunningGateway], Proxy]
) -> None:
    """It says that there is no connection; where the peer comes back, it goes on."""
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
    A wrong password, and a certificate of nobody known, are waited for and said, without the secret; a right one of the
    file is taken at the next connect.
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
    wait_until(lambda: "not let in" in record(api, "test").outcome, "the password is wrong")
    assert "a wrong one" not in record(api, "test").outcome
    secret.write_text(PASSWORD)
    assert ended(api, "test").sent == 10
    copy(api, replayTarget="test", name="elsewhere", **{**asked, "target": "queue://other"})
    wait_until(lambda: "refused there" in record(api, "elsewhere").outcome, "it may not send there")
    assert api.http.get("/readyz").status_code == 200


def test_only_the_configuration_says_where_the_gateway_connects(serve: Serve) -> None:
    """A request names a label, and no address of a host."""
    api = serve(sends_to("amqp://127.0.0.1:1"))
    for target, replay_target, said in (
        ("queue://q", "nobody", "no replay target"),
        ("amqp://elsewhere:5672/q", "test", "another host"),
        ("queue://q", "amqp://elsewhere:5672", "no replay target"),
        (" ", "test", "queue://orders"),
    ):
        body = {"target": target, "replayTarget": replay_target}
        assert said in api.why("PUT", "action", f"{LOG}/startCopy", body)


def test_a_target_that_is_taken_out_of_the_configuration_is_waited_for(serve: Serve, other: Other) -> None:
    """The settings in effect are asked each time: one that comes back is used."""
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
