"""
The directory of users: how each signs in, which Message VPNs each may enter, and what each may do there.

AMQP and administration both ask here. AMQP asks for SCRAM's and PLAIN's stored passwords, for the user of a certificate
and for the keys of shared access signatures; administration asks for passwords (HTTP Basic), bearer tokens and
certificates; both ask for the user that a token of an identity provider names. Where no user and no provider is
configured, everyone on this machine may do everything.

A user who signs in with such a token is a ``TokenUser``, who may do what this token says, whatever another token of the
same user says. Every other user is represented by the name. ``Who`` is either.

Passwords are hashed slowly on purpose, on a few threads that do nothing else; the addresses that passwords come from
take turns. Right passwords are remembered, so that clients that reconnect are let in immediately.

Invariant: a wrong name takes as long as a wrong password, and a peer cannot tell which of them is wrong. A bearer token
is compared with the tokens of all users, whether or not one matches.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, TypeAlias, get_args

from amqp_ext.sasl import ITERATIONS, StoredPassword, decoy
from amqp_ext.sasl import parse as parse_password
from gateway.config import Settings, User, token_hash
from gateway.config.load import SecretKind, secret_of
from gateway.config.settings import GlobalAccess
from gateway.core.errors import ErrorCode, Refused
from gateway.core.permissions import NOTHING, OPEN, Action, Permissions
from gateway.identity_providers import Provider, TokenUser, providers_of, user_of

Who: TypeAlias = str | TokenUser
"""A user who has signed in: the name, or the user of an identity provider's token."""


def name_of(who: Who) -> str:
    """The user's name."""
    return who.name if isinstance(who, TokenUser) else who


