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
    """Show its use, its oldest and its newest message."""
    api.show(api.look(*LOG))


def _hours(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    if text is None:
        return None
    found = re.fullmatch(r"([1-9][0-9]{0,5})([hDW])", text)
    if found is None:
        raise click.BadParameter(
            f"{text!r} is no time to be kept: write hours, days or weeks, as 12h, 30D or 8W"
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
        help="Say what it takes to keep so much: 12h, 30D, 8W.",
    ),
)
def show_plan(api: Api, hours: int | None) -> None:
    """Say how long the log's quota and the disk last at the rate at which it grows.

    The rate is that of the last week, or of as much of it as is known. Nothing is said of what was not measured.
    """
    data = api.look(*LOG, "plan", keepHours=hours)
    if api.as_json:
        api.show(data)
        return
    for sentence in sentences(data):
        click.echo(sentence)


@verb(replay_log, "trim", click.argument("before"))
def trim(api: Api, before: str) -> None:
    """Delete what the log holds BEFORE a place: a date, `10D`, `#123`, `rmid1:…`, `point:NAME`."""
    data = api.act(*LOG, "trimLoggedMsgs", body={"before": before})
    api.done(data, f"the log begins at message {data['firstMsgId']}")


@verb(
    replay_log,
    "messages",
    click.option("--from", "start", default="beginning", show_default=True, help="Any replay start."),
    click.option("--until", help="The end: `now`, a date, `#123` or `rmid1:…`. Without it, now."),
    click.option("--topic", "--subscribe", "topics", multiple=True, help="A topic pattern; may be repeated."),
    click.option("--selector", help="A JMS selector."),
    click.option("--newest", is_flag=True, help="The newest first."),
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
    click.option("--selector", help="Those of the log that match, instead of ids."),
    click.option("--from", "start", help="Beside a selector: any replay start; the beginning if not given."),
    click.option("--until", help="Beside a selector: `now`, a date, `#123` or `rmid1:…`."),
    click.option(
        "--subscribe",
        multiple=True,
        metavar="TOPIC",
        help="Beside a selector: a topic pattern; several may be given.",
    ),
    click.option("--reason", default="", help="Kept in the place of the content, and in the gateway's log."),
    click.option("--with-copies", "withCopies", is_flag=True, help="The copies that replays made, too."),
    click.option("--preview", is_flag=True, help="Say what would be erased, and erase nothing."),
    click.option("--yes", is_flag=True, help="Do not ask."),
)
def erase(api: Api, messages: tuple[str, ...], reason: str, preview: bool, yes: bool, **wanted: Any) -> None:
    """Erase the content of messages, by ID (`123`, `rmid1:…`) or selector: in the log, on queues, everywhere."""
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
        sentence += "; somebody reads still, and until he is done old pages are kept in the store's files"
    api.done(done, sentence)


def _change(api: Api, attribute: str, value: bool | int, sentence: str) -> None:
    api.done(api.configure("PATCH", *LOG, body={attribute: value}), sentence)


@verb(
    replay_log,
    "enable",
    click.option(
        "--reads", is_flag=True, help="Have it be replayed and read; without, have it take messages."
    ),
)
def enable(api: Api, reads: bool) -> None:
    """Have the log take messages."""
    if reads:
        _change(api, "egressEnabled", True, "the log can be read")
    else:
        _change(api, "ingressEnabled", True, "the log takes messages")


@verb(
    replay_log,
    "disable",
    click.option(
        "--reads", is_flag=True, help="Have nobody replay or read it; without, have it take nothing."
    ),
)
def disable(api: Api, reads: bool) -> None:
    """Have the log take no messages; what is in it stays."""
    if reads:
        _change(api, "egressEnabled", False, "the log cannot be read")
    else:
        _change(api, "ingressEnabled", False, "the log takes no messages")


# So that a number below 0 is reported as out of range, and not as an unknown option.
@verb(
    replay_log,
    "quota",
    click.argument("megabytes", type=click.IntRange(min=0)),
    context_settings={"ignore_unknown_options": True},
)
def quota(api: Api, megabytes: int) -> None:
    """Have the log hold MEGABYTES; it is trimmed from 90 % on. 0 is no bound."""
    held = f"hold {size(megabytes * MEGABYTE)}" if megabytes else "grow without limit"
    _change(api, "maxSpoolUsage", megabytes, f"the log may {held}")


