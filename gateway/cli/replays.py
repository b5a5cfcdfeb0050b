"""
``rewind replay`` and ``rewind dead``: replays onto endpoints, and jobs that publish messages of the log or dead letters
again.

An option of a verb that becomes an attribute of the request has the name of that attribute.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import click

from gateway.cli.api import LOG, Api, NotDone, verb
from gateway.cli.options import EXIT_INTERRUPTED
from gateway.cli.words import counted
from gateway.core.model import ENDED
from gateway.core.replay.states import ReplayState

LOOK_SECONDS: Final = 0.2
"""Between two looks at the replay, or the job, that ``--wait`` waits for."""

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

_endpoint = click.argument("endpoint")
_queue = click.argument("queue")
_named = click.argument("name")
_start = click.option("--from", "start", default="beginning", show_default=True, help="Any replay start.")
_clamp = click.option(
    "--clamp",
    "missing",
    flag_value="clamp",
    default="fail",
    help="If the start is not in the log, begin at the nearest message that is.",
)
_is_topic = click.option("--topic-endpoint", is_flag=True, help="It is a topic endpoint, not a queue.")
_keep_unlogged = click.option(
    "--keep-unlogged",
    "keepUnlogged",
    is_flag=True,
    help="Messages on ENDPOINT that the log does not have stay.",
)
_selector = click.option("--selector", default="", help="Only messages that match.")
_rate = click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="Messages a second, at most."
)
_name = click.option("--name", default="", help="The job's name; by default made of requester and time.")
_waits = click.option("--wait", is_flag=True, help="Return when it has ended, with a bar on a terminal.")


def _collection(topic_endpoint: bool) -> str:
    return "topicEndpoints" if topic_endpoint else "queues"


def _without_topics(found: Mapping[str, Any]) -> dict[str, Any]:
    """A preview without its list of topics."""
    return {name: value for name, value in found.items() if name != "topics"}


@click.group()
def replay() -> None:
    """Start, show and end replays onto endpoints, and copies of the log."""


@verb(
    replay,
    "start",
    _endpoint,
    _start,
    _clamp,
    click.option("--wait", is_flag=True, help="Return when all replayed messages are acknowledged."),
    click.option("--name", "replayName", help="The replay's name, in its record and on its messages."),
    click.option(
        "--expect",
        "expectedMsgCount",
        type=click.IntRange(0),
        help="Refuse unless it brings this many messages.",
    ),
    click.option(
        "--loss-at-most",
        "ifLossAtMost",
        type=click.IntRange(0),
        help="Refuse if it drops more messages than this that the log does not have.",
    ),
    _keep_unlogged,
    click.option("--yes", is_flag=True, help="Do not ask for ENDPOINT's name, as is done on a terminal."),
    _is_topic,
)
def start(api: Api, endpoint: str, wait: bool, yes: bool, topic_endpoint: bool, **body: Any) -> None:
    """Replay the log to ENDPOINT. Its messages are dropped, and its consumers have to attach again."""
    path = (_collection(topic_endpoint), endpoint)
    if not (yes or api.as_json) and is_terminal():
        _confirm(api, path, {name: body[name] for name in ("start", "missing", "keepUnlogged")})
    data = api.act(*path, "startReplay", body=body)
    if not wait:
        api.done(data, f"the replay of {endpoint} starts at message {data['firstMsgId']}")
        return
    shown = _wait(api, path, data["firstMsgId"])
    if shown["replayState"] != ReplayState.COMPLETE.value:
        raise api.not_done(f"the replay is {shown['replayState']}: {shown['lastReplayFailureReason']}")
    api.done(shown, f"the replay of {endpoint} is complete")


def is_terminal() -> bool:
    """Whether a person is there to be asked."""
    return sys.stdin.isatty()


@contextmanager
def _waiting(name: str) -> Iterator[None]:
    """Where Ctrl-C ends the waiting, say that it does not end what is waited for."""
    try:
        yield
    except KeyboardInterrupt:
        click.echo(f"rewind: {name} goes on; `rewind replay cancel` ends it", err=True)
        raise click.exceptions.Exit(EXIT_INTERRUPTED) from None


def _confirm(api: Api, path: tuple[str, str], body: dict[str, Any]) -> None:
    """
    Say what would be done, and ask the user to type the endpoint's name.

    Raises:
        NotDone: The user typed something else.
    """
    endpoint = path[1]
    found = api.act(*path, "previewReplay", body=body)
    api.show(_without_topics(found))
    lost = counted(found["lossMsgCount"], "message")
    click.echo(
        f"{counted(found['droppedMsgCount'], 'message')} on {endpoint} will be dropped. Of these the log (or its "
        f"archive) does not have {lost}: lost for good. {counted(found['keptMsgCount'], 'message')} will stay. "
        f"{counted(found['detachedClientCount'], 'consumer')} will be detached.",
        err=True,
    )
    if click.prompt(f"Type {endpoint} to go on", err=True, default="", show_default=False) != endpoint:
        raise api.not_done(f"nothing was done: {endpoint} was not typed; --yes skips the question")


def _wait(api: Api, path: tuple[str, str], first: int) -> dict[str, Any]:
    """Wait until a replay is over, with a bar on stderr where that is a terminal; return the endpoint's state."""
    with (
        _waiting(f"the replay of {path[1]}"),
        click.progressbar(length=1, label="initializing", file=sys.stderr, show_eta=True) as bar,
    ):
        while True:
            shown: dict[str, Any] = api.look(*path)
            state = shown["replayState"]
            done = max(shown["replayPosition"] - first, 0)
            bar.length = max(done + shown["replayRemaining"], 1)
            bar.label = f"{state}, {shown['replayOutstandingMsgCount']} unacknowledged"
            bar.update(max(done - bar.pos, 0))
            if state not in _UNDER_WAY:
                return shown
            time.sleep(LOOK_SECONDS)


