"""
What a peer asks for in an attach, read off the engine once: each part by our own codec, a malformed part refused by
name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from proton import Link, Terminus, symbol

from amqp_ext import codec
from amqp_ext.codec import CodecError, Symbol
from amqp_ext.filters.filter_set import Filters, read_filter_set
from amqp_ext.filters.forms import FilterError
from amqp_ext.frames.termini import AttachedTermini
from amqp_ext.lifetime import Lifetime, LifetimeError, read_lifetime
from amqp_ext.message.reader_batches import BATCHES
from amqp_ext.outcomes import OutcomesError, read_outcomes
from amqp_ext.replay_start import ReplayStartError
from amqp_ext.vendor_forms import EPOCH_PROPERTIES
from gateway.amqp.engine.native import UNREADABLE
from gateway.core.errors import ErrorCode, Refused

BATCHES_KEY: Final = symbol(BATCHES)
"""Property of a reader's link by which it asks for several messages in a delivery."""


class AttachRequest:
    """
    An attach that is to be answered. A part is read when it is first asked for: what nobody asks for costs nobody an
    error.

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
        (``amqp_ext.message.reader_batches``).

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
