"""
``rewind top``: rates, depths, replays, alarms and the log's use of a Message VPN, refreshed again and again.

Each refresh is a look: five requests at most. While the gateway is unavailable, the command waits for it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import count as numbers
from typing import Any, Final

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from gateway.cli import words
from gateway.cli.api import LOG, Api, NotDone, api_options
from gateway.cli.tables import console, show, table_of
from gateway.cli.words import style_of
from gateway.core.model import ENDED

ANSWER_S = 10.0
"""Seconds to wait for an answer: a gateway that gives none is shown as unavailable."""

MOST_QUEUES: Final = 100
"""Queues that a look asks for."""

MOST_SHOWN: Final = 20
"""Replays and alarms that a look asks for."""

LIST_SHARE: Final = 20
"""After a list of queues, the pause until the next one, as a multiple of the time that the list took."""

_UNDER_WAY: Final = ",".join(f"state!={state}" for state in sorted(ENDED))

_COUNTERS: Final = {
    "publishedMsgsPerSecond": "publishedMsgCount",
    "publishedBytesPerSecond": "publishedBytes",
    "settledMsgsPerSecond": "settledMsgCount",
}

_LINES_ABOVE: Final = 8
"""Lines on the screen other than the list of queues, the replays and the alarms."""

_QUEUE_COLUMNS: Final = (
    "queueName",
    "spooledMsgCount",
    "msgsPerSecond",
    "msgSpoolUsage",
    "bindCount",
    "txUnackedMsgCount",
    "settledMsgsPerSecond",
    "lagMs",
    "oldestUnackedTimeMs",
    "oldestUnackedClientName",
    "replayState",
    "replayRemaining",
)
_REPLAY_COLUMNS: Final = ("replayName", "kind", "state", "target", "sentMsgCount", "outcome")
_ALARM_COLUMNS: Final = ("raisedTime", "alarm", "description")


@dataclass(frozen=True, slots=True)
class Look:
    """A Message VPN at one moment; of an unavailable gateway, the last known state, and ``problem``."""

    at: float
    """Seconds of a clock that only goes forward."""
    time_ms: int
    vpn: dict[str, Any] = field(default_factory=dict)
    log: dict[str, Any] = field(default_factory=dict)
    queues: list[dict[str, Any]] = field(default_factory=list)
    """The deepest queues, without empty ones; each with ``msgsPerSecond``, if that is known."""
    queue_count: int = 0
    """How many queues have messages."""
    replays: list[dict[str, Any]] = field(default_factory=list)
    """The replays under way."""
    alarms: list[dict[str, Any]] = field(default_factory=list)
    rates: dict[str, float | None] = field(default_factory=dict)
    problem: str | None = None
    """Why nothing newer is known."""

    def to_json(self) -> str:
        """One line for a program."""
        parts = ("problem", "vpn", "rates", "log", "queues", "replays", "alarms")
        found = {"timeMs": self.time_ms, "queueCount": self.queue_count}
        found |= {name: getattr(self, name) for name in parts}
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
        self._depths: dict[str, tuple[int, int]] = {}

    def look(self) -> Look:
        """
        Look now.

        Raises:
            NotDone: The gateway refuses to answer: the user has no right to look.
        """
        try:
            found = self._look()
        except NotDone as error:
            if not error.is_absent and error.status != "FAIL":
                raise
            # The next look that succeeds is not compared with this one: the counters may have begun anew.
            known = self._before or Look(self._seconds(), 0)
            self._before = replace(known, rates={})
            return replace(known, time_ms=_now_ms(), rates={}, problem=error.message)
        self._before = found
        return found

    def _look(self) -> Look:
        api, before = self._api, self._before
        vpn = api.look()
        at = self._seconds()
        log: dict[str, Any] = {}
        alarms: list[dict[str, Any]] = []
        replays: list[dict[str, Any]] = []
        queues, queue_count = (before.queues, before.queue_count) if before is not None else ([], 0)
        if vpn["state"] != "standby":
            log = api.look(*LOG)
            if at >= self._list_again:
                queues, queue_count = self._queues(at)
                self._list_again = at + LIST_SHARE * (self._seconds() - at)
            replays = self._replays()
        alarms = api.look("alarms", count=MOST_SHOWN)
        rates = _rates(before, at, vpn)
        return Look(at, _now_ms(), vpn, log, queues, queue_count, replays, alarms, rates)

    def _queues(self, at: float) -> tuple[list[dict[str, Any]], int]:
        columns = (
            "queueName,spooledMsgCount,msgSpoolUsage,bindCount,txUnackedMsgCount,replayState,replayRemaining,"
            "settledMsgCount,lagMsgCount,lagMs,oldestUnackedMsgId,oldestUnackedTimeMs,oldestUnackedClientId,"
            "oldestUnackedClientName,oldestUnackedClientUsername,oldestUnackedClientAddress"
        )
        answer = self._api.ask(
            "GET", "monitor", "queues", where="spooledMsgCount>0", select=columns, count=MOST_QUEUES
        )
        passed, before = at - self._listed_at, self._depths
        self._listed_at = at
        self._depths = {
            one["queueName"]: (one["spooledMsgCount"], one.get("settledMsgCount", 0))
            for one in answer["data"]
        }
        for queue in answer["data"]:
            known = before.get(queue["queueName"])
            now = self._depths[queue["queueName"]]
            for rate, place in (("msgsPerSecond", 0), ("settledMsgsPerSecond", 1)):
                grew = None if known is None or passed <= 0 else (now[place] - known[place]) / passed
                queue[rate] = None if grew is None else round(grew, 1)
        found = sorted(answer["data"], key=lambda one: -one["spooledMsgCount"])
        return found, max(answer["meta"].get("count") or 0, len(found))

    def _replays(self) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = self._api.look("replays", where=_UNDER_WAY, count=MOST_SHOWN)
        except NotDone as error:
            if error.is_absent:
                raise
            return []  # an older gateway keeps no records of them
        return found


def _rates(before: Look | None, at: float, vpn: dict[str, Any]) -> dict[str, float | None]:
    """The rise of the counters a second; unknown after a gateway was unavailable, as they may have begun anew."""
    if before is None or before.problem is not None or at <= before.at:
        return dict.fromkeys(_COUNTERS)
    rose = {rate: vpn.get(counter, 0) - before.vpn.get(counter, 0) for rate, counter in _COUNTERS.items()}
    if min(rose.values()) < 0:
        return dict.fromkeys(_COUNTERS)
    return {rate: round(by / (at - before.at), 1) for rate, by in rose.items()}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def show_looks(looks: Iterable[Look]) -> None:
    """Print one view that changes on a terminal, elsewhere one view after the other."""
    screen = console()
    if not screen.is_terminal:
        for look in looks:
            show(view(look))
        return
    with Live(console=screen, screen=True, auto_refresh=False) as live:
        last: Look | None = None
        for last in looks:
            live.update(view(last, screen.height), refresh=True)
    if last is not None:
        # The view's own screen is gone now: leave the last view on the terminal.
        screen.print(view(last, screen.height))


def view(look: Look, height: int | None = None) -> RenderableType:
    """
    A look, rendered for a person.

    Args:
        height: Lines of the screen; None for no limit.
    """
    return Group(*_parts(look, height))


def _parts(look: Look, height: int | None) -> Iterator[RenderableType]:
    if look.problem is not None:
        yield Text(f"{words.moment(look.time_ms)}: {words.one_line(look.problem)}", style="red")
    if not look.vpn:
        return
    yield _state(look)
    yield _traffic(look)
    yield _log(look.log)
    room = len(look.queues)
    if height is not None:
        room = max(height - _LINES_ABOVE - len(look.replays) - len(look.alarms), 3)
    if look.queues:
        yield Text()
        yield table_of(look.queues[:room], _QUEUE_COLUMNS)
        hidden = look.queue_count - min(room, len(look.queues))
        if hidden > 0:
            yield Text(f"and {words.number(hidden)} more", style="dim")
    for things, columns in ((look.replays, _REPLAY_COLUMNS), (look.alarms, _ALARM_COLUMNS)):
        if things:
            yield Text()
            yield table_of(things, columns)


def _state(look: Look) -> Text:
    vpn = look.vpn
    text = Text(f"{words.one_line(vpn['msgVpnName'])}  ", style="bold")
    text.append(vpn["state"], style=style_of(vpn["state"]))
    text.append(
        f"  {words.counted(vpn['clientCount'], 'client')}, {words.counted(vpn['endpointCount'], 'endpoint')}, "
        f"{words.counted(len(look.alarms), 'alarm') if look.alarms else 'no alarms'}",
        style="not bold",
    )
    if vpn["storeProblem"]:
        text.append(f"  {words.one_line(vpn['storeProblem'])}", style="red")
    return text


def _traffic(look: Look) -> Text:
    rates, vpn = look.rates, look.vpn
    came, size, settled = (
        rates.get(name)
        for name in ("publishedMsgsPerSecond", "publishedBytesPerSecond", "settledMsgsPerSecond")
    )
    if came is None or size is None or settled is None:
        return Text("in and out: known from the next refresh on")
    return Text(
        f"in {words.number(came)} messages a second, {words.size(size)} a second; "
        f"out {words.number(settled)} messages a second; {words.size(vpn['pendingBytes'])} not durable yet"
    )


def _log(log: dict[str, Any]) -> Text:
    if not log:
        return Text("another gateway has the log")
    text = f"log {words.size(log['msgSpoolUsage'])}"
    if log["maxSpoolUsage"]:
        text += f", {log['usagePercent']:g} % of {words.size(log['maxSpoolUsage'] * words.MEGABYTE)}"
    return Text(f"{text}; messages {log['firstMsgId']} to {log['lastMsgId']}")


@click.command()
@click.option(
    "--interval",
    type=click.FloatRange(min=0.5, max=3_600),
    default=1.0,
    show_default=True,
    help="Seconds between two refreshes.",
)
@click.option("--count", type=click.IntRange(min=1), help="End after this many refreshes.")
@api_options
def top(api: Api, interval: float, count: int | None) -> None:
    """Show rates, queues by depth, replays, alarms and the log's use, until Ctrl-C.

    On a terminal one view is kept up to date; elsewhere each refresh is printed, with `--json` as one object a line. If
    the gateway becomes unavailable, `top` waits for it.
    """
    looks = _looks(Watch(api), interval, count)
    try:
        if api.as_json:
            for look in looks:
                click.echo(look.to_json())
        else:
            show_looks(looks)
    except KeyboardInterrupt:
        # Ctrl-C is how a person ends it.
        return


def _looks(watch: Watch, interval: float, count: int | None) -> Iterator[Look]:
    """``count`` looks (None: without end), each an interval after the end of the look before."""
    for number in numbers() if count is None else range(count):
        if number:
            time.sleep(interval)
        yield watch.look()
