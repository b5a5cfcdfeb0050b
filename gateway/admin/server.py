"""
The address of administration: bound when the gateway starts, served from its first connection on.

What serves it (FastAPI, pydantic's models of every answer, uvicorn) is a third of a gateway's memory and of the time
that it takes to start. So it is loaded when the first connection is there, on a thread, while the loop goes on;
connections wait in the kernel's queue meanwhile.
"""

import asyncio
import socket
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from gateway.admin.administered_gateway import AdministeredGateway, HttpClients
from gateway.config import AdminListener, authority
from gateway.core.errors import ErrorCode, Refused
from gateway.tls import renew, server_context

if TYPE_CHECKING:
    from gateway.admin.http import HttpServer

_BACKLOG = 128
"""Connections the kernel holds for us; administrators come in small numbers."""

_ANY_PORT = AdminListener(port=0)


class AdminServer:
    """The administration from ``start`` to ``stop``; it starts once."""

    def __init__(
        self,
        gateway: AdministeredGateway,
        *,
        listener: AdminListener = _ANY_PORT,
        sockets: Sequence[socket.socket] | None = None,
    ) -> None:
        """Serve as ``listener`` says, on ``sockets`` in place of its host and port if they are given, bound already.

        The server owns ``sockets`` from here on and closes them in ``stop``.

        Raises:
            gateway.tls.TlsError: A file cannot be used; it is named.
        """
        self._gateway = gateway
        self._listener = listener
        self._tls = server_context(listener.tls) if listener.tls is not None else None
        self._sockets = list(sockets) if sockets is not None else None
        self._watched: list[socket.socket] = []
        self._serving: asyncio.Task[HttpServer] | None = None
        self.clients = HttpClients(gateway)
        """Those without AMQP that read and publish."""
        self.refused: Counter[str] = Counter()
        """Connections that were refused, by the name of the bound."""

    async def start(self) -> list[str]:
        """Accept connections; the URLs, one for each socket.

        Raises:
            OSError: The address cannot be had.
        """
        listener = self._listener
        if self._sockets is None:
            self._sockets = [_bind(listener.host, listener.port)]
        loop = asyncio.get_running_loop()
        for bound in self._sockets:
            bound.setblocking(False)
            loop.add_reader(bound, self._serve)
            self._watched.append(bound)
        return [self._url(bound) for bound in self._sockets]

    def reload(self, listener: AdminListener, changed_users: Collection[str] = ()) -> None:
        """Make these the settings, read the certificate's files again, and end what changed users have under way.

        Raises:
            gateway.tls.TlsError: One cannot be used; it is named.
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
        self._unwatch()
        self.clients.stop(Refused(ErrorCode.CONNECTION_FORCED, "the gateway is being stopped"))
        if self._serving is not None:
            await asyncio.wait({self._serving})
            if not self._serving.cancelled() and self._serving.exception() is None:
                await self._serving.result().stop()
        for bound in self._sockets or ():
            bound.close()

    def _serve(self) -> None:
        """The first connection is there."""
        self._unwatch()
        self._serving = asyncio.create_task(self._load(), name="administration")
        self._serving.add_done_callback(_tell_failure)

    async def _load(self) -> "HttpServer":
        server = await asyncio.get_running_loop().run_in_executor(None, self._make)
        await server.start(self._sockets or ())
        return server

    def _make(self) -> "HttpServer":
        from gateway.admin.application import create_app  # noqa: PLC0415 - see above
        from gateway.admin.http import HttpServer  # noqa: PLC0415

        app = create_app(self._gateway, lambda: self._listener, self.clients)
        return HttpServer(app, self._tls, self.refused)

    def _unwatch(self) -> None:
        loop = asyncio.get_running_loop()
        while self._watched:
            loop.remove_reader(self._watched.pop())

    def _url(self, bound: socket.socket) -> str:
        host, port = bound.getsockname()[:2]
        return replace(self._listener, host=host).url(port)


def _tell_failure(serving: "asyncio.Task[HttpServer]") -> None:
    """Why it cannot be loaded, in a broken installation: raised here, it is in the log at once."""
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
