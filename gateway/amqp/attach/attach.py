"""
Attaches: what a peer asks for, the steps by which its link is set up, and the answer.

A request is read off the engine once: each part by our own codec, a malformed part refused by name. What it asks for is
found or made, permitted and durable; then the link is registered, and its attach answered. The reply to a consumer or
reader says which filters are in place, and where its replay really starts.

A refusal is what AMQP 1.0 section 2.6.3 has it be: the attach is answered with a null terminus and detached with the
error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, cast

from proton import (
    UNDESCRIBED,
    Array,
    Data,
    Described,
    Link,
    Terminus,
    symbol,
    timestamp,
    ulong,
)

from amqp_ext import codec
from amqp_ext.addresses.address import parse_source, parse_target, without_host
from amqp_ext.addresses.forms import AddressError
from amqp_ext.codec import CodecError, Symbol
from amqp_ext.filters.filter_set import REPLAY_START, Filters, read_filter_set
from amqp_ext.filters.forms import FilterError
from amqp_ext.frames.termini import AttachedTermini
from amqp_ext.message.annotations import Splicer
from amqp_ext.message.fields import BATCHES
from amqp_ext.replay_id import format_replay_id
from amqp_ext.replay_start import ReplayStart, ReplayStartError
from amqp_ext.terminus_fields import (
    LIFETIME_POLICY,
    Lifetime,
    LifetimeError,
    OutcomesError,
    in_order,
    read_lifetime,
    read_outcomes,
)
from amqp_ext.vendor_forms import EPOCH_PROPERTIES
from gateway.amqp.client import Client
from gateway.amqp.dialects.hooks import ServedNode
from gateway.amqp.engine.conditions import code_of, condition_of, room_of, rule_of
from gateway.amqp.engine.link_table import AttachedLink
from gateway.amqp.engine.native import UNREADABLE
from gateway.amqp.links.requests import MAX_REQUEST_BYTES, AnswerLink, RequestLink
from gateway.core.errors import ErrorCode, Refused
from gateway.core.replay.starts import Resolved
from gateway.logging import log_keys
from gateway.vpn.log import MessageLog

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

BATCHES_KEY: Final = symbol(BATCHES)
"""Property of a reader's link by which it asks for several messages in a delivery."""

PAIRED: Final = symbol("paired")
"""Property of both links of a pair (HTTP over AMQP 1.0, link pairing)."""


# --- the answer -------------------------------------------------------------------------------------------------------


async def attach(
    client: Client,
    request: AttachRequest,
    setup_of: Callable[[Client, AttachRequest], Awaitable[LinkSetup]],
) -> None:
    """
    Answer an attach; never raises for a mistake of the peer's.

    Args:
        setup_of: How a link is set up whose terminus is no request node, by the kind of its source or target.
    """
    client.steal(request.name, publishes=request.publishes)
    try:
        served = _checked(client, request)
        setup = (
            await setup_of(client, request)
            if served is None
            else RequestNodeTerminus(client, request, served)
        )
        await _set_up(client, request, setup)
    except Refused as refused:
        client.log.warning(
            "attach_refused",
            **{
                log_keys.LINK: request.name,
                log_keys.ADDRESS: request.address,
                log_keys.CONDITION: refused.code.condition,
                log_keys.REPLAY_ERROR: refused.code.replay_error,
                log_keys.RULE: rule_of(refused),
                log_keys.REASON: refused.text,
            },
        )
        if _is_gone(client, request):
            return
        if refused.code is ErrorCode.REDIRECT:
            client.redirect(refused)
        else:
            refuse(request.link, refused)


