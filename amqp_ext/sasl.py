"""
SASL from the server's side, and the passwords it checks.

The server's side of the handshake up to the plain AMQP header, without I/O (AMQP 1.0 section 2.2 and part 5.3).

    peer                                  we
    AMQP 3 1 0 0                ->
                                <-        AMQP 3 1 0 0, sasl-mechanisms
    sasl-init                   ->
                                <-        sasl-challenge          } as often as
    sasl-response               ->                                } the mechanism asks
                                <-        sasl-outcome
    AMQP 0 1 0 0                ->        DONE: this header and all after it is ``leftover``, for the engine

Invariants. Bytes in, bytes out: ``receive`` never raises for what a peer sent, and takes it in any pieces.
Memory is bounded by the largest frame. A state, once DONE or FAILED, never changes. The handshake of an unknown user
takes the same steps as that of a known one, up to the outcome.

Passwords at rest: one salted hash that serves SCRAM-SHA-256, SCRAM-SHA-512 and PLAIN (RFC 5802, RFC 7677).

We keep what SCRAM keeps: the keys to check a login, but not the password, nor anything else to log in with.
Invariant: no error and no repr here shows a password, a key, or a text that was configured as a hash (which may
be a password in the clear).
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from amqp_ext.codec import Array, CodecError, Described, Symbol, UByte, ULong, decode, encode
from amqp_ext.vendor_forms import ANONYMOUS_MECHANISMS

ITERATIONS = 100_000
"""PBKDF2 rounds for a new hash. RFC 7677 asks for 4,096 at least; OWASP (2023) for 600,000 with SHA-256, so
that a stolen file resists guessing. But the rounds are done once a connection, by the client for SCRAM and by
the gateway for PLAIN: 100,000 are 0.03 s of a core; with 600,000, a thousand clients that reconnect together
would be three minutes of work. A long random password, as programs should have, is safe with either."""

SALT_BYTES = 16
"""Length of a salt to ask a random source for. RFC 5802 leaves it open; NIST SP 800-132 asks for 128 bits."""

_MIN_SALT_BYTES = 12  # what scramp takes
_MIN_ITERATIONS = 4_096  # RFC 7677, section 4
_MAX_ITERATIONS = 10_000_000  # 3 s of a core for each login; scramp takes no more

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_SCHEME = "scram"


class Keys(NamedTuple):
    """SCRAM's StoredKey and ServerKey for one hash function (RFC 5802, section 3)."""

    stored_key: bytes
    server_key: bytes


@dataclass(frozen=True, slots=True)
class StoredPassword:
    """What is kept of a password: the salt and the rounds of its hash, and the resulting keys."""

    iterations: int
    salt: bytes = field(repr=False)
    sha256: Keys = field(repr=False)
    sha512: Keys = field(repr=False)

    def verify(self, password: str) -> bool:
        """Whether ``password`` is right. Slow on purpose (``ITERATIONS``), and compares in constant time."""
        try:
            prepared = normalise(password)
        except ValueError:
            return False
        derived = _derive("sha256", prepared, self.salt, self.iterations)
        return hmac.compare_digest(derived.stored_key, self.sha256.stored_key)

    def for_scram(self, mechanism: str) -> tuple[bytes, bytes, bytes, int]:
        """Salt, stored key, server key and iterations for ``mechanism``, SCRAM-SHA-256 or SCRAM-SHA-512."""
        keys = self.sha256 if _HASHES[mechanism] == "sha256" else self.sha512
        return self.salt, *keys, self.iterations

    def __str__(self) -> str:
        """The text ``parse`` reads: ``scram$iterations$salt$`` and the four keys, in base64."""
        secrets = (self.salt, *self.sha256, *self.sha512)
        return "$".join(
            [_SCHEME, str(self.iterations), *(b64encode(part).decode("ascii") for part in secrets)]
        )


