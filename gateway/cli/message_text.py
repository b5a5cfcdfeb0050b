"""Messages as people read them: a line of text."""

from __future__ import annotations

import json
from typing import Any

from amqp_ext.message.json_object import as_object


def as_line(content: bytes) -> str:
    """
    A delivered message on one line: offset, arrival, topic, what names it, and its body.

    Raises:
        amqp_ext.codec.CodecError: It is no AMQP message.
    """
    found = as_object(content)
    pieces = [f"#{found['offset']}" if "offset" in found else "#-"]
    pieces += [str(found[key]) for key in ("enqueuedTime", "topic") if key in found]
    pieces += [f"{key}={_text(found[key])}" for key in ("messageId", "subject") if key in found]
    if "malformed" in found:
        pieces.append(f"malformed: {found['malformed']}:")
    pieces += [f"{key}={_text(value)}" for key, value in found.get("properties", {}).items()]
    return _one_line(" ".join([*pieces, _text(found["body"])]))


def _text(value: Any) -> str:
    """As itself where it is text, else as JSON has it."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _one_line(text: str) -> str:
    """Nothing of a message, not its topic nor the name of a property, ends the line or steers the terminal."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )
