"""The view of ``rewind top``: the state of a Message VPN in a few lines, then queues, replays and alarms."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from gateway.cli.output import words
from gateway.cli.output.attributes import style_of
from gateway.cli.output.tables import console, show, table_of

_LINES_ABOVE: Final = 8
"""What else stands on a screen than the list of queues."""

_QUEUE_COLUMNS: Final = (
    "queueName",
    "spooledMsgCount",
    "msgsPerSecond",
    "msgSpoolUsage",
    "bindCount",
    "txUnackedMsgCount",
    "replayState",
    "replayRemaining",
)
_REPLAY_COLUMNS: Final = ("replayName", "kind", "state", "target", "sentMsgCount", "outcome")
_ALARM_COLUMNS: Final = ("raisedTime", "alarm", "description")


class Shown(Protocol):
    """A look at a Message VPN, as ``gateway.cli.verbs.top`` makes it."""

    @property
    def vpn(self) -> dict[str, Any]: ...
    @property
    def log(self) -> dict[str, Any]: ...
    @property
    def queues(self) -> list[dict[str, Any]]: ...
    @property
    def queue_count(self) -> int: ...
    @property
    def replays(self) -> list[dict[str, Any]]: ...
    @property
    def alarms(self) -> list[dict[str, Any]]: ...
    @property
    def rates(self) -> dict[str, float | None]: ...
    @property
    def problem(self) -> str | None: ...
    @property
    def time_ms(self) -> int: ...


def show_looks(looks: Iterable[Shown]) -> None:
    """On a terminal one view that changes, elsewhere one below the other."""
    screen = console()
    if not screen.is_terminal:
        for look in looks:
            show(view(look))
        return
    with Live(console=screen, screen=True, auto_refresh=False) as live:
        last: Shown | None = None
        for last in looks:
            live.update(view(last, screen.height), refresh=True)
    if last is not None:
        # A screen of its own is gone with it.
        screen.print(view(last, screen.height))


def view(look: Shown, height: int | None = None) -> RenderableType:
    """
    A look for a person.

    Args:
        height: Lines that there are; None for as many as it takes.
    """
    return Group(*_parts(look, height))


def _parts(look: Shown, height: int | None) -> Iterator[RenderableType]:
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


def _state(look: Shown) -> Text:
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


def _traffic(look: Shown) -> Text:
    rates, vpn = look.rates, look.vpn
    came, size, settled = (
        rates.get(name)
        for name in ("publishedMsgsPerSecond", "publishedBytesPerSecond", "settledMsgsPerSecond")
    )
    if came is None or size is None or settled is None:
        return Text("in and out: known from the next look on")
    return Text(
        f"in {words.number(came)} messages a second, {words.size(size)} a second; "
        f"out {words.number(settled)} messages a second; {words.size(vpn['pendingBytes'])} not durable yet"
    )


def _log(log: dict[str, Any]) -> Text:
    if not log:
        return Text("the log is another gateway's")
    text = f"log {words.size(log['msgSpoolUsage'])}"
    if log["maxSpoolUsage"]:
        text += f", {log['usagePercent']:g} % of {words.size(log['maxSpoolUsage'] * words.MEGABYTE)}"
    return Text(f"{text}; messages {log['firstMsgId']} to {log['lastMsgId']}")