@verb(
    replay,
    "cancel",
    _endpoint,
    click.option("--force-complete", is_flag=True, help="Keep the messages that were replayed so far."),
    _is_topic,
)
def cancel(api: Api, endpoint: str, force_complete: bool, topic_endpoint: bool) -> None:
    """Cancel the replay of ENDPOINT; or, if ENDPOINT names a job, that job."""
    path = (_collection(topic_endpoint), endpoint, "cancelReplay")
    try:
        data = api.act(*path, body={"forceComplete": force_complete})
    except NotDone as refused:
        if force_complete or topic_endpoint:
            raise
        _cancel_job(api, endpoint, refused)
        return
    api.done(data, f"the replay of {endpoint} was {'completed' if force_complete else 'cancelled'}")


def _cancel_job(api: Api, name: str, instead_of: NotDone) -> None:
    """
    End a job.

    Args:
        instead_of: The refusal for an endpoint of this name.

    Raises:
        NotDone: There is no job of this name (then this is ``instead_of``), or the request was refused.
    """
    try:
        data = _act(api, "cancelReplay", name)
    except NotDone as refused:
        raise (instead_of if refused.status in ("NOT_FOUND", "UNAUTHORIZED") else refused) from None
    api.done(data, f"{name} was cancelled; what it has published stays")


@verb(
    replay,
    "list",
    click.option(
        "--endpoint", help="Only those to this queue, topic endpoint or address; * stands for anything."
    ),
)
def list_replays(api: Api, endpoint: str | None) -> None:
    """List running and past replays, the oldest first."""
    where = None if endpoint is None else f"target=={endpoint}"
    api.table(api.all("monitor", "replays", where=where), _COLUMNS, "There are no replays.")


@verb(replay, "show", _named, _is_topic)
def show(api: Api, name: str, topic_endpoint: bool) -> None:
    """Show the replay called NAME; or, if NAME is an endpoint, its running replay and the counts of earlier ones."""
    if not topic_endpoint:
        try:
            api.show(api.look("replays", name))
            return
        except NotDone as refused:
            if refused.status != "NOT_FOUND":
                raise
    data = api.look(_collection(topic_endpoint), name)
    api.show({attribute: value for attribute, value in data.items() if "eplay" in attribute})


@verb(
    replay,
    "preview",
    _endpoint,
    _start,
    _clamp,
    click.option(
        "--topics",
        "by_topic",
        is_flag=True,
        help="Also list how much of each topic, for the twenty with the most.",
    ),
    _keep_unlogged,
    _is_topic,
)
def preview(api: Api, endpoint: str, by_topic: bool, topic_endpoint: bool, **body: Any) -> None:
    """Say what a replay would bring to ENDPOINT; nothing is changed."""
    found = api.act(_collection(topic_endpoint), endpoint, "previewReplay", body=body)
    api.show(found if api.as_json else _without_topics(found))
    if by_topic and not api.as_json:
        click.echo()
        api.table(iter(found["topics"]), ("topic", "msgCount", "msgSpoolUsage"))


