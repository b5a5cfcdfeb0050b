"""``rewind log erase``: the content of messages is no more, and everything else of them stays."""

from __future__ import annotations

from typing import Any, Final

import click

from gateway.cli.api import Api, api_options
from gateway.cli.output.words import counted, number

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
