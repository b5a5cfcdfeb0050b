"""What the readers of our filters and of vendors' share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from amqp_ext.codec import Symbol

FilterValues = Mapping[Symbol, Any]
"""The values of a filter-set by the names of their filters."""


class FilterError(ValueError):
    """
    A known filter that cannot be honoured. Its text is a sentence.

    Attributes:
        field: The filter's descriptor.
    """

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"The filter {field} {reason}")
        self.field = field
