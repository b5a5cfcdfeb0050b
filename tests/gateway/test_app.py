"""A gateway in the test's own process: how it starts, why it may not, and what is left after it has stopped."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import proton
import pytest

from gateway.amqp.connection import Connection
from gateway.app import Gateway
from gateway.config import Listener, Settings, User
from gateway.config.settings import AdminListener, Tls
from gateway.tls import TlsError
from store.data_folder import DataFolder
from store.errors import StoreError, StoreLocked
from tests.gateway.permissions.conftest import HASH, PASSWORD
from tests.support.client import Client
from tests.support.messages import data
from tests.support.peer import Peer
from tests.support.running import PLAIN_HTTP, RunningGateway, settings_for
from tests.support.waiting import wait_until

ENGINE_KINDS = (
    Connection,
    proton.Connection,
    proton.Session,
    proton.Link,
    proton.Transport,
    proton.Collector,
)

MESSAGES = "/SEMP/v2/monitor/msgVpns/default/replayLogs/default/msgs"


def run(settings: Settings) -> Gateway:
    """Start a gateway and stop it again."""
    gateway = Gateway(settings)

    async def live() -> None:
        await gateway.start()
        await gateway.stop()

    asyncio.run(live())
    return gateway


def test_the_ready_line_is_json_with_the_real_ports(tmp_path: Path) -> None:
    """Ports requested as 0 are named as bound, the data folder as an absolute path, and the process id is this one."""
    gateway = run(settings_for(tmp_path / "data"))
    ready = json.loads(gateway.ready_line())
    assert set(ready) == {"event", "amqp", "admin", "data", "pid"}
    assert ready["event"] == "ready"
    assert ready["pid"] == os.getpid()
    assert ready["data"] == str(tmp_path / "data")
    assert not ready["amqp"][0].endswith(":0")
    assert not ready["admin"].endswith(":0")


def test_a_stopped_gateway_gives_its_folder_and_ports_back(tmp_path: Path) -> None:
    """The same settings, ports included, can be started again immediately in the same process."""
    first = run(settings_for(tmp_path / "data"))
    port = int(first.amqp[0].rpartition(":")[2])
    again = settings_for(tmp_path / "data", listeners=(Listener(port=port),))
    assert run(again).amqp == first.amqp


def test_a_stopped_gateway_leaves_no_thread_behind(tmp_path: Path) -> None:
    """After password checks over AMQP and HTTP, reads from disk, and a page of a list."""
    before = set(threading.enumerate())
    all_rules = ("queue://*", "topic://>", "log://>")
    ann = User(password=HASH, publish=all_rules, consume=all_rules, administer=all_rules)
    with RunningGateway(settings_for(tmp_path / "data", users={"ann": ann})) as gateway:
        for _ in range(2):
            with Client(gateway.url, user=("ann", PASSWORD)) as client:
                client.sender("topic://a").send_all([data("x")])
                assert len(client.receiver("log://>?replay-start=beginning").drain()) > 0
            gateway.restart()
        with httpx.Client(base_url=gateway.call(lambda running: running.admin[0]), **PLAIN_HTTP) as http:
            assert http.get("/v1/log", auth=("ann", PASSWORD)).status_code == 200
            assert http.get(MESSAGES, auth=("ann", PASSWORD)).status_code == 200
            assert http.get(MESSAGES, auth=("ann", "wrong")).status_code == 401
    wait_until(lambda: set(threading.enumerate()) <= before, "all threads have ended")


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    """If another process holds the folder, a start raises StoreLocked and binds no port."""
    held = DataFolder(tmp_path / "data")
    gateway = Gateway(settings_for(tmp_path / "data"))
    with pytest.raises(StoreLocked, match="another gateway uses it"):
        asyncio.run(gateway.start())
    held.release()
    assert gateway.amqp == []


@pytest.mark.parametrize("which", ["amqp", "admin"])
def test_a_port_that_is_taken_leaves_nothing_held(tmp_path: Path, which: str) -> None:
    """The start raises OSError, and the folder can be used by the next attempt."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = settings_for(tmp_path / "data")
        if which == "amqp":
            settings = replace(settings, listeners=(Listener(port=0), Listener(port=port)))
        else:
            settings = replace(settings, admin=AdminListener(port=port))
        with pytest.raises(OSError, match=rf"cannot listen on 127\.0\.0\.1:{port}: Address already in use"):
            run(settings)
    run(settings_for(tmp_path / "data"))


def test_a_certificate_that_is_not_there_leaves_nothing_held(tmp_path: Path) -> None:
    """The start raises TlsError, and the folder can be used by the next attempt."""
    absent = Tls(certificate=tmp_path / "absent.pem", key=tmp_path / "absent.pem")
    with pytest.raises(TlsError, match=r"absent\.pem"):
        run(settings_for(tmp_path / "data", listeners=(Listener(port=0, tls=absent),)))
    run(settings_for(tmp_path / "data"))


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    """A Message VPN whose file is no database raises StoreError with its name; the folder can be used afterwards."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "default.db").write_bytes(
        b"this is no database, and long enough to be taken for one" * 20
    )
    with pytest.raises(StoreError, match=r"default\.db"):
        run(settings_for(tmp_path / "data"))
    (tmp_path / "data" / "default.db").unlink()
    run(settings_for(tmp_path / "data"))


def test_a_stop_without_a_start_does_nothing(tmp_path: Path) -> None:
    """It creates no file, and raises nothing."""
    asyncio.run(Gateway(settings_for(tmp_path / "data")).stop())
    assert not (tmp_path / "data").exists()


def engine_objects() -> Counter[str]:
    """Our connections, and Proton's objects, that are alive in this process, by type."""
    gc.collect()
    return Counter(type(found).__name__ for found in gc.get_objects() if isinstance(found, ENGINE_KINDS))


@pytest.fixture
def _others_out_of_sight() -> Iterator[None]:
    """Objects of other tests are left out of garbage collection, and so of the count."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("_others_out_of_sight")
@pytest.mark.parametrize("is_polite", [True, False], ids=["closed", "cut"])
def test_connections_that_are_gone_leave_no_engine_objects(tmp_path: Path, is_polite: bool) -> None:
    """Whether clients close or disappear: neither our connections nor Proton's objects outlive them."""
    with RunningGateway(settings_for(tmp_path / "data")) as running:
        before = engine_objects()
        for _ in range(5):
            with Peer.opened(running.host_and_port()) as peer:
                peer.attach_sender("queue://q")
                peer.attach_receiver("queue://q", credit=2)
                peer.attach_receiver("log://>", credit=2)
                peer.publish(b"kept unsettled")
                peer.receive(accept=False)
                assert running.call(lambda _: engine_objects()) - before
                if is_polite:
                    peer.close()
        wait_until(lambda: running.connections() == 0, "all connections are gone")
        # The frame of an exception may hold the last connection until the loop's next turn.
        with suppress(AssertionError):
            wait_until(lambda: not running.call(lambda _: engine_objects()) - before, "none is left")
        assert running.call(lambda _: engine_objects()) - before == Counter()
