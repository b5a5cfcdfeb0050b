"""
Admission: how many connections may be open together, of all peers, of one address and of one user, and how many of an
address that have not opened yet.

A connection counts from its accept on, before TLS or anything else costs something, until it is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from gateway.config import Limits
from gateway.core.errors import ErrorCode, Refused
from gateway.ledger import Ledger

LIMITS: Final = (
    "max_connections",
    "max_connections_per_address",
    "max_connections_per_user",
    "max_handshakes_per_address",
    "memory_mb",
)
"""The limits that refuse a connection. Each count is shown from 0 on, so that monitoring sees the first refusal."""


class NoRoom(Exception):
    """A limit on connections is reached: the name of the limit, and its value (0 for a limit in bytes)."""

    def __init__(self, limit: str, most: int = 0) -> None:
        super().__init__(limit)
        self.limit = limit
        self.most = most


Place = tuple[str, str]
"""The name of a limit, and the address or user whose connections count towards it; empty for all connections."""


class Admission:
    """
    The number of connections, by address and by user.

    Args:
        limits: Returns the limits in effect now.
        ledger: While it is full, no connection is admitted.
    """

    def __init__(self, limits: Callable[[], Limits], ledger: Ledger) -> None:
        self._limits = limits
        self._ledger = ledger
        self._taken: Counter[Place] = Counter()
        self.refused = Counter(dict.fromkeys(LIMITS, 0))
        """Connections that were refused, by the name of the limit."""

    def admit(self, address: str) -> Admitted:
        """
        Admit a peer that has connected.

        Args:
            address: Its IP address; empty where there is none.

        Raises:
            NoRoom: A limit is reached.
        """
        admitted = Admitted(self, address)
        try:
            admitted.take(("max_connections", ""))
            admitted.take(("max_connections_per_address", address))
            admitted.take(admitted.handshake)
            if self._ledger.is_full:
                self.refused["memory_mb"] += 1
                raise NoRoom("memory_mb")
        except NoRoom:
            admitted.leave()
            raise
        return admitted

    def admit_user(self, address: str, user: str) -> Admitted:
        """
        Admit an HTTP client, whose user has signed in already, as a connection.

        Raises:
            Refused: RESOURCE_LIMIT, it would be one too many.
        """
        try:
            admitted = self.admit(address)
        except NoRoom as error:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT, f"there is no room for another client ({error.limit}); try later"
            ) from None
        admitted.opened()
        try:
            admitted.sign_in(user)
        except Refused:
            admitted.leave()
            raise
        return admitted

    def take(self, place: Place) -> None:
        """
        One connection more counts towards a limit.

        Raises:
            NoRoom: A limit is reached.
        """
        limit, _ = place
        most = getattr(self._limits(), limit)
        if self._taken[place] >= most:
            self.refused[limit] += 1
            raise NoRoom(limit, most)
        self._taken[place] += 1

    def give_back(self, place: Place) -> None:
        """One connection less counts towards a limit."""
        self._taken[place] -= 1
        if not self._taken[place]:
            del self._taken[place]


class Admitted:
    """An admitted connection's places in the counts; they are given back when the connection is gone."""

    def __init__(self, admission: Admission, address: str) -> None:
        self.address = address
        """The peer's IP address."""
        self.handshake: Place = ("max_handshakes_per_address", address)
        self._admission: Admission | None = admission
        self._places: set[Place] = set()

    def take(self, place: Place) -> None:
        """
        The connection counts towards one more limit.

        Raises:
            NoRoom: A limit is reached.
        """
        if self._admission is not None:
            self._admission.take(place)
            self._places.add(place)

    def opened(self) -> None:
        """The connection's handshake is over."""
        if self._admission is not None and self.handshake in self._places:
            self._places.remove(self.handshake)
            self._admission.give_back(self.handshake)

    def sign_in(self, user: str) -> None:
        """
        The connection is this user's, who has signed in. A second call does nothing.

        Raises:
            Refused: RESOURCE_LIMIT, the user has as many connections as a user may have.
        """
        place = ("max_connections_per_user", user)
        if place in self._places:
            return
        try:
            self.take(place)
        except NoRoom as full:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"user {user!r} has {full.most} connections, which is the limit ({full.limit})",
            ) from None

    def leave(self) -> None:
        """The connection is gone: give its places back."""
        admission, self._admission = self._admission, None
        if admission is not None:
            for place in self._places:
                admission.give_back(place)
