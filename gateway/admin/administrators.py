"""
The user who sends a request to the administration. A user is known by name and password (HTTP Basic), by a bearer token
(RFC 6750) of the user or of an identity provider, by a session of the console, or, where the request names no user, by
a client certificate. Where no users are configured, everyone on this machine may administer.

A session is a user who has signed in with a browser, known by a cookie. Like passwords, the cookie's value is kept only
as a hash. A session that began at an identity provider has the rights that the provider gave. A session ends when its
user signs out, after ``IDLE_S`` without a request, after ``WHOLE_S`` in any case, and when the user's configuration has
changed since it began (another password, another rule). Long requests of a session, such as a stream of messages, end
with it. Sessions end with the process.

A browser sends the cookie with each request to this address, also with a request that another page made it send. So a
request that changes something must show that it comes from the console's page: it repeats a secret that only that page
was given (``Session.csrf_token``).

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
"""The beginning of the cookie's name: the port follows. A browser shares cookies among all ports of a host, so that two
gateways would replace each other's."""

MOST_SESSIONS: Final = 512
"""Sessions at the same time. One more ends the session that was not used for the longest time."""

MOST_SESSIONS_PER_USER: Final = 16
"""Sessions of one user at the same time: some browsers on some machines. One more ends another session of this user,
and nobody else's."""

IDLE_S: Final = 3_600.0
"""Seconds without a request that end a session: a visible page sends one every few seconds, a hidden page none."""

WHOLE_S: Final = 43_200.0
"""Seconds that a session lasts at most: a working day, after which a stolen cookie is worth nothing."""

_BYTES: Final = 32
"""Random bytes of each secret: 256 bits cannot be guessed."""


@dataclass(slots=True)
class Session:
    """One user in one browser.

    Attributes:
        who: The user.
        csrf_token: What a request that changes something has to repeat.
        facts: The user's configuration when the session began.
        begun: When it began, in seconds of the clock.
        used: When its last request came.
        under_way: The functions that end its long requests under way.
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
        """Whether a request repeats the session's token."""
        return hmac.compare_digest(said.encode(), self.csrf_token.encode())


class Sessions:
    """
    The sessions at present.

    Args:
        users: The directory.
        now: A clock that only goes forward, in seconds.
        are_wanted: Whether the settings permit sessions.
    """

    def __init__(self, users: Users, now: Callable[[], float], are_wanted: Callable[[], bool]) -> None:
        self._users = users
        self._now = now
        self._are_wanted = are_wanted
        self._by_hash: dict[bytes, Session] = {}
        """By the hash of the cookie's value, in the order of their last use."""

    def __len__(self) -> int:
        return len(self._by_hash)

    def begin(self, who: Who) -> tuple[str, Session]:
        """
        Begin a session of a user who was authenticated just now.

        Returns:
            The cookie's value, and the session.
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
        """The session of a cookie's value, which counts as used now; None where there is no valid session."""
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
        """While a long request of a session runs: call ``end`` when the session ends. Needs a running event loop."""
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
    """The name of the session's cookie, or of another cookie, at the port that a request came to."""
    return f"{name}-{request.scope['server'][1]}"


def token_of(request: HTTPConnection, name: str = COOKIE) -> str | None:
    """
    The value of the session's cookie, or of another cookie, in a request. None where there is no such cookie, and where
    there are several: a page at another port, or at a subdomain, can add its own, and nobody can tell them apart.
    """
    ours = cookie_of(request, name)
    pairs = (one.partition("=") for field in request.headers.getlist("cookie") for one in field.split(";"))
    found = [value.strip() for name, _, value in pairs if name.strip() == ours]
    return found[0] if len(found) == 1 else None


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


_LOG_IN: Final = "Give the name and password of a user (HTTP Basic), or a bearer token."
_NO_CSRF_TOKEN: Final = (
    "A request that changes something in a session of the console needs the header X-CSRF-Token: the `csrfToken` of "
    "GET /session."
)
_LATER: Final = "Too many passwords are being checked; try again in a moment."

# For the OpenAPI document alone: we check the credentials, and answer wrong ones, ourselves.
_BASIC: Final = HTTPBase(scheme="basic", auto_error=False, description="A user with `administer` rules.")
_BEARER: Final = HTTPBearer(auto_error=False, description="The token of such a user.")

CERTIFICATE: Final = "rewind.certificate"
"""Key of a request's scope: the common name of the client's verified certificate; None without one."""

_CALLER: Final = "rewind.caller"
"""Key of a request's scope: its ``_Caller``."""

_SESSION: Final = "rewind.session"
"""Key of a request's scope: the session of the console that it came in."""


class _Caller(NamedTuple):
    """Who sent a request."""

    who: Who
    generation: int
    """The generation of the directory that knew the user."""


