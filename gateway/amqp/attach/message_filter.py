"""
What a consumer selects: its selector, SQL filter and property filters as one predicate over rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amqp_ext.codec import CodecError, Symbol
from amqp_ext.filters.filter_set import Filters
from amqp_ext.filters.property_filter import (
    PropertyFilterError,
    compile_application_properties_filter,
    compile_properties_filter,
)
from amqp_ext.message.sections import MessageView
from amqp_ext.selector.lexer import SelectorError
from amqp_ext.selector.selector import compile_selector, compile_sql_filter
from gateway.amqp.attach.client import Client
from gateway.core.errors import ErrorCode, Refused
from gateway.core.model import BARE, CONTENT, ID, Row


def selection_of(client: Client, filters: Filters) -> Callable[[Row], bool] | None:
    """
    What the consumer of a source is to be given: what passes its filters, and with no-local what did not come from
    its own container, as far as that is known (see ``Origins``). None when everything passes.

    Raises:
        Refused: INVALID_FIELD, with the place in the selector and the reason.
    """
    passes = compile_filters(filters)
    if not filters.no_local:
        return passes
    origins, own = client.vpn.origins, client.origin
    if client.is_connected:
        origins.watch(client)
    if passes is None:
        return lambda row: origins.of(row[ID]) != own
    return lambda row: origins.of(row[ID]) != own and passes(row)


def compile_filters(filters: Filters) -> Callable[[Row], bool] | None:
    """
    The filters of a source that look at messages, compiled; None when everything passes. A message has to pass every
    one (AMQP 1.0 section 3.5.8); one whose sections cannot be read passes none.

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

    def passes(row: Row) -> bool:
        view: Any = MessageView(row[CONTENT], row[BARE])
        try:
            return all(test(view) for test in tests)
        except CodecError:
            return False

    return passes
