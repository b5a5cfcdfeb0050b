"""
What peers make the gateway hold, in bytes: of each connection, of each user, and of all together.

Whatever a peer makes us keep for it is entered in its connection's account: by what it has sent where that is bytes,
else by what an object of its kind was measured to cost. Nobody else counts. Past a connection's bound the connection is
closed; past a user's or the process's its publishers wait, and whoever holds the most is closed if that does not help.

Invariant: a user's sum, and the process's, is that of the accounts that are open.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

SESSION_BYTES: Final = 4 * 1024
"""What a session costs, about; an idle one much less."""

LINK_BYTES: Final = 10 * 1024
"""What an attached link costs: 2 to 10 KB by its kind, a topic endpoint of its own among it."""

DELIVERY_BYTES: Final = 1024
"""What an unsettled delivery costs: the engine's record of it has some 800 bytes."""

DELIVERY_ID_BYTES: Final = 256
"""What it costs to remember what a peer calls a delivery, where it counts these apart for each link."""


class Kind(IntEnum):
    """What is held."""

    UNFINISHED = 0
    """Messages that have come in part, or that nobody has taken yet; what their peer calls those that wait for their
    outcome, where it counts them apart for each link."""

    TRANSACTIONS = 1
    """Messages published in transactions that are open."""

    UNSETTLED = 2
    """Deliveries that their receiver has not settled."""

    LINKS = 3
    """Sessions and links."""

    WEBSOCKET = 4
    """WebSocket messages that have come in part."""

    PAGES = 5
    """Pages of history that were read for receivers which take nothing just now."""


KINDS: Final = tuple(kind.name.lower() for kind in Kind)
"""Their names, in order."""


class _Sum:
    """What several accounts hold, and who waits until it is less."""

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
    What one connection makes the gateway hold. A closed one holds nothing, whatever is entered.

    Args:
        ledger: What it is part of.
        limit_bytes: The connection's bound (``limits.connection_bytes``).
        close: Closes the connection, as the one that holds the most; called with whose bound was passed.
    """

    __slots__ = ("_ledger", "_sums", "close_connection", "held", "held_bytes", "limit_bytes")

    def __init__(self, ledger: Ledger, limit_bytes: int, close: Callable[[str], None]) -> None:
        self._ledger = ledger
        self._sums: tuple[_Sum, ...] = (ledger.process,)
        """What it is part of: all of them, and once its user is known that user's."""
        self.limit_bytes = limit_bytes
        self.close_connection = close
        self.held = [0] * len(Kind)
        """By kind."""
        self.held_bytes = 0
        ledger.process.enter(self)

    def hold(self, kind: Kind, size_bytes: int) -> None:
        """So much more is held, or less."""
        sums = self._sums
        if sums:
            self.held[kind] += size_bytes
            self.held_bytes += size_bytes
            for each in sums:
                each.add(kind, size_bytes)

    def holds(self, kind: Kind, size_bytes: int) -> None:
        """So much is held now."""
        more = size_bytes - self.held[kind]
        if more:
            self.hold(kind, more)

    @property
    def is_over(self) -> bool:
        """The connection holds more than it may."""
        return self.held_bytes > self.limit_bytes

    @property
    def room_for_deliveries(self) -> int:
        """
        Deliveries that its receivers may be sent before some are settled. They have half of its bound: a client that
        settles nothing gets no more, and is not closed for it.
        """
        return max((self.limit_bytes // 2 - self.held[Kind.UNSETTLED]) // DELIVERY_BYTES, 0)

    def has_room(self, size_bytes: int) -> bool:
        """Whether so much more is within the bounds of the connection, of its user, and of all together."""
        return self.held_bytes + size_bytes <= self.limit_bytes and all(
            each.held_bytes + size_bytes <= each.limit_bytes for each in self._sums
        )

    def held_by_all(self, kind: Kind) -> int:
        """What all accounts hold of a kind."""
        return self._ledger.process.held[kind]

    def sign_in(self, user: str) -> None:
        """It is this user's from now on."""
        if self._sums:
            for former in self._sums[1:]:
                self._ledger.leave_user(former, self)
            self._sums = (self._ledger.process, self._ledger.enter_user(user, self))

    def wait_for_room(self, resume: Callable[[], None]) -> bool:
        """Whether its user, or all together, hold more than they may; if so ``resume`` is called once it is less."""
        for each in self._sums:
            if each.held_bytes >= each.limit_bytes:
                each.waiting[self] = resume
                return True
        return False

    def close(self) -> None:
        """The connection is gone, and all that it made us hold."""
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
    What all peers make the gateway hold.

    Args:
        process_bytes: Bound of all connections together (``limits.memory_mb``).
        user_bytes: Bound of each user's (``limits.user_bytes``).
    """

    def __init__(self, process_bytes: int, user_bytes: int) -> None:
        self.process = _Sum("", "memory_mb", process_bytes)
        self._user_bytes = user_bytes
        self._users: dict[str, _Sum] = {}
        self._stuck: set[_Sum] = set()
        self.closed_connections = 0
        """Connections that were closed as those that held the most."""

    def set_bounds(self, process_bytes: int, user_bytes: int) -> None:
        """These hold from now on."""
        self.process.limit_bytes = process_bytes
        self._user_bytes = user_bytes
        for user in self._users.values():
            user.limit_bytes = user_bytes

    def open(self, limit_bytes: int, close: Callable[[str], None]) -> Account:
        """An account for a new connection; see ``Account``."""
        return Account(self, limit_bytes, close)

    @property
    def is_full(self) -> bool:
        """All together hold as much as they may: there is no room for newcomers."""
        return self.process.held_bytes >= self.process.limit_bytes

    @property
    def held(self) -> Mapping[str, int]:
        """Bytes that are held, by the name of their kind."""
        return dict(zip(KINDS, self.process.held, strict=True))

    @property
    def limit_bytes(self) -> int:
        """What all together may hold."""
        return self.process.limit_bytes

    def relieve(self) -> None:
        """
        Close the connection that holds the most, where publishers have waited since the last call. Called every few
        seconds: unfinished messages that are not read would else stand in each other's way for ever.
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
        """An account is a user's from now on."""
        found = self._users.get(user)
        if found is None:
            found = self._users[user] = _Sum(user, "user_bytes", self._user_bytes)
        found.enter(account)
        return found

    def leave_user(self, user: _Sum, account: Account) -> None:
        """An account is a user's no more."""
        user.leave(account)
        if not user.accounts:
            del self._users[user.name]
