"""``rewind log plan``: how large the replay log must be, in sentences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from gateway.cli.api import Api, api_options
from gateway.cli.output.words import DAY_MS, HOUR_MS, MEGABYTE, duration, moment, number, size

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
