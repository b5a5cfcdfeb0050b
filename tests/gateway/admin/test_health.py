"""Health over HTTP: real sockets, in the loop of the test."""

import asyncio
import logging
import signal
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
import uvloop

from gateway.admin.server import AdminServer
from gateway.config import AdminListener
from tests.gateway.admin.conftest import EmptyGateway
from tests.support.running import PLAIN_HTTP


class Gateway(EmptyGateway):
    """A gateway's health as a test sets it."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.asked: Callable[[], None] = lambda: None

    def problem(self, vpn: str | None = None) -> str | None:
        self.asked()
        return self.reason


class Broken(EmptyGateway):
    """A gateway whose health cannot even be asked for."""

    def problem(self, vpn: str | None = None) -> str | None:
        raise RuntimeError("no broker")


@asynccontextmanager
async def running(server: AdminServer) -> AsyncIterator[httpx.AsyncClient]:
    """A client of `server` while it runs."""
    (url,) = await server.start()
    try:
        async with httpx.AsyncClient(base_url=url, **PLAIN_HTTP) as client:
            yield client
    finally:
        await server.stop()


def test_healthz_is_ok_while_the_loop_lives() -> None:
    """`/healthz` answers 200 even if clients cannot be served."""

    async def scenario() -> None:
        gateway = Gateway()
        gateway.reason = "the disk is full"
        async with running(AdminServer(gateway)) as client:
            answer = await client.get("/healthz")
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})

    asyncio.run(scenario())


def test_readyz_follows_the_gateway() -> None:
    """`/readyz` is 200 when there is no problem and 503 with the reason while there is one."""

    async def scenario() -> None:
        gateway = Gateway()
        async with running(AdminServer(gateway)) as client:
            before = await client.get("/readyz")
            gateway.reason = "the disk is full"
            meanwhile = await client.get("/readyz")
            gateway.reason = None
            after = await client.get("/readyz")
        assert (before.status_code, before.json()) == (200, {"status": "ok", "engine": []})
        assert meanwhile.status_code == 503
        assert meanwhile.json() == {"status": "unavailable", "reason": "the disk is full", "engine": []}
        assert after.status_code == 200

    asyncio.run(scenario())


def test_a_handler_that_fails_costs_one_request() -> None:
    """A request that raises is answered with 500, and the next one is served."""

    async def scenario() -> None:
        async with running(AdminServer(Broken())) as client:
            assert (await client.get("/readyz")).status_code == 500
            assert (await client.get("/healthz")).status_code == 200

    asyncio.run(scenario())


def test_the_openapi_document_has_both_checks() -> None:
    """The document at `/openapi.json` lists the checks and the 503."""

    async def scenario() -> None:
        async with running(AdminServer(Gateway())) as client:
            paths = (await client.get("/openapi.json")).json()["paths"]
        assert set(paths) >= {"/healthz", "/readyz"}
        assert set(paths["/readyz"]["get"]["responses"]) == {"200", "404", "422", "503"}

    asyncio.run(scenario())


def test_a_bound_socket_is_served_and_closed() -> None:
    """A socket that was bound before is the one that is served, and `stop` closes it."""

    async def scenario() -> None:
        bound = socket.create_server(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        async with running(AdminServer(Gateway(), sockets=[bound])) as client:
            assert client.base_url.port == port
            assert (await client.get("/healthz")).status_code == 200
        assert bound.fileno() == -1

    asyncio.run(scenario())


def test_every_socket_has_its_url() -> None:
    """Two sockets are both served, and their URLs come in their order."""

    async def scenario() -> None:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
        ports = [bound.getsockname()[1] for bound in sockets]
        server = AdminServer(Gateway(), sockets=sockets)
        urls = await server.start()
        try:
            assert urls == [f"http://127.0.0.1:{port}" for port in ports]
            async with httpx.AsyncClient(**PLAIN_HTTP) as client:
                for url in urls:
                    assert (await client.get(f"{url}/healthz")).status_code == 200
        finally:
            await server.stop()

    asyncio.run(scenario())


def test_ipv6_urls_have_brackets() -> None:
    """`::1` can be served, and its URL can be used as it is."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")

    async def scenario() -> None:
        async with running(AdminServer(Gateway(), listener=AdminListener(host="::1", port=0))) as client:
            assert client.base_url.host == "::1"
            assert (await client.get("/healthz")).status_code == 200

    asyncio.run(scenario())


