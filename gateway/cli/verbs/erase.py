"""``rewind log erase``: the content of messages is no more, and everything else of them stays."""

from __future__ import annotations

from typing import Any, Final

import click

from gateway.cli.api import Api, api_options

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
    preview: bool,
    yes: bool,
) -> None:
    """Erase the content of messages, by ID (`123`, `rmid1:…`) or selector: in the log, on queues, everywhere."""
    wanted: dict[str, Any] = {"selector": selector, "start": start, "until": until}
    wanted["subscribe"] = list(subscribe) or None
    wanted |= _ids(messages)
    body = {name: value for name, value in wanted.items() if value is not None}
    found = api.ask("PUT", "action", *_REDACT, body={**body, "preview": True})["data"]
    if preview:
        api.done(found, _told(found, "would be erased"))
        return
    if not found["msgCount"]:
        raise api.not_done(_told(found, "would be erased"))
    if not yes:
        click.confirm(f"{_told(found, 'will be erased')}. There is no way back. Go on?", abort=True, err=True)
    # What is erased is what was shown.
    body = {"msgId": found["msgIds"], "expectedMsgCount": found["msgCount"], "reason": reason}
    done = api.ask("PUT", "action", *_REDACT, body=body)["data"]
    sentence = _told(done, "erased")
    if not done["scrubbed"]:
        sentence += "; somebody reads still, and until he is done old pages are kept in the store's files"
    api.done(done, sentence)


def _ids(messages: tuple[str, ...]) -> dict[str, list[Any] | None]:
    numbers = [text.removeprefix("#") for text in messages if not text.startswith("rmid1:")]
    for number in numbers:
        if not (number.isascii() and number.isdigit() and len(number) < 20):
            raise click.BadParameter(f"{number!r} is no id; write 123, #123 or rmid1:…")
    named = [text for text in messages if text.startswith("rmid1:")]
    return {"msgId": [int(number) for number in numbers] or None, "replicationGroupMsgId": named or None}


def _told(found: dict[str, Any], what: str) -> str:
    count = found["msgCount"]
    ids = ", ".join(map(str, found["msgIds"][:MOST_SHOWN]))
    told = f"{count:,} message{'' if count == 1 else 's'} {what}"
    if count:
        told += f" ({ids}{', …' if count > MOST_SHOWN else ''})"
    if found["deadMsgIds"]:
        told += f", {len(found['deadMsgIds']):,} of them copies of dead ones"
    if found["missingMsgIds"]:
        missing = ", ".join(map(str, found["missingMsgIds"][:MOST_SHOWN]))
        told += f"; not there: {missing}{', …' if len(found['missingMsgIds']) > MOST_SHOWN else ''}"
    return told
