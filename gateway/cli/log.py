"""``rewind log``: the replay log, what it holds and takes, how much of it is kept, and how its messages are erased."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from gateway.cli.api import Api, api_options
from gateway.cli.words import DAY_MS, HOUR_MS, MEGABYTE, counted, duration, moment, number, size

_UNITS_HOURS: Final = {"h": 1, "D": 24, "W": 24 * 7}


def _hours(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"([1-9][0-9]{0,5})([hDW])", text)
    if found is None:
        raise click.BadParameter(
            f"{text!r} is no time to be kept: write hours, days or weeks, as 12h, 30D or 8W"
        )
    return int(found[1]) * _UNITS_HOURS[found[2]]


@click.command("plan")
@click.option(
    "--keep",
    "hours",
    metavar="TIME",
    callback=_hours,
    help="Say what it takes to keep so much: 12h, 30D, 8W.",
)
@api_options
def show_plan(api: Api, hours: int | None) -> None:
    """Say how long the log's quota and the disk last at the rate at which it grows.

    The rate is that of the last week, or of as much of it as is known. Nothing is said of what was not measured.
    """
    data = api.ask("GET", "monitor", "replayLogs", "default", "plan", keepHours=hours)["data"]
    if api.as_json:
        api.show(data)
        return
    for sentence in sentences(data):
        click.echo(sentence)


def sentences(plan: Mapping[str, Any]) -> Iterator[str]:
    """What a plan says, for a person."""
    used = f"It holds {size(plan['msgSpoolUsage'])}"
    quota = plan["maxSpoolUsage"] * MEGABYTE
    bounds = [f"a quota of {size(quota)}"] if quota else []
    if plan["maxAgeHours"]:
        bounds.append(f"{duration(plan['maxAgeHours'] * HOUR_MS)} at most")
    used += f", of {' and '.join(bounds)}" if bounds else ", and nothing bounds it"
    yield f"{used}; it is whole from {moment(plan['wholeFromTimeMs'])} on."
    if not plan["bytesPerSecond"]:
        yield "Nothing was logged as long as is known: there is no rate to plan with."
        return
    for rate in plan["rates"]:
        day = rate["bytesPerSecond"] * 86_400
        yield (
            f"Over the last {duration(rate['periodMs'])} it grew by {number(rate['msgsPerSecond'])} messages a second, "
            f"{size(day)} a day."
        )
    if plan["quotaLastsMs"] is not None:
        yield f"At this rate it keeps {duration(plan['quotaLastsMs'])}."
    for rule in plan["retention"]:
        yield _rule(rule)
    if plan["keepNeedsSpoolUsage"] is not None:
        needed = plan["keepNeedsSpoolUsage"]
        yield (
            f"{_kept(plan['keepMs'])} need a quota of {size(needed * MEGABYTE)}: `rewind log quota {needed}`."
        )
    yield _disk(plan)


def _rule(rule: Mapping[str, Any]) -> str:
    """What a rule of retention holds, and will."""
    topics = ", ".join(rule["topics"][:3]) + (", …" if len(rule["topics"]) > 3 else "")
    bounds = [f"a quota of {size(rule['maxSpoolUsage'] * MEGABYTE)}"] if rule["maxSpoolUsage"] else []
    if rule["maxAgeHours"]:
        bounds.append(f"{duration(rule['maxAgeHours'] * HOUR_MS)} at most")
    held = f"Of {topics} it holds {size(rule['msgSpoolUsage'])}"
    held += f", of {' and '.join(bounds)}" if bounds else ""
    held += f", whole from {moment(rule['wholeFromTimeMs'])} on"
    if not rule["bytesPerSecond"]:
        return f"{held}; none came since."
    day = f"{held}; {size(rule['bytesPerSecond'] * 86_400)} a day come"
    if rule["lastsMs"] is None:
        return f"{day}, and nothing bounds them."
    return f"{day}, of which it keeps {duration(rule['lastsMs'])}: {size(rule['lastingSpoolUsage'])}."


def _kept(milliseconds: int) -> str:
    """As it was asked for: 30 days, 12 hours."""
    days, hours = divmod(milliseconds, DAY_MS)
    return duration(milliseconds) if hours else f"{number(days)} {'day' if days == 1 else 'days'}"


def _disk(plan: Mapping[str, Any]) -> str:
    if plan["diskFreeBytes"] is None:
        takes = "" if plan["storeBytes"] is None else f" The store takes {size(plan['storeBytes'])}."
        return f"What the disk has left is not known: the database does not say it.{takes}"
    free = f"The disk has {size(plan['diskFreeBytes'])} free"
    if plan["diskFullTimeMs"] is not None:
        return f"{free}; at this rate it is full on {moment(plan['diskFullTimeMs'])}."
    return f"{free}, which is enough for what the log may hold."


_REDACT: Final = ("replayLogs", "default", "redactMsg")

MOST_SHOWN: Final = 10
"""Ids that a sentence names."""


@click.command()
@click.argument("messages", nargs=-1, metavar="[ID]...")
@click.option("--selector", help="Those of the log that match, instead of ids.")
@click.option("--from", "start", help="Beside a selector: any replay start; the beginning if not given.")
@click.option("--until", help="Beside a selector: `now`, a date, `#123` or `rmid1:…`.")
@click.option(
    "--subscribe",
    multiple=True,
    metavar="TOPIC",
    help="Beside a selector: a topic pattern; several may be given.",
)
@click.option("--reason", default="", help="Kept in the place of the content, and in the gateway's log.")
@click.option("--with-copies", is_flag=True, help="The copies that replays made, too.")
@click.option("--preview", is_flag=True, help="Say what would be erased, and erase nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@api_options
def erase(
    api: Api,
    messages: tuple[str, ...],
    selector: str | None,
    start: str | None,
    until: str | None,
    subscribe: tuple[str, ...],
    reason: str,
    with_copies: bool,
    preview: bool,
    yes: bool,
) -> None:
    """Erase the content of messages, by ID (`123`, `rmid1:…`) or selector: in the log, on queues, everywhere."""
    wanted: dict[str, Any] = {"selector": selector, "start": start, "until": until}
    wanted["subscribe"] = list(subscribe) or None
    wanted |= _ids(messages)
    body = {name: value for name, value in wanted.items() if value is not None}
    if with_copies:
        body["withCopies"] = True
    found = api.ask("PUT", "action", *_REDACT, body={**body, "preview": True})["data"]
    if preview:
        api.done(found, _told(found, "would be erased"))
        return
    if not found["msgCount"]:
        raise api.not_done(_told(found, "would be erased"))
    if not yes:
        click.confirm(f"{_told(found, 'will be erased')}. There is no way back. Go on?", abort=True, err=True)
    # What is erased is what was shown.
    body = {
        "msgId": found["msgIds"],
        "expectedMsgCount": found["msgCount"],
        "reason": reason,
        "withCopies": with_copies,
    }
    done = api.ask("PUT", "action", *_REDACT, body=body)["data"]
    sentence = _told(done, "erased")
    if not done["scrubbed"]:
        sentence += "; somebody reads still, and until he is done old pages are kept in the store's files"
    api.done(done, sentence)


def _ids(messages: tuple[str, ...]) -> dict[str, list[Any] | None]:
    numbers = [text.removeprefix("#") for text in messages if not text.startswith("rmid1:")]
    for text in numbers:
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise click.BadParameter(f"{text!r} is no id; write 123, #123 or rmid1:…")
    named = [text for text in messages if text.startswith("rmid1:")]
    return {"msgId": [int(text) for text in numbers] or None, "replicationGroupMsgId": named or None}


def _told(found: dict[str, Any], what: str) -> str:
    count, erased = found["msgCount"], set(found["msgIds"])
    told = f"{counted(count, 'message')} {what}"
    if count:
        told += f" ({_shown(found['msgIds'])})"
    if found["deadMsgIds"]:
        told += f", {number(len(found['deadMsgIds']))} of them copies of dead ones"
    copies = [i for i in found["copyMsgIds"] if i in erased]
    if copies:
        told += f", {number(len(copies))} of them copies that replays made"
    if found["missingMsgIds"]:
        told += f"; not there: {_shown(found['missingMsgIds'])}"
    stay = [i for i in found["copyMsgIds"] if i not in erased]
    if stay:
        told += (
            f"; {counted(len(stay), 'copy', 'copies')} that replays made stay ({_shown(stay)}): --with-copies"
        )
    origins = [i for i in found["originMsgIds"] if i not in erased]
    if origins:
        told += f"; what they are copies of stays ({_shown(origins)})"
    if found["copiedTo"]:
        told += f"; copied to other gateways, which know nothing of this: {', '.join(found['copiedTo'])}"
    return told


def _shown(ids: list[int]) -> str:
    return f"{', '.join(map(str, ids[:MOST_SHOWN]))}{', …' if len(ids) > MOST_SHOWN else ''}"


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
