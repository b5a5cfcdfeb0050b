"""
Passwords are hashed slowly, on purpose: here, on a few threads that do nothing else, address by address in turns; and
those that were right are remembered, so that clients which come back at once are let in at once.

Whoever tries passwords from one address waits for his own tries alone: at most one of them is worked on at a time, and
past a bound they are refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

THREADS: Final = 2
"""Enough that one address never has them all. More would take the processor from those who have signed in."""

WAITING_PER_ADDRESS: Final = 200
"""Checks of one address that may wait: six seconds' worth, with passwords hashed as we hash them."""

WAITING: Final = 4_096
"""Checks that may wait over all addresses: a gateway's clients that come back at once."""


REMEMBERED: Final = 1_000
"""Passwords that were right and need not be hashed again; beyond, it starts over."""


class VerifiedPasswords:
    """
    Passwords that were right, as digests with a key that is nowhere else. Whoever reads the users anew puts a new one
    in place of this: what they were is forgotten.
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
        """It is the user's password."""
        if len(self._digests) >= REMEMBERED:
            self._digests.clear()
        self._digests.add(self._digest(name, password))

    def _digest(self, name: str, password: str) -> bytes:
        return hmac.digest(self._key, f"{name}\0{password}".encode("utf-8", "surrogatepass"), hashlib.sha256)


class TooManyChecks(Exception):
    """So many passwords are to be checked that this one is not: its peer may try again later."""


class _Check:
    """One password to be checked."""

    __slots__ = ("done", "work")

    def __init__(self, work: Callable[[], bool], done: asyncio.Future[bool]) -> None:
        self.work = work
        self.done = done


class PasswordChecks:
    """The checks under way and those that wait. Made and used in one event loop; its threads begin with the first."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="passwords")
        self._waiting: dict[str, deque[_Check]] = {}
        """By address, in the order of their turns."""
        self._count = 0
        self._under_way: set[str] = set()
        """Addresses a check of which is worked on."""

    async def check(self, address: str, work: Callable[[], bool]) -> bool:
        """
        Have a password checked.

        Args:
            address: Whose turn it is: the IP address that the password came from.
            work: Run on a thread.

        Returns:
            What ``work`` returned.

        Raises:
            TooManyChecks: Too many wait, of this address or of all.
        """
        waiting = self._waiting.get(address)
        if self._count >= WAITING or (waiting is not None and len(waiting) >= WAITING_PER_ADDRESS):
            raise TooManyChecks
        check = _Check(work, asyncio.get_running_loop().create_future())
        if waiting is None:
            waiting = self._waiting[address] = deque()
        waiting.append(check)
        self._count += 1
        self._begin()
        return await check.done

    def _begin(self) -> None:
        """Give a free thread to the address whose turn it is."""
        while len(self._under_way) < THREADS:
            address = next((each for each in self._waiting if each not in self._under_way), None)
            if address is None:
                return
            waiting = self._waiting.pop(address)
            check = waiting.popleft()
            self._count -= 1
            if waiting:
                self._waiting[address] = waiting  # behind the others
            if check.done.cancelled():
                continue  # its peer has left
            self._under_way.add(address)
            future = check.done.get_loop().run_in_executor(self._pool, check.work)
            future.add_done_callback(partial(self._end, address, check))

    def _end(self, address: str, check: _Check, ended: asyncio.Future[bool]) -> None:
        self._under_way.discard(address)
        self._begin()
        if check.done.done():
            return
        error = ended.exception()
        if error is not None:
            check.done.set_exception(error)
        else:
            check.done.set_result(ended.result())

    def close(self) -> None:
        """No more are checked; one that is worked on is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)
