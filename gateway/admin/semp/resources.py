"""How a request finds its object: the gateway, a Message VPN, its replay log, an endpoint.

Names in a path are percent-encoded, a ``/`` in them as ``%2F``. Long work, such as a search of the log, is cancelled
when its client leaves (``while_waiting``).
"""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Annotated, Any, Final, TypeVar
from urllib.parse import unquote

from fastapi import Depends, HTTPException, Path, Request
from pydantic import AfterValidator

from amqp_ext.replay_id import ReplayId, ReplayIdError, parse_replay_id
from amqp_ext.replay_start import ReplayStart, from_options
from gateway.admin.administered_gateway import AdministeredGateway
from gateway.admin.semp.envelope import SempError
from gateway.admin.semp.paging import ListingPace
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.administration import Administration
from gateway.vpn.clients import ClientConnection
from gateway.vpn.message_vpn import MessageVpn
from gateway.vpn.role import WaitingVpn

T = TypeVar("T")

LOG_NAME: Final = "default"
"""The replay log of every Message VPN has this name: there is one."""

MAX_ID: Final = 2**63 - 1

LEFT: Final = 499
"""Status for a client that closed its request before the answer, as in nginx' log."""

Name = Annotated[str, Path(), AfterValidator(unquote)]
"""A name in a path."""


class Resources:
    """The gateway, as requests find it; one object for the life of the server."""

    def __init__(self, gateway: AdministeredGateway) -> None:
        self.gateway = gateway
        self.listing = ListingPace(lambda: sum(vpn.counters.activity for vpn in gateway.vpns.values()))
        """How quickly lists are made."""
        self._by_name: dict[str, Administration] = {}

    @property
    def waiting(self) -> Mapping[str, WaitingVpn]:
        """Message VPNs that wait for other gateways."""
        found = self.gateway.vpns.waiting
        for name in found:
            # The entry would keep a deposed Message VPN in memory.
            self._by_name.pop(name, None)
        return found

    def administration(self, name: str) -> Administration:
        """The administration of the Message VPN of this name.

        Raises:
            SempError: NOT_FOUND, there is none; FAIL, it waits for another gateway.
        """
        vpn = self.gateway.vpns.get(name)
        found = self._by_name.get(name)
        if found is None or found.vpn is not vpn:
            if vpn is None:
                waiting = self.waiting.get(name)
                if waiting is not None:
                    raise SempError("FAIL", f"{waiting.sentence[0].upper()}{waiting.sentence[1:]}.", 503)
                raise SempError(
                    "NOT_FOUND",
                    f"There is no Message VPN {name[:80]!r}; there are: {', '.join(self.gateway.vpns)}.",
                )
            found = self._by_name[name] = Administration(vpn)
        return found

    def clients(self, vpn: str) -> list[ClientConnection]:
        """Connections to a Message VPN."""
        return [client for client in self.gateway.connections if client.vpn_name == vpn]


def resources_of(request: Request) -> Resources:
    """The gateway that a request came to."""
    found: Resources = request.app.state.resources
    return found


def serving_vpn(request: Request, name: str) -> MessageVpn:
    """The Message VPN that a client without AMQP uses.

    Raises:
        SempError: NOT_FOUND, there is none of this name.
        Refused: NOT_ALLOWED, it is not enabled.
    """
    found = vpn_of(request, name).vpn
    if not found.settings.enabled:
        raise Refused(ErrorCode.NOT_ALLOWED, f"the Message VPN {name!r} is not enabled")
    return found


def vpn_of(request: Request, name: str) -> Administration:
    """The Message VPN that a request is about.

    Raises:
        SempError: NOT_FOUND, there is none of this name.
    """
    return resources_of(request).administration(name)


async def _administered(request: Request, vpn: Name) -> Administration:
    return vpn_of(request, vpn)


OfVpn = Annotated[Administration, Depends(_administered)]
"""The administration of the Message VPN that a request is about."""


async def _log_administered(administration: OfVpn, log: Name) -> Administration:
    check_log(log)
    return administration


OfLog = Annotated[Administration, Depends(_log_administered)]
"""The administration of the Message VPN whose replay log a request is about."""


def check_log(name: str) -> None:
    """Check that this is the name of a replay log.

    Raises:
        SempError: NOT_FOUND, it is not.
    """
    if name != LOG_NAME:
        raise SempError(
            "NOT_FOUND",
            f"There is no replay log {name[:80]!r}; each Message VPN has one, named {LOG_NAME!r}.",
        )


def range_of(start: str, until: str | None) -> ReplayStart:
    """The part of the log between two places.

    Raises:
        amqp_ext.replay_start.ReplayStartError: The start, or the end, is not valid.
    """
    found = from_options({"replay-start": start} | ({} if until is None else {"until": until}))
    assert found is not None
    return found


def replay_id(attribute: str, text: str) -> ReplayId:
    """Parse the replay id in an attribute.

    Raises:
        SempError: INVALID_PARAMETER, it is not a replay id.
    """
    try:
        return parse_replay_id(text)
    except ReplayIdError as error:
        raise SempError("INVALID_PARAMETER", f"The attribute {attribute!r} is wrong: {error}") from None


def logged_id(administration: Administration, text: str) -> int:
    """The id of the message of the log that a ``replicationGroupMsgId`` names.

    Raises:
        SempError: INVALID_PARAMETER, the text is not a replay id.
        Refused: LOG_MODIFIED, it is of another generation of the log.
    """
    named = replay_id("replicationGroupMsgId", text)
    if named.generation != administration.vpn.broker.log.generation:
        raise Refused(ErrorCode.LOG_MODIFIED, f"{named} is of another generation of the log")
    return min(named.number, MAX_ID)


async def while_waiting(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """
    Await ``work``, and cancel it when the client leaves. For requests without a body, or whose body was read.

    Raises:
        HTTPException: The client left. Nobody reads this answer; it only keeps an error out of the server's log.
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
