"""
The bytes that peers make the gateway hold: for each connection, for each user, and for all together.

All that the gateway keeps for a peer is entered in its connection's account: bytes that the peer has sent by their
number, objects by the measured cost of their kind. Nothing else counts. A connection that exceeds its bound is closed.
Where a user's bound or the process's is reached, publishers wait; if that does not help, the connection that holds the
most is closed.

Invariant: the sum of a user, and of the process, is the sum of its open accounts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

SESSION_BYTES: Final = 4 * 1024
"""What a session costs, about; an idle session costs much less."""

LINK_BYTES: Final = 10 * 1024
"""What an attached link costs: 2 to 10 KB by its kind, including a topic endpoint of its own."""

ATTACH_COPIES: Final = 3
"""How often an attached link holds what its attach says, such as names, addresses and filters: in the engine, in our
answer, and as Python's objects."""

DELIVERY_BYTES: Final = 1024
"""What an unsettled delivery costs: the engine's record of it has some 800 bytes."""

DELIVERY_ID_BYTES: Final = 256
"""What a remembered delivery-id costs, of a peer that numbers the deliveries of each link separately."""


class Kind(IntEnum):
    """What is held."""

    UNFINISHED = 0
    """Messages that have come in part, or that no link has taken yet; delivery-ids of messages that wait for their
    outcome, of a peer that numbers the deliveries of each link separately."""

    TRANSACTIONS = 1
    """Messages published in transactions that are open."""

    UNSETTLED = 2
    """Deliveries that their receiver has not settled."""

    LINKS = 3
    """Sessions and links."""

    WEBSOCKET = 4
    """WebSocket messages that have come in part."""

    PAGES = 5
    """Pages of history that were read for receivers without credit or room."""


KINDS: Final = tuple(kind.name.lower() for kind in Kind)
"""The names of the kinds, in order."""


class _Sum:
    """The sum of several accounts, and the accounts that wait until it is lower."""

    __slots__ = ("accounts", "bound", "held", "held_bytes", "limit_bytes", "name", "waiting")

    def __init__(self, name: str, bound: str, limit_bytes: int) -> None:
        self.name = name
        self.bound = bound
        self.limit_bytes = limit_bytes
        self.held = [0] * len(Kind)
        self.held_bytes = 0
        self.accounts: dict[Account, None] = {}
        self.waiting: dict[Account, Callable[[], None]] = {}

    def add(self, kind: int, size_bytes: int) -> None:
        self.held[kind] += size_bytes
        self.held_bytes += size_bytes
        if size_bytes < 0 and self.waiting and self.held_bytes < self.limit_bytes:
            waiting, self.waiting = self.waiting, {}
            for resume in waiting.values():
                resume()

    def enter(self, account: Account) -> None:
        self.accounts[account] = None
        for kind, size_bytes in enumerate(account.held):
            self.add(kind, size_bytes)

    def leave(self, account: Account) -> None:
        self.accounts.pop(account, None)
        self.waiting.pop(account, None)
        for kind, size_bytes in enumerate(account.held):
            self.add(kind, -size_bytes)

    @property
    def largest(self) -> Account | None:
        """The account that holds the most."""
        return max(self.accounts, key=lambda account: account.held_bytes, default=None)