def hash_password(password: str, *, salt: bytes, iterations: int = ITERATIONS) -> str:
    """
    The text to keep instead of ``password``; ``salt`` is fresh random bytes, ``SALT_BYTES`` of them.

    Raises:
        ValueError: The password is empty or has characters that SASLprep forbids (RFC 4013); or the salt is too short;
            or the number of iterations is too small or too large.
    """
    prepared = normalise(password)
    if not prepared:
        raise ValueError("a password may not be empty")
    _check_cost(salt, iterations)
    keys = (_derive(name, prepared, salt, iterations) for name in _HASHES.values())
    return str(StoredPassword(iterations, salt, *keys))


def parse(text: str) -> StoredPassword:
    """
    What ``hash_password`` wrote, read back.

    Raises:
        ValueError: ``text`` has another form, or its iterations or its salt are out of range.
    """
    scheme, *parts = text.strip().split("$")
    if scheme != _SCHEME:
        raise ValueError(f"a stored password starts with `{_SCHEME}$`")
    if len(parts) != 6:
        raise ValueError(f"a stored password has 7 parts between `$` signs, this one has {len(parts) + 1}")
    rounds, *encoded = parts
    if not (rounds.isascii() and rounds.isdigit() and len(rounds) < 12):
        raise ValueError("the iterations of a stored password must be a whole number")
    try:
        salt, *keys = [b64decode(part, validate=True) for part in encoded]
    except ValueError:
        raise ValueError("the salt and keys of a stored password must be base64") from None
    if [len(key) for key in keys] != [32, 32, 64, 64]:
        raise ValueError("the keys of a stored password must have 32, 32, 64 and 64 bytes")
    _check_cost(salt, int(rounds))
    return StoredPassword(int(rounds), salt, Keys(keys[0], keys[1]), Keys(keys[2], keys[3]))


def decoy(user: str, key: bytes, iterations: int = ITERATIONS) -> StoredPassword:
    """
    A password that nobody has, for a user that does not exist.

    It is always the same for the same user, so that asking twice reveals nothing. Without ``key``, which is to be kept
    secret, its salt cannot be told from a random one.
    """

    def bytes_for(part: str, length: int) -> bytes:
        return hmac.digest(key, f"{part}:{user}".encode("utf-8", "surrogatepass"), "sha512")[:length]

    return StoredPassword(
        iterations,
        bytes_for("salt", SALT_BYTES),
        Keys(bytes_for("sha256 stored", 32), bytes_for("sha256 server", 32)),
        Keys(bytes_for("sha512 stored", 64), bytes_for("sha512 server", 64)),
    )


def normalise(text: str) -> str:
    """
    A user name or password as SASL compares it: after SASLprep (RFC 4013).

    Raises:
        ValueError: The text has a control character, an unassigned code point, or another that SASLprep forbids.
    """
    # Imported here: a gateway without passwords needs neither scramp nor the ASN.1 library that scramp imports.
    from scramp.utils import ScramException, saslprep  # type: ignore[import-untyped] # noqa: PLC0415

    try:
        prepared: str = saslprep(text)
    except ScramException as error:
        raise ValueError(f"not allowed in a name or password: {error.args[0]}") from None
    return prepared


def _derive(hash_name: str, prepared: str, salt: bytes, iterations: int) -> Keys:
    """SCRAM's keys from a password (RFC 5802, section 3)."""
    salted = hashlib.pbkdf2_hmac(hash_name, prepared.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    return Keys(hashlib.new(hash_name, client_key).digest(), hmac.digest(salted, b"Server Key", hash_name))


def _check_cost(salt: bytes, iterations: int) -> None:
    if len(salt) < _MIN_SALT_BYTES:
        raise ValueError(f"a salt of {len(salt)} bytes is too short; take at least {_MIN_SALT_BYTES}")
    if not _MIN_ITERATIONS <= iterations <= _MAX_ITERATIONS:
        raise ValueError(
            f"{iterations} iterations are out of range; take {_MIN_ITERATIONS} to {_MAX_ITERATIONS}"
        )


AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"

_ANONYMOUS = frozenset({"ANONYMOUS", *ANONYMOUS_MECHANISMS})

TOKEN_MECHANISMS = ("OAUTHBEARER", "XOAUTH2")
"""The mechanisms by which a peer shows a token of an identity provider: RFC 7628's, and Google's older one."""

MECHANISMS = (
    "ANONYMOUS",
    "PLAIN",
    "EXTERNAL",
    "SCRAM-SHA-256",
    "SCRAM-SHA-512",
    *TOKEN_MECHANISMS,
    *ANONYMOUS_MECHANISMS,
)
"""All mechanisms that can be offered. The last are vendors' names for ANONYMOUS: a token identifies the peer later."""

MAX_FRAME_BYTES = 4_096
"""The largest frame to accept. Section 5.3.1 lets a peer send 512; clients have sent more."""

MAX_TOKEN_FRAME_BYTES = 20_480
"""The same where tokens are accepted: a token of 16,384 characters fits, with the text around it."""

_JWT = re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)
"""A signed token: three parts, the first of which begins with ``{"`` in base64. No password looks like that."""