def _checked(client: Client, request: AttachRequest) -> ServedNode | None:
    """
    Look at what is the same for links of every kind.

    Returns:
        The request node that the attach is to; None where it is to none.

    Raises:
        Refused: The request is no good, or is not for this gateway.
    """
    if not request.name:
        # Mandatory (AMQP 1.0 section 2.7.3); a durable subscription is named by it.
        raise Refused(ErrorCode.INVALID_FIELD, "an attach needs a name for its link")
    bad = request.termini.bad
    if bad is not None:
        raise Refused(code_of(bad.condition), bad.text, field=Symbol(bad.field))
    side = "source" if request.publishes else "target"
    if side in request.termini.null and not request.is_for_coordinator:
        # Without a terminus at one of its ends there is no link (section 2.6.3).
        raise Refused(
            ErrorCode.INVALID_FIELD, f"a link has a {side}, and this attach has none", field=Symbol(side)
        )
    address = request.address or ""
    if address and request.is_dynamic:
        # Sections 3.5.3 and 3.5.4: it could mean either.
        raise Refused(
            ErrorCode.INVALID_FIELD, "a dynamic node has no address before it is made; leave one of both out"
        )
    for end in request.termini.undynamic:
        if end != request.end or not client.owner.made(_node_named(request)):
            raise Refused(
                ErrorCode.INVALID_FIELD,
                f"dynamic-node-properties are of a {end} that is dynamic, or names a node that was made on this"
                " connection; this one is neither",
                field=Symbol("dynamic-node-properties"),
            )
    served = client.spoken.nodes.get(without_host(address))
    if client.token_check is not None:
        # What names an entity is looked at once it is read: in another spelling it is the same, or another.
        names_none = not address or request.is_dynamic or request.is_for_coordinator
        if names_none if served is None else not served.looks_at_tokens:
            client.token_check.require_all()
    if request.publishes or request.is_for_coordinator or served is not None:
        client.require_active()
    return served


def _node_named(request: AttachRequest) -> str:
    """The queue or topic that its terminus names; empty where it names none."""
    try:
        read = parse_target if request.publishes else parse_source
        return read(request.address or "", request.capabilities).name
    except AddressError:
        return ""


async def _set_up(client: Client, request: AttachRequest, setup: LinkSetup) -> None:
    """
    Take a setup's steps.

    Raises:
        Refused: One of them did.
    """
    link, attached = request.link, None
    is_registered = False
    try:
        await setup.prepare()
        if not _is_gone(client, request):
            attached = await setup.bind()
        elif request.is_closed:
            setup.closed_early()
        if attached is not None and not _is_gone(client, request):
            setup.reply()
            client.links.register(attached)
            is_registered = True
    finally:
        # Refused, or the link or its connection did not wait for the answer.
        if not is_registered:
            setup.release()
    if attached is None or not is_registered:
        return
    name = client.links.names.of(link)
    client.attached(attached, name, publishes=request.publishes)
    link.open()
    setup.opened()
    values = setup.log_values()
    if values is not None:
        client.log.info("link_attached", **{log_keys.LINK: name, **values})
    attached.ready()


def _is_gone(client: Client, request: AttachRequest) -> bool:
    """Whether the peer has left while we were busy for it."""
    return not (client.is_connected and client.links.is_known(request.link))


def refuse(link: Link, refused: Refused) -> None:
    """Answer an attach with a refusal."""
    if link.is_receiver:
        link.source.copy(link.remote_source)
        link.target.type = Terminus.UNSPECIFIED
    else:
        link.source.type = Terminus.UNSPECIFIED
        link.target.copy(link.remote_target)
    link.open()
    link.condition = condition_of(refused, room_of(link))
    link.close()


class LinkSetup(ABC):
    """
    How a link of one kind is set up, step by step: what is behind its source or target is found or made, then the link
    is bound to it, then its attach is answered. A kind that has nothing to do in a step leaves it as it is here.

    ``attach`` takes the steps in this order, and sees to all that is the same for every kind. A step that raises
    ``Refused`` has the attach answered with that. Then, and when the peer did not wait for the answer, ``release`` is
    called instead of the steps that are left.
    """

    def __init__(self, client: Client, request: AttachRequest) -> None:
        self._client = client
        self._request = request
        self._link = request.link

    async def prepare(self) -> None:  # noqa: B027
        """Find or make what is behind the source or target; returns when that is durable."""

    @abstractmethod
    async def bind(self) -> AttachedLink | None:
        """Make the link, with its place at what is behind it; None where that place is lost again already."""

    @abstractmethod
    def reply(self) -> None:
        """Fill in our side of the attach."""

    def closed_early(self) -> None:  # noqa: B027
        """The peer has closed the link before its attach was answered: what is asked for by closing it is done."""

    def opened(self) -> None:  # noqa: B027
        """The attach is answered."""

    @abstractmethod
    def log_values(self) -> Mapping[str, Any] | None:
        """What the log says of the attached link, besides its name; None where it says nothing."""

    def release(self) -> None:  # noqa: B027
        """The link will not be attached: give back what was taken for it."""


