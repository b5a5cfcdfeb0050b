"""
What a peer asks for in an attach, read off the engine: each part by our own codec, malformed parts refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from proton import DataException, Link, symbol

from amqp_ext import codec
from amqp_ext.addresses import Address
from amqp_ext.codec import CodecError, Symbol
from amqp_ext.filters.filter_set import Filters, read_filter_set
from amqp_ext.filters.forms import FilterError
from amqp_ext.lifetime import Lifetime, LifetimeError, read_lifetime
from amqp_ext.message.reader_batches import BATCHES
from amqp_ext.replay_start import ReplayStartError
from amqp_ext.vendor_forms import EPOCH_PROPERTIES
from gateway.core.endpoint.settings import EndpointKind
from gateway.core.errors import ErrorCode, Refused

if TYPE_CHECKING:
    from gateway.amqp.connection import Connection

BATCHES_KEY: Final = symbol(BATCHES)


def is_gone(connection: Connection, link: Link) -> bool:
    """Whether the peer has left while we were busy for it."""
    return bool(link.state & Link.REMOTE_CLOSED) or not connection.is_open


def capabilities_of(terminus: Any) -> list[str]:
    """
    The capabilities of a source or target.

    Raises:
        Refused: DECODE_ERROR; NOT_IMPLEMENTED, they ask for a stream without a name.
    """
    value = _read(terminus.capabilities, "the capabilities")
    found = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    if terminus.dynamic and "stream" in found:
        raise Refused(
            ErrorCode.NOT_IMPLEMENTED, "a dynamic node is a queue or a topic; a stream is made by its name"
        )
    return [str(capability) for capability in found]


def filters_of(source: Any) -> Filters:
    """
    The filter-set of a source (AMQP 1.0 section 3.5.8).

    Raises:
        Refused: DECODE_ERROR; INVALID_FIELD, a filter is bad; UNKNOWN_START.
    """
    entries = _read(source.filter, "the filter-set")
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


def lifetime_of(terminus: Any) -> Lifetime:
    """
    How long a dynamic node is to live.

    Raises:
        Refused: DECODE_ERROR; INVALID_FIELD, it is no lifetime policy.
    """
    try:
        return read_lifetime(_read(terminus.properties, "the dynamic node's properties"))
    except LifetimeError as error:
        raise Refused(ErrorCode.INVALID_FIELD, str(error), field=Symbol("dynamic-node-properties")) from error


def kind_for(connection: Connection, address: Address) -> EndpointKind | None:
    """What an attach says that its queue is. In some dialects, one that it makes is a stream."""
    vpn = connection.vpn
    kind = vpn.kind_of(address.options)
    if kind is None and connection.spoken.queues_are_streams and vpn.broker.find(address.name) is None:
        return EndpointKind.STREAM
    return kind


def epoch_of(link: Link, options: Mapping[str, str]) -> int | None:
    """
    The link's epoch, by one of its properties or by the address's option; None where there is none.

    Raises:
        Refused: DECODE_ERROR; INVALID_FIELD, both are given and differ.
    """
    option = int(options["epoch"]) if "epoch" in options else None
    properties = properties_of(link)
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


def consumer_priority_of(connection: Connection, link: Link) -> int:
    """
    The consumer's priority, as a dialect's clients say it in a property of the link; 0 where there is none.

    Raises:
        Refused: DECODE_ERROR; INVALID_FIELD, it is no whole number.
    """
    for name in connection.spoken.consumer_priorities:
        value = properties_of(link).get(symbol(name), 0)
        if not isinstance(value, int) or isinstance(value, bool):
            raise Refused(ErrorCode.INVALID_FIELD, f"the link's {name} is a whole number, not {value!r:.80}")
        if value:
            return int(value)
    return 0


def wants_batches(link: Link) -> bool:
    """
    Whether a reader asks for several messages in a delivery, and wants no say in them (``amqp_ext.message.
    reader_batches``).

    Raises:
        Refused: DECODE_ERROR.
    """
    return link.remote_snd_settle_mode == Link.SND_SETTLED and properties_of(link).get(BATCHES_KEY) is True


def properties_of(link: Link) -> Mapping[Any, Any]:
    """
    The properties of a link, by symbol; empty where there are none.

    Raises:
        Refused: DECODE_ERROR.
    """
    try:
        properties = link.remote_properties
    except (DataException, ValueError, TypeError, RecursionError) as error:
        raise Refused(ErrorCode.DECODE_ERROR, f"the link's properties: {error}") from error
    return properties if isinstance(properties, dict) else {}


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
    except (CodecError, DataException, ValueError, TypeError) as error:
        raise Refused(ErrorCode.DECODE_ERROR, f"{what}: {error}") from error
