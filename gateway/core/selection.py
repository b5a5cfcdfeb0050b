"""
What a consumer, a reader or a copy selects: selector, SQL filter and property filters as one predicate over rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from amqp_ext.codec import CodecError, Symbol
from amqp_ext.filters.filter_set import Filters
from amqp_ext.filters.property_filter import (
    PropertyFilterError,
    compile_application_properties_filter,
    compile_properties_filter,
)
from amqp_ext.message.annotations import REPLAY_NAME
from amqp_ext.message.sections import MessageView
from amqp_ext.selector.lexer import SelectorError
from amqp_ext.selector.selector import compile_selector, compile_sql_filter
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import BARE, CONTENT, ID, Row


@dataclass(slots=True)
class ReplayMark:
    """The mark on the history that a reader is given."""

    name: str
    below: int | None = None
    """Ids from this one on are not history; None while that is not known, and all are."""


class _MarkedView(MessageView):
    """A message as a reader is given it, who named his replay."""

    def __init__(self, content: bytes, bare: int, replay_name: str) -> None:
        super().__init__(content, bare)
        self._replay_name = replay_name

    @cached_property
    def message_annotations(self) -> dict[Any, Any]:
        return {**super().message_annotations, REPLAY_NAME: self._replay_name}


def compile_filters(
    filters: Filters, too_costly: Callable[[Row], None] | None = None, mark: ReplayMark | None = None
) -> Callable[[Row], bool] | None:
    """
    The filters of a source that look at messages, compiled; None when everything passes. A message has to pass every
    one (AMQP 1.0 section 3.5.8); one whose sections cannot be read passes none.

    Args:
        too_costly: Is told once, at the first message for which an answer would have taken too long: the filters are
            unknown of it, and it does not pass.
        mark: What messages are given that they were not published with; None for nothing.

    Raises:
        Refused: INVALID_FIELD, with the place in the selector and the reason.
    """
    tests: list[Callable[[MessageView], bool]] = []
    try:
        if filters.selector is not None:
            tests.append(compile_selector(filters.selector).matches)
        if filters.sql is not None:
            tests.append(compile_sql_filter(filters.sql).matches)
        if filters.properties is not None:
            tests.append(compile_properties_filter(filters.properties).matches)
        if filters.application_properties is not None:
            tests.append(compile_application_properties_filter(filters.application_properties).matches)
        tests += [own.compile() for own in filters.message_filters]
    except (SelectorError, PropertyFilterError) as error:
        raise Refused(ErrorCode.INVALID_FIELD, str(error), field=Symbol("filter")) from error
    if not tests:
        return None

    untold = too_costly

    def passes(row: Row) -> bool:
        nonlocal untold
        if mark is None or (mark.below is not None and row[ID] >= mark.below):
            view: Any = MessageView(row[CONTENT], row[BARE])
        else:
            view = _MarkedView(row[CONTENT], row[BARE], mark.name)
        try:
            return all(test(view) for test in tests)
        except CodecError:
            return False
        finally:
            if untold is not None and view.is_exhausted:
                told, untold = untold, None
                told(row)

    return passes