class RequestNodeTerminus(LinkSetup):
    """
    A request node as a target, for requests, or as a source, for their answers.

    Args:
        served: The node, and who carries out what is asked of it.
    """

    def __init__(self, client: Client, request: AttachRequest, served: ServedNode) -> None:
        super().__init__(client, request)
        self._served = served
        self._is_paired = False

    async def bind(self) -> AttachedLink:
        client, link = self._client, self._link
        paired = self._is_paired = self._request.properties.get(PAIRED) is True
        if self._request.publishes:
            return RequestLink(link, client, self._served, paired=paired)
        return AnswerLink(link, client, paired=paired)

    def reply(self) -> None:
        link = self._link
        link.source.copy(link.remote_source)
        link.target.copy(link.remote_target)
        link.rcv_settle_mode = Link.RCV_FIRST
        if self._is_paired:
            link.properties = {PAIRED: True}
        if self._request.publishes:
            link.snd_settle_mode = link.remote_snd_settle_mode
            link.max_message_size = MAX_REQUEST_BYTES
        else:
            # An answer is told once: who does not get it asks again.
            link.snd_settle_mode = Link.SND_SETTLED

    def log_values(self) -> dict[str, Any]:
        return {log_keys.ADDRESS: str(self._request.address)}


# --- what is asked for ------------------------------------------------------------------------------------------------


