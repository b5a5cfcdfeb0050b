"""
The address of administration: bound when the gateway starts, served from its first connection on.

The code that serves it (FastAPI, pydantic's models of every answer, uvicorn) takes a third of a gateway's memory and of
its time to start. So it is loaded when the first connection arrives, on a thread, while the loop goes on; connections
wait in the kernel's queue meanwhile.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.admin.administered_gateway import AdministeredGateway, HttpClients
from gateway.config import AdminListener, authority
from gateway.core.errors import ErrorCode, Refused
from gateway.tls import renew, server_context

if TYPE_CHECKING:
    from gateway.admin.http import HttpServer

_BACKLOG = 128
"""Connections that the kernel holds for us; administrators are few."""

_ANY_PORT = AdminListener(port=0)


class AdminServer:
    """The administration from ``start`` to ``stop``; it can be started once."""

    def __init__(self, gateway: AdministeredGateway, *, listener: AdminListener = _ANY_PORT) -> None:
        """Serve as ``listener`` says.

        Raises:
            gateway.tls.TlsError: A file cannot be used; it is named.
        """
        self._gateway = gateway
        self._listener = listener
        self._tls = server_context(listener.tls) if listener.tls is not None else None
        self._bound: socket.socket | None = None
        self._serving: asyncio.Task[HttpServer] | None = None
        self.clients = HttpClients(gateway)
        """The HTTP clients that read and publish."""
        self.refused: Counter[str] = Counter()
        """Connections that were refused, by the name of the limit."""

    async def start(self) -> str:
        """Accept connections, and return the URL.

        Raises:
            OSError: The address cannot be bound.
        """
        listener = self._listener
        bound = self._bound = _bind(listener.host, listener.port)
        bound.setblocking(False)
        asyncio.get_running_loop().add_reader(bound, self._serve, bound)
        host, port = bound.getsockname()[:2]
        return replace(listener, host=host).url(port)

    def reload(self, listener: AdminListener, changed_users: Collection[str] = ()) -> None:
        """Apply these settings, read the certificate's files again, and stop the clients of changed users.

        Raises:
            gateway.tls.TlsError: A file cannot be used; it is named.
        """
        self._listener = listener
        self.clients.stop(
            Refused(
                ErrorCode.CONNECTION_FORCED, "what is configured of this user has changed; connect again"
            ),
            changed_users,
        )
        if self._tls is not None and self._listener.tls is not None:
            renew(self._tls, self._listener.tls)

    async def stop(self) -> None:
        """Stop accepting, let requests under way finish within two seconds, close all connections."""
        bound, self._bound = self._bound, None
        if bound is not None and self._serving is None:
            asyncio.get_running_loop().remove_reader(bound)
        self.clients.stop(Refused(ErrorCode.CONNECTION_FORCED, "the gateway is being stopped"))
        if self._serving is not None:
            await asyncio.wait({self._serving})
            if not self._serving.cancelled() and self._serving.exception() is None:
                await self._serving.result().stop()
        if bound is not None:
            bound.close()

    def _serve(self, bound: socket.socket) -> None:
        """The first connection has arrived: load the server."""
        asyncio.get_running_loop().remove_reader(bound)
        self._serving = asyncio.create_task(self._load(bound), name="administration")
        self._serving.add_done_callback(_tell_failure)

    async def _load(self, bound: socket.socket) -> "HttpServer":
        server = await asyncio.get_running_loop().run_in_executor(None, self._make)
        await server.start(bound)
        return server

    def _make(self) -> "HttpServer":
        from gateway.admin.application import create_app  # noqa: PLC0415 - see above
        from gateway.admin.http import HttpServer  # noqa: PLC0415

        app = create_app(self._gateway, lambda: self._listener, self.clients)
        return HttpServer(app, self._tls, self.refused)


def _tell_failure(serving: "asyncio.Task[HttpServer]") -> None:
    """Raise why the server could not be loaded (a broken installation), so that the log has it immediately."""
    if not serving.cancelled():
        serving.result()


def _bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(
            error.errno, f"administration cannot listen on {authority(host, port)}: {reason}"
        ) from error
