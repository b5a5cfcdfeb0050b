"""
A message that selectors and filters ask questions of.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from amqp_ext.message.sections.boundaries import (
    APPLICATION_PROPERTIES,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    find_value,
)
from amqp_ext.message.sections.contents import (
    Header,
    Properties,
    map_at,
    properties_at,
    read_header,
)
from amqp_ext.message.sections.work import MOST_STEPS, WIDE_FORM, TooMuchWork, check_decoding


class MessageView:
    """
    A message that a selector asks questions of: each section is decoded when first asked for, then kept.

    Every property raises ``MalformedMessage`` like the function of its name, and ``TooMuchWork`` where decoding takes
    more than the one evaluation that the view is made for may.

    Args:
        bare: The offset of the bare message, as ``bare_offset`` gave it.
    """

    _steps = MOST_STEPS
    is_exhausted = False
    """Some of what was asked stayed without an answer, because it would take too long."""

    def __init__(self, content: bytes, bare: int) -> None:
        self.content = content
        self.bare = bare

    def spend(self, steps: int) -> bool:
        """Whether so much more work may be done for this message."""
        if steps > self._steps:
            self.is_exhausted = True
            return False
        self._steps -= steps
        return True

    @property
    def spent(self) -> int:
        """What was done for this message so far, in steps."""
        return MOST_STEPS - self._steps

    @cached_property
    def header(self) -> Header:
        """The header, or its defaults where there is none."""
        return read_header(self.content)

    @cached_property
    def message_annotations(self) -> dict[Any, Any]:
        """Message annotations by key; empty without the section."""
        return self._map_at(find_value(self.content, MESSAGE_ANNOTATIONS)) if self.bare else {}

    @cached_property
    def properties(self) -> Properties:
        """The properties, every field None without the section."""
        offset = find_value(self.content, PROPERTIES, self.bare)
        self._check_decoding(offset)
        return properties_at(self.content, offset)

    @cached_property
    def application_properties(self) -> dict[Any, Any]:
        """Application properties by name; empty without the section."""
        return self._map_at(find_value(self.content, APPLICATION_PROPERTIES, self.bare))

    def _map_at(self, offset: int) -> dict[Any, Any]:
        self._check_decoding(offset)
        return map_at(self.content, offset)

    def _check_decoding(self, offset: int) -> None:
        if offset < 0 or self.content[offset] < WIDE_FORM:
            return
        try:
            self._steps -= check_decoding(self.content, offset, self._steps)
        except TooMuchWork:
            self.is_exhausted = True
            raise