def test_an_address_in_use_is_named() -> None:
    """A port that is taken gives an OSError with the address in its sentence, and the process lives on."""

    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
                await AdminServer(Gateway(), listener=AdminListener(port=port)).start()

    asyncio.run(scenario())


def test_a_stopped_server_gives_its_port_back() -> None:
    """After `stop` the port can be bound again, though a client kept its connection open."""

    async def scenario() -> None:
        server = AdminServer(Gateway())
        (url,) = await server.start()
        async with httpx.AsyncClient(base_url=url, **PLAIN_HTTP) as client:
            assert (await client.get("/healthz")).status_code == 200
            await asyncio.wait_for(server.stop(), timeout=10)
            port = httpx.URL(url).port
            assert port is not None
            socket.create_server(("127.0.0.1", port)).close()

    asyncio.run(scenario())


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run])
def test_stopping_waits_for_no_clock(loop: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """Nothing under way, `stop` returns in less than half of the 0.1 s that uvicorn sleeps; the best of ten counts."""

    async def stopping(loop: asyncio.AbstractEventLoop) -> float:
        server = AdminServer(Gateway())
        (url,) = await server.start()
        async with httpx.AsyncClient(base_url=url, **PLAIN_HTTP) as client:
            assert (await client.get("/healthz")).status_code == 200
            before = loop.time()
            await server.stop()
            return loop.time() - before

    async def scenario() -> None:
        assert min([await stopping(asyncio.get_running_loop()) for _ in range(10)]) < 0.05

    loop(scenario())


@pytest.mark.parametrize("loop", [asyncio.run, uvloop.run])
def test_a_request_under_way_is_answered(loop: Callable[[Coroutine[Any, Any, None]], None]) -> None:
    """A request that was being handled when `stop` came gets its answer before the connection closes."""

    async def scenario() -> None:
        gateway = Gateway()
        server = AdminServer(gateway)
        (url,) = await server.start()
        stopping: list[asyncio.Task[None]] = []

        def stop_meanwhile() -> None:
            stopping.append(asyncio.create_task(server.stop()))

        gateway.asked = stop_meanwhile
        async with httpx.AsyncClient(base_url=url, **PLAIN_HTTP) as client:
            assert (await client.get("/readyz")).status_code == 200
        await stopping[0]

    loop(scenario())


def test_a_server_that_never_started_can_be_stopped() -> None:
    """`stop` before `start` closes the sockets it was given and does nothing else."""

    async def scenario() -> None:
        bound = socket.create_server(("127.0.0.1", 0))
        await AdminServer(Gateway(), sockets=[bound]).stop()
        assert bound.fileno() == -1

    asyncio.run(scenario())


def process_state() -> tuple[object, ...]:
    """What a well-behaved library leaves alone."""
    uvicorn_handlers = [logging.getLogger(name).handlers for name in ("uvicorn", "uvicorn.error")]
    signals = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    return signals, uvicorn_handlers, logging.getLogger().handlers[:]


@pytest.mark.parametrize("factory", [asyncio.new_event_loop, pytest.param(None, id="uvloop")])
def test_signals_and_logging_stay_the_gateway_s(
    factory: Callable[[], asyncio.AbstractEventLoop] | None,
) -> None:
    """Serving installs no signal handler and no log handler, on asyncio's loop and on uvloop."""
    if factory is None:
        factory = pytest.importorskip("uvloop").new_event_loop

    async def scenario() -> None:
        before = process_state()
        async with running(AdminServer(Gateway())) as client:
            assert (await client.get("/healthz")).status_code == 200
            assert process_state() == before
        assert process_state() == before

    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(scenario())
