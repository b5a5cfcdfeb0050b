"""What tests of selectors share: messages, and LIKE by its definition."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from amqp_ext.message.sections import Header, Properties


def message(
    header: Any = None, properties: Any = None, annotations: Any = None, **application_properties: Any
) -> Any:
    """A message with these sections."""
    return SimpleNamespace(
        header=Header(**header or {}),
        properties=Properties(**properties or {}),
        message_annotations=annotations or {},
        application_properties=application_properties,
    )


def like(pattern: str, text: str) -> bool:
    """LIKE by its definition: tries every length for every ``%``."""
    if not pattern:
        return not text
    if pattern[0] == "%":
        return any(like(pattern[1:], text[start:]) for start in range(len(text) + 1))
    return bool(text) and pattern[0] in ("_", text[0]) and like(pattern[1:], text[1:])
