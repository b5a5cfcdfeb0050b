"""
What happens once a message on the wire, in C (``_transfers.c``): the functions of ``python_loops``, with addresses for
handles. They are given the engine's functions as pointers, those that the Python binding calls itself.

Raises:
    ImportError: The extension was not built, or the engine is another than it was written for.
"""

from __future__ import annotations

from typing import Any

from cproton_ffi import ffi, lib

from gateway.amqp.engine._transfers import (
    SIGNATURES,
    bind,
    delivery_on_top,
    discard,
    drop,
    pull,
    send,
    settle,
    skip,
    take_messages,
    take_outcomes,
    top,
)

__all__ = [
    "delivery_at",
    "delivery_on_top",
    "discard",
    "drop",
    "handle_of",
    "pull",
    "send",
    "settle",
    "skip",
    "take_messages",
    "take_outcomes",
    "top",
]

_DELIVERY = ffi.typeof("pn_delivery_t *")
_ADDRESS = ffi.typeof("uintptr_t")


def handle_of(structure: Any) -> int:
    """The handle of what cffi has for a structure."""
    return int(ffi.cast(_ADDRESS, structure))


def delivery_at(handle: int) -> Any:
    """What cffi has for the delivery with this handle."""
    return ffi.cast(_DELIVERY, handle)


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
    fields = [(name, field.type.cname) for name, field in ffi.typeof("pn_bytes_t").fields]
    if fields != [("size", "size_t"), ("start", "char *")]:
        raise ImportError(f"the engine's pn_bytes_t is {fields}")
    bind({name: _address_of(name, signature) for name, signature in SIGNATURES.items()})


_bind()
