"""
Who asks the administration: a user, known by name and password (HTTP Basic), by a bearer token (RFC 6750), his own or
an identity provider's, by a session of the console, or by a client certificate where the request names no user;
everyone on this machine where no users are configured.

A session is a user who has signed in with a browser, known by a cookie. What the cookie holds is kept as a hash alone,
as passwords are. Who signed in at an identity provider has in it the rights that he came with. A session ends when its
user signs out, when nothing was asked in it for ``IDLE_S``, after ``WHOLE_S`` in any case, and when the user's
configuration has changed since it began (another password, another rule). Requests that go on in it, such as a stream
of messages, end with it. Sessions are gone with the process.

A browser sends the cookie with each request to this address, also with one that another page made it send. So a request
that changes something shows that it comes from the console's page: it repeats what only that page was told
(``Session.csrf_token``).

Source: OWASP Session Management Cheat Sheet; RFC 6265bis (SameSite).
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Annotated, Final, NamedTuple
from urllib.parse import unquote

from fastapi import Depends, Request
from fastapi.security import HTTPBearer
from fastapi.security.http import HTTPBase
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from amqp_ext.addresses.address import AddressKind
from amqp_ext.sasl import ANONYMOUS_USER
from gateway.admin.administered_gateway import HttpClient, HttpClients
from gateway.admin.audit import CLIENTS_ROOT, LOOKING, asked_of
from gateway.admin.semp.envelope import SempError, told
from gateway.admin.semp.resources import resources_of
from gateway.config.setting_types import is_loopback
from gateway.config.settings import GlobalAccess
from gateway.core.errors import ErrorCode, Refused
from gateway.core.permissions import Action
from gateway.identity_providers import TokenUser
from gateway.users import TooManyChecks, Users, Who, name_of

COOKIE: Final = "rewind-session"
"""What the name of the cookie begins with: the port follows. A browser has one jar for all ports of an address, where
two gateways would put each other's sessions out."""

MOST_SESSIONS: Final = 512
"""At once. Beyond, the one that was not used for the longest time ends."""

MOST_SESSIONS_PER_USER: Final = 16
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
        who: The user.
        csrf_token: What a request that changes something has to repeat.
        facts: What was said of the user when it began.
        begun: When, in seconds of the clock.
        used: When something was asked in it last.
        under_way: What ends each request that goes on.
    """

    who: Who
    csrf_token: str
    facts: object
    begun: float
    used: float
    under_way: set[Callable[[], None]] = field(default_factory=set)

    @property
    def user(self) -> str:
        """The user's name."""
        return name_of(self.who)

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

    def begin(self, who: Who) -> tuple[str, Session]:
        """
        A session of a user who has proved to be that, just now.

        Returns:
            What the cookie holds, and the session.
        """
        self._sweep()
        own = [key for key, session in self._by_hash.items() if session.user == name_of(who)]
        for key in own[: max(0, len(own) + 1 - MOST_SESSIONS_PER_USER)]:
            self._drop(key)
        while len(self._by_hash) >= MOST_SESSIONS:
            self._drop(next(iter(self._by_hash)))
        token, now = secrets.token_urlsafe(_BYTES), self._now()
        session = Session(who, secrets.token_urlsafe(_BYTES), self._users.facts_of(who), now, now)
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
            and session.facts == self._users.facts_of(session.who)
        )

    def _sweep(self) -> None:
        for key in [key for key, session in self._by_hash.items() if not self._is_valid(session)]:
            self._drop(key)


def cookie_of(request: HTTPConnection, name: str = COOKIE) -> str:
    """The name of the session's cookie, or of another, at the port that a request came in by."""
    return f"{name}-{request.scope['server'][1]}"


def token_of(request: HTTPConnection, name: str = COOKIE) -> str | None:
    """
    What the session's cookie holds, or another, of a request's ``Cookie`` fields. None where there is none, and where
    there are several: a page of another port, or of a name below, can set one beside ours, and nobody can tell them
    apart.
    """
    ours = cookie_of(request, name)
    pairs = (one.partition("=") for field in request.headers.getlist("cookie") for one in field.split(";"))
    found = [value.strip() for name, _, value in pairs if name.strip() == ours]
    return found[0] if len(found) == 1 else None


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


_LOG_IN: Final = "Give the name and password of a user (HTTP Basic), or a bearer token."
_NO_CSRF_TOKEN: Final = (
    "A request that changes something in a session of the console needs the header X-CSRF-Token: what GET /session "
    "says as `csrfToken`."
)
_LATER: Final = "Too many passwords are being checked; try again in a moment."

