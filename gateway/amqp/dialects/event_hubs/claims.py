"""
What the tokens of one connection permit: entities by path, each until a time.

Who connects without a name to a listener that takes tokens is nobody, until he shows one at ``$cbs``; then he is the
user whose key it was made with, for the entities that it is for. Invariant: a connection is one user's. When a token
has expired and none came in its place, the connection is closed: its links were permitted by it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from amqp_ext.event_hubs.tokens import Token, path_of
from gateway.core.errors import ErrorCode, Refused
from gateway.vpn.clock import now_ms

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection

MAX_RESOURCES: Final = 1_000
"""Entities that one connection may have tokens for."""


class Claims:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._tokens: dict[str, Token] = {}
        self._has_news = asyncio.Event()
        self._is_watching = False

    def put(self, token: Token) -> None:
        """
        Take a token that was checked. A later one for the same entity takes its place, if it holds longer.

        Raises:
            Refused: RESOURCE_LIMIT.
        """
        held = self._tokens.get(token.resource)
        if held is None and len(self._tokens) >= MAX_RESOURCES:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT, f"this connection has tokens for {MAX_RESOURCES} entities"
            )
        if held is None or held.expires_s < token.expires_s:
            self._tokens[token.resource] = token
        self._has_news.set()
        if not self._is_watching:
            self._is_watching = True
            self._connection.spawn(self._watch())

    def require(self, address: str) -> None:
        """
        Attaching to an address, or sending to it.

        Args:
            address: As the peer spells it; empty where it names no one entity.

        Raises:
            Refused: UNAUTHORIZED, there is no token for it.
        """
        path = path_of(address.partition("?")[0])
        if not self.covers(path):
            raise Refused(
                ErrorCode.UNAUTHORIZED,
                f"there is no token for {path or 'all entities'!r}: put one at $cbs before you attach",
            )

    def covers(self, path: str) -> bool:
        """Whether there is a token for the entity at a path."""
        now_s = now_ms() / 1_000
        return any(token.covers(path) and token.expires_s > now_s for token in self._tokens.values())

    async def _watch(self) -> None:
        """Close the connection when one of its tokens has expired."""
        while True:
            first = min(self._tokens.values(), key=lambda token: token.expires_s)
            left_s = first.expires_s - now_ms() / 1_000
            if left_s <= 0:
                what = first.resource or "all entities"
                expired = f"the token for {what!r} has expired, and none came in its place"
                self._connection.refuse(Refused(ErrorCode.UNAUTHORIZED, expired))
                return
            self._has_news.clear()
            try:
                await asyncio.wait_for(self._has_news.wait(), min(left_s, 86_400))
            except TimeoutError:
                continue
