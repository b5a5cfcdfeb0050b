"""
The reply to a consumer's attach: the source as it is in place, with where its replay really starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

from proton import UNDESCRIBED, Array, Data, Described, Link, Terminus, symbol, timestamp, ulong

from amqp_ext.filters.filter_set import REPLAY_START, Filters
from amqp_ext.lifetime import LIFETIME_POLICY, Lifetime
from amqp_ext.message.annotations import Splicer
from amqp_ext.outcomes import in_order
from amqp_ext.replay_id import format_replay_id
from amqp_ext.replay_start import ReplayStart
from gateway import log_keys
from gateway.amqp.attach.request import BATCHES_KEY, AttachRequest
from gateway.amqp.engine.conditions import room_of
from gateway.core.replay.starts import Resolved

_SAYING_WHAT_IT_IS: Final = frozenset(
    {"queue", "topic", "temporary-queue", "temporary-topic", "stream", "shared", "global"}
)
"""Capabilities of a source that say which node its address means, or how it is subscribed to."""

_FIXED_BYTES: Final = 120
"""Bytes of an attach that are always there: frame header, descriptors, sizes, and fields of fixed width."""

_PROPERTIES_BYTES: Final = 140
"""Bytes of the link's properties, with 64-bit numbers."""


_ID_BYTES: Final = 9
"""Bytes of one id in a list; a list's name and size take less than five of them."""


class LogBounds(Protocol):
    """Where a replay log begins and ends."""

    @property
    def generation(self) -> int:
        """Which log it is: another one after messages were lost, so that ids of before are told from it."""

    @property
    def first_id(self) -> int:
        """Id of its oldest message."""

    @property
    def next_id(self) -> int:
        """Id that its next message will have."""


def splicer_for(filters: Filters, log: LogBounds) -> Splicer:
    """What puts header and annotations in front of the messages that the source of these filters sends."""
    return Splicer(log.generation, stream_offset=filters.wants_stream_offset)


@dataclass(frozen=True, slots=True)
class SourceInPlace:
    """
    A source as it is in place.

    Attributes:
        address: Of the node; None where it is as the peer says.
        filters: Those that are applied.
        resolved: Where the link starts.
        copies: The node keeps what is sent.
        lifetime: Of a dynamic source.
        first_id: Of a stream: the first id in its view, where the log has older ones.
        replays: Whether what is resolved is where the link starts. Else the answer says that it is live: who attaches
            the link again with what is in place (section 2.6.3) does not mean to rewind a queue.
        batches: Whether messages will come in batches, where that can be said.
    """

    address: str | None
    filters: Filters
    resolved: Resolved
    copies: bool
    lifetime: Lifetime = Lifetime.DELETE_ON_CLOSE
    first_id: int = 0
    replays: bool = True
    batches: bool = False
    taken_below: Sequence[int] = ()
    """Ids below which rules of retention took out of the topics that are read, one for each rule."""
    settles: bool = False
    """Deliveries go out settled, whatever was asked for."""


def reply_to_source(request: AttachRequest, in_place: SourceInPlace, log: LogBounds) -> bool:
    """
    Fill in our side of a consumer's or reader's attach: the source as it is in place, and the log's bounds.

    Returns:
        Whether there was room for the link's properties, which say that messages come in batches.
    """
    link = request.link
    source, requested = link.source, link.remote_source
    source.copy(requested)
    if in_place.address is not None:
        source.address = in_place.address
    source.distribution_mode = Terminus.DIST_MODE_COPY if in_place.copies else Terminus.DIST_MODE_MOVE
    if requested.dynamic:
        say_lifetime(source, in_place.lifetime)
    entries = _entries_in_place(requested, in_place.filters)
    described = _described_start(in_place.resolved, log.generation, replays=in_place.replays)
    start = Described(symbol(REPLAY_START), described)
    _put_filters(source, {**entries, symbol(REPLAY_START): start})
    source.capabilities.clear()
    source.capabilities.put_object(_capabilities_in_place(request))
    source.outcomes.clear()
    source.outcomes.put_object(
        Array(cast("Any", UNDESCRIBED), Data.SYMBOL, *map(symbol, in_order(request.outcomes)))
    )
    link.target.copy(link.remote_target)
    link.snd_settle_mode = Link.SND_SETTLED if in_place.settles else link.remote_snd_settle_mode
    link.rcv_settle_mode = link.remote_rcv_settle_mode
    properties: dict[symbol, Any] = {
        symbol("rewind:replay-first"): ulong(max(log.first_id, in_place.first_id)),
        symbol("rewind:replay-last"): ulong(log.next_id - 1),
        symbol("rewind:replay-generation"): ulong(log.generation),
    }
    if in_place.batches:
        properties[BATCHES_KEY] = True
    # An attach is one frame (section 2.3.1): what the peer has no room for is left unsaid, our additions first.
    room = room_of(link) - _bytes_of(link)
    if room < 0:
        source.outcomes.clear()
        room = room_of(link) - _bytes_of(link)
    if room < 0:
        _put_filters(source, entries)
    if room < _PROPERTIES_BYTES:
        return False
    if in_place.taken_below and room >= _PROPERTIES_BYTES + _ID_BYTES * (len(in_place.taken_below) + 5):
        properties[symbol("rewind:replay-taken-below")] = list(map(ulong, in_place.taken_below))
    link.properties = properties
    return True


