"""
Attaches: what a peer asks for, the steps by which its link is set up, and the answer.

A request is read from the engine once: our own codec reads each part, and a malformed part is refused by its name. The
node is permitted, found or made, and durable before the link is registered and its attach answered. The reply to a
consumer or reader says which filters are in place, and where its replay really starts.

A refusal follows AMQP 1.0 section 2.6.3: the attach is answered with a null terminus, and the link detached with the
error.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final, cast

from proton import UNDESCRIBED, Array, Data, Described, Link, Terminus, symbol, ulong

from amqp_ext import codec
from amqp_ext.addresses.address import Address, parse_source, parse_target, without_host
from amqp_ext.addresses.forms import AddressError
from amqp_ext.codec import CodecError, Symbol
from amqp_ext.filters.filter_set import Filters, read_filter_set
from amqp_ext.filters.forms import FilterError
from amqp_ext.frames.termini import AttachedTermini
from amqp_ext.message.fields import BATCHES
from amqp_ext.replay_start import ReplayStart, ReplayStartError, combine, from_options
from amqp_ext.terminus_fields import (
    LIFETIME_POLICY,
    Lifetime,
    LifetimeError,
    OutcomesError,
    read_lifetime,
    read_outcomes,
)
from amqp_ext.vendor_forms import EPOCH_PROPERTIES
from gateway.amqp.client import Client
from gateway.amqp.dialects.hooks import ServedNode
from gateway.amqp.engine.conditions import code_of, condition_of, reason_keys, room_of
from gateway.amqp.engine.link_table import AttachedLink
from gateway.amqp.engine.native import UNREADABLE
from gateway.amqp.links.requests import MAX_REQUEST_BYTES, AnswerLink, RequestLink
from gateway.core.errors import ErrorCode, Refused, refusing
from gateway.logging import log_keys

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
        setup_of: Returns the setup of a link whose terminus is no request node.
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
            **{log_keys.LINK: request.name, log_keys.ADDRESS: request.address},
            **reason_keys(refused),
        )
        if _is_gone(client, request):
            return
        if refused.code is ErrorCode.REDIRECT:
            client.redirect(refused)
        else:
            refuse(request.link, refused)


def _checked(client: Client, request: AttachRequest) -> ServedNode | None:
    """
    Check what is the same for links of every kind.

    Returns:
        The request node that the attach names; None where it names none.

    Raises:
        Refused: The request is not valid, or is not for this gateway.
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
            ErrorCode.INVALID_FIELD,
            "a dynamic node has no address before it is created; leave out one of the two",
        )
    for end in request.termini.undynamic:
        if end != request.end or not client.owner.made(_node_named(request)):
            raise Refused(
                ErrorCode.INVALID_FIELD,
                f"dynamic-node-properties are for a {end} that is dynamic, or that names a node created on "
                "this connection; this one is neither",
                field=Symbol("dynamic-node-properties"),
            )
    served = client.spoken.nodes.get(without_host(address))
    if client.token_check is not None:
        # An address that names an entity is checked once it is parsed, as its spelling must not matter.
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
        Refused: A step has raised it.
    """
    link, attached = request.link, None
    is_registered = False
    try:
        await setup.prepare()
        if not _is_gone(client, request):
            attached = await setup.bind()
        elif link.state & Link.REMOTE_CLOSED:
            setup.closed_early()
        if attached is not None and not _is_gone(client, request):
            setup.reply()
            client.links.register(attached)
            is_registered = True
    finally:
        # A step was refused, or the link or its connection has ended before the answer.
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
    """Whether the peer has detached the link, or the connection has ended, meanwhile."""
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
    The setup of a link of one kind, in steps: the node of its source or target is found or made, the link is bound to
    the node, and the attach is answered. A kind overrides the steps that do something for it.

    ``attach`` takes the steps in this order, and does all that is the same for every kind. If a step raises
    ``Refused``, the attach is answered with that. Then, and if the link ends before the answer, ``release`` is called
    instead of the remaining steps.
    """

    def __init__(self, client: Client, request: AttachRequest) -> None:
        self._client = client
        self._request = request
        self._link = request.link

    async def prepare(self) -> None:  # noqa: B027
        """Find or make the node; returns when it is durable."""

    @abstractmethod
    async def bind(self) -> AttachedLink | None:
        """Make the link, bound to the node; None where it has lost that binding already."""

    @abstractmethod
    def reply(self) -> None:
        """Fill in our side of the attach."""

    def closed_early(self) -> None:  # noqa: B027
        """The peer has closed the link before its attach was answered: do what the close asks for."""

    def opened(self) -> None:  # noqa: B027
        """The attach is answered."""

    @abstractmethod
    def log_values(self) -> Mapping[str, Any] | None:
        """What the log says about the attached link in addition to its name; None for no line."""

    def release(self) -> None:  # noqa: B027
        """The link will not be attached: give back what was taken for it."""