# What the OpenAPI document says of it; the answer to a wrong one is ours.
_BASIC: Final = HTTPBase(scheme="basic", auto_error=False, description="A user with `administer` rules.")
_BEARER: Final = HTTPBearer(auto_error=False, description="The token of such a user.")

CERTIFICATE: Final = "rewind.certificate"
"""Key of a request's scope: the common name of the client's verified certificate; None without one."""

_CALLER: Final = "rewind.caller"
"""Key of a request's scope: who sent it."""

_SESSION: Final = "rewind.session"
"""Key of a request's scope: the session of the console that it came in."""


class _Caller(NamedTuple):
    """Who sent a request."""

    who: Who
    generation: int
    """Of the directory that knew it."""


class Administrator:
    """Who sent a request, and what the ``administer`` rules of that user permit."""

    def __init__(self, users: Users, who: Who) -> None:
        self._users = users
        self._who = who
        self.name = name_of(who)
        """The user's; empty where no users are configured."""
        self.is_anyone = not users.are_configured
        """No users are configured, and so everything is permitted."""

    @property
    def global_access(self) -> GlobalAccess:
        """What the user may do to the gateway as a whole."""
        return self._users.global_access(self._who)

    def may_enter(self, vpn: str) -> bool:
        """Whether the user may use a Message VPN at all."""
        return self._users.may_enter(self._who, vpn)

    def may(self, action: Action, kind: AddressKind, name: str) -> bool:
        """Whether a rule of the user permits it."""
        return self._users.permissions(self._who).decide(action, kind, name).is_allowed

    def _refused(self, what: str) -> SempError:
        return SempError("UNAUTHORIZED", f"User {self.name!r} {what}.", 403)

    def require_entry(self, vpn: str) -> None:
        """To use a Message VPN at all; an empty name is none.

        Raises:
            SempError: UNAUTHORIZED with status 403, the user may not.
        """
        if vpn and not self.may_enter(vpn):
            raise self._refused(f"may not use the Message VPN {vpn[:80]!r}")

    def require_lasting(self) -> None:
        """To begin what goes on by itself, with what is configured of the user, when a token has long expired.

        Raises:
            SempError: UNAUTHORIZED with status 403, a token alone says who the user is.
        """
        if not (self.is_anyone or self.name in self._users.names):
            raise self._refused("may begin no job: it outlives a token, and needs a [user] of that name")

    def require_gateway(self, access: GlobalAccess) -> None:
        """To look at the gateway as a whole, or to change it.

        Raises:
            SempError: UNAUTHORIZED with status 403, the user's `global_access` does not permit it.
        """
        if not self._users.has_global_access(self._who, access):
            raise self._refused(f"has no global access ({access}) to the gateway as a whole")

    def require_any(self, what: str, *rules: tuple[Action, AddressKind, str]) -> None:
        """To do what one of several rules permits.

        Args:
            what: For the sentence, such as "read topic://a".

        Raises:
            SempError: UNAUTHORIZED with status 403, none does.
        """
        if not any(self.may(*rule) for rule in rules):
            raise self._refused(f"may not {what[:300]}")

    def require(self, kind: AddressKind, name: str) -> None:
        """To administer a queue, or what a topic pattern or a pattern of the log matches.

        Raises:
            SempError: UNAUTHORIZED with status 403, no rule permits it.
        """
        self.require_any(f"administer {kind.value}://{name[:250]}", (Action.ADMINISTER, kind, name))


def signed_in(app: ASGIApp, users: Users, is_open: Callable[[str], bool]) -> ASGIApp:
    """
    Finds out who asks before anything else of the request is read; who is not known is told so.

    Args:
        users: The directory.
        is_open: Whether anybody may ask for a path.
    """

    async def passed(scope: Scope, receive: Receive, send: Send) -> None:
        if not is_open(scope["path"]):
            request = Request(scope)
            try:
                scope[_CALLER] = await _caller_of(users, request)
            except SempError as refused:
                await told(request, refused)(scope, receive, send)
                return
        await app(scope, receive, send)

    return passed


async def _caller_of(users: Users, request: Request) -> _Caller:
    """
    Who asks, by the users as they are when this returns.

    Raises:
        SempError: UNAUTHORIZED, with status 401: nobody who is known; with 429: too many passwords are being checked;
            with 503: an identity provider cannot be asked.
    """

    async def find() -> Who | None:
        return await _who_of(users, request) if users.are_configured else ""

    who, generation = await settled(users, find)
    if who is None and _may_be_anonymous(users, request):
        who = ANONYMOUS_USER
    if who is None:
        raise SempError("UNAUTHORIZED", _LOG_IN, 401)
    asked_of(request.scope).user = name_of(who)
    return _Caller(who, generation)


