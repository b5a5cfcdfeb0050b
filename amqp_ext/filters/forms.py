"""
Forms of filters that vendors have beside AMQP's and our own, as the reader of a filter-set wants them.

A vendor's folder makes these values, ``amqp_ext.vendor_forms`` composes them, and ``filter_set`` reads by them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from amqp_ext.codec import Symbol
from amqp_ext.message.sections import MessageView
from amqp_ext.replay_start import ReplayStart

FilterValues = Mapping[Symbol, Any]
"""The values of a filter-set by the names of their filters."""

MessageTest = Callable[[MessageView], bool]
"""Whether a message is taken; raises ``CodecError`` where a section it looks at cannot be decoded."""

ReadSelectorStart = Callable[[str], ReplayStart | None]
"""Reads a selector that is no selector but says where to start; None for any other. Raises ``ReplayStartError``."""


class FilterError(ValueError):
    """
    A known filter that cannot be honoured. Its text is a sentence.

    Attributes:
        field: The name of its descriptor.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"The filter {field} {reason}")
        self.field = field


class MessageFilter(Protocol):
    """A filter that looks at messages, read and not yet compiled. Equal to any other that asks for the same."""

    def compile(self) -> MessageTest:
        """Whether a message passes it; reading a section that is malformed raises ``CodecError``."""


@dataclass(frozen=True, slots=True)
class FilterForms:
    """
    The filters of one vendor.

    Attributes:
        names: Their descriptors.
        start_names: Those among them that ask for a start: one with another descriptor is refused, not left out.
        read_start: The start that the values ask for, or None. Raises ``ReplayStartError``.
        read_filter: What the values ask of messages, or None. Raises ``FilterError``.
        want_stream_offset: Whether who sends any of them looks for ``x-stream-offset`` on each message.
    """

    names: frozenset[Symbol]
    start_names: frozenset[Symbol]
    read_start: Callable[[FilterValues], ReplayStart | None]
    read_filter: Callable[[FilterValues], MessageFilter | None]
    want_stream_offset: bool
