"""``rewind replay``: replays onto endpoints."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import click

from gateway.cli.api import Api, NotDone, api_options
from gateway.cli.job_commands import cancel_job, copy, pause, resume
from gateway.core.replay.states import ReplayState

LOOK_SECONDS = 0.2
"""Between two looks at a replay that is waited for."""

_endpoint = click.argument("endpoint")
_clamp = click.option(
    "--clamp",
    is_flag=True,
    help="Where the start is not in the log (any more), begin at the nearest that is.",
)
_is_topic = click.option("--topic-endpoint", is_flag=True, help="ENDPOINT is a topic endpoint, not a queue.")


_UNDER_WAY: Final = {
    state.value for state in (ReplayState.INITIALIZING, ReplayState.ACTIVE, ReplayState.PENDING_COMPLETE)
}


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
@_is_topic
@api_options
def start(api: Api, endpoint: str, start: str, clamp: bool, wait: bool, topic_endpoint: bool) -> None:
    """Replay the log to ENDPOINT: what lies on it is dropped, its consumers have to attach again."""
    collection = _collection(topic_endpoint)
    data = api.ask("PUT", "action", collection, endpoint, "startReplay", body=_place(start, clamp))["data"]
    if not wait:
        api.done(data, f"the replay of {endpoint} starts at message {data['firstMsgId']}")
        return
    shown = _wait(api, collection, endpoint, data["firstMsgId"])
    if shown["replayState"] != ReplayState.COMPLETE.value:
        raise api.not_done(f"the replay is {shown['replayState']}: {shown['lastReplayFailureReason']}")
    api.done(shown, f"the replay of {endpoint} is complete")


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


@replay.command()
@_endpoint
@_is_topic
@api_options
def show(api: Api, endpoint: str, topic_endpoint: bool) -> None:
    """Show how far the replay of ENDPOINT is, and what became of earlier ones."""
    data = api.ask("GET", "monitor", _collection(topic_endpoint), endpoint)["data"]
    api.show({name: value for name, value in data.items() if "eplay" in name})


@replay.command()
@_endpoint
@click.option("--from", "start", default="beginning", show_default=True, help="Any replay start.")
@_clamp
@_is_topic
@api_options
def preview(api: Api, endpoint: str, start: str, clamp: bool, topic_endpoint: bool) -> None:
    """Say what a replay would bring to ENDPOINT, without doing it."""
    path = (_collection(topic_endpoint), endpoint, "previewReplay")
    api.show(api.ask("PUT", "action", *path, body=_place(start, clamp))["data"])


for _verb in (copy, pause, resume):
    replay.add_command(_verb)