class RequestNodeTerminus(LinkSetup):
    """
    A request node as a target, for requests, or as a source, for their answers.

    Args:
        served: The node, and the function that carries out its requests.
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
        if self._is_paired:
            link.properties = {PAIRED: True}
        if self._request.publishes:
            reply_to_sender(link, MAX_REQUEST_BYTES)
        else:
            link.source.copy(link.remote_source)
            link.target.copy(link.remote_target)
            link.rcv_settle_mode = Link.RCV_FIRST
            # An answer is sent once: a client that does not get it asks again.
            link.snd_settle_mode = Link.SND_SETTLED

    def log_values(self) -> dict[str, Any]:
        return {log_keys.ADDRESS: str(self._request.address)}


# --- what is asked for ------------------------------------------------------------------------------------------------


class AttachRequest:
    """
    An attach that is to be answered. A part is decoded when it is first used, so a malformed part that is not used is
    no error.

    Args:
        link: The engine's link, of which the peer's side is read.
        termini: What the attach frame says about its source and target, and the engine does not tell.
    """

    def __init__(self, link: Link, termini: AttachedTermini) -> None:
        self.link = link
        self.termini = termini
        self.publishes: bool = link.is_receiver
        """Whether the peer sends on it."""
        self.name: str = link.name
        """The link's name; empty where the peer gave it none."""
        self.end = "target" if self.publishes else "source"
        """Which of its termini is at the gateway, by the name in the specification."""
        self.terminus: Terminus = link.remote_target if self.publishes else link.remote_source
        """The target if the peer sends on the link, else the source."""
        self.address: str | None = self.terminus.address
        """The address of the terminus, as the peer spells it."""

    @property
    def is_dynamic(self) -> bool:
        """Whether a node is to be made for it."""
        return bool(self.terminus.dynamic)

    @property
    def is_for_jms(self) -> bool:
        """Whether it asks for its dynamic node as JMS clients do (AMQP JMS mapping, section 5.3)."""
        return "temporary-queue" in self.capabilities

    @property
    def is_for_coordinator(self) -> bool:
        """Whether its target is the transaction coordinator (AMQP 1.0 section 4.5.1)."""
        return self.publishes and bool(self.terminus.type == Terminus.COORDINATOR)

    @property
    def wants_copies(self) -> bool:
        """Whether it browses (distribution mode copy, AMQP 1.0 section 3.5.6)."""
        return bool(self.terminus.distribution_mode == Terminus.DIST_MODE_COPY)

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
                "a dynamic node is a queue or a topic; a stream is created by its name",
            )
        return [str(capability) for capability in found]

    @cached_property
    def source(self) -> Address:
        """
        What the address of its source names.

        Raises:
            Refused: As ``capabilities``; INVALID_FIELD, it is no address.
        """
        with refusing(AddressError):
            return parse_source(self.address or "", self.capabilities)

    @cached_property
    def start(self) -> ReplayStart | None:
        """
        Where it wants to start, by its filter-set or the options of its address; None where it does not say.

        Raises:
            Refused: As ``source`` and ``filters``; UNKNOWN_START.
        """
        options = self.source.options if self.address else {}
        with refusing(ReplayStartError, code=ErrorCode.UNKNOWN_START):
            return combine(self.filters.start, from_options(options))

    @cached_property
    def outcomes(self) -> frozenset[str]:
        """
        The outcomes that its source lists, whichever side sends; all, where it lists none (AMQP 1.0 section 3.5.3).

        Raises:
            Refused: DECODE_ERROR; INVALID_FIELD, they are no outcomes.
        """
        with refusing(OutcomesError, field=Symbol("outcomes")):
            return read_outcomes(_read(self.link.remote_source.outcomes, "the outcomes"))

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
        field = Symbol("filter")
        if not isinstance(entries, dict):
            raise Refused(ErrorCode.INVALID_FIELD, "a filter-set is a map", field=field)
        with (
            refusing(ReplayStartError, code=ErrorCode.UNKNOWN_START, field=field),
            refusing(FilterError, field=field),
        ):
            return read_filter_set(entries)

    @cached_property
    def lifetime(self) -> Lifetime:
        """
        How long its dynamic node is to live.

        Raises:
            Refused: DECODE_ERROR; INVALID_FIELD, it is no lifetime policy.
        """
        with refusing(LifetimeError, field=Symbol("dynamic-node-properties")):
            return read_lifetime(_read(self.terminus.properties, "the dynamic node's properties"))

    @cached_property
    def properties(self) -> Mapping[Any, Any]:
        """
        Its properties, by symbol; empty where there are none.

        Raises:
            Refused: DECODE_ERROR.
        """
        with refusing(*UNREADABLE, code=ErrorCode.DECODE_ERROR, saying="the link's properties: "):
            properties = self.link.remote_properties
        return properties if isinstance(properties, dict) else {}

    def epoch(self) -> int | None:
        """
        Its epoch, by one of its properties or by the address's option; None where there is none.

        Raises:
            Refused: DECODE_ERROR; INVALID_FIELD, both are given and differ.
        """
        properties, options = self.properties, self.source.options if self.address else {}
        option = int(options["epoch"]) if "epoch" in options else None
        for name in EPOCH_PROPERTIES:
            said = properties.get(symbol(name))
            if not isinstance(said, int) or isinstance(said, bool):
                continue
            if option is not None and said != option:
                raise Refused(
                    ErrorCode.INVALID_FIELD,
                    f"the link's {name} is {said}, and its address has epoch={option}; give only one of them",
                )
            return int(said)
        return option

    def number(self, names: Sequence[str], least: int | None = None) -> int | None:
        """
        The number in one of the link's properties, as a consumer's priority or the time of its locks; None where it has
        none of them.

        Args:
            names: The names of the properties.

        Raises:
            Refused: DECODE_ERROR; INVALID_FIELD, it is no whole number, or less than the least.
        """
        for name in names:
            value = self.properties.get(symbol(name))
            if value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or (least is not None and value < least):
                said = "a whole number" if least is None else f"a whole number of at least {least}"
                raise Refused(ErrorCode.INVALID_FIELD, f"the link's {name} is {said}, not {value!r:.80}")
            return int(value)
        return None

    @property
    def wants_batches(self) -> bool:
        """
        Whether a reader asks for several messages in a delivery, and for settled deliveries
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
    with refusing(CodecError, *UNREADABLE, code=ErrorCode.DECODE_ERROR, saying=f"{what}: "):
        encoded = data.encode()
        value = codec.decode(encoded)[0] if encoded else None
        data.rewind()
        if data.next():
            data.get_object()
        return value


# --- what every reply says --------------------------------------------------------------------------------------------


def symbols(names: Iterable[str]) -> Array:
    """Names as an array of symbols, the encoding of multiple values (section 1.4): Qpid JMS accepts no list."""
    return Array(cast("Any", UNDESCRIBED), Data.SYMBOL, *map(symbol, names))


def reply_to_sender(link: Link, largest_bytes: int) -> None:
    """
    Fill in our side of the attach of a link that the peer sends on: its own source and target. A source without an
    address is a source all the same, which the engine has to be told.

    Args:
        largest_bytes: The largest message that is accepted.
    """
    link.source.copy(link.remote_source)
    link.source.type = Terminus.SOURCE
    link.target.copy(link.remote_target)
    link.snd_settle_mode = link.remote_snd_settle_mode
    # We settle with the outcome: a receiver in mode second would wait for a settlement nobody needs.
    link.rcv_settle_mode = Link.RCV_FIRST
    link.max_message_size = largest_bytes


def say_lifetime(terminus: Terminus, lifetime: Lifetime) -> None:
    """
    Say what a dynamic node really has, which may differ from what was asked for: its lifetime (3.5.10), no durability,
    and an end with its link's session at the latest (3.5.6).
    """
    terminus.durability = Terminus.NONDURABLE
    if terminus.expiry_policy != Terminus.EXPIRE_WITH_LINK:
        terminus.expiry_policy = Terminus.EXPIRE_WITH_SESSION
    terminus.properties.clear()
    terminus.properties.put_object({symbol(LIFETIME_POLICY): Described(ulong(lifetime.code), [])})
