"""
``rewind log``: the replay log: its messages, which messages it takes and keeps, and how messages are erased.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from gateway.cli.api import LOG, Api, verb
from gateway.cli.words import DAY_MS, HOUR_MS, MEGABYTE, counted, duration, moment, number, size

MOST_SHOWN: Final = 10
"""Ids that a sentence names."""

_FILTER: Final = (*LOG, "topicFilterSubscriptions")
_UNITS_HOURS: Final = {"h": 1, "D": 24, "W": 24 * 7}


@click.group("log")
def replay_log() -> None:
    """The replay log."""


@verb(replay_log, "show")
def show_log(api: Api) -> None:
    """Show the log's use, its oldest and its newest message."""
    api.show(api.look(*LOG))


def _hours(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"([1-9][0-9]{0,5})([hDW])", text)
    if found is None:
        raise click.BadParameter(
            f"{text!r} is not a length of time: write hours, days or weeks, as 12h, 30D or 8W"
        )
    return int(found[1]) * _UNITS_HOURS[found[2]]


@verb(
    replay_log,
    "plan",
    click.option(
        "--keep",
        "hours",
        metavar="TIME",
        callback=_hours,
        help="Also say what quota keeps this much: 12h, 30D, 8W.",
    ),
)
def show_plan(api: Api, hours: int | None) -> None:
    """Say how long the log's quota and the disk last at the rate at which it grows.

    The rate is that of the last week, or of the part of it that was measured.
    """
    data = api.look(*LOG, "plan", keepHours=hours)
    if api.as_json:
        api.show(data)
        return
    for sentence in sentences(data):
        click.echo(sentence)


@verb(replay_log, "trim", click.argument("before"))
def trim(api: Api, before: str) -> None:
    """Delete the messages of the log BEFORE a place: a date, `10D`, `#123`, `rmid1:…`, `point:NAME`."""
    data = api.act(*LOG, "trimLoggedMsgs", body={"before": before})
    api.done(data, f"the log begins at message {data['firstMsgId']}")


@verb(
    replay_log,
    "messages",
    click.option("--from", "start", default="beginning", show_default=True, help="Any replay start."),
    click.option("--until", help="The end: `now`, a date, `#123` or `rmid1:…`. Without it, now."),
    click.option("--topic", "--subscribe", "topics", multiple=True, help="A topic pattern; may be repeated."),
    click.option("--selector", help="A JMS selector."),
    click.option("--newest", is_flag=True, help="List the newest first."),
    click.option("--count", type=click.IntRange(min=1), default=20, show_default=True),
)
def messages(api: Api, topics: tuple[str, ...], newest: bool, count: int, **query: Any) -> None:
    """List messages of the log."""
    order = "newest" if newest else None
    found = api.all("monitor", *LOG, "msgs", limit=count, order=order, subscribe=topics or None, **query)
    columns = ("msgId", "replicationGroupMsgId", "spooledTimeMs", "priority", "contentSize", "topic")
    api.table(found, columns, "no messages")


@verb(
    replay_log,
    "erase",
    click.argument("messages", nargs=-1, metavar="[ID]..."),
    click.option("--selector", help="Erase the messages of the log that match, instead of IDs."),
    click.option("--from", "start", help="With a selector: any replay start; by default the beginning."),
    click.option("--until", help="With a selector: the end, as `now`, a date, `#123` or `rmid1:…`."),
    click.option(
        "--subscribe",
        multiple=True,
        metavar="TOPIC",
        help="With a selector: a topic pattern; may be repeated.",
    ),
    click.option(
        "--reason", default="", help="Stored in place of the content, and written to the gateway's log."
    ),
    click.option(
        "--with-copies", "withCopies", is_flag=True, help="Also erase the copies that replays made."
    ),
    click.option("--preview", is_flag=True, help="Only say what would be erased."),
    click.option("--yes", is_flag=True, help="Do not ask for confirmation."),
)
def erase(api: Api, messages: tuple[str, ...], reason: str, preview: bool, yes: bool, **wanted: Any) -> None:
    """Erase the content of messages, by ID (`123`, `rmid1:…`) or selector: in the log, its archive and on queues."""
    if not messages and not wanted["selector"]:
        raise click.UsageError("say which messages: by an ID, or by --selector")
    wanted |= _ids(messages)
    asked = {name: value for name, value in wanted.items() if value}
    found = api.act(*LOG, "redactMsg", body={**asked, "preview": True})
    if preview:
        api.done(found, _told(found, "would be erased"))
        return
    if not found["msgCount"]:
        raise api.not_done(_told(found, "would be erased"))
    if not yes:
        click.confirm(f"{_told(found, 'will be erased')}. There is no way back. Go on?", abort=True, err=True)
    # Erase exactly what the preview has shown.
    body = {
        "msgId": found["msgIds"],
        "expectedMsgCount": found["msgCount"],
        "reason": reason,
        "withCopies": wanted["withCopies"],
    }
    done = api.act(*LOG, "redactMsg", body=body)
    sentence = _told(done, "erased")
    if not done["scrubbed"]:
        sentence += "; a reader is still active; until it ends, old pages stay in the store's files"
    api.done(done, sentence)


