"""A request becomes a client of the gateway, for as long as it lasts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request

from gateway.admin.administrators import ended_with_session
from gateway.admin.semp.envelope import SempError
from gateway.admin.v1.clients import HttpClient, HttpClients
from gateway.core.errors import ErrorCode, Refused


@contextmanager
def admitted(
    request: Request, user: str, vpn: str, address: str, *, is_sender: bool = False
) -> Iterator[HttpClient]:
    """
    The request's client.

    Args:
        address: What it reads or publishes to, as administrators are told.
        is_sender: It publishes.

    Raises:
        SempError: NOT_ALLOWED with status 429, it is one too many.
        Refused: CONNECTION_FORCED, the gateway is being stopped.
    """
    clients: HttpClients = request.app.state.clients
    host, port = request.client or ("", 0)
    try:
        client = clients.admit(user, host, port, vpn, address, is_sender=is_sender)
    except Refused as refused:
        if refused.code is not ErrorCode.RESOURCE_LIMIT:
            raise
        raise SempError("NOT_ALLOWED", f"{refused.text[0].upper()}{refused.text[1:]}.", 429) from None
    over = Refused(ErrorCode.CONNECTION_FORCED, "the session has ended; sign in again")
    try:
        with ended_with_session(request, lambda: client.stop(over)):
            yield client
    finally:
        clients.leave(client)
