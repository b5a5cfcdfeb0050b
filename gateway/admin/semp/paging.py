"""
Lists: which page of a list is shown, which objects, and which of their attributes; and the pace at which lists are made
next to live traffic.

``count`` and ``cursor`` choose the page; ``where=queueName==a*,spooledMsgCount>10`` has conditions, all of which must
hold; ``select=a,b`` names the attributes to be shown, ``select=-a`` those to be left out. Source: Solace documentation,
"SEMP v2 Features".

A page of a hundred queues takes the loop a millisecond or two, and a client that lists ten thousand queues asks for one
page after the other. So after each page, lists pause for a multiple of the time that the page took. Without live
traffic nobody waits, and a pause ends early when live traffic does. All clients together have one pace.
"""

from __future__ import annotations

import asyncio
import base64
import re
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from operator import eq, ge, gt, le, lt, ne
from typing import Annotated, Any, Final

from fastapi import Depends, Query, Request

from gateway.admin.semp.envelope import ListAnswer, SempError, list_answer

PAUSE: Final = 4
"""A pause as a multiple of the time that the page took: lists have a fifth of the loop, and publishers keep more than
half of their rate."""

LONGEST_TURN_S: Final = 0.05
"""Most seconds of a page that count for its pause: a page that took longer was interrupted by others."""

WINDOW_S: Final = 0.02
"""Seconds without a message published or settled after which live traffic counts as ended."""


class ListingPace:
    """
    The pace of all lists.

    Args:
        activity: Rises with each message published or settled (``gateway.vpn.runtime.Counters.activity``).
        seconds: A clock that only goes forward.
        sleep: Returns after this many seconds.
    """

    def __init__(
        self,
        activity: Callable[[], int],
        seconds: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._activity = activity
        self._seconds = seconds
        self._sleep = sleep
        self._seen = activity()
        self._free = 0.0
        """When the pauses of all pages so far are over."""

    @asynccontextmanager
    async def page(self) -> AsyncIterator[None]:
        """The block makes one page; after it, pause for others."""
        began = self._seconds()
        yield
        now = self._seconds()
        if not self._is_live():
            return
        free = self._free = max(self._free, now) + min(now - began, LONGEST_TURN_S) * PAUSE
        while (left := free - self._seconds()) > 0:
            await self._sleep(min(left, WINDOW_S))
            if left > WINDOW_S and not self._is_live():
                self._free = 0.0
                return

    def _is_live(self) -> bool:
        """Whether any message was published or settled since the last call."""
        before, self._seen = self._seen, self._activity()
        return self._seen != before


MOST: Final = 1_000
"""Objects on a page at most."""

TURN: Final = 200
"""Objects looked at in one turn of the loop: a millisecond or two, then messages have their turn."""

_CONDITION: Final = re.compile(r"([A-Za-z]+)(==|!=|<=|>=|<|>)(.*)", re.DOTALL)
_COMPARE: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "==": eq, "!=": ne, "<": lt, ">": gt, "<=": le, ">=": ge,
}  # fmt: skip


