"""``rewind replay copy``, ``pause``, ``resume``, and ``rewind dead``: jobs that publish what was published before."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from gateway.cli.api import Api, NotDone, api_options

LOOK_SECONDS: Final = 0.2
"""Between two looks at a job that is waited for."""

_LOG: Final = ("replayLogs", "default")
_OVER: Final = frozenset({"complete", "cancelled", "failed"})

F = TypeVar("F", bound=Callable[..., Any])

_selector = click.option("--selector", default="", help="Only messages that it matches.")
_rate = click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="Messages a second, at most."
)
_name = click.option("--name", default="", help="What it is called; without, by who asks and when.")
_waits = click.option("--wait", is_flag=True, help="Return when it is over, with a bar on a terminal.")


@click.command()
@click.option("--from", "start", default="beginning", show_default=True, help="Any replay start.")
@click.option(
    "--until", help="The last message: `now`, a date, `#123`, `rmid1:…`; at most what the log has now."
)
@click.option(
    "--clamp", is_flag=True, help="Where the start is not in the log (any more), begin at the nearest."
)
@click.option("--subscribe", "patterns", multiple=True, help="A topic pattern; `!` in front leaves it out.")
@_selector
@click.option("--to", "target", required=True, help="`queue://NAME` or `topic://TOPIC`.")
@click.option(
    "--at",
    "remote",
    default="",
    metavar="LABEL",
    help="Where that is: a `replay_target` of the configuration.",
)
@_rate
@click.option(
    "--speed",
    type=click.FloatRange(min=0, min_open=True),
    help="A factor of the pace of the past: 1 is that.",
)
@_name
@_waits
@api_options
def copy(
    api: Api,
    start: str,
    until: str | None,
    clamp: bool,
    patterns: tuple[str, ...],
    selector: str,
    target: str,
    remote: str,
    rate: float | None,
    speed: float | None,
    name: str,
    wait: bool,
) -> None:
    """Publish a part of the log again, to an address; a job that goes on after a stop of the gateway."""
    body = {
        "start": start,
        "until": until,
        "missing": "clamp" if clamp else "fail",
        "subscriptions": list(patterns),
        "selector": selector,
        "target": target,
        "replayTarget": remote,
        "rate": rate,
        "speed": speed,
        "name": name,
    }
    data = api.ask("PUT", "action", *_LOG, "startCopy", body=body)["data"]
    if wait:
        _show_end(api, data)
    else:
        last, where = data["lastMsgId"], f"{target} at {remote}" if remote else target
        api.done(data, f"{data['replayName']}: messages {data['firstMsgId']} to {last} are copied to {where}")


@click.command()
@click.argument("name")
@api_options
def pause(api: Api, name: str) -> None:
    """Have the job called NAME rest; it stays so over a stop of the gateway."""
    api.done(_act(api, "pauseReplay", name), f"{name} rests")


@click.command()
@click.argument("name")
@api_options
def resume(api: Api, name: str) -> None:
    """Have the job called NAME go on where it was."""
    api.done(_act(api, "resumeReplay", name), f"{name} goes on")


def cancel_job(api: Api, name: str, instead_of: NotDone) -> None:
    """
    End a job.

    Args:
        instead_of: Why that is no replay of an endpoint.

    Raises:
        NotDone: There is no job of this name (then as ``instead_of`` has it), or it was refused.
    """
    try:
        data = _act(api, "cancelReplay", name)
    except NotDone as refused:
        raise (
            instead_of if refused.more.get("status") in ("NOT_FOUND", "UNAUTHORIZED") else refused
        ) from None
    api.done(data, f"{name} was cancelled; what it has published stays")


def _act(api: Api, action: str, name: str) -> Any:
    return api.ask("PUT", "action", *_LOG, action, body={"replayName": name}).get("data")


def _show_end(api: Api, begun: dict[str, Any]) -> None:
    """Wait for a job, and say what became of it; refused where it did not complete."""
    name = begun["replayName"]
    shown = _with_bar(api, begun) if sys.stderr.isatty() else _look(api, name)
    while shown["state"] not in _OVER:
        time.sleep(LOOK_SECONDS)
        shown = _look(api, name)
    if shown["state"] != "complete":
        raise api.not_done(f"{name} is {shown['state']}: {shown['outcome']}")
    api.done(shown, f"{name} is complete: {shown['outcome']}")


def _look(api: Api, name: str) -> dict[str, Any]:
    shown: dict[str, Any] = api.ask("GET", "monitor", "replays", name)["data"]
    return shown


def _with_bar(api: Api, begun: dict[str, Any]) -> dict[str, Any]:
    """A job as it is when it is over, with a bar until then."""
    name, first, length = (
        begun["replayName"],
        begun["firstMsgId"],
        begun["lastMsgId"] + 1 - begun["firstMsgId"],
    )
    with click.progressbar(length=max(length, 1), label=name, file=sys.stderr, show_eta=True) as bar:
        while (shown := _look(api, name))["state"] not in _OVER:
            bar.label = f"{name}: {shown['sentMsgCount']} {shown['outcome']}"
            bar.update(max(shown["positionMsgId"] - first - bar.pos, 0))
            time.sleep(LOOK_SECONDS)
        # Of dead letters nobody knows how many there are.
        bar.update(max(length - bar.pos, 0) if shown["state"] == "complete" else 0)
    return shown


@click.group()
def dead() -> None:
    """Dead letters: how many lie on a queue and why, and back with them."""


@dead.command("list")
@click.argument("queue")
@click.option("--by", type=click.Choice(["reason", "endpoint", "both"]), default="both", show_default=True)
@api_options
def list_dead(api: Api, queue: str, by: str) -> None:
    """Count what lies on QUEUE, by why and where it died."""
    columns = {
        "reason": ("deadReason", "msgCount", "msgSpoolUsage"),
        "endpoint": ("deadEndpointName", "msgCount", "msgSpoolUsage"),
        "both": ("deadReason", "deadEndpointName", "msgCount", "msgSpoolUsage"),
    }[by]
    api.table(api.all("monitor", "queues", queue, "deadMsgs", by=by), columns, f"Nothing lies on {queue}.")


@dead.command("return")
@click.argument("queue")
@_selector
@click.option("--to", "target", default="", help="An address; without, the queue where each message died.")
@_rate
@click.option("--limit", type=click.IntRange(min=1), help="So many at most.")
@_name
@_waits
@api_options
def return_dead(
    api: Api,
    queue: str,
    selector: str,
    target: str,
    rate: float | None,
    limit: int | None,
    name: str,
    wait: bool,
) -> None:
    """Send dead letters of QUEUE back, a batch in each transaction; what has nowhere to go stays."""
    body = {"selector": selector, "target": target, "rate": rate, "limit": limit or 0, "name": name}
    data = api.ask("PUT", "action", "queues", queue, "returnDead", body=body)["data"]
    if wait:
        _show_end(api, data)
    else:
        where = f"to {target}" if target else "to where they died"
        api.done(data, f"{data['replayName']}: dead letters of {queue} go {where}")
