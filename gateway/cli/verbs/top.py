"""
``rewind top``: what goes on in a Message VPN, looked at again and again: rates, depths, replays, alarms, the log's use.

A look is five requests at most. A gateway that goes away is waited for, and seen again when it is back.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count as numbers
from typing import Any, Final

import click

from gateway.cli.api import Api, NotDone, api_options
from gateway.core.model import ENDED

ANSWER_S = 10.0
"""Seconds until an answer: a gateway that does not give one is shown as away."""

MOST_QUEUES: Final = 100
"""Queues that a look asks for."""

MOST_SHOWN: Final = 20
"""Replays and alarms that a look asks for."""

LIST_SHARE: Final = 20
"""A list of queues is asked for again after so many times as long as it took: thousands take the gateway a while."""

_UNDER_WAY: Final = ",".join(f"state!={state}" for state in sorted(ENDED))

_COUNTERS: Final = {
    "publishedMsgsPerSecond": "publishedMsgCount",
    "publishedBytesPerSecond": "publishedBytes",
    "settledMsgsPerSecond": "settledMsgCount",
}


@dataclass(frozen=True, slots=True)
class Look:
    """What a Message VPN was like at a moment; of a gateway that is away, what was known before, and ``problem``."""

    at: float
    """Seconds of a clock that only goes forward."""
    time_ms: int
    vpn: dict[str, Any] = field(default_factory=dict)
    log: dict[str, Any] = field(default_factory=dict)
    queues: list[dict[str, Any]] = field(default_factory=list)
    """The deepest of those that have messages; each with ``msgsPerSecond``, if that is known."""
    queue_count: int = 0
    """Of those, how many there are."""
    replays: list[dict[str, Any]] = field(default_factory=list)
    """Those that go on."""
    alarms: list[dict[str, Any]] = field(default_factory=list)
    rates: dict[str, float | None] = field(default_factory=dict)
    problem: str | None = None
    """Why nothing newer is known."""

    def to_json(self) -> str:
        """One line for a program."""
        found = {
            "timeMs": self.time_ms,
            "problem": self.problem,
            "vpn": self.vpn,
            "rates": self.rates,
            "log": self.log,
            "queueCount": self.queue_count,
            "queues": self.queues,
            "replays": self.replays,
            "alarms": self.alarms,
        }
        return json.dumps(found, ensure_ascii=False)


class Watch:
    """
    Looks at a Message VPN.

    Args:
        seconds: A clock that only goes forward.
    """

    def __init__(self, api: Api, seconds: Callable[[], float] = time.monotonic) -> None:
        self._api = replace(api, timeout_s=ANSWER_S)
        self._seconds = seconds
        self._before: Look | None = None
        self._list_again = 0.0
        self._listed_at = 0.0
        self._depths: dict[str, int] = {}

    def look(self) -> Look:
        """
        Look now.

        Raises:
            NotDone: The gateway refuses to answer: who asks may not.
        """
        try:
            found = self._look()
        except NotDone as error:
            if not error.is_absent and error.more.get("status") != "FAIL":
                raise
            # The next look that succeeds has nothing to be compared with: the counters may have begun anew.
            known = self._before or Look(self._seconds(), 0)
            self._before = replace(known, rates={})
            return replace(known, time_ms=_now_ms(), rates={}, problem=error.message)
        self._before = found
        return found

    def _look(self) -> Look:
        api, before = self._api, self._before
        vpn = api.ask("GET", "monitor")["data"]
        at = self._seconds()
        log: dict[str, Any] = {}
        alarms: list[dict[str, Any]] = []
        replays: list[dict[str, Any]] = []
        queues, queue_count = (before.queues, before.queue_count) if before is not None else ([], 0)
        if vpn["state"] != "standby":
            log = api.ask("GET", "monitor", "replayLogs", "default")["data"]
            if at >= self._list_again:
                queues, queue_count = self._queues(at)
                self._list_again = at + LIST_SHARE * (self._seconds() - at)
            replays = self._replays()
        alarms = api.ask("GET", "monitor", "alarms", count=MOST_SHOWN)["data"]
        rates = _rates(before, at, vpn)
        return Look(at, _now_ms(), vpn, log, queues, queue_count, replays, alarms, rates)

    def _queues(self, at: float) -> tuple[list[dict[str, Any]], int]:
        columns = (
            "queueName,spooledMsgCount,msgSpoolUsage,bindCount,txUnackedMsgCount,replayState,replayRemaining"
        )
        answer = self._api.ask(
            "GET", "monitor", "queues", where="spooledMsgCount>0", select=columns, count=MOST_QUEUES
        )
        passed, before = at - self._listed_at, self._depths
        self._listed_at = at
        self._depths = {one["queueName"]: one["spooledMsgCount"] for one in answer["data"]}
        for queue in answer["data"]:
            known = before.get(queue["queueName"])
            grew = None if known is None or passed <= 0 else (queue["spooledMsgCount"] - known) / passed
            queue["msgsPerSecond"] = None if grew is None else round(grew, 1)
        found = sorted(answer["data"], key=lambda one: -one["spooledMsgCount"])
        return found, max(answer["meta"].get("count") or 0, len(found))

    def _replays(self) -> list[dict[str, Any]]:
        try:
            answer = self._api.ask("GET", "monitor", "replays", where=_UNDER_WAY, count=MOST_SHOWN)
        except NotDone as error:
            if error.is_absent:
                raise
            return []  # an older gateway keeps no records of them
        found: list[dict[str, Any]] = answer["data"]
        return found


def _rates(before: Look | None, at: float, vpn: dict[str, Any]) -> dict[str, float | None]:
    """What the counters rose by a second; unknown of a gateway that was away, as they may have begun anew."""
    if before is None or before.problem is not None or at <= before.at:
        return dict.fromkeys(_COUNTERS)
    rose = {rate: vpn.get(counter, 0) - before.vpn.get(counter, 0) for rate, counter in _COUNTERS.items()}
    if min(rose.values()) < 0:
        return dict.fromkeys(_COUNTERS)
    return {rate: round(by / (at - before.at), 1) for rate, by in rose.items()}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


@click.command()
@click.option(
    "--interval",
    type=click.FloatRange(min=0.5, max=3_600),
    default=1.0,
    show_default=True,
    help="Seconds from one look to the next.",
)
@click.option("--count", type=click.IntRange(min=1), help="End after so many looks.")
@api_options
def top(api: Api, interval: float, count: int | None) -> None:
    """Show what goes on: rates, queues by depth, replays, alarms, the log's use. Ctrl-C ends it.

    On a terminal one view is kept up to date; elsewhere each look is printed, with `--json` as an object a line. A
    gateway that goes away is waited for.
    """
    looks = _looks(Watch(api), interval, count)
    try:
        if api.as_json:
            for look in looks:
                click.echo(look.to_json())
        else:
            from gateway.cli.output.top_view import show_looks  # noqa: PLC0415 - it loads rich

            show_looks(looks)
    except KeyboardInterrupt:
        # How one leaves it.
        return


def _looks(watch: Watch, interval: float, count: int | None) -> Iterator[Look]:
    """So many looks, each an interval after the one before; one that took long is not made up for."""
    for number in numbers() if count is None else range(count):
        if number:
            time.sleep(interval)
        yield watch.look()
