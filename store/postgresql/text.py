"""
Text as PostgreSQL takes it: it cannot store U+0000, which a topic, a name or a property's value may hold.

Such a character is written as U+0001 and a 0, and U+0001 itself as U+0001 and a 1. Each character is written by itself:
what begins with another text, or holds it, does so written, too, and no two texts are written alike. Nearly every text
has neither and stays as it is.
"""

from __future__ import annotations

from typing import Final

ESCAPE: Final = "\x01"


def stored_text(text: str) -> str:
    """A text as it is stored."""
    if "\0" not in text and ESCAPE not in text:
        return text
    return text.replace(ESCAPE, "\x011").replace("\0", "\x010")


def read_text(stored: str) -> str:
    """The text that was stored."""
    if ESCAPE not in stored:
        return stored
    return stored.replace("\x010", "\0").replace("\x011", ESCAPE)
