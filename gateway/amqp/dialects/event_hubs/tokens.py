"""
Tokens that clients show at ``$cbs``: what those of one connection permit, entities by path, each until a time.

Who connects without a name to a listener that takes tokens is nobody, until he shows one; then he is the user whose key
it was made with, for the entities that it is for. Invariant: a connection is one user's. When a token has expired and
none came in its place, the connection is closed: its links were permitted by it.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, Final

from amqp_ext.addresses.address import Address, AddressKind
from amqp_ext.event_hubs.addresses import partition_path, send_path
from amqp_ext.event_hubs.commands import SAS_TOKEN, PutToken
from amqp_ext.event_hubs.shared_access import Token, TokenError, read_token
from gateway.amqp.dialects.hooks import DialectClient
from gateway.core.errors import ErrorCode, Refused
from gateway.users import Users
from gateway.vpn.runtime import SystemClock

MAX_RESOURCES: Final = 1_000
"""Entities that one connection may have tokens for."""


class Tokens:
    """The tokens of one connection."""

    def __init__(self, client: DialectClient) -> None:
        self._client = weakref.ref(client)
        """It has these: in a circle, neither would be freed with the connection."""
        self._tokens: dict[str, Token] = {}
        self._has_changed = asyncio.Event()
        self._is_watching = False

    def put(self, token: Token) -> None:
        """
        Take a token that was checked. A later one for the same entity takes its place, if it holds longer.

        Raises:
            Refused: RESOURCE_LIMIT.
        """
        kept = self._tokens.get(token.resource)
        if kept is None and len(self._tokens) >= MAX_RESOURCES:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT, f"this connection has tokens for {MAX_RESOURCES} entities"
            )
        if kept is None or kept.expires_s < token.expires_s:
            self._tokens[token.resource] = token
        self._has_changed.set()
        if not self._is_watching:
            client = self._client()
            if client is not None:
                self._is_watching = True
                client.spawn(self._watch())

    def require(self, address: Address, *, publishes: bool) -> None:
        """
        Receiving from an address, or sending to it: a queue is an entity, and so is a partition of one; topics and the
        log are of all entities.

        Raises:
            Refused: UNAUTHORIZED, there is no token for it.
        """
        if address.kind is AddressKind.PARTITION and address.position is not None:
            self.require_path(partition_path(address.name, address.position))
        elif address.kind is not AddressKind.QUEUE:
            self.require_all()
        elif not (publishes and self.covers(send_path(address.name))):
            self.require_path(address.name)

    def require_all(self) -> None:
        """
        What is of no one entity.

        Raises:
            Refused: UNAUTHORIZED, there is no token for everything.
        """
        self.require_path("")

    def require_path(self, path: str) -> None:
        """
        Using the entity at a path.

        Raises:
            Refused: UNAUTHORIZED, there is no token for it.
        """
        if not self.covers(path):
            raise Refused(
                ErrorCode.UNAUTHORIZED,
                f"there is no token for {path or 'all entities'!r}: put one at $cbs before you attach",
            )

    def covers(self, path: str) -> bool:
        """Whether there is a token for the entity at a path."""
        now_s = SystemClock.now_ms() / 1_000
        return any(token.covers(path) and token.expires_s > now_s for token in self._tokens.values())

    async def _watch(self) -> None:
        """Close the connection when one of its tokens has expired."""
        while True:
            soonest = min(self._tokens.values(), key=lambda token: token.expires_s)
            left_s = soonest.expires_s - SystemClock.now_ms() / 1_000
            if left_s <= 0:
                what = soonest.resource or "all entities"
                expired = f"the token for {what!r} has expired, and none came in its place"
                client = self._client()
                if client is not None:
                    client.refuse(Refused(ErrorCode.UNAUTHORIZED, expired))
                return
            self._has_changed.clear()
            try:
                await asyncio.wait_for(self._has_changed.wait(), min(left_s, 86_400))
            except TimeoutError:
                continue


class TokenService:
    """
    What ``$cbs`` is asked for, done.

    Args:
        users: Whose keys sign tokens.
    """

    def __init__(self, users: Users) -> None:
        self._users = users

    async def perform(self, client: DialectClient, command: Any) -> None:
        """
        Carry out a command of the node.

        Raises:
            Refused: UNAUTHORIZED, the token is not good; RESOURCE_LIMIT.
        """
        if not isinstance(command, PutToken):
            raise AssertionError(f"{command!r} is no command")
        tokens = tokens_of(client)
        if tokens is None:
            # Where nobody has a key there is nothing to check, and every token is as good as none.
            return
        if command.kind != SAS_TOKEN:
            raise Refused(
                ErrorCode.UNAUTHORIZED,
                f"tokens are shared access signatures, {SAS_TOKEN}, not {command.kind!r:.60}",
            )
        tokens.put(self.check(client, command.token))

    def check(self, client: DialectClient, text: str) -> Token:
        """
        The token in a text; who showed it is from now on its user.

        Raises:
            Refused: UNAUTHORIZED, it is none, or is not good.
        """
        try:
            token = read_token(text)
            key = self._users.sas_key(token.key_name)
            if key is None:
                raise TokenError(f"there is no key {token.key_name!r:.80}: it is called like its user")
            token.check(key, SystemClock.now_ms() / 1_000)
        except TokenError as error:
            raise Refused(ErrorCode.UNAUTHORIZED, str(error)) from None
        client.become(token.key_name)
        return token


def tokens_of(client: DialectClient) -> Tokens | None:
    """The tokens of a client's connection; None where its user is known by other means."""
    check = client.token_check
    return check if isinstance(check, Tokens) else None