def _change(api: Api, attribute: str, value: bool | int, sentence: str) -> None:
    api.done(api.configure("PATCH", *LOG, body={attribute: value}), sentence)


@verb(
    replay_log,
    "enable",
    click.option("--reads", is_flag=True, help="Permit replays and reading, in place of logging."),
)
def enable(api: Api, reads: bool) -> None:
    """Write messages to the log again."""
    if reads:
        _change(api, "egressEnabled", True, "the log can be read")
    else:
        _change(api, "ingressEnabled", True, "messages are logged")


@verb(
    replay_log,
    "disable",
    click.option("--reads", is_flag=True, help="Forbid replays and reading, in place of logging."),
)
def disable(api: Api, reads: bool) -> None:
    """Write no more messages to the log; those in it stay."""
    if reads:
        _change(api, "egressEnabled", False, "the log cannot be read")
    else:
        _change(api, "ingressEnabled", False, "messages are not logged")


# So that a number below 0 is reported as out of range, and not as an unknown option.
@verb(
    replay_log,
    "quota",
    click.argument("megabytes", type=click.IntRange(min=0)),
    context_settings={"ignore_unknown_options": True},
)
def quota(api: Api, megabytes: int) -> None:
    """Set the log's quota to MEGABYTES; 0 is no limit. Trimming begins at 90 %."""
    held = f"hold {size(megabytes * MEGABYTE)}" if megabytes else "grow without limit"
    _change(api, "maxSpoolUsage", megabytes, f"the log may {held}")


@verb(replay_log, "keep-until-archived", click.argument("wanted", type=click.Choice(["on", "off"])))
def keep_until_archived(api: Api, wanted: str) -> None:
    """Set whether messages stay in the log until they are archived."""
    _change(api, "keepUntilArchivedEnabled", wanted == "on", f"keep until archived is {wanted}")


@replay_log.group("filter")
def topic_filter() -> None:
    """The topics whose messages are logged; a leading `!` makes an exception."""


@verb(topic_filter, "list")
def list_topics(api: Api) -> None:
    """List the topics of the filter."""
    api.table(api.all("config", *_FILTER), ("topicFilterSubscription",), "no topics")


@verb(topic_filter, "add", click.argument("topic"))
def add_topic(api: Api, topic: str) -> None:
    """Add TOPIC to the filter."""
    data = api.configure("POST", *_FILTER, body={"topicFilterSubscription": topic})
    api.done(data, f"the filter has {topic}")


@verb(topic_filter, "remove", click.argument("topic"))
def remove_topic(api: Api, topic: str) -> None:
    """Remove TOPIC from the filter."""
    api.done(api.configure("DELETE", *_FILTER, topic), f"the filter no longer has {topic}")


@verb(topic_filter, "on")
def filter_on(api: Api) -> None:
    """Log only messages of the filter's topics."""
    _change(api, "topicFilterEnabled", True, "only messages of the filter's topics are logged")


@verb(topic_filter, "off")
def filter_off(api: Api) -> None:
    """Log messages of every topic."""
    _change(api, "topicFilterEnabled", False, "messages of every topic are logged")


# --- the plan in sentences ------------------------------------------------------------------------------------------


