"""
The work for each message on the wire, in Python: some calls of proton's C engine, one bytes object, no wrapper.

``native_loops`` has the same functions in C. These run where the extension could not be built, and define what it has
to do: the tests give both the same traffic and compare the output. The callers decide which messages go where, how
many, and whether they may.

A handle stands for a structure of the engine: it can be compared, and is a key of dictionaries. Here it is cffi's
object, in ``native_loops`` an address. These functions must only be given handles of open links and of their
deliveries: the engine frees a link's deliveries with the link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from cproton_ffi import ffi, lib

from amqp_ext.frames import plain
from amqp_ext.message.annotations import Splicer
from gateway.amqp.engine.native import (
    ACCEPTED,
    DELIVERY,
    LINK_FLOW,
    NULL,
    OUTPUT_BYTES,
    TRANSACTIONAL,
    TRANSPORT,
    Buffer,
    Stop,
    tag_of,
)
from gateway.core.model import ID, Row

SMALL_BYTES: Final = 16 * 1024
"""A smaller message is joined with its front and given to the engine in one call: copying beats another call."""

plain_frames = plain.plain_frames

_incoming = Buffer()
_output = Buffer()
_tag = ffi.new("uint64_t *")
_tag_bytes = ffi.new("pn_bytes_t *", {"size": 8, "start": ffi.cast("char *", _tag)})[0]


def handle_of(structure: Any) -> Any:
    """The handle of a structure, given cffi's object."""
    return structure


def delivery_at(handle: Any) -> Any:
    """cffi's object for the delivery with this handle."""
    return handle


# --- events -----------------------------------------------------------------------------------------------------------


def top(collector: Any) -> tuple[int, Any] | None:
    """
    The type of the event on top of a collector, and the handle of its link where it is about a delivery or a flow. None
    where there is no event. Events of the transport are taken off: they are not needed.
    """
    # A C structure is true, NULL is not: that costs half of what comparing it does.
    while event := lib.pn_collector_peek(collector):
        kind = lib.pn_event_type(event)
        if kind in (DELIVERY, LINK_FLOW):
            return kind, lib.pn_event_link(event)
        if kind != TRANSPORT:
            return kind, None
        lib.pn_collector_pop(collector)
    return None


def skip(collector: Any, kind: int, link: Any) -> None:
    """Take off the event on top, and the events after it that are of this type and link."""
    peek, kind_of, pop = lib.pn_collector_peek, lib.pn_event_type, lib.pn_collector_pop
    pop(collector)
    while event := peek(collector):
        found = kind_of(event)
        if found != TRANSPORT and (found != kind or lib.pn_event_link(event) != link):
            break
        pop(collector)


def drop(collector: Any) -> None:
    """Take off the event on top of a collector."""
    lib.pn_collector_pop(collector)


def delivery_on_top(collector: Any) -> Any:
    """The handle of the delivery that the event on top is about."""
    return lib.pn_event_delivery(lib.pn_collector_peek(collector))


# --- messages that come in --------------------------------------------------------------------------------------------


def take_messages(
    link: Any, max_bytes: int, is_batch: Callable[[bytes], bool] | None
) -> tuple[list[bytes], list[Any] | None, int]:
    """
    Take the messages that are complete, up to one that is taken alone, or came settled unlike those before it.

    Args:
        is_batch: Called with the tag of each delivery, once; it must not use the engine.

    Returns:
        Their contents; their deliveries, None where they came settled; why no more were taken (``Stop``).
    """
    current, partial, pending = lib.pn_link_current, lib.pn_delivery_partial, lib.pn_delivery_pending
    advance, receive, settled = lib.pn_link_advance, lib.pn_link_recv, lib.pn_delivery_settled
    # Each state is looked at, with a coordinator or without: a message of an unknown transaction must not be published.
    state_of = lib.pn_delivery_remote_state
    unpack, buffer_of = ffi.unpack, _incoming.of
    contents: list[bytes] = []
    deliveries: list[Any] = []
    are_settled = False
    stop = Stop.NOTHING
    while (delivery := current(link)) != NULL:
        size = pending(delivery)
        # The engine reports one byte for an aborted delivery, and gives none.
        if size > max_bytes or (size == 1 and lib.pn_delivery_aborted(delivery)):
            stop = Stop.ALONE
            break
        if partial(delivery):
            break
        if state_of(delivery) == TRANSACTIONAL:
            stop = Stop.ALONE
            break
        is_settled = settled(delivery)
        if not contents:
            are_settled = is_settled
        elif is_settled != are_settled:
            stop = Stop.TURN
            break
        if is_batch is not None and is_batch(tag_of(delivery)):
            stop = Stop.BATCH
            break
        if size:
            buffer = buffer_of(size)
            receive(link, buffer, size)
            contents.append(unpack(buffer, size))
        else:
            contents.append(b"")
        advance(link)
        if is_settled:
            lib.pn_delivery_settle(delivery)
        else:
            deliveries.append(delivery)
    return contents, deliveries or None, stop


