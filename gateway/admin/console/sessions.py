"""Sessions of the console: who has signed in with a browser, known by a cookie.

What the cookie holds is kept as a hash alone, as passwords are. A session ends when it is signed out of, when nothing
was asked in it for ``IDLE_S``, after ``WHOLE_S`` whatever was asked, and when other things are said of its user than
when it began (another password, another rule). What goes on in it, such as a stream of messages, ends with it.
Sessions are gone with the process.

A browser sends the cookie with each request to this address, also with one that another page made it send. So a request
that changes something shows that it comes from the console's page: it repeats what only that page was told
(``Session.csrf_token``).

Source: OWASP Session Management Cheat Sheet; RFC 6265bis (SameSite).
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import HTTPConnection

from gateway.users import Users

COOKIE: Final = "rewind-session"
"""What the name of the cookie begins with: the port follows. A browser has one jar for all ports of an address, where
two gateways would put each other's sessions out."""

MOST: Final = 512
"""At once. Beyond, the one that was not used for the longest time ends."""

MOST_PER_USER: Final = 16
"""At once, of one user: some browsers on some machines. Beyond, his own ends, so that he ends nobody else's."""

IDLE_S: Final = 3_600.0
"""Seconds without a request: a page that is shown asks every few seconds, one that is hidden does not."""

WHOLE_S: Final = 43_200.0
"""Seconds in all: a working day, after which a stolen cookie is worth nothing."""

_BYTES: Final = 32
"""Of chance in each secret: 256 bits cannot be guessed."""


@dataclass(slots=True)
class Session:
    """One user in one browser.

    Attributes:
        user: The user's name.
        csrf_token: What a request that changes something has to repeat.
        facts: What was said of the user when it began.
        begun: When, in seconds of the clock.
        used: When something was asked in it last.
        under_way: What ends each request that goes on.
    """

    user: str
    csrf_token: str
    facts: object
    begun: float
    used: float
    under_way: set[Callable[[], None]] = field(default_factory=set)

    def has_csrf_token(self, said: str) -> bool:
        """Whether a request repeats what the page was told."""
        return hmac.compare_digest(said.encode(), self.csrf_token.encode())


class Sessions:
    """
    Those that are there now.

    Args:
        users: The directory.
        now: Seconds of a clock that goes on only.
        are_wanted: Whether there are sessions at all, as the settings say.
    """

    def __init__(self, users: Users, now: Callable[[], float], are_wanted: Callable[[], bool]) -> None:
        self._users = users
        self._now = now
        self._are_wanted = are_wanted
        self._by_hash: dict[bytes, Session] = {}
        """In the order of their last use."""

    def __len__(self) -> int:
        return len(self._by_hash)

    def begin(self, user: str) -> tuple[str, Session]:
        """
        A session of a user who has proved to be that, just now.

        Returns:
            What the cookie holds, and the session.
        """
        self._sweep()
        own = [key for key, session in self._by_hash.items() if session.user == user]
        for key in own[: max(0, len(own) + 1 - MOST_PER_USER)]:
            self._drop(key)
        while len(self._by_hash) >= MOST:
            self._drop(next(iter(self._by_hash)))
        token, now = secrets.token_urlsafe(_BYTES), self._now()
        session = Session(user, secrets.token_urlsafe(_BYTES), self._users.facts_of(user), now, now)
        self._by_hash[_hash(token)] = session
        return token, session

    def find(self, token: str | None) -> Session | None:
        """The session of a cookie, which is used by this; None where there is none, or none any more."""
        if not token or not self._by_hash:
            return None
        key = _hash(token)
        session = self._by_hash.get(key)
        if session is None:
            return None
        if not self._is_valid(session):
            self._drop(key)
            return None
        del self._by_hash[key]
        session.used = self._now()
        self._by_hash[key] = session  # as the one that was used last
        return session

    def end(self, token: str | None) -> None:
        """Sign out."""
        if token:
            self._drop(_hash(token))

    @contextmanager
    def going_on(self, session: Session, end: Callable[[], None]) -> Iterator[None]:
        """A request of a session that goes on, and is ended with it; in an event loop."""
        left = max(0.0, session.begun + WHOLE_S - self._now())
        timer = asyncio.get_running_loop().call_later(left, end)
        session.under_way.add(end)
        try:
            yield
        finally:
            session.under_way.discard(end)
            timer.cancel()

    def _drop(self, key: bytes) -> None:
        session = self._by_hash.pop(key, None)
        for end in list(session.under_way) if session is not None else ():
            end()

    def _is_valid(self, session: Session) -> bool:
        now = self._now()
        return (
            self._are_wanted()
            and now - session.used < IDLE_S
            and now - session.begun < WHOLE_S
            and session.facts == self._users.facts_of(session.user)
        )

    def _sweep(self) -> None:
        for key in [key for key, session in self._by_hash.items() if not self._is_valid(session)]:
            self._drop(key)


def cookie_of(request: HTTPConnection) -> str:
    """The name of the session's cookie, at the port that a request came in by."""
    return f"{COOKIE}-{request.scope['server'][1]}"


def token_of(request: HTTPConnection) -> str | None:
    """
    What the session's cookie holds, of a request's ``Cookie`` fields. None where there is none, and where there are
    several: a page of another port, or of a name below, can set one beside ours, and nobody can tell them apart.
    """
    ours = cookie_of(request)
    pairs = (one.partition("=") for field in request.headers.getlist("cookie") for one in field.split(";"))
    found = [value.strip() for name, _, value in pairs if name.strip() == ours]
    return found[0] if len(found) == 1 else None


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
