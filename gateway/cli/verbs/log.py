"""``rewind log``: the replay log, what it holds, what it takes, and how much of it is kept."""

from __future__ import annotations

import click

from gateway.cli.api import Api, api_options
from gateway.cli.output.words import MEGABYTE, size
from gateway.cli.verbs.erase import erase
from gateway.cli.verbs.log_plan import show_plan

_LOG = ("replayLogs", "default")
_FILTER = (*_LOG, "topicFilterSubscriptions")


@click.group("log")
def replay_log() -> None:
    """The replay log."""


@replay_log.command("show")
@api_options
def show_log(api: Api) -> None:
    """Show its use, its oldest and its newest message."""
    api.show(api.ask("GET", "monitor", *_LOG)["data"])


replay_log.add_command(show_plan)


@replay_log.command()
@click.argument("before")
@api_options
def trim(api: Api, before: str) -> None:
    """Delete what the log holds BEFORE a place: a date, `10D`, `#123`, `rmid1:…`, `point:NAME`."""
    data = api.ask("PUT", "action", *_LOG, "trimLoggedMsgs", body={"before": before})["data"]
    api.done(data, f"the log begins at message {data['firstMsgId']}")


@replay_log.command()
@click.option("--from", "start", default="beginning", show_default=True, help="Any replay start.")
@click.option("--until", help="The end: `now`, a date, `#123` or `rmid1:…`. Without it, now.")
@click.option("--topic", "--subscribe", "topics", multiple=True, help="A topic pattern; may be repeated.")
@click.option("--selector", help="A JMS selector.")
@click.option("--newest", is_flag=True, help="The newest first.")
@click.option("--count", type=click.IntRange(min=1), default=20, show_default=True)
@api_options
def messages(
    api: Api,
    start: str,
    until: str | None,
    topics: tuple[str, ...],
    selector: str | None,
    newest: bool,
    count: int,
) -> None:
    """List messages of the log."""
    query = {"start": start, "until": until, "subscribe": topics or None, "selector": selector}
    order = "newest" if newest else None
    found = api.all("monitor", *_LOG, "msgs", limit=count, order=order, **query)
    columns = ("msgId", "replicationGroupMsgId", "spooledTimeMs", "priority", "contentSize", "topic")
    api.table(found, columns, "no messages")


replay_log.add_command(erase)


def _change(api: Api, attribute: str, value: bool | int, sentence: str) -> None:
    data = api.ask("PATCH", "config", *_LOG, body={attribute: value})["data"]
    api.done(data, sentence)


@replay_log.command()
@click.option("--reads", is_flag=True, help="Have it be replayed and read; without, have it take messages.")
@api_options
def enable(api: Api, reads: bool) -> None:
    """Have the log take messages."""
    _change(
        api,
        "egressEnabled" if reads else "ingressEnabled",
        True,
        "the log can be read" if reads else "the log takes messages",
    )


@replay_log.command()
@click.option("--reads", is_flag=True, help="Have nobody replay or read it; without, have it take nothing.")
@api_options
def disable(api: Api, reads: bool) -> None:
    """Have the log take no messages; what is in it stays."""
    _change(
        api,
        "egressEnabled" if reads else "ingressEnabled",
        False,
        "the log cannot be read" if reads else "the log takes no messages",
    )


# So that a number below 0 is told to be one, and is no option that does not exist.
@replay_log.command(context_settings={"ignore_unknown_options": True})
@click.argument("megabytes", type=click.IntRange(min=0))
@api_options
def quota(api: Api, megabytes: int) -> None:
    """Have the log hold MEGABYTES; it is trimmed from 90 % on. 0 is no bound."""
    held = f"hold {size(megabytes * MEGABYTE)}" if megabytes else "grow without limit"
    _change(api, "maxSpoolUsage", megabytes, f"the log may {held}")


@replay_log.command("keep-until-archived")
@click.argument("wanted", type=click.Choice(["on", "off"]))
@api_options
def keep_until_archived(api: Api, wanted: str) -> None:
    """Whether nothing is trimmed that is not archived."""
    _change(api, "keepUntilArchivedEnabled", wanted == "on", f"keep until archived is {wanted}")


@replay_log.group("filter")
def topic_filter() -> None:
    """Which topics the log takes; `!` in front of one leaves it out."""


@topic_filter.command("list")
@api_options
def list_topics(api: Api) -> None:
    """List them."""
    api.table(api.all("config", *_FILTER), ("topicFilterSubscription",), "no topics")


@topic_filter.command("add")
@click.argument("topic")
@api_options
def add_topic(api: Api, topic: str) -> None:
    """Have it take TOPIC, while the filter is on."""
    data = api.ask("POST", "config", *_FILTER, body={"topicFilterSubscription": topic})["data"]
    api.done(data, f"the filter has {topic}")


@topic_filter.command("remove")
@click.argument("topic")
@api_options
def remove_topic(api: Api, topic: str) -> None:
    """Take TOPIC out of the filter."""
    answer = api.ask("DELETE", "config", *_FILTER, topic)
    api.done(answer.get("data"), f"the filter has {topic} no longer")


@topic_filter.command("on")
@api_options
def filter_on(api: Api) -> None:
    """Take the filter's topics alone."""
    _change(api, "topicFilterEnabled", True, "the log takes the filter's topics alone")


@topic_filter.command("off")
@api_options
def filter_off(api: Api) -> None:
    """Take every topic."""
    _change(api, "topicFilterEnabled", False, "the log takes every topic")
