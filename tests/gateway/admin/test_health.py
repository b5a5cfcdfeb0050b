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

Loop = Callable[[], asyncio.AbstractEventLoop]


def in_loop(*loops: Loop) -> Callable[[Callable[[], Coroutine[Any, Any, None]]], Callable[[Loop], None]]:
    """Runs a test in each of these event loops; in asyncio's own, if none is given."""

    def decorate(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[Loop], None]:
        @pytest.mark.parametrize("loop", loops or (asyncio.new_event_loop,))
        def run(loop: Loop) -> None:
            with asyncio.Runner(loop_factory=loop) as runner:
                runner.run(test())

        return run

    return decorate


both_loops = in_loop(asyncio.new_event_loop, uvloop.new_event_loop)


class Gateway(EmptyGateway):
    """A gateway whose health a test sets."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self.asked: Callable[[], None] = lambda: None

    def problem(self, vpn: str | None = None) -> str | None:
        self.asked()
        return self.reason


@asynccontextmanager
async def running(server: AdminServer) -> AsyncIterator[httpx.AsyncClient]:
    """A client of `server`, which runs meanwhile."""
    url = await server.start()
    try:
        async with httpx.AsyncClient(base_url=url, **PLAIN_HTTP) as client:
            yield client
    finally:
        await server.stop()


@in_loop()
async def test_readyz_follows_the_gateway_and_healthz_the_loop() -> None:
    """`/readyz` is 503 with the reason while there is a problem; `/healthz` stays 200."""
    gateway = Gateway()
    async with running(AdminServer(gateway)) as client:
        for reason, status, told in (
            (None, 200, {"status": "ok", "engine": []}),
            ("the disk is full", 503, {"status": "unavailable", "reason": "the disk is full", "engine": []}),
            (None, 200, {"status": "ok", "engine": []}),
        ):
            gateway.reason = reason
            ready, alive = await client.get("/readyz"), await client.get("/healthz")
            assert (ready.status_code, ready.json()) == (status, told)
            assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
        paths = (await client.get("/openapi.json")).json()["paths"]
        assert set(paths) >= {"/healthz", "/readyz"}
        assert set(paths["/readyz"]["get"]["responses"]) == {"200", "404", "422", "503"}


@in_loop()
async def test_a_handler_that_fails_costs_one_request() -> None:
    """A request that raises is answered with 500, and the next one is served."""

    def fail() -> None:
        raise RuntimeError("no broker")

    gateway = Gateway()
    gateway.asked = fail
    async with running(AdminServer(gateway)) as client:
        assert (await client.get("/readyz")).status_code == 500
        assert (await client.get("/healthz")).status_code == 200


@in_loop()
async def test_ipv6_urls_have_brackets() -> None:
    """`::1` can be served, and its URL can be used unchanged."""
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6 loopback")
    async with running(AdminServer(Gateway(), listener=AdminListener(host="::1", port=0))) as client:
        assert client.base_url.host == "::1"
        assert (await client.get("/healthz")).status_code == 200


@in_loop()
async def test_an_address_in_use_is_named() -> None:
    """A port that is taken raises an OSError that names the address, and the process goes on."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
            await AdminServer(Gateway(), listener=AdminListener(port=port)).start()


@in_loop()
async def test_a_stopped_server_gives_its_port_back() -> None:
    """After `stop` the port can be bound again, although a client keeps its connection open."""
    server = AdminServer(Gateway())
    async with running(server) as client:
        assert (await client.get("/healthz")).status_code == 200
        await asyncio.wait_for(server.stop(), timeout=10)
        socket.create_server(("127.0.0.1", client.base_url.port or 0)).close()


@both_loops
async def test_stopping_waits_for_no_clock() -> None:
    """With no request in progress, `stop` takes less than half of uvicorn's sleep of 0.1 s; the best of ten."""

    async def stopping() -> float:
        server = AdminServer(Gateway())
        async with running(server) as client:
            assert (await client.get("/healthz")).status_code == 200
            before = asyncio.get_running_loop().time()
            await server.stop()
            return asyncio.get_running_loop().time() - before

    assert min([await stopping() for _ in range(10)]) < 0.05


@both_loops
async def test_a_request_under_way_is_answered() -> None:
    """A request in progress when `stop` is called is answered before its connection closes."""
    gateway = Gateway()
    server = AdminServer(gateway)
    stopping: list[asyncio.Task[None]] = []
    gateway.asked = lambda: stopping.append(asyncio.create_task(server.stop()))
    async with running(server) as client:
        assert (await client.get("/readyz")).status_code == 200
    await stopping[0]


@in_loop()
async def test_a_server_that_never_started_can_be_stopped() -> None:
    """`stop` before `start` does nothing."""
    await AdminServer(Gateway()).stop()


def process_state() -> tuple[object, ...]:
    """Process state that a library should not change."""
    uvicorn_handlers: Any = [logging.getLogger(name).handlers for name in ("uvicorn", "uvicorn.error")]
    signals = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    return signals, uvicorn_handlers, logging.getLogger().handlers[:]


@both_loops
async def test_signals_and_logging_stay_the_gateway_s() -> None:
    """Serving installs no signal handler and no log handler, with asyncio's loop and with uvloop."""
    before = process_state()
    async with running(AdminServer(Gateway())) as client:
        assert (await client.get("/healthz")).status_code == 200
        assert process_state() == before
    assert process_state() == before