class Administrator:
    """The user who sent a request, and what the rules of that user permit."""

    def __init__(self, users: Users, who: Who) -> None:
        self._users = users
        self._who = who
        self.name = name_of(who)
        """The user's name; empty where no users are configured."""
        self.is_anyone = not users.are_configured
        """No users are configured, so everything is permitted."""

    @property
    def global_access(self) -> GlobalAccess:
        """What the user may do to the gateway as a whole."""
        return self._users.global_access(self._who)

    def may_enter(self, vpn: str) -> bool:
        """Whether the user may use a Message VPN at all."""
        return self._users.may_enter(self._who, vpn)

    def may(self, action: Action, kind: AddressKind, name: str) -> bool:
        """Whether a rule of the user permits an action."""
        return self._users.permissions(self._who).decide(action, kind, name).is_allowed

    def _refused(self, what: str) -> SempError:
        return SempError("UNAUTHORIZED", f"User {self.name!r} {what}.", 403)

    def require_entry(self, vpn: str) -> None:
        """Require that the user may use a Message VPN at all; an empty name stands for no Message VPN.

        Raises:
            SempError: UNAUTHORIZED with status 403, the user may not.
        """
        if vpn and not self.may_enter(vpn):
            raise self._refused(f"may not use the Message VPN {vpn[:80]!r}")

    def require_lasting(self) -> None:
        """Require that the user may begin a job: it goes on with the configured rights when a token has expired.

        Raises:
            SempError: UNAUTHORIZED with status 403, the user is not configured, and known by a token alone.
        """
        if not (self.is_anyone or self.name in self._users.names):
            raise self._refused("may start no job: a job outlives a token, and needs a [user] of that name")

    def require_gateway(self, access: GlobalAccess) -> None:
        """Require that the user may look at the gateway as a whole, or change it.

        Raises:
            SempError: UNAUTHORIZED with status 403, the user's `global_access` does not permit it.
        """
        if not self._users.has_global_access(self._who, access):
            raise self._refused(f"has no global access ({access}) to the gateway as a whole")

    def require_any(self, what: str, *rules: tuple[Action, AddressKind, str]) -> None:
        """Require that one of several actions is permitted.

        Args:
            rules: The actions, each of which suffices.
            what: For the error's sentence, such as "read topic://a".

        Raises:
            SempError: UNAUTHORIZED with status 403, none is permitted.
        """
        if not any(self.may(*rule) for rule in rules):
            raise self._refused(f"may not {what[:300]}")

    def require(self, kind: AddressKind, name: str) -> None:
        """Require that the user may administer a queue, or what a topic pattern or a pattern of the log matches.

        Raises:
            SempError: UNAUTHORIZED with status 403, no rule permits it.
        """
        self.require_any(f"administer {kind.value}://{name[:250]}", (Action.ADMINISTER, kind, name))


def signed_in(app: ASGIApp, users: Users, is_open: Callable[[str], bool]) -> ASGIApp:
    """
    Finds the user of a request before the rest of the request is read, and refuses the request of an unknown one.

    Args:
        users: The directory.
        is_open: Whether anybody may request a path.
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
    The user of a request, in the directory as it is when this returns.

    Raises:
        SempError: UNAUTHORIZED, with status 401: the user is not known; with 429: too many passwords are being checked;
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
    The user that ``find`` finds in the directory as it is when this returns, and the generation of the directory.

    Raises:
        SempError: UNAUTHORIZED with status 401, a token is not good; with 429, too many passwords are being checked;
            with 503, an identity provider cannot be asked.
    """
    generation, who = -1, None
    while generation != users.generation:  # a reload may have changed or removed the user
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
    While a long request runs: call ``end`` when its session of the console ends, or when its token expires.
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
    """The user of a request that anybody may send; None where it has no ``Authorization``, nor other valid credentials.

    Raises:
        SempError: UNAUTHORIZED, with status 401: the credentials are wrong; or as for any request.
    """
    try:
        return (await _caller_of(resources_of(request).gateway.users, request)).who
    except SempError as error:
        if error.http_status == 401 and "authorization" not in request.headers:
            return None
        raise


def _may_be_anonymous(users: Users, request: Request) -> bool:
    """Whether this is a client on this machine that names no user, and may read and publish as it may over AMQP."""
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
    """The user who sent a request.

    Raises:
        SempError: UNAUTHORIZED: the users have changed while the request came, and its user is not among the new ones.
    """
    users, caller = resources_of(request).gateway.users, request.scope[_CALLER]
    if users.generation != caller.generation:
        caller = await _caller_of(users, request)
    return Administrator(users, caller.who)


async def entrant_of(
    request: Request, administrator: Annotated[Administrator, Depends(administrator_of)]
) -> Administrator:
    """The user who sent a request about a Message VPN, and may enter it.

    Raises:
        SempError: UNAUTHORIZED, with status 403: the user may not.
    """
    administrator.require_entry(unquote(request.path_params.get("vpn", "")))
    return administrator


@contextmanager
def admitted(
    request: Request, user: str, vpn: str, address: str, *, is_sender: bool = False
) -> Iterator[HttpClient]:
    """
    The HTTP client of a request, while the request lasts.

    Args:
        address: The address that it reads, or publishes to, as administrators see it.
        is_sender: It publishes.

    Raises:
        SempError: NOT_ALLOWED with status 429, there are too many clients.
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
