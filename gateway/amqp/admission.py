"""
Admission: how many connections there may be at once, of all peers, of one address and of one user, and how many that
have not opened yet.

A connection counts from its accept on, before TLS or anything else costs something, until it is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from gateway.config import Limits
from gateway.core.errors import ErrorCode, Refused
from gateway.ledger import Ledger


class NoRoom(Exception):
    """A limit on connections is reached."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit


class Admission:
    """
    The connections there are, by where they come from and whose they are.

    Args:
        limits: Those in effect now.
        ledger: Past its bound there is no room for newcomers.
    """

    def __init__(self, limits: Callable[[], Limits], ledger: Ledger) -> None:
        self._limits = limits
        self._ledger = ledger
        self._count = 0
        self._by_address: Counter[str] = Counter()
        self._unopened: Counter[str] = Counter()
        self._by_user: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        """Connections that were refused, by the name of the limit."""

    def admit(self, address: str) -> Admitted:
        """
        A peer has connected.

        Args:
            address: Its IP address; empty where there is none.

        Raises:
            NoRoom: It is one too many.
        """
        limits = self._limits()
        for limit, is_reached in (
            ("max_connections", self._count >= limits.max_connections),
            (
                "max_connections_per_address",
                self._by_address[address] >= limits.max_connections_per_address,
            ),
            ("max_handshakes_per_address", self._unopened[address] >= limits.max_handshakes_per_address),
            ("memory_mb", self._ledger.is_full),
        ):
            if is_reached:
                self.refused[limit] += 1
                raise NoRoom(limit)
        self._count += 1
        self._by_address[address] += 1
        self._unopened[address] += 1
        return Admitted(self, address)

    def admit_user(self, address: str, user: str) -> Admitted:
        """
        A client that is no AMQP connection, and whose user has signed in already, counts as one.

        Raises:
            Refused: RESOURCE_LIMIT, it is one too many.
        """
        try:
            admitted = self.admit(address)
        except NoRoom as error:
            raise Refused(
                ErrorCode.RESOURCE_LIMIT, f"there is no room for one more client ({error.limit}); try later"
            ) from None
        admitted.opened()
        try:
            admitted.sign_in(user)
        except Refused:
            admitted.leave()
            raise
        return admitted

    def opened(self, address: str) -> None:
        """A peer's handshake is over."""
        _less(self._unopened, address)

    def sign_in(self, user: str) -> None:
        """A connection is this user's; see ``Admitted.sign_in``."""
        most = self._limits().max_connections_per_user
        if self._by_user[user] >= most:
            self.refused["max_connections_per_user"] += 1
            raise Refused(
                ErrorCode.RESOURCE_LIMIT,
                f"user {user!r} has {most} connections, and may not have more (max_connections_per_user)",
            )
        self._by_user[user] += 1

    def left(self, address: str, user: str | None, *, is_open: bool) -> None:
        """A connection is gone."""
        self._count -= 1
        _less(self._by_address, address)
        if not is_open:
            _less(self._unopened, address)
        if user is not None:
            _less(self._by_user, user)


def _less(counter: Counter[str], key: str) -> None:
    counter[key] -= 1
    if counter[key] <= 0:
        del counter[key]


class Admitted:
    """An admitted connection's place in the counts; it is given back when the connection is gone."""

    __slots__ = ("_address", "_admission", "_is_open", "_user")

    def __init__(self, admission: Admission, address: str) -> None:
        self._admission: Admission | None = admission
        self._address = address
        self._is_open = False
        self._user: str | None = None

    @property
    def address(self) -> str:
        """The peer's IP address."""
        return self._address

    def opened(self) -> None:
        """Its handshake is over."""
        if self._admission is not None and not self._is_open:
            self._is_open = True
            self._admission.opened(self._address)

    def sign_in(self, user: str) -> None:
        """
        It is this user's, who has shown that.

        Raises:
            Refused: RESOURCE_LIMIT, the user has as many connections as one may have.
        """
        if self._admission is not None and self._user is None:
            self._admission.sign_in(user)
            self._user = user

    def leave(self) -> None:
        """It is gone."""
        admission, self._admission = self._admission, None
        if admission is not None:
            admission.left(self._address, self._user, is_open=self._is_open)