class Users:
    """
    The users of a gateway. ``reload`` replaces all of them.

    Args:
        settings: The gateway's settings; the files that they name for users are read here.

    Raises:
        ValueError: A file that a user names cannot be read.
    """

    def __init__(self, settings: Settings) -> None:
        self.decoy_key: Final = secrets.token_bytes(32)
        """The source of salts for users that do not exist: the same for every peer while the process lives."""
        self.facts: Mapping[str, tuple[object, ...]] = {}
        """All settings of each user, with the contents of the files that they name: compared to find changes."""
        self.generation = 0
        """Rises with each ``reload``: a credential that was checked before may be another user's now."""
        self.checks: Final = PasswordChecks()
        """The password checks of administrators, by themselves: a flood of clients must not keep administrators out."""
        self.providers: tuple[Provider, ...] = ()
        """The identity providers whose tokens are accepted."""
        self.reload(settings)

    def reload(self, settings: Settings) -> frozenset[str]:
        """
        Replace all users by those of these settings.

        Returns:
            Names of the users whose settings have changed, or the files that these name.

        Raises:
            ValueError: A file that a user names cannot be read; the users are as before.
        """
        users = settings.users
        passwords = {name: parse_password(text) for name, text in _secrets(users, "password").items()}
        sas_keys, tokens = _secrets(users, "sas_key"), _secrets(users, "token")
        facts = {
            name: (user, passwords.get(name), sas_keys.get(name), tokens.get(name))
            for name, user in users.items()
        }
        before, self.facts = self.facts, facts
        self.generation += 1
        self.providers = providers_of(settings.identity_providers, self.providers)
        self._users = users
        self.passwords: Mapping[str, StoredPassword] = passwords
        """The stored passwords of the users that have one."""
        self.sas_keys: Mapping[str, str] = sas_keys
        """The keys of users' shared access signatures."""
        self._tokens = tokens
        self._by_certificate = {
            certificate: name for name, user in users.items() for certificate in user.certificate_names
        }
        self._permissions = {
            name: Permissions({Action(key): rules for key, rules in user.permissions().items()})
            for name, user in users.items()
        }
        self.decoy_iterations = max((p.iterations for p in passwords.values()), default=ITERATIONS)
        """Rounds of hashing for a user that does not exist: the most that any user has."""
        self._decoy = decoy("nobody", self.decoy_key, self.decoy_iterations)
        self.verified = VerifiedPasswords()
        """Passwords that were right since the last reload."""
        return frozenset(name for name in {**before, **facts} if before.get(name) != facts.get(name))

    @property
    def are_configured(self) -> bool:
        """Whether there is any user or identity provider. Without them, everyone may do everything."""
        return bool(self._users or self.providers)

    # --- who it is ----------------------------------------------------------------------------------------------

    async def has_password(self, name: str, password: str, address: str = "") -> bool:
        """
        Whether this is the user's password. It is hashed on a thread; a right one only the first time.

        Args:
            address: The IP address that the password came from.

        Raises:
            TooManyChecks: Too many checks wait; the peer may try again later.
        """
        # Both from before the check: a reload meanwhile may change the password.
        stored, verified = self.passwords.get(name), self.verified
        if verified.has(name, password):
            return True
        verify = (stored or self._decoy).verify
        is_right = await self.checks.check(address, lambda: verify(password))
        if not is_right or stored is None:
            return False
        verified.add(name, password)
        return True

    def name_of_certificate(self, common_name: str | None) -> str | None:
        """The user that a verified client certificate names, by the certificate's common name."""
        return self._by_certificate.get(common_name) if common_name else None

    def name_of_token(self, token: str) -> str | None:
        """The user whose bearer token it is; None where it is no user's."""
        asked = token_hash(token)
        found = None
        for name, stored in self._tokens.items():
            if hmac.compare_digest(asked, stored):
                found = name
        return found

    async def of_token(self, token: str) -> TokenUser:
        """
        The user that a token of an identity provider names, by the providers as they are when this returns.

        Raises:
            Refused: UNAUTHORIZED, it is not valid; INTERNAL, the provider's keys cannot be read now.
        """
        generation, found = -1, None
        while found is None or generation != self.generation:
            generation = self.generation
            found = await user_of(self.providers, token)
        return found

    @property
    def names(self) -> list[str]:
        """The names of the users that are configured."""
        return list(self._users)

    def knows(self, who: Who) -> bool:
        """Whether the user, or the token's provider, is configured; true of everyone where nothing is configured."""
        if not self.are_configured:
            return True
        return who.provider in self.providers if isinstance(who, TokenUser) else who in self._users

    def facts_of(self, who: Who) -> object:
        """The settings of a user, or what the user's token says: compared to find changes."""
        if not isinstance(who, TokenUser):
            return self.facts.get(who)
        return (self.knows(who), who.said or self.facts.get(who.name))

    def has_changed(self, who: Who, changed_users: Collection[str]) -> bool:
        """Whether a reload that has returned these names has changed what a user may do."""
        is_named = not isinstance(who, TokenUser) or who.said is None
        return not self.knows(who) or (is_named and name_of(who) in changed_users)

    # --- what they may do -----------------------------------------------------------------------------------------

    def _said_of(self, who: Who) -> User | None:
        """What a user may do, as configured or as the token says; None where that is nothing."""
        if isinstance(who, TokenUser) and (who.said is not None or not self.knows(who)):
            return who.said if self.knows(who) else None
        return self._users.get(name_of(who))

    def may_enter(self, who: Who, vpn: str) -> bool:
        """Whether a user may use a Message VPN at all."""
        said = self._said_of(who)
        return not self.are_configured or (said is not None and vpn in said.vpns)

    def check_entry(self, who: Who, vpn: str) -> None:
        """
        Check that a user may use a Message VPN.

        Raises:
            Refused: UNAUTHORIZED, the user may not enter the Message VPN.
        """
        if not self.may_enter(who, vpn):
            text = f"user {name_of(who)!r} may not use the Message VPN {vpn!r}"
            raise Refused(ErrorCode.UNAUTHORIZED, text)

    def has_global_access(self, who: Who, access: GlobalAccess) -> bool:
        """Whether a user has at least this access to the gateway as a whole."""
        levels = get_args(GlobalAccess)
        return self.knows(who) and levels.index(self.global_access(who)) >= levels.index(access)

    def global_access(self, who: Who) -> GlobalAccess:
        """The access of a user to the gateway as a whole."""
        if not self.are_configured:
            return "read-write"
        said = self._said_of(who)
        return "none" if said is None else said.global_access

    def permissions(self, who: Who) -> Permissions:
        """The rules of a user; where no users are configured there are none, and everything is permitted."""
        if not self.are_configured:
            return OPEN
        if isinstance(who, TokenUser) and who.permissions is not None:
            return who.permissions if self.knows(who) else NOTHING
        return self._permissions.get(name_of(who), NOTHING)

    def permissions_in(self, who: Who, vpn: str) -> Permissions:
        """The rules of a user in a Message VPN; they permit nothing where the user may not enter it."""
        return self.permissions(who) if self.may_enter(who, vpn) else NOTHING