class AttachRequest:
    """
    An attach that is to be answered. A part is decoded when it is first used, so a malformed part that is not used is
    no error.

    Args:
        link: The engine's; what is read is the peer's side of it.
        termini: What is said of its source and target, and the engine does not tell.
    """

    def __init__(self, link: Link, termini: AttachedTermini) -> None:
        self.link = link
        self.termini = termini
        self.publishes: bool = link.is_receiver
        """The peer sends on it."""

    @property
    def name(self) -> str:
        """The link's name; empty where the peer gave it none."""
        name: str = self.link.name
        return name

    @property
    def end(self) -> str:
        """Which of its termini is here, as the specification calls it."""
        return "target" if self.publishes else "source"

    @cached_property
    def terminus(self) -> Terminus:
        """The target of a link to send on, the source of one to receive on."""
        return self.link.remote_target if self.publishes else self.link.remote_source

    @cached_property
    def address(self) -> str | None:
        """Of the terminus, as the peer spells it."""
        address: str | None = self.terminus.address
        return address

    @property
    def is_dynamic(self) -> bool:
        """A node is to be made for it."""
        return bool(self.terminus.dynamic)

    @property
    def is_for_jms(self) -> bool:
        """Its dynamic node is asked for as JMS clients do (AMQP JMS mapping, section 5.3)."""
        return "temporary-queue" in self.capabilities

    @property
    def has_no_terminus(self) -> bool:
        """Its target is null, or none that the engine knows."""
        return bool(self.terminus.type == Terminus.UNSPECIFIED)

    @property
    def is_for_coordinator(self) -> bool:
        """Its target is the transaction coordinator (AMQP 1.0 section 4.5.1)."""
        return self.publishes and bool(self.terminus.type == Terminus.COORDINATOR)

    @property
    def wants_copies(self) -> bool:
        """It browses (distribution mode copy, AMQP 1.0 section 3.5.6)."""
        return bool(self.terminus.distribution_mode == Terminus.DIST_MODE_COPY)

    @property
    def never_expires(self) -> bool:
        """Its terminus is to be kept when the link is gone."""
        return bool(self.terminus.expiry_policy == Terminus.EXPIRE_NEVER)

    @property
    def is_closed(self) -> bool:
        """The peer has closed it meanwhile; detached without that it is not."""
        return bool(self.link.state & Link.REMOTE_CLOSED)

    @cached_property
    def capabilities(self) -> list[str]:
        """
        The capabilities of its terminus.

        Raises:
            Refused: DECODE_ERROR; NOT_IMPLEMENTED, they ask for a stream without a name.
        """
        value = _read(self.terminus.capabilities, "the capabilities")
        found = [value] if isinstance(value, str) else value if isinstance(value, list) else []
        if self.is_dynamic and "stream" in found:
            raise Refused(
                ErrorCode.NOT_IMPLEMENTED,
                "a dynamic node is a queue or a topic; a stream is made by its name",
            )
        return [str(capability) for capability in found]

    @cached_property
    def outcomes(self) -> frozenset[str]:
        """
        The outcomes that its source lists, whichever side sends; all, where it lists none (AMQP 1.0 section 3.5.3).

        Raises:
            Refused: DECODE_ERROR; INVALID_FIELD, they are none.
        """
        try:
            return read_outcomes(_read(self.link.remote_source.outcomes, "the outcomes"))
        except OutcomesError as error:
            raise Refused(ErrorCode.INVALID_FIELD, str(error), field=Symbol("outcomes")) from error

    @cached_property
    def filters(self) -> Filters:
        """
        The filter-set of its source (AMQP 1.0 section 3.5.8).

        Raises:
            Refused: DECODE_ERROR; INVALID_FIELD, a filter is bad; UNKNOWN_START.
        """
        entries = _read(self.terminus.filter, "the filter-set")
        if entries is None:
            entries = {}
        if not isinstance(entries, dict):
            raise Refused(ErrorCode.INVALID_FIELD, "a filter-set is a map", field=Symbol("filter"))
        try:
            return read_filter_set(entries)
        except ReplayStartError as error:
            raise Refused(ErrorCode.UNKNOWN_START, str(error), field=Symbol("filter")) from error
        except FilterError as error:
            raise Refused(ErrorCode.INVALID_FIELD, str(error), field=Symbol("filter")) from error

    @cached_property
    def lifetime(self) -> Lifetime:
        """
        How long its dynamic node is to live.

        Raises:
            Refused: DECODE_ERROR; INVALID_FIELD, it is no lifetime policy.
        """
        try:
            return read_lifetime(_read(self.terminus.properties, "the dynamic node's properties"))
        except LifetimeError as error:
            raise Refused(
                ErrorCode.INVALID_FIELD, str(error), field=Symbol("dynamic-node-properties")
            ) from error

    @cached_property
    def properties(self) -> Mapping[Any, Any]:
        """
        Its properties, by symbol; empty where there are none.

        Raises:
            Refused: DECODE_ERROR.
        """
        try:
            properties = self.link.remote_properties
        except UNREADABLE as error:
            raise Refused(ErrorCode.DECODE_ERROR, f"the link's properties: {error}") from error
        return properties if isinstance(properties, dict) else {}

    def epoch(self, options: Mapping[str, str]) -> int | None:
        """
        Its epoch, by one of its properties or by the address's option; None where there is none.

        Raises:
            Refused: DECODE_ERROR; INVALID_FIELD, both are given and differ.
        """
        properties = self.properties
        option = int(options["epoch"]) if "epoch" in options else None
        for name in EPOCH_PROPERTIES:
            said = properties.get(symbol(name))
            if not isinstance(said, int) or isinstance(said, bool):
                continue
            if option is not None and said != option:
                raise Refused(
                    ErrorCode.INVALID_FIELD,
                    f"the link's {name} is {said}, and its address says epoch={option}; say it once",
                )
            return int(said)
        return option

    def consumer_priority(self, names: Sequence[str]) -> int:
        """
        The consumer's priority, as its clients say it in a property of the link; 0 where there is none.

        Args:
            names: Properties that say it.

        Raises:
            Refused: DECODE_ERROR; INVALID_FIELD, it is no whole number.
        """
        for name in names:
            value = self.properties.get(symbol(name), 0)
            if not isinstance(value, int) or isinstance(value, bool):
                raise Refused(
                    ErrorCode.INVALID_FIELD, f"the link's {name} is a whole number, not {value!r:.80}"
                )
            if value:
                return int(value)
        return 0

    @property
    def wants_batches(self) -> bool:
        """
        Whether a reader asks for several messages in a delivery, and wants no say in them
        (``amqp_ext.message.fields``).

        Raises:
            Refused: DECODE_ERROR.
        """
        is_settled = self.link.remote_snd_settle_mode == Link.SND_SETTLED
        return is_settled and self.properties.get(BATCHES_KEY) is True


def _read(data: Any, what: str) -> Any:
    """
    A value of the peer's, by our own codec; None where there is none.

    Raises:
        Refused: DECODE_ERROR, it is malformed, or the engine has no Python value for it.
    """
    try:
        encoded = data.encode()
        value = codec.decode(encoded)[0] if encoded else None
        data.rewind()
        if data.next():
            data.get_object()
        return value
    except (CodecError, *UNREADABLE) as error:
        raise Refused(ErrorCode.DECODE_ERROR, f"{what}: {error}") from error


# --- the reply to who receives ----------------------------------------------------------------------------------------


def splicer_for(filters: Filters, log: MessageLog) -> Splicer:
    """What puts header and annotations in front of the messages that the source of these filters sends."""
    return Splicer(log.generation, stream_offset=filters.wants_stream_offset)


@dataclass(frozen=True, slots=True)
class SourceInPlace:
    """
    A source as the reply describes it.

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


def reply_to_source(request: AttachRequest, in_place: SourceInPlace, log: MessageLog) -> bool:
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