@verb(
    replay,
    "copy",
    _start,
    click.option(
        "--until", help="The last message: `now`, a date, `#123`, `rmid1:…`; at most the newest now."
    ),
    _clamp,
    click.option(
        "--subscribe",
        "subscriptions",
        multiple=True,
        help="A topic pattern; a leading `!` makes an exception.",
    ),
    _selector,
    click.option("--to", "target", required=True, help="`queue://NAME` or `topic://TOPIC`."),
    click.option(
        "--at",
        "replayTarget",
        default="",
        metavar="LABEL",
        help="The `replay_target` of the configuration that has the address.",
    ),
    _rate,
    click.option(
        "--speed",
        type=click.FloatRange(min=0, min_open=True),
        help="How fast, as a factor of the pace at which the messages were published.",
    ),
    _name,
    _waits,
)
def copy(api: Api, wait: bool, **body: Any) -> None:
    """Publish a part of the log again, to an address, as a job that continues when the gateway restarts."""
    data = api.act(*LOG, "startCopy", body=body)
    if wait:
        _show_end(api, data)
        return
    where = f"{body['target']} at {body['replayTarget']}" if body["replayTarget"] else body["target"]
    api.done(
        data,
        f"{data['replayName']}: messages {data['firstMsgId']} to {data['lastMsgId']} are copied to {where}",
    )


@verb(replay, "pause", _named)
def pause(api: Api, name: str) -> None:
    """Pause the job NAME; it stays paused when the gateway restarts."""
    api.done(_act(api, "pauseReplay", name), f"{name} is paused")


@verb(replay, "resume", _named)
def resume(api: Api, name: str) -> None:
    """Resume the job NAME."""
    api.done(_act(api, "resumeReplay", name), f"{name} is resumed")


def _act(api: Api, action: str, name: str) -> Any:
    return api.act(*LOG, action, body={"replayName": name})


def _show_end(api: Api, begun: dict[str, Any]) -> None:
    """Wait for a job, and print its outcome. Raises NotDone where it did not complete."""
    name = begun["replayName"]
    shown = _ended(api, begun)
    if shown["state"] != "complete":
        raise api.not_done(f"{name} is {shown['state']}: {shown['outcome']}")
    api.done(shown, f"{name} is complete: {shown['outcome']}")


def _ended(api: Api, begun: dict[str, Any]) -> dict[str, Any]:
    """Wait until a job is over, with a bar on a terminal; return its record."""
    name, first = begun["replayName"], begun["firstMsgId"]
    length = begun["lastMsgId"] + 1 - first
    screen = sys.stderr if sys.stderr.isatty() else io.StringIO()
    with (
        _waiting(name),
        click.progressbar(length=max(length, 1), label=name, file=screen, show_eta=True) as bar,
    ):
        shown: dict[str, Any]
        while (shown := api.look("replays", name))["state"] not in ENDED:
            bar.label = f"{name}: {shown['sentMsgCount']} {shown['outcome']}"
            bar.update(max(shown["positionMsgId"] - first - bar.pos, 0))
            time.sleep(LOOK_SECONDS)
        # Of a return of dead letters only the highest id is known, not their number: fill the bar.
        bar.update(max(length - bar.pos, 0) if shown["state"] == "complete" else 0)
    return shown


@click.group()
def dead() -> None:
    """Dead letters: count them by reason, and send them back."""


@verb(
    dead,
    "list",
    _queue,
    click.option(
        "--by", type=click.Choice(["reason", "endpoint", "both"]), default="both", show_default=True
    ),
)
def list_dead(api: Api, queue: str, by: str) -> None:
    """Count the dead letters on QUEUE, by reason and by the endpoint where they died."""
    groups = {"reason": ["deadReason"], "endpoint": ["deadEndpointName"]}
    columns = [*groups.get(by, ["deadReason", "deadEndpointName"]), "msgCount", "msgSpoolUsage"]
    api.table(
        api.all("monitor", "queues", queue, "deadMsgs", by=by), columns, f"There is no message on {queue}."
    )


@verb(
    dead,
    "return",
    _queue,
    _selector,
    click.option(
        "--to", "target", default="", help="An address; by default, the endpoint where each message died."
    ),
    _rate,
    click.option("--limit", type=click.IntRange(min=1), help="How many at most."),
    _name,
    _waits,
)
def return_dead(api: Api, queue: str, wait: bool, limit: int | None, **body: Any) -> None:
    """Send dead letters of QUEUE back, a batch in each transaction. Those without an endpoint to go to stay."""
    data = api.act("queues", queue, "returnDead", body={**body, "limit": limit or 0})
    if wait:
        _show_end(api, data)
        return
    where = f"to {body['target']}" if body["target"] else "to where they died"
    api.done(data, f"{data['replayName']}: dead letters of {queue} go {where}")
