"""Bearer tokens of the administration, of which the configuration knows hashes alone.

A token is made by ``new_token``, never chosen by a person: 256 bits of chance cannot be guessed, so one round of
SHA-256 keeps it as safe as a password's many rounds, and checking one costs nothing worth attacking.
"""

import hashlib
import re
import secrets
from typing import Final

_PREFIX: Final = "sha256$"
_TOKEN_BYTES: Final = 32


def new_token() -> str:
    """A fresh token, of the letters, digits, ``-`` and ``_`` that a header takes (RFC 6750 section 2.1)."""
    return secrets.token_urlsafe(_TOKEN_BYTES)


def token_hash(token: str) -> str:
    """What the configuration holds of a token."""
    return _PREFIX + hashlib.sha256(token.encode()).hexdigest()


def check_token_hash(text: str) -> str:
    """``text`` as it is, if it is a token's hash.

    Raises:
        ValueError: It is not; the sentence does not quote it.
    """
    if not re.fullmatch(r"sha256\$[0-9a-f]{64}", text):
        raise ValueError(
            "not a token's hash, `sha256$` and 64 hexadecimal digits; make both with `rewind new-token`"
        )
    return text