class Paging:
    """The part of a list that a request asks for.

    Raises:
        SempError: INVALID_PARAMETER, the query cannot be read.
    """

    def __init__(
        self,
        request: Request,
        count: Annotated[int, Query(ge=1, le=MOST, description="Number of objects on a page.")] = 10,
        cursor: Annotated[str | None, Query(description="From `meta.paging.cursorQuery`.")] = None,
        select: Annotated[
            str | None, Query(description="Attributes to show: `a,b`, or `-a` for all but a.")
        ] = None,
        where: Annotated[str | None, Query(description="`a==text*,b>10`.")] = None,
    ) -> None:
        self._request = request
        self.count = count
        self.after = _decoded(cursor) if cursor is not None else None
        self.select = select
        self.where = [_condition(text) for text in where.split(",")] if where else []

    def shown(self, thing: Mapping[str, Any]) -> dict[str, Any]:
        """The attributes of an object that ``select`` asks for."""
        if not self.select:
            return dict(thing)
        names = self.select.split(",")
        without = {name[1:] for name in names if name.startswith("-")}
        for name in (name.removeprefix("-") for name in names):
            _check_attribute("select", name, thing)
        if without:
            return {name: value for name, value in thing.items() if name not in without}
        return {name: thing[name] for name in names}

    def refuse_where(self, sentence: str) -> None:
        """Refuse conditions, for a list that does not support them.

        Raises:
            SempError: INVALID_PARAMETER, the request has conditions.
        """
        if self.where:
            raise SempError("INVALID_PARAMETER", sentence)

    def matches(self, thing: Mapping[str, Any]) -> bool:
        """Whether an object meets the conditions."""
        for name, operator, text in self.where:
            _check_attribute("where", name, thing)
            if not _holds(thing[name], operator, text):
                return False
        return True

    async def answer(
        self, keys: Collection[str], show: Callable[[str], Mapping[str, Any] | None]
    ) -> ListAnswer:
        """
        A page of the objects with these keys, in the order of the keys.

        Args:
            show: Returns an object's attributes; None when the object is gone meanwhile.
        """
        ordered = sorted(keys)
        found: list[dict[str, Any]] = []
        cursor = None
        first = bisect_left(ordered, self.after) if self.after is not None else 0
        for index in range(first, len(ordered)):
            if index % TURN == TURN - 1:
                await asyncio.sleep(0)
            is_full = len(found) == self.count
            # Of the object after a full page only its existence matters.
            thing = show(ordered[index]) if self.where or not is_full else {}
            if thing is None or not self.matches(thing):
                continue
            if is_full:
                cursor = encoded(ordered[index])
                break
            found.append(self.shown(thing))
        return await self.listed(found, cursor, len(keys))

    async def listed(
        self, page: Sequence[Mapping[str, Any]], cursor: str | None, total: int | None = None
    ) -> ListAnswer:
        """The answer with a page that is made already; see ``list_answer``."""
        return await list_answer(self._request, page, cursor, total)


Pages = Annotated[Paging, Depends(Paging)]


def encoded(key: str) -> str:
    """The cursor of a page that begins at a key."""
    return base64.urlsafe_b64encode(key.encode()).decode()


def _decoded(cursor: str) -> str:
    try:
        return base64.b64decode(cursor, altchars=b"-_", validate=True).decode()
    except ValueError:
        raise SempError(
            "INVALID_PARAMETER", "The cursor is not valid; take it from meta.paging.cursorQuery."
        ) from None


def _condition(text: str) -> tuple[str, str, str]:
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise SempError(
            "INVALID_PARAMETER",
            f"The condition {text[:80]!r} in `where` is not valid; write NAME==VALUE, or use != < > <= >=.",
        )
    return found[1], found[2], found[3]


def _check_attribute(what: str, name: str, thing: Mapping[str, Any]) -> None:
    if name not in thing:
        raise SempError(
            "INVALID_PARAMETER",
            f"Unknown attribute {name[:80]!r} in `{what}`; allowed here: {', '.join(thing)}.",
        )


def _holds(value: Any, operator: str, text: str) -> bool:
    if isinstance(value, bool):
        return _COMPARE[operator](str(value).lower(), text)
    if isinstance(value, int | float):
        try:
            return _COMPARE[operator](value, float(text))
        except ValueError:
            raise SempError("INVALID_PARAMETER", f"{text[:80]!r} in `where` is not a number.") from None
    if value is None or (isinstance(value, Sequence) and not isinstance(value, str)):
        return operator == "!="
    if operator in ("==", "!="):
        # Only `*` is a wildcard here.
        return fnmatchcase(value, text.replace("[", "[[]").replace("?", "[?]")) is (operator == "==")
    return _COMPARE[operator](value, text)