_GS2_HEADER = re.compile(r"[yn],(?:a=([^,]*))?,")
"""RFC 5801 section 4, without channel binding, which no client uses with a token."""

MAX_PIPELINED_BYTES = 65_536
"""What a peer may send ahead while its password is being checked. Clients wait, or send their open frame."""

ANONYMOUS_USER = "anonymous"
"""The user of a peer that says nothing about itself."""

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
_SYS = 2  # an error of ours
_SYS_TEMP = 4  # an error of ours that passes


class SaslState(enum.Enum):
    """Where the handshake is."""

    NEGOTIATING = enum.auto()
    """More bytes from the peer are needed."""

    VERIFYING = enum.auto()
    """
    The caller must run ``SaslServer.verification`` and give its answer to ``SaslServer.resolve``. Or, if there is a
    ``SaslServer.token``, the caller must find out whose it is, and call ``SaslServer.identify`` or ``refuse_token``.
    """

    DONE = enum.auto()
    """The peer has an identity; the engine goes on with ``SaslServer.leftover``."""

    FAILED = enum.auto()
    """The handshake has failed: write the rest of the output, then close."""


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
    """The handshake fails here. ``outcome`` is the code of the sasl-outcome, if one may be sent now."""

    def __init__(self, reason: str, outcome: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.outcome = outcome


class VerifiedPasswords(Protocol):
    """Passwords that were right before. Its methods are called on any thread."""

    def has(self, name: str, password: str) -> bool:
        """Whether this was the user's password."""

    def add(self, name: str, password: str) -> None:
        """Remember that this is the user's password."""


@dataclass(kw_only=True, eq=False, repr=False)
class SaslServer:
    """
    One peer's handshake. Feed it with ``receive``, write what ``drain_output`` gives, and look at ``state``.

    Args:
        mechanisms: What to offer, of ``MECHANISMS``; EXTERNAL only to a peer with an ``external_user``.
        credentials: A user's stored password, or None; it must not block.
        verified: Passwords that need not be hashed again; None remembers none.
        external_user: Who the peer's TLS certificate says it is; None without one.
        sasl_required: Whether to turn away a peer that starts with the plain AMQP header.
        nonce: A fresh unpredictable text of printable ASCII without commas, for SCRAM.
        passwords_are_tokens: Whether a PLAIN password that looks like a token is one, if the user has no password. The
            user name is then ignored: clients that show tokens in this way give any name, or none.
        decoy_key: A secret from which the salts of unknown users are made. Give every server the same one: a salt that
            changes would reveal that the user is unknown.
        decoy_iterations: The iterations for passwords of unknown users: as many as those of known users have.

    Raises:
        ValueError: No mechanisms, or one that is not of ``MECHANISMS``.
    """

    mechanisms: Sequence[str]
    credentials: Callable[[str], StoredPassword | None]
    verified: VerifiedPasswords | None = None
    external_user: str | None = None
    sasl_required: bool
    nonce: Callable[[], str]
    passwords_are_tokens: bool = False
    decoy_key: bytes
    decoy_iterations: int = ITERATIONS

    def __post_init__(self) -> None:
        named = list(self.mechanisms)
        if not named or not set(named).issubset(MECHANISMS):
            raise ValueError(f"mechanisms must be some of {', '.join(MECHANISMS)}, not {named}")
        # sasl-mechanisms may not be empty: where only EXTERNAL is allowed, a peer without a certificate is
        # offered it all the same, and then refused.
        self._offered = [name for name in named if name != "EXTERNAL" or self.external_user] or ["EXTERNAL"]

        takes_tokens = self.passwords_are_tokens or not set(named).isdisjoint(TOKEN_MECHANISMS)
        self._max_frame_bytes = MAX_TOKEN_FRAME_BYTES if takes_tokens else MAX_FRAME_BYTES
        self.state = SaslState.NEGOTIATING
        self.identity: Identity | None = None
        self.leftover = b""
        self.verification: Callable[[], bool] | None = None
        self.token: str | None = None
        """The token that the peer has shown, while it waits to be checked."""
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
        """The peer has left: a handshake that is not done has failed."""
        if self.state not in (SaslState.DONE, SaslState.FAILED):
            self.failure = "the peer has disconnected"
            self._end(SaslState.FAILED)

    def drain_output(self) -> bytes:
        """The bytes to write to the peer, once."""
        output = bytes(self._output)
        self._output.clear()
        return output

    def resolve(self, ok: bool) -> None:
        """Give the answer of ``verification`` and go on; ignored if the handshake no longer waits for it."""
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

    def identify(self, user: str) -> None:
        """The token is this user's; ignored if no token waits to be checked any more."""
        candidate = self._checked()
        if candidate is None:
            return
        asked, mechanism = candidate.user, candidate.mechanism
        if asked not in ("", user):
            self._fail(_Refused(f"{mechanism} as user {user!r:.80}, who may not act as {asked!r:.80}", _AUTH))
            return
        self._accept(Identity(user, mechanism))
        self._advance()

    def refuse_token(self, reason: str) -> None:
        """The token is invalid; ignored if no token waits to be checked any more."""
        candidate = self._checked()
        if candidate is None:
            return
        if candidate.mechanism != "OAUTHBEARER":
            self._fail(_Refused(reason, _AUTH))
            return

        def fail(response: bytes) -> None:
            raise _Refused(reason, _AUTH)

        # RFC 7628, section 3.2.2: a challenge says why, the peer sends an empty response, and the outcome follows.
        self._answer = fail
        self._send(_CHALLENGE, b'{"status":"invalid_token"}')
        self._advance()

    def _checked(self) -> Identity | None:
        """End the check of a token. Returns the identity that it was shown for; None if no token waits for a check."""
        if self.state is not SaslState.VERIFYING or self.token is None:
            return None
        self.state, self.token = SaslState.NEGOTIATING, None
        return self._candidate

    def put_off(self, reason: str) -> None:
        """
        Fail because there is no time for ``verification`` now, or because the peer took too long. A peer whose sign-in
        has begun and has no outcome yet is told to try again later.
        """
        if self.state in (SaslState.VERIFYING, SaslState.NEGOTIATING):
            awaits_outcome = self.state is SaslState.VERIFYING or self._step in (
                self._read_init,
                self._read_response,
            )
            self._fail(_Refused(reason, _SYS_TEMP if awaits_outcome else None))

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
            if self.sasl_required:
                self._output += SASL_HEADER
                raise _Refused("the peer skips SASL, which is not allowed here")
            self._candidate = Identity(ANONYMOUS_USER, _NO_SASL)
            return self._finish()
        if header == SASL_HEADER:
            del self._input[:8]
            self._output += SASL_HEADER
            self._send(_MECHANISMS_FRAME, Array([Symbol(name) for name in self._offered]))
            self._step = self._read_init
            return True
        if not (SASL_HEADER.startswith(header) or AMQP_HEADER.startswith(header)):
            self._output += SASL_HEADER if self.sasl_required else AMQP_HEADER
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
                self._accept(Identity(ANONYMOUS_USER, str(mechanism)))
            case "EXTERNAL":
                self._check_external(initial or b"")
            case "PLAIN":
                self._expect(self._check_plain, initial)
            case _ if mechanism in TOKEN_MECHANISMS:
                self._expect(lambda first: self._check_bearer(str(mechanism), first), initial)
            case _:
                self._expect(lambda first: self._start_scram(str(mechanism), first), initial)
        return True

    def _expect(self, answer: Callable[[bytes], None], initial: bytes | None) -> None:
        """Let ``answer`` handle the client's first message, which the client may have left out of its sasl-init."""
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
            raise _Refused(
                f"the peer continues with {header!r} after SASL, where an AMQP 1.0 header should be"
            )
        return False

    # --- mechanisms ---

    def _check_external(self, response: bytes) -> None:
        # RFC 4422, appendix A: the response is the identity to act as, empty for that of the certificate.
        user = self.external_user
        if user is None:
            raise _Refused("EXTERNAL, but the peer has no certificate that names a user", _AUTH)
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
        if self.passwords_are_tokens and _JWT.fullmatch(password) and self.credentials(user) is None:
            self._have_checked(password, Identity("", "PLAIN"))
            return
        if not user or acts_as not in ("", user):
            raise _Refused(f"PLAIN as user {user!r:.80}, who may not act as {acts_as!r:.80}", _AUTH)
        stored = self._stored(user)
        candidate, verified = Identity(user, "PLAIN"), self.verified
        if verified is not None and verified.has(user, password):
            self._accept(candidate)
            return

        def verify() -> bool:
            # Another connection of the user may have had it verified while this one waited.
            if verified is not None and verified.has(user, password):
                return True
            is_right = stored.verify(password)
            if is_right and verified is not None:
                verified.add(user, password)
            return is_right

        self._candidate = candidate
        self.verification = verify
        self.state = SaslState.VERIFYING

    def _check_bearer(self, mechanism: str, response: bytes) -> None:
        # RFC 7628, section 3.1: n,a=NAME, ^A auth=Bearer TOKEN ^A ^A; XOAUTH2 has user=NAME in front.
        wrong = _Refused(
            f"{mechanism}, but its response is invalid: it needs a name and auth=Bearer TOKEN", _AUTH
        )
        try:
            head, *pairs, last, end = response.decode().split("\1")
            if mechanism == "XOAUTH2":
                if not head.startswith("user="):
                    raise wrong
                name = head.removeprefix("user=")
            else:
                header = _GS2_HEADER.fullmatch(head)
                if header is None:
                    raise wrong
                name = (header[1] or "").replace("=2C", ",").replace("=3D", "=")
            name = normalise(name)
        except ValueError:
            raise wrong from None
        said = dict(pair.partition("=")[::2] for pair in pairs)
        scheme, _, token = said.get("auth", "").partition(" ")
        if last or end or scheme.lower() != "bearer" or not token.strip():
            raise wrong
        self._have_checked(token.strip(), Identity(name, mechanism))

    def _have_checked(self, token: str, candidate: Identity) -> None:
        """Let the caller check a token. The peer wants to act as ``candidate``: without a name, as the token's user."""
        self._candidate = candidate
        self.token = token
        self.state = SaslState.VERIFYING

    def _start_scram(self, mechanism: str, response: bytes) -> None:
        from scramp import ScramException, ScramMechanism  # type: ignore[import-untyped] # noqa: PLC0415

        users: list[str] = []

        def find(user: str) -> tuple[bytes, bytes, bytes, int]:
            users.append(user)
            return self._stored(user).for_scram(mechanism)

        try:
            server = ScramMechanism(mechanism).make_server(find, s_nonce=self.nonce())
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
            stored = self.credentials(user)
        except Exception as error:
            raise _Refused(f"the credentials of {user!r:.80} cannot be read: {error!r}", _SYS) from error
        if stored is None:
            stored = decoy(user, self.decoy_key, self.decoy_iterations)
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
        """No step follows. Drop what would take one: it refers to this server, and the cycle would keep both alive."""
        self.state = state
        self._step = lambda: False
        self._answer = self.verification = self.token = None
        self._input.clear()
