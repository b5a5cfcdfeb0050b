"""
Bytes of a message as a file: what a stranger has sent, and a browser is to keep, not to show.

They count against the user as what a consumer is sent does, until they are written.
"""

from __future__ import annotations

from typing import Final

from fastapi import Request, Response
from starlette.types import Receive, Scope, Send

from gateway.admin.lazy_route import Responses
from gateway.admin.v1.admitting import admitted
from gateway.config.setting_types import ANONYMOUS_USER
from gateway.core.errors import ErrorCode, Refused
from gateway.ledger import Kind

BYTES: Final[Responses] = {
    200: {
        "description": "The bytes.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}

_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "sandbox; default-src 'none'",
    "X-Content-Type-Options": "nosniff",
}


class Download(Response):
    """
    A file of bytes.

    Args:
        user: Who asks; empty where no users are configured.
        name: Of the file; plain letters.
    """

    def __init__(self, request: Request, user: str, vpn: str, content: bytes, name: str) -> None:
        disposition = f'attachment; filename="{name}"'
        super().__init__(
            content,
            headers={**_HEADERS, "Content-Disposition": disposition},
            media_type="application/octet-stream",
        )
        self._request = request
        self._user = user or ANONYMOUS_USER
        self._vpn = vpn
        self._address = f"log://{name}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with admitted(self._request, self._user, self._vpn, self._address) as client:
            client.account.holds(Kind.UNSETTLED, len(self.body))
            if client.account.is_over:
                raise Refused(
                    ErrorCode.RESOURCE_LIMIT, "a message is larger than a client may have (connection_bytes)"
                )
            await super().__call__(scope, receive, send)