@verb(replay_log, "keep-until-archived", click.argument("wanted", type=click.Choice(["on", "off"])))
def keep_until_archived(api: Api, wanted: str) -> None:
    """Whether nothing is trimmed that is not archived."""
    _change(api, "keepUntilArchivedEnabled", wanted == "on", f"keep until archived is {wanted}")


@replay_log.group("filter")
def topic_filter() -> None:
    """Which topics the log takes; `!` in front of one leaves it out."""


@verb(topic_filter, "list")
def list_topics(api: Api) -> None:
    """List them."""
    api.table(api.all("config", *_FILTER), ("topicFilterSubscription",), "no topics")


@verb(topic_filter, "add", click.argument("topic"))
def add_topic(api: Api, topic: str) -> None:
    """Have it take TOPIC, while the filter is on."""
    data = api.configure("POST", *_FILTER, body={"topicFilterSubscription": topic})
    api.done(data, f"the filter has {topic}")


@verb(topic_filter, "remove", click.argument("topic"))
def remove_topic(api: Api, topic: str) -> None:
    """Take TOPIC out of the filter."""
    api.done(api.configure("DELETE", *_FILTER, topic), f"the filter has {topic} no longer")


@verb(topic_filter, "on")
def filter_on(api: Api) -> None:
    """Take the filter's topics alone."""
    _change(api, "topicFilterEnabled", True, "the log takes the filter's topics alone")


@verb(topic_filter, "off")
def filter_off(api: Api) -> None:
    """Take every topic."""
    _change(api, "topicFilterEnabled", False, "the log takes every topic")


# --- the plan in sentences ------------------------------------------------------------------------------------------


def sentences(plan: Mapping[str, Any]) -> Iterator[str]:
    """A plan, in sentences for a person."""
    used = f"It holds {size(plan['msgSpoolUsage'])}"
    bounds = _bounds(plan)
    used += f", of {bounds}" if bounds else ", and nothing bounds it"
    yield f"{used}; it is whole from {moment(plan['wholeFromTimeMs'])} on."
    if not plan["bytesPerSecond"]:
        yield "Nothing was logged as long as is known: there is no rate to plan with."
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
        return f"{held}; none came since."
    day = f"{held}; {_a_day(rule)} a day come"
    if rule["lastsMs"] is None:
        return f"{day}, and nothing bounds them."
    return f"{day}, of which it keeps {duration(rule['lastsMs'])}: {size(rule['lastingSpoolUsage'])}."


def _kept(milliseconds: int) -> str:
    """A time as a person says it: 30 days, 12 hours."""
    days, hours = divmod(milliseconds, DAY_MS)
    return duration(milliseconds) if hours else counted(days, "day")


def _disk(plan: Mapping[str, Any]) -> str:
    if plan["diskFreeBytes"] is None:
        takes = "" if plan["storeBytes"] is None else f" The store takes {size(plan['storeBytes'])}."
        return f"What the disk has left is not known: the database does not say it.{takes}"
    free = f"The disk has {size(plan['diskFreeBytes'])} free"
    if plan["diskFullTimeMs"] is not None:
        return f"{free}; at this rate it is full on {moment(plan['diskFullTimeMs'])}."
    return f"{free}, which is enough for what the log may hold."


# --- what is erased, in a sentence ----------------------------------------------------------------------------------


def _ids(messages: tuple[str, ...]) -> dict[str, Any]:
    numbers = [text.removeprefix("#") for text in messages if not text.startswith("rmid1:")]
    for text in numbers:
        if not (text.isascii() and text.isdigit() and len(text) < 20):
            raise click.BadParameter(f"{text!r} is no id; write 123, #123 or rmid1:…")
    named = [text for text in messages if text.startswith("rmid1:")]
    return {"msgId": [int(text) for text in numbers], "replicationGroupMsgId": named}


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