class Account:
    """
    What one connection makes the gateway hold. A closed account holds nothing, whatever is entered.

    Args:
        ledger: The ledger that it is part of.
        limit_bytes: The connection's bound (``limits.connection_bytes``).
        close: Closes the connection because it holds the most; called with the name of the exceeded bound.
    """

    __slots__ = ("_ledger", "_sums", "close_connection", "held", "held_bytes", "limit_bytes")

    def __init__(self, ledger: Ledger, limit_bytes: int, close: Callable[[str], None]) -> None:
        self._ledger = ledger
        self._sums: tuple[_Sum, ...] = (ledger.process,)
        """The sums that it is part of: the process's, and its user's once the user is known."""
        self.limit_bytes = limit_bytes
        self.close_connection = close
        self.held = [0] * len(Kind)
        """Bytes by kind."""
        self.held_bytes = 0
        ledger.process.enter(self)

    def hold(self, kind: Kind, size_bytes: int) -> None:
        """Enter so many bytes more; a negative number for less."""
        sums = self._sums
        if sums:
            self.held[kind] += size_bytes
            self.held_bytes += size_bytes
            for each in sums:
                each.add(kind, size_bytes)

    def holds(self, kind: Kind, size_bytes: int) -> None:
        """Enter how many bytes of a kind are held now."""
        more = size_bytes - self.held[kind]
        if more:
            self.hold(kind, more)

    @property
    def is_over(self) -> bool:
        """Whether the connection holds more than it may."""
        return self.held_bytes > self.limit_bytes

    @property
    def room_for_deliveries(self) -> int:
        """
        How many more deliveries may be unsettled. Unsettled deliveries may use half of the bound: a client that settles
        nothing gets no more, but is not closed.
        """
        return max((self.limit_bytes // 2 - self.held[Kind.UNSETTLED]) // DELIVERY_BYTES, 0)

    def has_room(self, size_bytes: int) -> bool:
        """Whether so many bytes more are within the bounds of the connection, of its user, and of all together."""
        return self.held_bytes + size_bytes <= self.limit_bytes and all(
            each.held_bytes + size_bytes <= each.limit_bytes for each in self._sums
        )

    def held_by_all(self, kind: Kind) -> int:
        """How many bytes of a kind all accounts hold."""
        return self._ledger.process.held[kind]

    def sign_in(self, user: str) -> None:
        """The account is this user's from now on."""
        if self._sums:
            for former in self._sums[1:]:
                self._ledger.leave_user(former, self)
            self._sums = (self._ledger.process, self._ledger.enter_user(user, self))

    def wait_for_room(self, resume: Callable[[], None]) -> bool:
        """Whether the user's bound or the process's is reached; if so ``resume`` is called once less is held."""
        for each in self._sums:
            if each.held_bytes >= each.limit_bytes:
                each.waiting[self] = resume
                return True
        return False

    def close(self) -> None:
        """The connection is gone: it holds nothing any more."""
        sums, self._sums = self._sums, ()
        if sums:
            for user in sums[1:]:
                self._ledger.leave_user(user, self)
            self._ledger.process.leave(self)
        self.held = [0] * len(Kind)
        self.held_bytes = 0
        self.close_connection = _gone


def _gone(bound: str) -> None:
    """The connection is closed already."""


class Ledger:
    """
    The bytes that all peers make the gateway hold.

    Args:
        process_bytes: Bound of all connections together (``limits.memory_mb``).
        user_bytes: Bound of all connections of a user (``limits.user_bytes``).
    """

    def __init__(self, process_bytes: int, user_bytes: int) -> None:
        self.process = _Sum("", "memory_mb", process_bytes)
        self._user_bytes = user_bytes
        self._users: dict[str, _Sum] = {}
        self._stuck: set[_Sum] = set()
        self.closed_connections = 0
        """How many connections were closed because they held the most."""

    def set_bounds(self, process_bytes: int, user_bytes: int) -> None:
        """Apply these bounds from now on."""
        self.process.limit_bytes = process_bytes
        self._user_bytes = user_bytes
        for user in self._users.values():
            user.limit_bytes = user_bytes

    def open(self, limit_bytes: int, close: Callable[[str], None]) -> Account:
        """An account for a new connection; see ``Account``."""
        return Account(self, limit_bytes, close)

    @property
    def is_full(self) -> bool:
        """Whether all connections together hold as much as they may: no new one is admitted."""
        return self.process.held_bytes >= self.process.limit_bytes

    @property
    def held(self) -> Mapping[str, int]:
        """Bytes that are held, by the name of their kind."""
        return dict(zip(KINDS, self.process.held, strict=True))

    @property
    def limit_bytes(self) -> int:
        """What all connections together may hold."""
        return self.process.limit_bytes

    def relieve(self) -> None:
        """
        Close the connection that holds the most, where publishers have waited since the last call. Called every few
        seconds: otherwise publishers with unfinished messages, which are not read now, could block each other for ever.
        """
        stuck = set()
        for each in (self.process, *self._users.values()):
            if not each.waiting or each.held_bytes < each.limit_bytes:
                continue
            if each not in self._stuck:
                stuck.add(each)
                continue
            largest = each.largest
            if largest is not None:
                self.closed_connections += 1
                largest.close_connection(each.bound)
        self._stuck = stuck

    def enter_user(self, user: str, account: Account) -> _Sum:
        """Add an account to a user's sum."""
        found = self._users.get(user)
        if found is None:
            found = self._users[user] = _Sum(user, "user_bytes", self._user_bytes)
        found.enter(account)
        return found

    def leave_user(self, user: _Sum, account: Account) -> None:
        """Remove an account from a user's sum."""
        user.leave(account)
        if not user.accounts:
            del self._users[user.name]
