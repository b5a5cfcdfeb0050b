"""
The work for each message on the wire, in C (``_transfers.c``): the functions of ``python_loops``, with addresses as
handles. They get pointers to the engine's functions, the same that the Python binding calls.

Raises:
    ImportError: The extension was not built, or is not written for this version of the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from cproton_ffi import ffi, lib

from amqp_ext.message.annotations import Splicer
from gateway.amqp.engine import _transfers, python_loops
from gateway.amqp.engine.native import ACCEPTED, DELIVERY, LINK_FLOW, TRANSPORT
from gateway.core.model import Row

top, skip, settle, pull = _transfers.top, _transfers.skip, _transfers.settle, _transfers.pull
take_messages, take_outcomes = _transfers.take_messages, _transfers.take_outcomes
plain_frames = _transfers.plain_frames

_COLLECTOR = ffi.typeof("pn_collector_t *")
_DELIVERY = ffi.typeof("pn_delivery_t *")
_LINK = ffi.typeof("pn_link_t *")
_ADDRESS = ffi.typeof("uintptr_t")


def handle_of(structure: Any) -> int:
    """The handle of a structure, given cffi's object."""
    return int(ffi.cast(_ADDRESS, structure))


def delivery_at(handle: int) -> Any:
    """cffi's object for the delivery with this handle."""
    return ffi.cast(_DELIVERY, handle)


def drop(collector: int) -> None:
    """See ``python_loops``."""
    python_loops.drop(ffi.cast(_COLLECTOR, collector))


def delivery_on_top(collector: int) -> int:
    """See ``python_loops``."""
    return handle_of(python_loops.delivery_on_top(ffi.cast(_COLLECTOR, collector)))


def discard(link: int) -> None:
    """See ``python_loops``."""
    python_loops.discard(ffi.cast(_LINK, link))


def send(
    link: int,
    rows: Sequence[Row],
    splicer: Splicer,
    attempts: Mapping[int, int],
    end_id: int | None,
    unsettled: dict[int, int] | None,
) -> int:
    """See ``python_loops``."""
    return _transfers.send(link, rows, *_fronts(splicer, attempts, end_id), unsettled, False)


def send_batch(
    link: int, rows: Sequence[Row], splicer: Splicer, attempts: Mapping[int, int], end_id: int | None
) -> None:
    """See ``python_loops``."""
    _transfers.send(link, rows, *_fronts(splicer, attempts, end_id), None, True)


def _fronts(splicer: Splicer, attempts: Mapping[int, int], end_id: int | None) -> tuple[Any, Any]:
    """The pieces of which the C code makes fronts, None where they need more; and what makes the other fronts."""
    pieces = splicer.pieces if splicer.is_plain(attempts, end_id) else None
    return pieces, partial(_front, splicer, attempts, end_id)


def _front(splicer: Splicer, attempts: Mapping[int, int], end_id: int | None, row: Row) -> bytes:
    message_id, time_ms, topic, bare, _, _, content = row
    attempted = attempts.get(message_id, 0)
    return splicer.front(message_id, time_ms, topic, bare, content, attempted, message_id == end_id)


def _address_of(name: str, signature: str) -> int:
    try:
        function = ffi.addressof(lib, name)
    except AttributeError:
        raise ImportError(f"the engine has no {name}") from None
    found = ffi.typeof(function).cname
    if found != signature:
        raise ImportError(f"the engine's {name} is {found}, not {signature}")
    return handle_of(function)


def _bind() -> None:
    if (LINK_FLOW, DELIVERY, TRANSPORT, ACCEPTED) != (26, 28, 29, 0x24):
        raise ImportError("the engine's numbers of events and outcomes are others")
    fields = [(name, field.type.cname) for name, field in ffi.typeof("pn_bytes_t").fields]
    if fields != [("size", "size_t"), ("start", "char *")]:
        raise ImportError(f"the engine's pn_bytes_t is {fields}")
    _transfers.bind({name: _address_of(name, signature) for name, signature in _transfers.SIGNATURES.items()})


_bind()