def _put_filters(source: Terminus, entries: Mapping[Any, Any]) -> None:
    source.filter.clear()
    if entries:
        source.filter.put_object(entries)


def _bytes_of(link: Link) -> int:
    """About how many bytes our attach takes, without properties; never fewer than it does."""
    source, target = link.source, link.target
    values = (
        source.filter,
        source.capabilities,
        source.properties,
        source.outcomes,
        target.capabilities,
        target.properties,
    )
    texts = (link.name, source.address or "", target.address or "")
    return (
        _FIXED_BYTES
        + sum(len(value.encode()) for value in values)
        + sum(len(text.encode()) for text in texts)
    )


def echo_termini(link: Link) -> None:
    """
    Our side of the attach of a peer that sends: its source as it has it, and its target. A source without an address is
    one all the same; to the engine it is none.
    """
    link.source.copy(link.remote_source)
    link.source.type = Terminus.SOURCE
    link.target.copy(link.remote_target)


def say_lifetime(terminus: Terminus, lifetime: Lifetime) -> None:
    """
    What a dynamic node really has, which may not be what was asked for: its lifetime (3.5.10), no durability, and an
    end with its link's session at the latest (3.5.6).
    """
    terminus.durability = Terminus.NONDURABLE
    if terminus.expiry_policy != Terminus.EXPIRE_WITH_LINK:
        terminus.expiry_policy = Terminus.EXPIRE_WITH_SESSION
    terminus.properties.clear()
    terminus.properties.put_object({symbol(LIFETIME_POLICY): Described(ulong(lifetime.code), [])})


def _entries_in_place(requested: Any, filters: Filters) -> dict[Any, Any]:
    """The entries of the peer's filter-set that are applied, unchanged; what is left out of a reply is not (3.5.8)."""
    requested.filter.rewind()
    entries = requested.filter.get_object() if requested.filter.next() else None
    return {key: value for key, value in (entries or {}).items() if key in filters.accepted}


def _capabilities_in_place(request: AttachRequest) -> Any:
    """What we can do at a source, and what its capabilities say of it: without that its address is another node."""
    found = [symbol(name) for name in request.capabilities if name in _SAYING_WHAT_IT_IS]
    if not found:
        return symbol(REPLAY_START)
    return Array(cast("Any", UNDESCRIBED), Data.SYMBOL, *found, symbol(REPLAY_START))


def _described_start(resolved: Resolved, generation: int, *, replays: bool) -> dict[Any, Any]:
    start: dict[Any, Any] = {
        symbol("offset"): ulong(resolved.first),
        symbol("id"): format_replay_id(generation, resolved.first),
        symbol("generation"): ulong(generation),
    }
    if not replays:
        start[symbol("from")] = symbol("live")
    if resolved.time_ms is not None:
        start[symbol("date")] = timestamp(resolved.time_ms)
    if resolved.last is not None:
        start[symbol("until")] = ulong(max(resolved.last, 0))
    return start


def log_values_of(link: Link, start: ReplayStart | None, resolved: Resolved) -> dict[str, Any]:
    """What the log says of a consumer or reader: what it asked for and what it got."""
    return {
        log_keys.ADDRESS: link.source.address,
        log_keys.START: str(start) if start is not None else None,
        log_keys.FIRST: resolved.first,
        log_keys.UNTIL: resolved.last,
    }