def discard(link: Any) -> None:
    """Drop the transfers that came on a link and that nothing reads."""
    if lib.pn_link_is_receiver(link):
        while (delivery := lib.pn_link_current(link)) != NULL:
            lib.pn_link_advance(link)
            lib.pn_delivery_settle(delivery)


def settle(deliveries: Sequence[Any], outcome: int) -> None:
    """Settle deliveries with an outcome; 0 leaves them the outcome that they have."""
    update, settle = lib.pn_delivery_update, lib.pn_delivery_settle
    for delivery in deliveries:
        if outcome:
            update(delivery, outcome)
        settle(delivery)


# --- messages that go out ---------------------------------------------------------------------------------------------


def send(
    link: Any,
    rows: Sequence[Row],
    splicer: Splicer,
    attempts: Mapping[int, int],
    end_id: int | None,
    unsettled: dict[Any, int] | None,
) -> int:
    """
    Send messages; the link must have credit for them.

    Args:
        splicer: Makes the front of each bare message, from ``attempts`` and ``end_id``.
        unsettled: Gets the id of each message, by its delivery; None where they go out settled.

    Returns:
        The bytes of their contents.
    """
    tag, tag_bytes = _tag, _tag_bytes
    deliver, send, advance = lib.pn_delivery, lib.pn_link_send, lib.pn_link_advance
    fronts = splicer.fronts(rows, attempts, end_id)
    total = 0
    for (message_id, _, _, bare, _, _, content), front in zip(rows, fronts, strict=True):
        tag[0] = message_id
        delivery = deliver(link, tag_bytes)
        size = len(content)
        if size < SMALL_BYTES:
            data = front + (content[bare:] if bare else content)
            send(link, data, len(data))
        else:
            send(link, front, len(front))
            send(link, content[bare:] if bare else content, size - bare)
        total += size
        advance(link)
        if unsettled is None:
            lib.pn_delivery_settle(delivery)
        else:
            unsettled[delivery] = message_id
    return total


def send_batch(
    link: Any, rows: Sequence[Row], splicer: Splicer, attempts: Mapping[int, int], end_id: int | None
) -> None:
    """Send messages in one delivery, settled (``amqp_ext.message.fields``); arguments as for ``send``."""
    data = splicer.batch(rows, attempts, end_id)
    _tag[0] = rows[0][ID]
    delivery = lib.pn_delivery(link, _tag_bytes)
    lib.pn_link_send(link, data, len(data))
    lib.pn_link_advance(link)
    lib.pn_delivery_settle(delivery)


def take_outcomes(collector: Any, unsettled: dict[Any, int], accepted: list[int], confirm: list[Any]) -> int:
    """
    Take off the events on top that say "accepted" about deliveries in ``unsettled``, most often many of them.

    Args:
        unsettled: Ids by delivery. An event keeps its delivery alive, so a delivery whose address is in here is the one
            that was put here: neither the event's type nor its link need be checked.
        accepted: Gets the ids of the messages.
        confirm: Deliveries that their receiver has not settled get the outcome, and go here; the rest are settled.

    Returns:
        How many events were taken.
    """
    peek, pop, delivery_of = lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_delivery
    state_of, is_settled, settle = (
        lib.pn_delivery_remote_state,
        lib.pn_delivery_settled,
        lib.pn_delivery_settle,
    )
    take, accept, note = unsettled.pop, accepted.append, confirm.append
    taken = 0
    while event := peek(collector):
        delivery = delivery_of(event)
        message_id = take(delivery, None)
        if message_id is None:
            break
        if state_of(delivery) != ACCEPTED:
            unsettled[delivery] = message_id
            break
        accept(message_id)
        if is_settled(delivery):
            settle(delivery)
        else:
            lib.pn_delivery_update(delivery, ACCEPTED)
            note(delivery)
        pop(collector)
        taken += 1
    return taken


# --- the output -------------------------------------------------------------------------------------------------------


def pull(transport: Any) -> bytes:
    """The present output of the engine, some 256 KB of it; empty when there is none, or it is closed."""
    size = lib.pn_transport_pending(transport)
    if size <= 0:
        return b""
    pieces = []
    total = 0
    while size > 0:
        buffer = _output.of(size)
        lib.pn_transport_peek(transport, buffer, size)
        pieces.append(ffi.unpack(buffer, size))
        lib.pn_transport_pop(transport, size)
        total += size
        if total >= OUTPUT_BYTES:
            break
        size = lib.pn_transport_pending(transport)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
