"""
How a request finds what it is about: the gateway, a Message VPN, an endpoint, a client.

Names in a path are percent-encoded, a ``/`` in them as ``%2F``: ``EncodedPaths`` leaves them so until the route is
found. What takes long, such as a search of the log, ends when the client that asked has left (``while_waiting``).
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import unquote

from fastapi import HTTPException, Path, Request
from pydantic import AfterValidator
from starlette.types import ASGIApp, Receive, Scope, Send

from gateway.admin.administered_gateway import AdministeredGateway, ClientConnection
from gateway.admin.semp.envelope import ROOT, SempError
from gateway.admin.semp.paging import ListingPace
from gateway.config import Limits, Reloaded
from gateway.core.endpoint.endpoint import Endpoint
from gateway.core.endpoint.settings import EndpointKind
from gateway.ledger import Ledger
from gateway.users import Users
from gateway.vpn.administration import Administration
from gateway.vpn.clients import ClientIdentity
from gateway.vpn.hosted import MessageVpns
from gateway.vpn.role import WaitingVpn

LOG_NAME: Final = "default"
"""The replay log of every Message VPN has this name: there is one."""

QUEUES: Final = (EndpointKind.QUEUE, EndpointKind.STREAM)
TOPIC_ENDPOINTS: Final = (EndpointKind.TOPIC_ENDPOINT,)


class Resources:
    """The gateway as the requests find it; one for the life of the server."""

    def __init__(self, administered: AdministeredGateway) -> None:
        self._administered = administered
        self._by_name: dict[str, Administration] = {}
        self.listing = ListingPace(self._activity)
        """How quickly lists are made."""

    def _activity(self) -> int:
        return sum(vpn.counters.activity for vpn in self._administered.vpns.values())

    @property
    def vpns(self) -> MessageVpns:
        """The Message VPNs by name."""
        return self._administered.vpns

    @property
    def users(self) -> Users:
        """Who may administer, and what."""
        return self._administered.users

    async def reload(self) -> Reloaded:
        """See ``AdministeredGateway.reload``."""
        return await self._administered.reload()

    @property
    def ledger(self) -> Ledger:
        """What all clients make the gateway hold."""
        return self._administered.ledger

    @property
    def limits(self) -> Limits:
        """Those of clients."""
        return self._administered.limits

    @property
    def wire_loops(self) -> str:
        """See ``AdministeredGateway.wire_loops``."""
        return self._administered.wire_loops

    @property
    def refused_connections(self) -> Mapping[str, int]:
        """See ``AdministeredGateway.refused_connections``."""
        return self._administered.refused_connections

    @property
    def span_counts(self) -> Mapping[str, int]:
        """See ``AdministeredGateway.span_counts``."""
        return self._administered.span_counts

    @property
    def names(self) -> list[str]:
        """Of the Message VPNs that are active here."""
        return list(self._administered.vpns)

    @property
    def waiting(self) -> Mapping[str, WaitingVpn]:
        """Message VPNs that wait for other gateways."""
        found = self._administered.vpns.waiting
        for name in found:
            # It would hold what was deposed.
            self._by_name.pop(name, None)
        return found

    def administration(self, name: str) -> Administration:
        """Of the Message VPN of this name.

        Raises:
            SempError: NOT_FOUND, there is none; FAIL, it waits for another gateway.
        """
        vpn = self._administered.vpns.get(name)
        found = self._by_name.get(name)
        if found is None or found.vpn is not vpn:
            if vpn is None:
                waiting = self.waiting.get(name)
                if waiting is not None:
                    raise SempError("FAIL", f"{waiting.sentence[0].upper()}{waiting.sentence[1:]}.", 503)
                raise SempError(
                    "NOT_FOUND", f"There is no Message VPN {name[:80]!r}; there are: {', '.join(self.names)}."
                )
            found = self._by_name[name] = Administration(vpn)
        return found

    def clients(self, vpn: str) -> list[ClientConnection]:
        """Connections to a Message VPN."""
        return [client for client in self._administered.connections if client.vpn_name == vpn]


class EncodedPaths:
    """Leaves the names in a path as they were sent, so that a ``/`` in one does not part it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(ROOT):
            raw: bytes = scope.get("raw_path") or b""
            path = raw.partition(b"?")[0].decode("ascii", "replace")
            if path.startswith(ROOT):
                scope = {**scope, "path": path}
        await self._app(scope, receive, send)


Name = Annotated[str, Path(), AfterValidator(unquote)]
"""A name in a path."""


def resources_of(request: Request) -> Resources:
    """The gateway that a request came to."""
    found: Resources = request.app.state.resources
    return found


def vpn_of(request: Request, name: str) -> Administration:
    """The Message VPN that a request is about.

    Raises:
        SempError: NOT_FOUND, there is none of this name.
    """
    return resources_of(request).administration(name)


def client_id(client: ClientIdentity) -> str:
    """What tells a client from others of its name, while the gateway runs."""
    return f"#{client.number}"


def clients_named(request: Request, vpn: str, name: str) -> list[ClientConnection]:
    """
    The clients of a Message VPN that have a name, or an id (``client_id``).

    Raises:
        SempError: NOT_FOUND, none has.
    """
    vpn_of(request, vpn)
    found = [
        one for one in resources_of(request).clients(vpn) if name in (one.peer_container, client_id(one))
    ]
    if not found:
        raise SempError("NOT_FOUND", f"There is no client {name[:80]!r} in Message VPN {vpn!r}.")
    return found


def check_log(name: str) -> None:
    """That a replay log of this name is there.

    Raises:
        SempError: NOT_FOUND, it is not.
    """
    if name != LOG_NAME:
        raise SempError(
            "NOT_FOUND",
            f"There is no replay log {name[:80]!r}; each Message VPN has one, named {LOG_NAME!r}.",
        )


def endpoint_of(administration: Administration, name: str, kinds: tuple[EndpointKind, ...]) -> Endpoint:
    """The endpoint that a request is about.

    Raises:
        gateway.core.errors.Refused: NOT_FOUND, there is none of this name and these kinds.
    """
    return administration.find(name, *kinds)


T = TypeVar("T")

LEFT: Final = 499
"""What nginx writes into its log for a client that closed its request."""


async def while_waiting(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """
    Do ``work``, and cancel it when the client leaves. For requests without a body, or whose body was read.

    Raises:
        HTTPException: The client left, and nobody is there to read this; it keeps the server's log quiet.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise HTTPException(LEFT, "the client left")
    finally:
        working.cancel()
        leaving.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
