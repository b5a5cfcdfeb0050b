"""The command line that every client program has, and the lines it prints: here for those on python-qpid-proton.

Knows nothing of the gateway: what is here, a user of the library would write.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from proton import Condition, Described, Message, symbol, timestamp


def arguments() -> argparse.Namespace:
    """What was asked for; see interop/client.py for the meaning of each option."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "verb", choices=["send", "receive", "browse", "replay", "request", "reply", "move", "unsubscribe"]
    )
    parser.add_argument("--url", required=True)
    parser.add_argument("--address", default="")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=5)
    parser.add_argument("--body", default="message")
    parser.add_argument("--size", type=int, default=0)
    parser.add_argument("--delay", type=int)
    parser.add_argument("--groups", type=int)
    parser.add_argument("--selector")
    parser.add_argument("--subscription")
    parser.add_argument("--durable", action="store_true")
    parser.add_argument("--shared", action="store_true")
    parser.add_argument("--container")
    parser.add_argument(
        "--outcome", choices=["accept", "release", "modify", "reject", "none"], default="accept"
    )
    parser.add_argument("--acknowledge", choices=["auto", "client", "dups-ok"], default="auto")
    parser.add_argument("--reconnect", action="store_true")
    parser.add_argument("--start")
    parser.add_argument("--until")
    parser.add_argument("--to")
    parser.add_argument("--end", choices=["commit", "rollback", "never"], default="commit")
    return parser.parse_args()


def say(event: str, **values: Any) -> None:
    """One line of JSON, at once."""
    print(json.dumps({"event": event, **values}), flush=True)


def say_error(error: Exception, condition: Condition | None) -> int:
    """What the user of the library sees: the exception's class and text, and the condition if it is shown."""
    name = condition.name if condition else None
    info = {str(key): str(value) for key, value in (getattr(condition, "info", None) or {}).items()}
    say("error", kind=type(error).__name__, condition=name, info=info, text=str(error))
    return 1


def say_attached(properties: dict[Any, Any] | None) -> None:
    """The link is there; with what the gateway says of the log."""
    shown = {str(key): value for key, value in (properties or {}).items()}
    say("attached", properties={key: value for key, value in shown.items() if isinstance(value, int | str)})


def say_message(message: Message) -> None:
    """A message as the program sees it."""
    annotations = {str(key): value for key, value in (message.annotations or {}).items()}
    body = message.body
    say(
        "message",
        body=body if isinstance(body, str) and len(body) < 200 else None,
        size=len(body),
        n=(message.properties or {}).get("n"),
        colour=(message.properties or {}).get("colour"),
        redelivered=message.delivery_count > 0,
        delivery_count=message.delivery_count,
        replay_id=annotations.get("x-opt-replay-id"),
        replay_end=annotations.get("x-opt-replay-end", False),
        enqueued=annotations.get("x-opt-enqueued-time"),
    )


def message(options: argparse.Namespace, number: int) -> Message:
    """The message with this number: body, its number and a colour."""
    body = "x" * options.size if options.size else f"{options.body}-{number}"
    properties = {"n": number, "colour": "red" if number % 2 else "grün"}
    made = Message(id=f"{options.body}-{number}", body=body, durable=True, properties=properties)
    if options.delay is not None:
        made.annotations = {symbol("x-opt-delivery-delay"): options.delay}
    if options.groups:
        made.group_id = f"g{number % options.groups}"
    return made


def start_filter(options: argparse.Namespace) -> dict[symbol, Described]:
    """The source's filter-set that asks for a start: a text, or a map with an end."""
    value: Any = options.start
    if options.start.startswith("date:"):
        value = timestamp(int(options.start.removeprefix("date:")))
    if options.until:
        value = {symbol("from"): symbol(options.start), symbol("until"): symbol(options.until)}
    return {symbol("start"): Described(symbol("rewind:replay-start"), value)}


def status(body: Any) -> None:
    """Run a program's body and leave with its exit status."""
    sys.exit(body(arguments()))