def sentences(plan: Mapping[str, Any]) -> Iterator[str]:
    """A plan, in sentences for a person."""
    used = f"It holds {size(plan['msgSpoolUsage'])}"
    bounds = _bounds(plan)
    used += f", of {bounds}" if bounds else ", without a limit"
    yield f"{used}; it is whole from {moment(plan['wholeFromTimeMs'])} on."
    if not plan["bytesPerSecond"]:
        yield "No message was logged in the time that was measured: there is no rate to plan with."
        return
    for rate in plan["rates"]:
        yield (
            f"Over the last {duration(rate['periodMs'])} it grew by {number(rate['msgsPerSecond'])} messages a second, "
            f"{_a_day(rate)} a day."
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


def _bounds(held: Mapping[str, Any]) -> str:
    """The quota and the age that bound the log, or what a rule keeps; empty without bounds."""
    bounds = [f"a quota of {size(held['maxSpoolUsage'] * MEGABYTE)}"] if held["maxSpoolUsage"] else []
    if held["maxAgeHours"]:
        bounds.append(f"{duration(held['maxAgeHours'] * HOUR_MS)} at most")
    return " and ".join(bounds)


def _a_day(rate: Mapping[str, Any]) -> str:
    return size(rate["bytesPerSecond"] * 86_400)


def _rule(rule: Mapping[str, Any]) -> str:
    """What a rule of retention holds now, and how much it keeps."""
    topics = ", ".join(rule["topics"][:3]) + (", …" if len(rule["topics"]) > 3 else "")
    held = f"Of {topics} it holds {size(rule['msgSpoolUsage'])}"
    bounds = _bounds(rule)
    held += f", of {bounds}" if bounds else ""
    held += f", whole from {moment(rule['wholeFromTimeMs'])} on"
    if not rule["bytesPerSecond"]:
        return f"{held}; none arrived since."
    day = f"{held}; {_a_day(rule)} a day arrive"
    if rule["lastsMs"] is None:
        return f"{day}, without a limit."
    return f"{day}, of which it keeps {duration(rule['lastsMs'])}: {size(rule['lastingSpoolUsage'])}."


def _kept(milliseconds: int) -> str:
    """A time as a person says it: 30 days, 12 hours."""
    days, hours = divmod(milliseconds, DAY_MS)
    return duration(milliseconds) if hours else counted(days, "day")


def _disk(plan: Mapping[str, Any]) -> str:
    if plan["diskFreeBytes"] is None:
        takes = "" if plan["storeBytes"] is None else f" The store uses {size(plan['storeBytes'])}."
        return f"The free space on the disk is unknown: the database does not tell it.{takes}"
    free = f"The disk has {size(plan['diskFreeBytes'])} free"
    if plan["diskFullTimeMs"] is not None:
        return f"{free}; at this rate it is full on {moment(plan['diskFullTimeMs'])}."
    return f"{free}, which is enough for what the log may hold."


# --- what is erased, in a sentence ----------------------------------------------------------------------------------


def _ids(messages: tuple[str, ...]) -> dict[str, Any]:
    numbers = [text.removeprefix("#") for text in messages if not text.startswith("rmid1:")]
    for text in numbers:
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise click.BadParameter(f"{text!r} is not an id; write 123, #123 or rmid1:…")
    named = [text for text in messages if text.startswith("rmid1:")]
    return {"msgId": [int(text) for text in numbers], "replicationGroupMsgId": named}


def _told(found: dict[str, Any], what: str) -> str:
    count, erased = found["msgCount"], set(found["msgIds"])
    told = f"{counted(count, 'message')} {what}"
    if count:
        told += f" ({_shown(found['msgIds'])})"
    if found["deadMsgIds"]:
        told += f", {number(len(found['deadMsgIds']))} of them dead letters"
    copies = [i for i in found["copyMsgIds"] if i in erased]
    if copies:
        told += f", {number(len(copies))} of them copies that replays made"
    if found["missingMsgIds"]:
        told += f"; not found: {_shown(found['missingMsgIds'])}"
    stay = [i for i in found["copyMsgIds"] if i not in erased]
    if stay:
        copies_stay = f"{counted(len(stay), 'copy', 'copies')} that replays made stay"
        told += f"; {copies_stay} ({_shown(stay)}); --with-copies erases them"
    origins = [i for i in found["originMsgIds"] if i not in erased]
    if origins:
        told += f"; the originals of copies stay ({_shown(origins)})"
    if found["copiedTo"]:
        told += f"; copies at other gateways stay: {', '.join(found['copiedTo'])}"
    return told


def _shown(ids: list[int]) -> str:
    return f"{', '.join(map(str, ids[:MOST_SHOWN]))}{', …' if len(ids) > MOST_SHOWN else ''}"
