"""The filter-set of a source: what a consumer asks for beside an address.

===========================================  ==================  ============================================
descriptor                                   code                value
===========================================  ==================  ============================================
``rewind:replay-start``                      -                   see `amqp_ext.replay_start`
``rabbitmq:stream-offset-spec``              -                   see `amqp_ext.replay_start`
``rabbitmq:stream-filter``                   -                   string, or list of strings
``rabbitmq:stream-match-unfiltered``         -                   boolean
``apache.org:selector-filter:string``        0x0000468C00000004  JMS selector, or an Event Hubs position
``apache.org:no-local-filter:list``          0x0000468C00000003  list (Qpid JMS sends a string)
``amqp:properties-filter``                   0x173               map
``amqp:application-properties-filter``       0x174               map
``amqp:sql-filter``                          0x120               string
===========================================  ==================  ============================================

A filter is known by its descriptor; the key it lies under is the client's own and says nothing. One leniency:
AMQP wants every value described (1.0 §3.5.8), and a client that sends a bare value is understood where the
key is a descriptor of the table, or ``jms-selector``, ``no-local`` or ``sql-filter``, as clients name them.

A selector may hold one top-level AND term ``"m.x-opt-replay-start" = '…'``, the only place where a JMS client
can ask for a replay beside the address. It is taken out, and the rest is the selector.

A link's source is answered with the start as it was resolved, beside the entry that asked for it; who attaches the link
again with the source as it is in place asks for both, and gets what was asked for first.

Invariant: a replay start is read or refused, never dropped. That is why an unknown filter of our own domain,
and an unknown one under the key of a replay start, are errors, where any other unknown filter is only left
out of the reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final

from amqp_ext.codec import Char, Described, Symbol
from amqp_ext.replay_start import (
    Origin,
    ReplayStart,
    combine,
    from_event_hubs_selector,
    from_rewind_filter,
    from_stream_offset_spec,
    is_answer,
    parse_text,
)
from amqp_ext.selector.selector import SelectorError, extract_equal

REPLAY_START: Final = Symbol("rewind:replay-start")
STREAM_OFFSET_SPEC: Final = Symbol("rabbitmq:stream-offset-spec")
STREAM_FILTER: Final = Symbol("rabbitmq:stream-filter")
STREAM_MATCH_UNFILTERED: Final = Symbol("rabbitmq:stream-match-unfiltered")
SELECTOR: Final = Symbol("apache.org:selector-filter:string")
NO_LOCAL: Final = Symbol("apache.org:no-local-filter:list")
PROPERTIES: Final = Symbol("amqp:properties-filter")
APPLICATION_PROPERTIES: Final = Symbol("amqp:application-properties-filter")
SQL: Final = Symbol("amqp:sql-filter")

REPLAY_TERM: Final = "m.x-opt-replay-start"
"""The name that a selector's replay start is compared with."""

