"""
Property filters: messages whose fields equal given values (OASIS "AMQP Filter Expressions" section 4, as RabbitMQ
has it).

    amqp:properties-filter               0x173   a map from field name (symbol) to value
    amqp:application-properties-filter   0x174   a map from property name (string) to value

A message passes if every entry matches. A null entry matches any value. A text that begins with ``&`` is a
pattern: ``&p:x`` begins with x, ``&s:x`` ends with x, ``&&x`` is the text ``&x``. Numbers are equal if their
values are, of whatever types. Every other value must be of the same type and equal.

Invariant: a filter is compiled whole or refused; matching raises nothing, whatever values a message holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from amqp_ext.message.sections import MessageView
from amqp_ext.selector.evaluation import BINARY, EXACT, NUMBERS, STRING, kind_of
from amqp_ext.selector.fields import PROPERTIES_FIELDS
from amqp_ext.selector.selector import MessageTest

# RabbitMQ's limit (rabbit_amqp_filter_prop, after section 7.1 "impose a limit on the complexity"): work done for
# each message.
MAX_FIELDS = 16

Test = Callable[[Any], bool]


class PropertyFilterError(ValueError):
    """A property filter that cannot be honoured; the text is a sentence for its sender."""


def compile_properties_filter(entries: Mapping[Any, Any]) -> MessageTest:
    """
    Compile the value of an ``amqp:properties-filter`` (0x173).

    Keys are the field names of AMQP 1.0 section 3.2.4 with hyphens, as symbol or string. Integers of any
    width and strings in place of symbols are accepted, since clients differ in what they send.

    Raises:
        PropertyFilterError: The value is no map, or an entry is invalid.
    """
    tests = []
    for name, value in _checked(entries).items():
        form = _FORMS.get(name)
        if form is None:
            known = ", ".join(_FORMS)
            raise PropertyFilterError(
                f"expected one of the fields {known} in the properties filter, found {name}"
            )
        if value is not None and kind_of[type(value)] not in form.kinds:
            raise PropertyFilterError(f"expected {form.what} for {name}, found {_shown(value)}")
        if name == "user-id" and isinstance(value, str):
            value = value.encode()  # noqa: PLW2901  # AMQP has it binary, people write it as text
        tests.append((name.replace("-", "_"), _test(name, value)))

    def matches(message: MessageView) -> bool:
        properties = message.properties
        return all(test(getattr(properties, name)) for name, test in tests)

    return matches


def compile_application_properties_filter(entries: Mapping[Any, Any]) -> MessageTest:
    """
    Compile the value of an ``amqp:application-properties-filter`` (0x174).

    A null entry matches only if the property is there: "the respective entries" of section 4.2.5, as at RabbitMQ.

    Raises:
        PropertyFilterError: The value is no map, or an entry is invalid.
    """
    tests = [(name, _test(name, value)) for name, value in _checked(entries).items()]

    def matches(message: MessageView) -> bool:
        values = message.application_properties
        return all(name in values and test(values[name]) for name, test in tests)

    return matches


def _checked(entries: Mapping[Any, Any]) -> dict[str, Any]:
    if not isinstance(entries, Mapping):
        raise PropertyFilterError(f"expected a map as the property filter, found {_shown(entries)}")
    if not 1 <= len(entries) <= MAX_FIELDS:
        raise PropertyFilterError(
            f"expected 1 to {MAX_FIELDS} fields in a property filter, found {len(entries)}"
        )
    for name in entries:
        if not isinstance(name, str):
            raise PropertyFilterError(
                f"expected a symbol or a string as name of a field, found {_shown(name)}"
            )
    return {str(name): value for name, value in entries.items()}


def _test(name: str, reference: Any) -> Test:
    """The test of one entry (section 4.1.1, clause by clause)."""
    if reference is None:  # "the reference field value is NULL"
        return lambda value: True
    if isinstance(reference, bool):
        return lambda value: value is reference
    if _is_number(reference):  # "the values are equal when treated as a floating-point"
        return lambda value: _is_number(value) and bool(value == reference)
    if isinstance(reference, str):
        return _text_test(name, reference)
    if type(reference) is bytes or isinstance(reference, UUID):
        return lambda value: type(value) is type(reference) and bool(value == reference)
    raise PropertyFilterError(
        f"expected null, a boolean, a number, a string, a symbol, a binary or a uuid for {name}, "
        f"found {_shown(reference)}"
    )


def _text_test(name: str, reference: str) -> Test:
    if reference.startswith("&p:"):
        prefix = reference[3:]
        return lambda value: isinstance(value, str) and value.startswith(prefix)
    if reference.startswith("&s:"):
        suffix = reference[3:]
        return lambda value: isinstance(value, str) and value.endswith(suffix)
    if reference.startswith("&&"):
        reference = reference[1:]
    elif reference.startswith("&"):
        raise PropertyFilterError(
            f"expected &p:, &s: or && at the start of the text for {name}, found {reference}"
        )
    return lambda value: isinstance(value, str) and value == reference


def _is_number(value: Any) -> bool:
    return kind_of[type(value)] in NUMBERS


class _Form(NamedTuple):
    """What a field may be compared with."""

    what: str
    kinds: frozenset[Any]


_TEXT = _Form("a string", frozenset({STRING}))
_TIMESTAMP = _Form("a timestamp", frozenset({EXACT}))
_MESSAGE_ID = _Form("a ulong, uuid, binary or string", frozenset({EXACT, UUID, BINARY, STRING}))
_SPECIAL = {
    "message_id": _MESSAGE_ID,
    "correlation_id": _MESSAGE_ID,
    "user_id": _Form("a binary", frozenset({STRING, BINARY})),
    "absolute_expiry_time": _TIMESTAMP,
    "creation_time": _TIMESTAMP,
    "group_sequence": _Form("an integer", frozenset({EXACT})),
}
_FORMS = {name.replace("_", "-"): _SPECIAL.get(name, _TEXT) for name in PROPERTIES_FIELDS}


def _shown(value: Any) -> str:
    return repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
