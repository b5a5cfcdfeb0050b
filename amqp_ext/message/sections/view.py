"""
A message that selectors and filters ask questions of.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from amqp_ext.message.sections.boundaries import APPLICATION_PROPERTIES, PROPERTIES, find_value
from amqp_ext.message.sections.contents import (
    Header,
    Properties,
    map_at,
    message_annotations,
    properties_at,
    read_header,
)


class MessageView:
    """
    A message that a selector asks questions of: each section is decoded when first asked for, then kept.

    Every property raises ``MalformedMessage`` like the function of its name.

    Args:
        bare: The offset of the bare message, as ``bare_offset`` gave it.
    """

    def __init__(self, content: bytes, bare: int) -> None:
        self.content = content
        self.bare = bare

    @cached_property
    def header(self) -> Header:
        """The header, or its defaults where there is none."""
        return read_header(self.content)

    @cached_property
    def message_annotations(self) -> dict[Any, Any]:
        """Message annotations by key; empty without the section."""
        return message_annotations(self.content) if self.bare else {}

    @cached_property
    def properties(self) -> Properties:
        """The properties, every field None without the section."""
        return properties_at(self.content, find_value(self.content, PROPERTIES, self.bare))

    @cached_property
    def application_properties(self) -> dict[Any, Any]:
        """Application properties by name; empty without the section."""
        return map_at(self.content, find_value(self.content, APPLICATION_PROPERTIES, self.bare))