_OUR_DOMAIN: Final = "rewind:"
_STARTS: Final = frozenset({REPLAY_START, STREAM_OFFSET_SPEC})
_OF_RABBITMQ: Final = frozenset({STREAM_OFFSET_SPEC, STREAM_FILTER, STREAM_MATCH_UNFILTERED})
_BY_NAME: Final[Mapping[str, Symbol]] = {
    name: name
    for name in (*_STARTS, *_OF_RABBITMQ, SELECTOR, NO_LOCAL, PROPERTIES, APPLICATION_PROPERTIES, SQL)
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


class FilterError(ValueError):
    """A known filter that cannot be honoured. ``field`` is its descriptor's name, the text a sentence."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"The filter {field} {reason}")
        self.field = field


@dataclass(frozen=True, slots=True)
class Filters:
    """What a filter-set asks for.

    ``accepted`` are the keys of the entries that were understood, to be echoed with their values unchanged;
    ``unknown`` those that were not. ``wants_stream_offset`` says that a filter of RabbitMQ's was there, whose
    clients look for ``x-stream-offset``. The selector is valid; the maps and ``sql`` are as they came.
    """

    start: ReplayStart | None = None
    selector: str | None = None
    no_local: bool = False
    properties: Mapping[Any, Any] | None = None
    application_properties: Mapping[Any, Any] | None = None
    sql: str | None = None
    stream_filter: tuple[str, ...] | None = None
    stream_match_unfiltered: bool | None = None
    accepted: tuple[Symbol, ...] = ()
    unknown: tuple[Symbol, ...] = ()
    wants_stream_offset: bool = False


def read_filter_set(entries: Mapping[Symbol, Any]) -> Filters:
    """Read a source's filter-set; null entries are as good as absent (AMQP 1.0 §3.5.8).

    Raises `FilterError` for a known filter with a bad value or given twice, and `ReplayStartError` for a bad
    start, or two that differ.
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
            raise FilterError(name, "is there twice; give it once.")
        else:
            values[name] = value
        accepted.append(key)

    selector, selector_start = _read_selector(values)
    starts = (
        from_rewind_filter(values[REPLAY_START]) if REPLAY_START in values else None,
        from_stream_offset_spec(values[STREAM_OFFSET_SPEC]) if STREAM_OFFSET_SPEC in values else None,
        selector_start,
        answer,
    )
    return Filters(
        start=reduce(combine, starts),
        selector=selector,
        no_local=_read_no_local(values),
        properties=_read_map(values, PROPERTIES),
        application_properties=_read_map(values, APPLICATION_PROPERTIES),
        sql=_read_text(values, SQL),
        stream_filter=_read_stream_filter(values),
        stream_match_unfiltered=_read_match_unfiltered(values),
        accepted=tuple(accepted),
        unknown=tuple(unknown),
        wants_stream_offset=not _OF_RABBITMQ.isdisjoint(values),
    )


def _identify(key: Any, entry: Any) -> tuple[Symbol | None, Any]:
    """Which filter an entry is, and its value; no filter for one that we do not know."""
    if not isinstance(entry, Described):
        name = _BY_KEY.get(key) if isinstance(key, str) else None
        if name is None and _is_ours(key):
            raise FilterError(REPLAY_START, f"is the only one of its domain; there is no {key!s}.")
        return name, entry
    descriptor = entry.descriptor
    name = None
    if isinstance(descriptor, str):
        name = _BY_NAME.get(descriptor)
    elif isinstance(descriptor, int):
        name = _BY_CODE.get(descriptor)
    if name is None:
        if _is_ours(descriptor):
            raise FilterError(REPLAY_START, f"is the only one of its domain; there is no {descriptor!s}.")
        if _is_ours(key) or key in _STARTS:
            raise FilterError(str(key), f"has the descriptor {_cut(descriptor)}; describe it as {key!s}.")
    return name, entry.value


def _is_ours(name: Any) -> bool:
    return isinstance(name, str) and name.startswith(_OUR_DOMAIN)


def _read_selector(values: Mapping[Symbol, Any]) -> tuple[str | None, ReplayStart | None]:
    """The selector that is left, and the replay start that was in it or that all of it was."""
    text = _read_text(values, SELECTOR)
    if text is None or not text.strip():
        return None, None  # to JMS an empty selector is none (JMS 2.0 §3.8.1.1)
    if start := from_event_hubs_selector(text):
        return None, start
    try:
        start_text, rest = extract_equal(text, REPLAY_TERM)
    except SelectorError as error:
        raise FilterError(SELECTOR, f"is no valid selector: {error}.") from None
    start = None if start_text is None else parse_text(str(start_text), Origin.SELECTOR)
    return None if rest is None else rest.text, start


def _read_no_local(values: Mapping[Symbol, Any]) -> bool:
    if NO_LOCAL not in values:
        return False
    value = values[NO_LOCAL]
    if not isinstance(value, list | str):
        raise FilterError(NO_LOCAL, f"is described as a list, not {_cut(value)}.")
    return True


def _read_map(values: Mapping[Symbol, Any], name: Symbol) -> Mapping[Any, Any] | None:
    if name not in values:
        return None
    value = values[name]
    if not isinstance(value, Mapping):
        raise FilterError(name, f"is a map, not {_cut(value)}.")
    return value


def _read_text(values: Mapping[Symbol, Any], name: Symbol) -> str | None:
    if name not in values:
        return None
    value = values[name]
    if not _is_text(value):
        raise FilterError(name, f"is a string, not {_cut(value)}.")
    return str(value)


def _read_stream_filter(values: Mapping[Symbol, Any]) -> tuple[str, ...] | None:
    if STREAM_FILTER not in values:
        return None
    value = values[STREAM_FILTER]
    if _is_text(value):
        return (str(value),)
    if isinstance(value, list) and all(map(_is_text, value)):
        return tuple(map(str, value))
    raise FilterError(STREAM_FILTER, f"is a string or a list of strings, not {_cut(value)}.")


def _read_match_unfiltered(values: Mapping[Symbol, Any]) -> bool | None:
    value = values.get(STREAM_MATCH_UNFILTERED)
    if STREAM_MATCH_UNFILTERED in values and not isinstance(value, bool):
        raise FilterError(STREAM_MATCH_UNFILTERED, f"is a boolean, not {_cut(value)}.")
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not isinstance(value, Char)


def _cut(value: Any) -> str:
    shown = repr(str(value)) if isinstance(value, str) else repr(value)
    limit = 80
    return shown if len(shown) <= limit else f"{shown[:limit]}…"
