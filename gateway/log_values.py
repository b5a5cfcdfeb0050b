"""
Values of log lines: what a peer says is cut, and nothing in it is more than text to whoever shows it.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

MOST_CHARACTERS: Final = 200
"""Of a text in a line. Names are shorter, as a rule; a peer may give us one of 64 kB that stands in every line."""

MOST_SENTENCE: Final = 1_000
"""Of a sentence of ours, in which a peer's text may stand, and of an error's."""

MOST_TRACEBACK: Final = 20_000
"""Of a traceback that is one text."""

_SENTENCES: Final = frozenset({"event", "reason", "exc_value"})
_MOST_ITEMS: Final = 100


def cut(value: Any, most: int = MOST_CHARACTERS) -> Any:
    """A text that is no longer than that, and says so where it was; anything else as it is."""
    if isinstance(value, str) and len(value) > most:
        return f"{value[:most]}... ({len(value)} characters)"
    return value


def shown(value: Any, most: int = MOST_CHARACTERS) -> Any:
    """
    A value as it may stand in a line: texts cut, and their control characters written out. A terminal obeys some of
    those, and others make one character six in JSON.
    """
    match value:
        case str():
            text = cut(value, most)
            return text if text.isprintable() else _escaped(text)
        case None | bool() | int() | float():
            return value
        case dict():
            return {
                shown(key): shown(item, MOST_SENTENCE if key in _SENTENCES else most)
                for key, item in list(value.items())[:_MOST_ITEMS]
            }
        case list() | tuple() | set() | frozenset():
            return [shown(item, most) for item in list(value)[:_MOST_ITEMS]]
    return shown(repr(value), most)


def shown_values(_: Any, __: str, line: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A processor of structlog: every value of a line as it may stand there."""
    for key, value in line.items():
        if key.startswith("_"):
            continue  # structlog's own, for its last processor
        if key == "exception" and isinstance(value, str):
            # Lines of a traceback stay lines.
            line[key] = "\n".join(_escaped(text) for text in cut(value, MOST_TRACEBACK).split("\n"))
        else:
            line[key] = shown(
                value, MOST_SENTENCE if key in _SENTENCES or key == "exception" else MOST_CHARACTERS
            )
    return line


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable()
        else character.encode("unicode_escape", "backslashreplace").decode("ascii")
        for character in text
    )