def _secrets(users: Mapping[str, User], kind: SecretKind) -> dict[str, str]:
    """The secrets of a kind, by the users that have one."""
    found = {name: secret_of(user, kind) for name, user in users.items()}
    return {name: secret for name, secret in found.items() if secret}


THREADS: Final = 2
"""Enough that one address never has them all. More would take the processor from clients that have signed in."""

WAITING_PER_ADDRESS: Final = 200
"""Checks of one address that may wait: six seconds' worth, with passwords hashed as we hash them."""

WAITING: Final = 4_096
"""Checks of all addresses that may wait: the clients of a gateway may reconnect all together."""


REMEMBERED: Final = 1_000
"""How many right passwords are remembered; one more, and all are forgotten."""


class VerifiedPasswords:
    """
    Passwords that were right, as digests with a key that is kept nowhere else. ``Users.reload`` replaces this object,
    and so forgets them.
    """

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)
        self._digests: set[bytes] = set()

    def __len__(self) -> int:
        return len(self._digests)

    def has(self, name: str, password: str) -> bool:
        """Whether this was the user's password."""
        return self._digest(name, password) in self._digests

    def add(self, name: str, password: str) -> None:
        """Remember the user's password."""
        if len(self._digests) >= REMEMBERED:
            self._digests.clear()
        self._digests.add(self._digest(name, password))

    def _digest(self, name: str, password: str) -> bytes:
        return hmac.digest(self._key, f"{name}\0{password}".encode("utf-8", "surrogatepass"), hashlib.sha256)


class TooManyChecks(Exception):
    """Too many checks wait, and this password is not checked: the peer may try again later."""


_Check: TypeAlias = tuple[Callable[[], bool], asyncio.Future[bool]]
"""One password to be checked: the work, and the future of its result."""


class PasswordChecks:
    """The checks under way and those that wait. Used in one event loop; its threads start with the first check."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="passwords")
        self._waiting: dict[str, deque[_Check]] = {}
        """By address, in the order of their turns."""
        self._count = 0
        self._under_way: set[str] = set()
        """Addresses that a thread works for."""

    async def check(self, address: str, work: Callable[[], bool]) -> bool:
        """
        Have a password checked.

        Args:
            address: The IP address that the password came from; addresses take turns.
            work: Run on a thread.

        Returns:
            What ``work`` returned.

        Raises:
            TooManyChecks: Too many wait, of this address or of all.
        """
        waiting = self._waiting.get(address)
        if self._count >= WAITING or (waiting is not None and len(waiting) >= WAITING_PER_ADDRESS):
            raise TooManyChecks
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if waiting is None:
            waiting = self._waiting[address] = deque()
        waiting.append((work, done))
        self._count += 1
        self._begin()
        return await done

    def _begin(self) -> None:
        """Give a free thread to the address whose turn it is."""
        while len(self._under_way) < THREADS:
            address = next((each for each in self._waiting if each not in self._under_way), None)
            if address is None:
                return
            waiting = self._waiting.pop(address)
            work, done = waiting.popleft()
            self._count -= 1
            if waiting:
                self._waiting[address] = waiting  # after the other addresses
            if done.cancelled():
                continue  # its peer has left
            self._under_way.add(address)
            future = done.get_loop().run_in_executor(self._pool, work)
            future.add_done_callback(partial(self._end, address, done))

    def _end(self, address: str, done: asyncio.Future[bool], ended: asyncio.Future[bool]) -> None:
        self._under_way.discard(address)
        self._begin()
        if done.done():
            return
        error = ended.exception()
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(ended.result())

    def close(self) -> None:
        """Check no more passwords; a check under way is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
