"""
The server's side of the handshake up to the plain AMQP header, without I/O (AMQP 1.0 section 2.2 and part 5.3).

    peer                                  we
    AMQP 3 1 0 0                ->
                                <-        AMQP 3 1 0 0, sasl-mechanisms
    sasl-init                   ->
                                <-        sasl-challenge          } as often as
    sasl-response               ->                                } the mechanism asks
                                <-        sasl-outcome
    AMQP 0 1 0 0                ->        DONE: this header and all behind it is ``leftover``, for the engine

Invariants. Bytes in, bytes out: ``receive`` never raises for what a peer sent, and takes it in any pieces.
Memory is bounded by the largest frame. A state, once DONE or FAILED, never changes. A user we do not know
takes the same steps as one we do, up to the outcome.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from amqp_ext.codec import Array, CodecError, Described, Symbol, UByte, ULong, decode, encode
from amqp_ext.sasl.passwords import ITERATIONS, StoredPassword, decoy, normalise
from amqp_ext.vendor_forms import ANONYMOUS_MECHANISMS

__all__ = ["AMQP_HEADER", "MECHANISMS", "SASL_HEADER", "Identity", "SaslServer", "SaslState"]

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"

_ANONYMOUS = frozenset({"ANONYMOUS", *ANONYMOUS_MECHANISMS})

MECHANISMS = ("ANONYMOUS", "PLAIN", "EXTERNAL", "SCRAM-SHA-256", "SCRAM-SHA-512", *ANONYMOUS_MECHANISMS)
"""What can be offered: with ANONYMOUS the names that vendors have for it, where a token says later who the peer is."""

MAX_PIPELINED_BYTES = 65_536
"""What a peer may send ahead while its password is being checked. Clients wait, or send their open frame."""

_NO_SASL = "NONE"
"""The mechanism of a peer that begins without SASL."""

_MECHANISMS_FRAME = 0x40
_INIT = 0x41
_CHALLENGE = 0x42
_RESPONSE = 0x43
_OUTCOME = 0x44

_FRAMES = {_INIT: "sasl-init", _RESPONSE: "sasl-response"}
_SYMBOLIC = {"amqp:sasl-init:list": _INIT, "amqp:sasl-response:list": _RESPONSE}

_OK = 0
_AUTH = 1  # the credentials
_SYS = 2  # our own trouble
_SYS_TEMP = 4  # our own trouble, which passes


class SaslState(enum.Enum):
    """Where the handshake is."""

    NEGOTIATING = enum.auto()
    """More bytes from the peer are needed."""

    VERIFYING = enum.auto()
    """``SaslServer.verification`` must be run, and its answer given to ``SaslServer.resolve``."""

    DONE = enum.auto()
    """The peer has an identity; the engine goes on with ``SaslServer.leftover``."""

    FAILED = enum.auto()
    """Write what there is to write, then close."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the peer is, and how we know: a mechanism's name, or NONE where it used no SASL."""

    user: str
    mechanism: str

    @property
    def is_anonymous(self) -> bool:
        """Whether the peer has said nothing about itself."""
        return self.mechanism == _NO_SASL or self.mechanism in _ANONYMOUS


