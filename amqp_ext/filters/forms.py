"""
Vendors' filters, in addition to AMQP's and our own, as values that the reader of a filter-set uses.

A vendor's folder makes these values, ``amqp_ext.vendor_forms`` composes them, and ``filter_set`` reads with them.
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
"""Whether a message passes; raises ``CodecError`` if a section that it reads cannot be decoded."""

ReadSelectorStart = Callable[[str], ReplayStart | None]
"""Reads a selector that only says where to start; None for any other selector. Raises ``ReplayStartError``."""


class FilterError(ValueError):
    """
    A known filter that cannot be honoured. Its text is a sentence.

    Attributes:
        field: The filter's descriptor.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"The filter {field} {reason}")
        self.field = field


class MessageFilter(Protocol):
    """A filter on messages, read and not yet compiled. Equal to every filter that asks for the same."""

    def compile(self) -> MessageTest:
        """The filter's test of a message; it raises ``CodecError`` for a malformed section that it reads."""


@dataclass(frozen=True, slots=True)
class FilterForms:
    """
    The filters of one vendor.

    Attributes:
        names: The filters' descriptors.
        start_names: The names that ask for a start: such a key with another descriptor is refused, not left out.
        read_start: The start that the values ask for, or None. Raises ``ReplayStartError``.
        read_filter: The condition on messages in the values, or None. Raises ``FilterError``.
        want_stream_offset: Whether clients that send one of the filters read ``x-stream-offset`` on each message.
    """

    names: frozenset[Symbol]
    start_names: frozenset[Symbol]
    read_start: Callable[[FilterValues], ReplayStart | None]
    read_filter: Callable[[FilterValues], MessageFilter | None]
    want_stream_offset: bool
