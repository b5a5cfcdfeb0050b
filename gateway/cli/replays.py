"""
``rewind replay`` and ``rewind dead``: replays onto endpoints, and jobs that publish messages of the log or dead letters
again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from gateway.cli.api import Api, NotDone, api_options
from gateway.cli.words import counted
from gateway.core.replay.states import ReplayState

JOB_LOOK_SECONDS: Final = 0.2
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
        time.sleep(JOB_LOOK_SECONDS)
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
            time.sleep(JOB_LOOK_SECONDS)
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


LOOK_SECONDS = 0.2
"""Between two looks at a replay that is waited for."""

_endpoint = click.argument("endpoint")
_clamp = click.option(
    "--clamp",
    is_flag=True,
    help="Where the start is not in the log (any more), begin at the nearest that is.",
)
_keep_unlogged = click.option(
    "--keep-unlogged", is_flag=True, help="What lies on ENDPOINT and the log does not have is not dropped."
)
_is_topic = click.option("--topic-endpoint", is_flag=True, help="ENDPOINT is a topic endpoint, not a queue.")


_UNDER_WAY: Final = {
    state.value for state in (ReplayState.INITIALIZING, ReplayState.ACTIVE, ReplayState.PENDING_COMPLETE)
}


_COLUMNS: Final = (
    "replayName",
    "kind",
    "target",
    "requester",
    "state",
    "startedTimeMs",
    "endedTimeMs",
    "sentMsgCount",
    "outcome",
)


def _collection(topic_endpoint: bool) -> str:
    return "topicEndpoints" if topic_endpoint else "queues"


def _place(start: str, clamp: bool) -> dict[str, str]:
    return {"start": start, "missing": "clamp" if clamp else "fail"}


@click.group()
def replay() -> None:
    """Replay the log to an endpoint, see how far it is, or end it."""


@replay.command()
@_endpoint
@click.option("--from", "start", default="beginning", show_default=True, help="Any replay start.")
@_clamp
@click.option("--wait", is_flag=True, help="Return when everything replayed was acknowledged.")
@click.option("--name", help="What it is called on record, and on the messages that it delivers.")
@click.option("--expect", type=click.IntRange(0), help="Only if it brings so many messages.")
@click.option(
    "--loss-at-most",
    type=click.IntRange(0),
    help="Only if no more messages than that are dropped which the log does not have.",
)
@_keep_unlogged
@click.option("--yes", is_flag=True, help="Do not ask for ENDPOINT's name; on a terminal it is asked for.")
@_is_topic
@api_options
def start(
    api: Api,
    endpoint: str,
    start: str,
    clamp: bool,
    wait: bool,
    name: str | None,
    expect: int | None,
    loss_at_most: int | None,
    keep_unlogged: bool,
    yes: bool,
    topic_endpoint: bool,
) -> None:
    """Replay the log to ENDPOINT: what lies on it is dropped, its consumers have to attach again."""
    collection = _collection(topic_endpoint)
    place = {**_place(start, clamp), "keepUnlogged": keep_unlogged}
    body = {
        **place,
        "replayName": name,
        "expectedMsgCount": expect,
        "ifLossAtMost": loss_at_most,
    }
    if not (yes or api.as_json) and is_terminal():
        _confirm(api, collection, endpoint, place)
    data = api.ask("PUT", "action", collection, endpoint, "startReplay", body=body)["data"]
    if not wait:
        api.done(data, f"the replay of {endpoint} starts at message {data['firstMsgId']}")
        return
    shown = _wait(api, collection, endpoint, data["firstMsgId"])
    if shown["replayState"] != ReplayState.COMPLETE.value:
        raise api.not_done(f"the replay is {shown['replayState']}: {shown['lastReplayFailureReason']}")
    api.done(shown, f"the replay of {endpoint} is complete")


def is_terminal() -> bool:
    """Whether a person is there to be asked."""
    return sys.stdin.isatty()


def _confirm(api: Api, collection: str, endpoint: str, place: dict[str, Any]) -> None:
    """
    Say what would be done, and have a person type the endpoint's name.

    Raises:
        NotDone: They do not.
    """
    found = api.ask("PUT", "action", collection, endpoint, "previewReplay", body=place)["data"]
    api.show({name: value for name, value in found.items() if name != "topics"})
    lost = counted(found["lossMsgCount"], "message")
    click.echo(
        f"{counted(found['droppedMsgCount'], 'message')} on {endpoint} will be dropped. Of these the log (or its "
        f"archive) does not have {lost}: lost for good. {counted(found['keptMsgCount'], 'message')} will stay. "
        f"{counted(found['detachedClientCount'], 'consumer')} will be detached.",
        err=True,
    )
    if click.prompt(f"Type {endpoint} to go on", err=True, default="", show_default=False) != endpoint:
        raise api.not_done(f"nothing was done: {endpoint} was not typed; --yes leaves the question out")


def _wait(api: Api, collection: str, endpoint: str, first: int) -> dict[str, Any]:
    """Until a replay is over; a bar on stderr where that is a terminal."""
    with click.progressbar(length=1, label="initializing", file=sys.stderr, show_eta=True) as bar:
        while True:
            shown: dict[str, Any] = api.ask("GET", "monitor", collection, endpoint)["data"]
            state = shown["replayState"]
            done = max(shown["replayPosition"] - first, 0)
            bar.length = max(done + shown["replayRemaining"], 1)
            bar.label = f"{state}, {shown['replayOutstandingMsgCount']} unacknowledged"
            bar.update(max(done - bar.pos, 0))
            if state not in _UNDER_WAY:
                return shown
            time.sleep(LOOK_SECONDS)


@replay.command()
@_endpoint
@click.option("--force-complete", is_flag=True, help="Keep on it what was replayed so far.")
@_is_topic
@api_options
def cancel(api: Api, endpoint: str, force_complete: bool, topic_endpoint: bool) -> None:
    """End the replay of ENDPOINT that is under way; or, where it is the name of a copy or return, that."""
    body = {"forceComplete": force_complete}
    try:
        answer = api.ask("PUT", "action", _collection(topic_endpoint), endpoint, "cancelReplay", body=body)
    except NotDone as refused:
        if force_complete or topic_endpoint:
            raise
        cancel_job(api, endpoint, refused)
        return
    api.done(
        answer.get("data"), f"the replay of {endpoint} was {'completed' if force_complete else 'cancelled'}"
    )


@replay.command("list")
@click.option("--endpoint", help="Of this queue, topic endpoint or address alone; * stands for anything.")
@api_options
def list_replays(api: Api, endpoint: str | None) -> None:
    """List replays under way and those of the past, the oldest first."""
    where = None if endpoint is None else f"target=={endpoint}"
    api.table(api.all("monitor", "replays", where=where), _COLUMNS, "There is no replay on record.")


@replay.command()
@click.argument("name")
@_is_topic
@api_options
def show(api: Api, name: str, topic_endpoint: bool) -> None:
    """Show the replay called NAME; or, where NAME is an endpoint, how far its replay is, and what became of others."""
    found = None if topic_endpoint else _on_record(api, name)
    if found is not None:
        api.show(found)
        return
    data = api.ask("GET", "monitor", _collection(topic_endpoint), name)["data"]
    api.show({attribute: value for attribute, value in data.items() if "eplay" in attribute})


def _on_record(api: Api, name: str) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = api.ask("GET", "monitor", "replays", name)["data"]
    except NotDone as refused:
        if refused.status != "NOT_FOUND":
            raise
        return None
    return found


@replay.command()
@_endpoint
@click.option("--from", "start", default="beginning", show_default=True, help="Any replay start.")
@_clamp
@click.option(
    "--topics", "by_topic", is_flag=True, help="And how much of each topic; of the twenty with the most."
)
@_keep_unlogged
@_is_topic
@api_options
def preview(
    api: Api,
    endpoint: str,
    start: str,
    clamp: bool,
    by_topic: bool,
    keep_unlogged: bool,
    topic_endpoint: bool,
) -> None:
    """Say what a replay would bring to ENDPOINT, without doing it."""
    path = (_collection(topic_endpoint), endpoint, "previewReplay")
    body = {**_place(start, clamp), "keepUnlogged": keep_unlogged}
    found = api.ask("PUT", "action", *path, body=body)["data"]
    topics = found["topics"]
    api.show(found if api.as_json else {name: value for name, value in found.items() if name != "topics"})
    if by_topic and not api.as_json:
        click.echo()
        api.table(iter(topics), ("topic", "msgCount", "msgSpoolUsage"))


for _verb in (copy, pause, resume):
    replay.add_command(_verb)