class _Refused(Exception):
    """The handshake ends here. ``outcome`` is the code to say so with, if it is time for one."""

    def __init__(self, reason: str, outcome: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.outcome = outcome


class VerifiedPasswords(Protocol):
    """Passwords that were right before; asked and told on any thread."""

    def has(self, name: str, password: str) -> bool:
        """Whether this was the user's password."""

    def add(self, name: str, password: str) -> None:
        """It is the user's password."""


class SaslServer:
    """
    One peer's handshake. Feed it with ``receive``, write what ``drain_output`` gives, and look at ``state``.

    Args:
        mechanisms: What to offer, of ``MECHANISMS``; EXTERNAL only to a peer with an ``external_user``.
        credentials: A user's stored password, or None; it must not block.
        verified: Passwords that need not be hashed again; None remembers none.
        anonymous_user: The user of a peer that says nothing about itself.
        external_user: Who the peer's TLS certificate says it is; None without one.
        sasl_required: Whether to turn away a peer that starts with the plain AMQP header.
        nonce: A fresh unpredictable text of printable ASCII without commas, for SCRAM.
        max_frame_bytes: The largest frame to accept. Section 5.3.1 lets a peer send 512; clients have sent more.
        decoy_key: A secret from which the salts of unknown users are made. Give every server the same one:
            without it each makes its own, and a user whose salt changes is one we do not know.
        decoy_iterations: What unknown users' passwords cost to check: as much as those of users there are.

    Raises:
        ValueError: No mechanisms, or one that is not of ``MECHANISMS``.
    """

    def __init__(
        self,
        *,
        mechanisms: Sequence[str],
        credentials: Callable[[str], StoredPassword | None],
        verified: VerifiedPasswords | None = None,
        anonymous_user: str = "anonymous",
        external_user: str | None = None,
        sasl_required: bool,
        nonce: Callable[[], str],
        max_frame_bytes: int = 4096,
        decoy_key: bytes | None = None,
        decoy_iterations: int = ITERATIONS,
    ) -> None:
        unknown = [name for name in mechanisms if name not in MECHANISMS]
        if unknown or not mechanisms:
            raise ValueError(f"mechanisms must be some of {', '.join(MECHANISMS)}, not {list(mechanisms)}")
        # sasl-mechanisms may not be empty: a peer that could only be known by a certificate it lacks is
        # offered EXTERNAL all the same, and then refused.
        self._offered = [name for name in mechanisms if name != "EXTERNAL" or external_user] or ["EXTERNAL"]
        self._credentials = credentials
        self._verified = verified
        self._anonymous_user = anonymous_user
        self._external_user = external_user
        self._sasl_required = sasl_required
        self._nonce = nonce
        self._max_frame_bytes = max_frame_bytes
        self._decoy_key = decoy_key
        self._decoy_iterations = decoy_iterations

        self.state = SaslState.NEGOTIATING
        self.identity: Identity | None = None
        self.leftover = b""
        self.verification: Callable[[], bool] | None = None
        self.failure: str | None = None

        self._input = bytearray()
        self._output = bytearray()
        self._step: Callable[[], bool] = self._read_first_header
        self._answer: Callable[[bytes], None] | None = None
        self._candidate: Identity | None = None

    def receive(self, data: bytes) -> None:
        """Take bytes from the peer, in whatever pieces they come. Once DONE they are added to ``leftover``."""
        if self.state is SaslState.DONE:
            self.leftover += data
        elif self.state is not SaslState.FAILED:
            self._input += data
            self._advance()

    def close(self) -> None:
        """The peer has left: whatever it had begun has failed."""
        if self.state not in (SaslState.DONE, SaslState.FAILED):
            self.failure = "the peer has left"
            self._end(SaslState.FAILED)

    def drain_output(self) -> bytes:
        """The bytes to write to the peer, once."""
        output = bytes(self._output)
        self._output.clear()
        return output

    def resolve(self, ok: bool) -> None:
        """Give the answer of ``verification`` and go on; ignored where none is wanted any more."""
        if self.state is not SaslState.VERIFYING:
            return
        self.state = SaslState.NEGOTIATING
        self.verification = None
        assert self._candidate is not None
        if ok:
            self._accept(self._candidate)
            self._advance()
        else:
            self._fail(_Refused(f"wrong password or unknown user {self._candidate.user!r:.80}", _AUTH))

    def put_off(self, reason: str) -> None:
        """There is no time for ``verification`` now: the peer is told to try again later."""
        if self.state is SaslState.VERIFYING:
            self._fail(_Refused(reason, _SYS_TEMP))

    # --- steps: each consumes what it can from the input, and says whether to go on ---

    def _advance(self) -> None:
        try:
            while self.state is SaslState.NEGOTIATING and self._step():
                pass
            if self.state is SaslState.VERIFYING and len(self._input) > MAX_PIPELINED_BYTES:
                raise _Refused(f"more than {MAX_PIPELINED_BYTES} bytes came before the outcome")
        except _Refused as refusal:
            self._fail(refusal)

    def _read_first_header(self) -> bool:
        header = bytes(self._input[:8])
        if header == AMQP_HEADER:
            if self._sasl_required:
                self._output += SASL_HEADER
                raise _Refused("the peer wants to go without SASL, which is not allowed here")
            self._candidate = Identity(self._anonymous_user, _NO_SASL)
            return self._finish()
        if header == SASL_HEADER:
            del self._input[:8]
            self._output += SASL_HEADER
            self._send(_MECHANISMS_FRAME, Array([Symbol(name) for name in self._offered]))
            self._step = self._read_init
            return True
        if not (SASL_HEADER.startswith(header) or AMQP_HEADER.startswith(header)):
            self._output += SASL_HEADER if self._sasl_required else AMQP_HEADER
            raise _Refused(f"the peer starts with {header!r} where an AMQP 1.0 header should be")
        return False

    def _read_init(self) -> bool:
        fields = self._read_frame(_INIT)
        if fields is None:
            return False
        mechanism, initial, *_ = [*fields, None, None]
        if not isinstance(mechanism, Symbol) or not isinstance(initial, bytes | None):
            raise _Refused("sasl-init must name a mechanism (symbol), and its response must be binary")
        if mechanism not in self._offered:
            raise _Refused(f"mechanism {str(mechanism)!r:.40} is not among {', '.join(self._offered)}", _AUTH)
        self._step = self._read_response
        match mechanism:
            case _ if mechanism in _ANONYMOUS:
                self._accept(Identity(self._anonymous_user, str(mechanism)))
            case "EXTERNAL":
                self._check_external(initial or b"")
            case "PLAIN":
                self._expect(self._check_plain, initial)
            case _:
                self._expect(lambda first: self._start_scram(str(mechanism), first), initial)
        return True

    def _expect(self, answer: Callable[[bytes], None], initial: bytes | None) -> None:
        """``answer`` deals with what the client says first, which it may have left out of its sasl-init."""
        self._answer = answer
        if initial is None:
            self._send(_CHALLENGE, b"")  # RFC 4422, section 5: an empty challenge asks for it
        else:
            answer(initial)

    def _read_response(self) -> bool:
        fields = self._read_frame(_RESPONSE)
        if fields is None:
            return False
        response = fields[0] if fields else None
        if not isinstance(response, bytes):
            raise _Refused("sasl-response must have a binary response")
        assert self._answer is not None
        self._answer(response)
        return True

    def _read_amqp_header(self) -> bool:
        header = bytes(self._input[:8])
        if header == AMQP_HEADER:
            return self._finish()
        if not AMQP_HEADER.startswith(header):
            self._output += AMQP_HEADER
            raise _Refused(f"the peer goes on with {header!r} after SASL, where an AMQP 1.0 header should be")
        return False

    # --- mechanisms ---

    def _check_external(self, response: bytes) -> None:
        # RFC 4422, appendix A: the response is the identity to act as, empty for that of the certificate.
        user = self._external_user
        if user is None:
            raise _Refused("EXTERNAL, but the peer has no certificate that stands for a user", _AUTH)
        if response not in (b"", user.encode()):
            raise _Refused(f"EXTERNAL as user {user!r}, who may not act as {response!r:.80}", _AUTH)
        self._accept(Identity(user, "EXTERNAL"))

    def _check_plain(self, response: bytes) -> None:
        # RFC 4616: [authzid] NUL authcid NUL passwd
        try:
            authzid, authcid, password = response.decode().split("\0")
            user = normalise(authcid)
            acts_as = normalise(authzid)
        except ValueError:
            raise _Refused(
                "PLAIN, but its response is not three UTF-8 texts separated by NUL", _AUTH
            ) from None
        if not user or acts_as not in ("", user):
            raise _Refused(f"PLAIN as user {user!r:.80}, who may not act as {acts_as!r:.80}", _AUTH)
        stored = self._stored(user)
        candidate, verified = Identity(user, "PLAIN"), self._verified
        if verified is not None and verified.has(user, password):
            self._accept(candidate)
            return

        def verify() -> bool:
            # Another of the user's connections may have shown it while this one waited for its turn.
            if verified is not None and verified.has(user, password):
                return True
            is_right = stored.verify(password)
            if is_right and verified is not None:
                verified.add(user, password)
            return is_right

        self._candidate = candidate
        self.verification = verify
        self.state = SaslState.VERIFYING

    def _start_scram(self, mechanism: str, response: bytes) -> None:
        from scramp import ScramException, ScramMechanism  # type: ignore[import-untyped] # noqa: PLC0415

        users: list[str] = []

        def find(user: str) -> tuple[bytes, bytes, bytes, int]:
            users.append(user)
            return self._stored(user).for_scram(mechanism)

        try:
            server = ScramMechanism(mechanism).make_server(find, s_nonce=self._nonce())
            server.set_client_first(response.decode())
            challenge: str = server.get_server_first()
        except (ScramException, UnicodeDecodeError) as error:
            if isinstance(error.__cause__, _Refused):  # our own words, from inside ``find``
                raise error.__cause__ from None
            raise _Refused(f"{mechanism} cannot start: {error}", _AUTH) from None
        candidate = Identity(users[0], mechanism)
        self._answer = lambda proof: self._finish_scram(server, candidate, proof)
        self._send(_CHALLENGE, challenge.encode())

    def _finish_scram(self, server: Any, candidate: Identity, response: bytes) -> None:
        from scramp import ScramException  # noqa: PLC0415

        try:
            server.set_client_final(response.decode())
            signature: str = server.get_server_final()
        except (ScramException, UnicodeDecodeError) as error:
            reason = f"wrong password or unknown user {candidate.user!r:.80}: {error}"
            raise _Refused(reason, _AUTH) from None
        self._accept(candidate, signature.encode())

    def _stored(self, user: str) -> StoredPassword:
        try:
            stored = self._credentials(user)
        except Exception as error:
            raise _Refused(f"the credentials of {user!r:.80} cannot be read: {error!r}", _SYS) from error
        if stored is None:
            key = self._decoy_key if self._decoy_key is not None else self._nonce().encode()
            stored = decoy(user, key, self._decoy_iterations)
        return stored

    # --- frames and ends ---

    def _read_frame(self, expected: int) -> list[Any] | None:
        """The fields of the next frame, which must be ``expected``; None until it is there."""
        if len(self._input) < 4:
            return None
        size = int.from_bytes(self._input[:4], "big")
        if not 8 <= size <= self._max_frame_bytes:
            raise _Refused(f"a SASL frame of {size} bytes; 8 to {self._max_frame_bytes} are accepted")
        if len(self._input) < size:
            return None
        frame = bytes(self._input[:size])
        del self._input[:size]
        start, kind = frame[4] * 4, frame[5]
        if kind != 1 or not 8 <= start <= size:
            raise _Refused(f"a frame of type {kind} with its body at {start} is not a SASL frame")
        try:
            performative, behind = decode(frame, start)
        except CodecError as error:
            raise _Refused(f"a SASL frame is malformed: {error}") from None
        if not isinstance(performative, Described) or behind != size:
            raise _Refused("a SASL frame must hold one described list and nothing else")
        code = performative.descriptor
        if isinstance(code, Symbol):
            code = _SYMBOLIC.get(code)
        if code != expected or type(performative.value) is not list:
            raise _Refused(f"{_FRAMES[expected]} should come here, not {performative.descriptor!r:.60}")
        return performative.value

    def _send(self, code: int, *fields: Any) -> None:
        body = encode(Described(ULong(code), list(fields)))
        self._output += (8 + len(body)).to_bytes(4, "big") + b"\x02\x01\x00\x00" + body

    def _accept(self, candidate: Identity, additional_data: bytes | None = None) -> None:
        self._candidate = candidate
        self._answer = None
        self._step = self._read_amqp_header
        # RFC 5802's server-final-message goes where section 5.3.3.6 has room for it: it saves a round trip.
        self._send(_OUTCOME, UByte(_OK), *([] if additional_data is None else [additional_data]))

    def _finish(self) -> bool:
        self.leftover = bytes(self._input)
        self._input.clear()
        self.identity = self._candidate
        self._end(SaslState.DONE)
        return False

    def _fail(self, refusal: _Refused) -> None:
        if refusal.outcome is not None:
            self._send(_OUTCOME, UByte(refusal.outcome))
        self.failure = refusal.reason
        self._end(SaslState.FAILED)

    def _end(self, state: SaslState) -> None:
        """No step follows. What would take one is forgotten, as it knows this server: neither would be freed."""
        self.state = state
        self._step = _no_step
        self._answer = self.verification = None
        self._input.clear()


def _no_step() -> bool:
    return False
