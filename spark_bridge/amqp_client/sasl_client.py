"""
The client half of a SASL exchange over a blocking socket: ANONYMOUS and PLAIN (AMQP 1.0, 5.3).

It runs before proton's engine sees the connection, because proton built without Cyrus offers no PLAIN.
Invariant: when ``authenticate`` returns, the peer has answered "ok" and the next byte belongs to AMQP itself.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any

from amqp_ext.codec import CodecError, Described, Symbol, decode, encode
from store.archive.errors import ConnectionFailed

SASL_HEADER = b"AMQP\x03\x01\x00\x00"
MECHANISMS, INIT, OUTCOME = 0x40, 0x41, 0x44  # descriptors of sasl-mechanisms, sasl-init, sasl-outcome
MAX_FRAME = (
    64 * 1024
)  # bytes; SASL frames are at most 512 by the standard, real mechanism lists are shorter still
OUTCOMES = {
    1: "the user name or password is wrong",
    2: "the broker had a system error",
    3: "the broker had a permanent system error",
    4: "the broker had a temporary system error",
}


def authenticate(sock: socket.socket, peer: str, vpn: str | None, user: str | None, password: str) -> None:
    """
    Log in on a fresh connection: PLAIN with a user, else ANONYMOUS.

    ``peer`` names the broker in errors; ``vpn`` goes into sasl-init's hostname.

    Raises:
        ConnectionFailed: The broker refused the login.
        OSError: The socket failed.
    """
    sock.sendall(SASL_HEADER)
    header = _exactly(sock, 8, peer)
    if header != SASL_HEADER:
        raise ConnectionFailed(f"{peer} does not speak AMQP 1.0 with SASL: it answered {header!r}.")
    offered = _mechanisms(_frame(sock, peer, MECHANISMS))
    wanted = "ANONYMOUS" if user is None else "PLAIN"
    if wanted not in offered:
        remedy = (
            "set the options user and passwordFile" if user is None else "leave user and passwordFile out"
        )
        raise ConnectionFailed(
            f"{peer} offers SASL {', '.join(offered) or 'nothing'}, not {wanted}; {remedy}."
        )
    response = b"anonymous" if user is None else b"\0" + user.encode() + b"\0" + password.encode()
    init = Described(INIT, [Symbol(wanted), response, *([vpn] if vpn else [])])
    sock.sendall(_framed(encode(init)))
    fields = _frame(sock, peer, OUTCOME)
    code = fields[0] if fields else None
    if code != 0:
        raise ConnectionFailed(
            f"{peer} refused the login of {user or 'anonymous'}: {OUTCOMES.get(code or 0, code)}."
        )


def _mechanisms(fields: Sequence[Any]) -> list[str]:
    offered = fields[0] if fields else []
    return [str(name) for name in offered] if isinstance(offered, list) else [str(offered)]


def _framed(body: bytes) -> bytes:
    return (len(body) + 8).to_bytes(4, "big") + b"\x02\x01\x00\x00" + body


def _frame(sock: socket.socket, peer: str, descriptor: int) -> Sequence[Any]:
    """The fields of the next SASL frame, which has to be the one with this descriptor."""
    head = _exactly(sock, 8, peer)
    size, body_at = int.from_bytes(head[:4], "big"), head[4] * 4
    if not 8 <= body_at <= size <= MAX_FRAME or head[5] != 1:
        raise ConnectionFailed(f"{peer} sent {head!r} where a SASL frame should start.")
    body = _exactly(sock, size - 8, peer)[body_at - 8 :]
    try:
        value, _ = decode(body)
    except CodecError as error:
        raise ConnectionFailed(f"{peer} sent a SASL frame that cannot be read: {error}.") from error
    if (
        not isinstance(value, Described)
        or value.descriptor != descriptor
        or not isinstance(value.value, list)
    ):
        raise ConnectionFailed(f"{peer} sent {value!r:.80} where SASL performative {descriptor:#x} is due.")
    return value.value


def _exactly(sock: socket.socket, size: int, peer: str) -> bytes:
    """So many bytes and not one more: what follows belongs to the next layer."""
    data = bytearray()
    while len(data) < size:
        chunk = sock.recv(size - len(data))
        if not chunk:
            raise ConnectionFailed(f"{peer} closed the connection during the SASL exchange.")
        data += chunk
    return bytes(data)
