"""
Passwords at rest: one salted hash that serves SCRAM-SHA-256, SCRAM-SHA-512 and PLAIN (RFC 5802, RFC 7677).

What is kept is what SCRAM keeps: not the password, and nothing to log in with, but the keys to check a login.
Invariant: no error and no repr here shows a password, a key, or the text somebody gave for a hash (which may
be a password that was put there in clear).
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from dataclasses import dataclass, field

__all__ = ["ITERATIONS", "SALT_BYTES", "StoredPassword", "decoy", "hash_password", "normalise", "parse"]

ITERATIONS = 100_000
"""PBKDF2 rounds for a new hash. RFC 7677 asks for 4,096 at least; OWASP (2023) for 600,000 with SHA-256, so
that a stolen file resists guessing. But the rounds are done once a connection, by the client for SCRAM and by
the gateway for PLAIN: 100,000 are 0.03 s of a core; with 600,000, a thousand clients that come back at once
would be three minutes of work. A long random password, as programs should have, is safe with either."""

SALT_BYTES = 16
"""Length of a salt to ask a random source for. RFC 5802 leaves it open; NIST SP 800-132 asks for 128 bits."""

_MIN_SALT_BYTES = 12  # what scramp takes
_MIN_ITERATIONS = 4_096  # RFC 7677, section 4
_MAX_ITERATIONS = 10_000_000  # 3 s of a core for each login; scramp takes no more

_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_SCHEME = "scram"


@dataclass(frozen=True, slots=True)
class Keys:
    """SCRAM's StoredKey and ServerKey for one hash function (RFC 5802, section 3)."""

    stored_key: bytes
    server_key: bytes


@dataclass(frozen=True, slots=True)
class StoredPassword:
    """What is known of a password: the salt and the rounds it was hashed with, and the keys that gave."""

    iterations: int
    salt: bytes = field(repr=False)
    sha256: Keys = field(repr=False)
    sha512: Keys = field(repr=False)

    def verify(self, password: str) -> bool:
        """Whether ``password`` is the one. Slow on purpose (``ITERATIONS``), and compares in constant time."""
        try:
            prepared = normalise(password)
        except ValueError:
            return False
        derived = _derive("sha256", prepared, self.salt, self.iterations)
        return hmac.compare_digest(derived.stored_key, self.sha256.stored_key)

    def for_scram(self, mechanism: str) -> tuple[bytes, bytes, bytes, int]:
        """Salt, stored key, server key and iterations for ``mechanism``, SCRAM-SHA-256 or SCRAM-SHA-512."""
        keys = self.sha256 if _HASHES[mechanism] == "sha256" else self.sha512
        return self.salt, keys.stored_key, keys.server_key, self.iterations

    def __str__(self) -> str:
        """The text ``parse`` reads: ``scram$iterations$salt$`` and the four keys, in base64."""
        secrets = (self.salt, *_pair(self.sha256), *_pair(self.sha512))
        return "$".join(
            [_SCHEME, str(self.iterations), *(b64encode(part).decode("ascii") for part in secrets)]
        )


def hash_password(password: str, *, salt: bytes, iterations: int = ITERATIONS) -> str:
    """
    The text to keep instead of ``password``; ``salt`` is fresh random bytes, ``SALT_BYTES`` of them.

    Raises:
        ValueError: The password is empty or has characters SASLprep forbids (RFC 4013), or the salt or the
            number of iterations is too small or the latter too large.
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
    A password nobody has, for a user there is not.

    The same for the same user, so that asking twice tells nothing; and without ``key``, which is to be kept
    secret, its salt looks as random as a real one.
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
        ValueError: It has a control character, an unassigned code point, or another that SASLprep forbids.
    """
    # Here, as in ``amqp_ext.sasl.server``: a gateway without passwords needs neither it nor its certificates' ASN.1.
    from scramp.utils import ScramException, saslprep  # type: ignore[import-untyped] # noqa: PLC0415

    try:
        prepared: str = saslprep(text)
    except ScramException as error:
        raise ValueError(f"not allowed in a name or password: {error.args[0]}") from None
    return prepared


def _pair(keys: Keys) -> tuple[bytes, bytes]:
    return keys.stored_key, keys.server_key


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
