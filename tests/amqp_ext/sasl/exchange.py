"""The client's side of a SASL exchange, frame by frame, with a server that has no socket."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from scramp import ScramClient  # type: ignore[import-untyped]

from amqp_ext.codec import Described, Symbol, UByte, ULong, decode, encode
from amqp_ext.sasl import (
    MECHANISMS,
    SASL_HEADER,
    SaslServer,
    SaslState,
    hash_password,
    parse,
)
from tests.support.frames import SASL_CHALLENGE, SASL_FRAME, SASL_INIT, SASL_OUTCOME, SASL_RESPONSE, framed

USERS = {
    name: parse(hash_password(password, salt=name.encode().ljust(16, b"."), iterations=4096))
    for name, password in {"ann": "secret", "caf\u00e9": "p\u00e4ss", "o,d=d": "x"}.items()
}


def server(*mechanisms: str, **changes: Any) -> SaslServer:
    numbers = itertools.count()
    settings: dict[str, Any] = {
        "mechanisms": mechanisms or MECHANISMS,
        "credentials": USERS.get,
        "sasl_required": True,
        "nonce": lambda: f"server-nonce-{next(numbers)}",
        "decoy_key": b"decoy",
        "decoy_iterations": 4096,
    }
    return SaslServer(**{**settings, **changes})


def frame(code: int, *fields: Any, spelling: Callable[[int], Any] = ULong) -> bytes:
    return sasl_frame(encode(Described(spelling(code), list(fields))))


def sasl_frame(body: bytes, *, kind: int = SASL_FRAME, extended: bytes = b"") -> bytes:
    return framed(body, kind=kind, extended=extended)


def init(mechanism: str, response: bytes | None = None) -> bytes:
    return frame(SASL_INIT, Symbol(mechanism), response, "some.host")


def frames(output: bytes) -> list[tuple[int, list[Any]]]:
    """The SASL frames as code and fields, without the protocol header."""
    found = []
    offset = 8 if output.startswith(SASL_HEADER) else 0
    while offset < len(output):
        size = int.from_bytes(output[offset : offset + 4], "big")
        assert output[offset + 4 : offset + 8] == b"\x02\x01\x00\x00"
        performative, behind = decode(output, offset + 8)
        assert behind == offset + size
        found.append((int(performative.descriptor), performative.value))
        offset = behind
    return found


def feed(sasl: SaslServer, *pieces: bytes) -> None:
    """Feed the server, and run each verification that it asks for."""
    for piece in pieces:
        sasl.receive(piece)
        if sasl.state is SaslState.VERIFYING:
            assert sasl.verification is not None
            sasl.resolve(sasl.verification())


def outcome(sasl: SaslServer) -> int:
    """The code of the outcome, which must be the last frame; the server has failed unless it is 0."""
    code, fields = frames(sasl.drain_output())[-1]
    assert code == SASL_OUTCOME
    assert type(fields[0]) is UByte
    assert (sasl.state is SaslState.FAILED) == (fields[0] != 0)
    return int(fields[0])


def scram_login(sasl: SaslServer, user: str, password: str, mechanism: str, *, initial: bool = True) -> Any:
    """Run scramp's client through the exchange, up to its final message."""
    client = ScramClient([mechanism], user, password, c_nonce="client-nonce")
    first = client.get_client_first().encode()
    feed(sasl, SASL_HEADER + init(mechanism, first if initial else None))
    if not initial:
        assert frames(sasl.drain_output())[-1] == (SASL_CHALLENGE, [b""])
        feed(sasl, frame(SASL_RESPONSE, first))
    code, [challenge] = frames(sasl.drain_output())[-1]
    assert code == SASL_CHALLENGE
    client.set_server_first(challenge.decode())
    feed(sasl, frame(SASL_RESPONSE, client.get_client_final().encode()))
    return client


SCRAM = pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
