"""
The filter-set of a source: what a consumer asks for in addition to an address.

===========================================  ==================  ============================================
descriptor                                   code                value
===========================================  ==================  ============================================
``rewind:replay-start``                      -                   see ``amqp_ext.replay_start``
``apache.org:selector-filter:string``        0x0000468C00000004  JMS selector, or a vendor's way to say a start
``apache.org:no-local-filter:list``          0x0000468C00000003  list (Qpid JMS sends a string)
``amqp:properties-filter``                   0x173               map
``amqp:application-properties-filter``       0x174               map
``amqp:sql-filter``                          0x120               string
those of vendors                             -                   see ``amqp_ext.vendor_forms``
===========================================  ==================  ============================================

A filter is identified by its descriptor; its key is the client's own choice and says nothing. There is one exception:
AMQP requires that every value is described (1.0 section 3.5.8), but a client that sends a bare value is understood if
the key is a descriptor of the table, or ``jms-selector``, ``no-local`` or ``sql-filter``, as clients name them.

A selector may hold one top-level AND term ``"m.x-opt-replay-start" = '…'``: apart from the address, the only place
where a JMS client can ask for a replay. The term is taken out, and the rest is the selector.

The answer to an attach has the resolved start in its source, in addition to the entry that asked for it. A client that
attaches the link again with that source asks for both, and gets the start that it asked for at first.

Invariant: a replay start is read or refused, never dropped. So an unknown filter of our own domain is an error, and so
is an unknown one under the key of a replay start; any other unknown filter is only left out of the reply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from amqp_ext.codec import Described, Symbol
from amqp_ext.filters.forms import FilterError, FilterValues
from amqp_ext.replay_start import SELECTOR as START_IN_SELECTOR
from amqp_ext.replay_start import (
    ReplayStart,
    ReplayStartError,
    combine,
    from_rewind_filter,
    is_answer,
    is_text,
    parse_text,
    shown,
)
from amqp_ext.selector.lexer import SelectorError
from amqp_ext.selector.selector import TermError, extract_equal
from amqp_ext.vendor_forms import (
    FILTERS,
    START_FILTERS,
    MessageFilter,
    message_filter_of,
    start_of_filters,
    start_of_selector,
)

REPLAY_START: Final = Symbol("rewind:replay-start")
SELECTOR: Final = Symbol("apache.org:selector-filter:string")
NO_LOCAL: Final = Symbol("apache.org:no-local-filter:list")
PROPERTIES: Final = Symbol("amqp:properties-filter")
APPLICATION_PROPERTIES: Final = Symbol("amqp:application-properties-filter")
SQL: Final = Symbol("amqp:sql-filter")

REPLAY_TERM: Final = "m.x-opt-replay-start"
"""The name that a selector's replay start is compared with."""

_OUR_DOMAIN: Final = "rewind:"
_STARTS: Final = START_FILTERS | {REPLAY_START}
_BY_NAME: Final[Mapping[str, Symbol]] = {
    name: name
    for name in (REPLAY_START, *FILTERS, SELECTOR, NO_LOCAL, PROPERTIES, APPLICATION_PROPERTIES, SQL)
}
_BY_CODE: Final[Mapping[int, Symbol]] = {
    0x0000_468C_0000_0003: NO_LOCAL,
    0x0000_468C_0000_0004: SELECTOR,
    0x120: SQL,
    0x173: PROPERTIES,
    0x174: APPLICATION_PROPERTIES,
}
_BY_KEY: Final[Mapping[str, Symbol]] = {
    **_BY_NAME,
    "jms-selector": SELECTOR,
    "no-local": NO_LOCAL,
    "sql-filter": SQL,
}


@dataclass(frozen=True, slots=True)
class Filters:
    """
    What a filter-set asks for.

    Attributes:
        selector: The selector, checked, without the replay start that was in it.
        properties: As received; so are ``application_properties`` and ``sql``.
        message_filter: The filter of a vendor's form.
        accepted: Keys of the entries that were understood, to be echoed with their values unchanged.
        unknown: Keys of the entries that were not understood.
        wants_stream_offset: Whether there is a filter whose clients read ``x-stream-offset``.
    """

    start: ReplayStart | None = None
    selector: str | None = None
    no_local: bool = False
    properties: Mapping[Any, Any] | None = None
    application_properties: Mapping[Any, Any] | None = None
    sql: str | None = None
    message_filter: MessageFilter | None = None
    accepted: tuple[Symbol, ...] = ()
    unknown: tuple[Symbol, ...] = ()
    wants_stream_offset: bool = False

    @property
    def selection(self) -> str:
        """The conditions on messages as a text, equal for consumers with the same conditions; empty without any."""
        maps = [
            sorted(each.items(), key=repr) for each in (self.properties, self.application_properties) if each
        ]
        texts = [text for text in (self.selector, self.sql) if text]
        own = [self.message_filter] if self.message_filter else []
        return "; ".join([*texts, *map(repr, maps), *map(repr, own)])