async def settled(users: Users, find: Callable[[], Awaitable[Who | None]]) -> tuple[Who | None, int]:
    """
    Who somebody is, by the users as they are when this returns, and the generation of those.

    Raises:
        SempError: UNAUTHORIZED with status 401, a token is not good; with 429, too many passwords are being checked;
            with 503, an identity provider cannot be asked.
    """
    generation, who = -1, None
    while generation != users.generation:  # who was known before a reload may be nobody after it
        generation = users.generation
        try:
            who = await find()
        except TooManyChecks as error:
            raise SempError("UNAUTHORIZED", _LATER, 429) from error
        except Refused as refused:
            status = 401 if refused.code is ErrorCode.UNAUTHORIZED else 503
            text = f"{refused.text[0].upper()}{refused.text[1:]}."
            raise SempError("UNAUTHORIZED", text, status) from None
    return who, generation


def sessions_of(request: Request) -> Sessions:
    """The sessions of the console."""
    found: Sessions = request.app.state.sessions
    return found


@contextmanager
def ended_with_session(request: Request, end: Callable[[], None]) -> Iterator[None]:
    """
    A request that goes on: where it came in a session of the console, or with a token that expires, ``end`` is called
    when that ends.
    """
    session: Session | None = request.scope.get(_SESSION)
    who = request.scope[_CALLER].who
    timer = None
    if session is None and isinstance(who, TokenUser):
        timer = asyncio.get_running_loop().call_later(max(0.0, who.left_s(time.time())), end)
    try:
        with nullcontext() if session is None else sessions_of(request).going_on(session, end):
            yield
    finally:
        if timer is not None:
            timer.cancel()


async def who_if_known(request: Request) -> Who | None:
    """Who sent a request that anybody may send; None for nobody who is known, and says no name either.

    Raises:
        SempError: UNAUTHORIZED, with status 401: what it says of its user is wrong; or as for any request.
    """
    try:
        return (await _caller_of(resources_of(request).gateway.users, request)).who
    except SempError as error:
        if error.http_status == 401 and "authorization" not in request.headers:
            return None
        raise


def _may_be_anonymous(users: Users, request: Request) -> bool:
    """Whether a client on this machine that says no name may read and publish, as it may over AMQP."""
    if not request.url.path.startswith(CLIENTS_ROOT) or "authorization" in request.headers:
        return False
    host = request.client.host if request.client is not None else ""
    return users.knows(ANONYMOUS_USER) and is_loopback(host)


async def _who_of(users: Users, request: Request) -> Who | None:
    header = request.headers.get("authorization", "")
    scheme, _, secret = header.partition(" ")
    if not header:
        session = sessions_of(request).find(token_of(request))
        if session is not None:
            asked_of(request.scope).user = session.user
            if request.method not in LOOKING and not session.has_csrf_token(
                request.headers.get("x-csrf-token", "")
            ):
                raise SempError("UNAUTHORIZED", _NO_CSRF_TOKEN, 403)
            request.scope[_SESSION] = session
            return session.who
        return users.name_of_certificate(request.scope.get(CERTIFICATE))
    if scheme.lower() == "bearer":
        token = secret.strip()
        name = users.name_of_token(token)
        return await users.of_token(token) if name is None and users.providers else name
    try:
        basic = secret.strip() if scheme.lower() == "basic" else ""
        name, _, password = base64.b64decode(basic, validate=True).decode().partition(":")
    except ValueError:
        name = password = ""
    asked_of(request.scope).user = name
    address = request.client.host if request.client is not None else ""
    return name if await users.has_password(name, password, address) else None


async def administrator_of(
    request: Request,
    _basic: Annotated[object, Depends(_BASIC)] = None,
    _bearer: Annotated[object, Depends(_BEARER)] = None,
) -> Administrator:
    """Who sent a request.

    Raises:
        SempError: UNAUTHORIZED: the users have changed while the request came, and by the new ones nobody has sent it.
    """
    users, caller = resources_of(request).gateway.users, request.scope[_CALLER]
    if users.generation != caller.generation:
        caller = await _caller_of(users, request)
    return Administrator(users, caller.who)


async def entrant_of(
    request: Request, administrator: Annotated[Administrator, Depends(administrator_of)]
) -> Administrator:
    """Who sent a request about a Message VPN, and may enter that.

    Raises:
        SempError: UNAUTHORIZED, with status 403: who may not.
    """
    administrator.require_entry(unquote(request.path_params.get("vpn", "")))
    return administrator


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
    over = Refused(ErrorCode.CONNECTION_FORCED, "the session has ended, or the token; sign in again")
    try:
        client.who = request.scope[_CALLER].who
        with ended_with_session(request, lambda: client.stop(over)):
            yield client
    finally:
        clients.leave(client)