def read_filter_set(entries: Mapping[Symbol, Any]) -> Filters:
    """
    Read a source's filter-set; null entries are as good as absent (AMQP 1.0 section 3.5.8).

    Raises:
        FilterError: A known filter has an invalid value, or is given twice.
        ReplayStartError: A start is invalid or cannot be read where it stands, or two starts differ.
    """
    values: dict[Symbol, Any] = {}
    accepted: list[Symbol] = []
    unknown: list[Symbol] = []
    answer: ReplayStart | None = None
    for key, entry in entries.items():
        if entry is None:
            continue
        name, value = _identify(key, entry)
        if name is None:
            unknown.append(key)
            continue
        if name is REPLAY_START and is_answer(value):
            answer = from_rewind_filter(value)
        elif name in values:
            raise _error(name, "is given twice; give it once.")
        else:
            values[name] = value
        accepted.append(key)

    selector, selector_start = _read_selector(values)
    starts = (
        from_rewind_filter(values[REPLAY_START]) if REPLAY_START in values else None,
        start_of_filters(values),
        selector_start,
        answer,
    )
    return Filters(
        start=reduce(combine, starts),
        selector=selector,
        no_local=_read(values, NO_LOCAL, _is_no_local, "described as a list") is not None,
        properties=_read(values, PROPERTIES, _is_map, "a map"),
        application_properties=_read(values, APPLICATION_PROPERTIES, _is_map, "a map"),
        sql=_read_text(values, SQL),
        message_filter=message_filter_of(values),
        accepted=tuple(accepted),
        unknown=tuple(unknown),
        wants_stream_offset=not values.keys().isdisjoint(FILTERS),
    )


def _identify(key: Any, entry: Any) -> tuple[Symbol | None, Any]:
    """The descriptor of an entry's filter, None for an unknown filter; and the entry's value."""
    if not isinstance(entry, Described):
        name = _BY_KEY.get(key) if isinstance(key, str) else None
        if name is None and _is_ours(key):
            raise _error(REPLAY_START, f"is the only one of its domain; there is no {key!s}.")
        return name, entry
    descriptor = entry.descriptor
    name = None
    if isinstance(descriptor, str):
        name = _BY_NAME.get(descriptor)
    elif isinstance(descriptor, int):
        name = _BY_CODE.get(descriptor)
    if name is None:
        if _is_ours(descriptor):
            raise _error(REPLAY_START, f"is the only one of its domain; there is no {descriptor!s}.")
        if _is_ours(key) or key in _STARTS:
            raise _error(str(key), f"has the descriptor {shown(descriptor)}; describe it as {key!s}.")
    return name, entry.value


def _error(name: str, reason: str) -> FilterError | ReplayStartError:
    """A filter's error; that of a start where the filter is there to ask for one."""
    error = FilterError(name, reason)
    return ReplayStartError(str(error)) if name in _STARTS or _is_ours(name) else error


def _is_ours(name: Any) -> bool:
    return isinstance(name, str) and name.startswith(_OUR_DOMAIN)


def _read_selector(values: FilterValues) -> tuple[str | None, ReplayStart | None]:
    """The selector without its replay start, and that start, which may be the whole selector."""
    text = _read_text(values, SELECTOR)
    if text is None or not text.strip():
        return None, None  # in JMS an empty selector is no selector (JMS 2.0 section 3.8.1.1)
    if (start := start_of_selector(text)) is not None:
        return None, start
    try:
        start_text, rest = extract_equal(text, REPLAY_TERM)
    except TermError as error:
        raise ReplayStartError(f"The selector does not say where to start: {error}.") from None
    except SelectorError as error:
        raise FilterError(SELECTOR, f"is not a valid selector: {error}.") from None
    start = None if start_text is None else parse_text(str(start_text), START_IN_SELECTOR)
    return rest, start


def _read(values: FilterValues, name: Symbol, is_its_type: Callable[[Any], bool], what: str) -> Any:
    """The value of a filter, of the type that ``what`` names; None if there is no such filter."""
    if name not in values:
        return None
    value = values[name]
    if not is_its_type(value):
        raise FilterError(name, f"is {what}, not {shown(value)}.")
    return value


def _read_text(values: FilterValues, name: Symbol) -> str | None:
    value = _read(values, name, is_text, "a string")
    return None if value is None else str(value)


def _is_map(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_no_local(value: Any) -> bool:
    return isinstance(value, list | str)
