"""
Shared access signatures: tokens that whoever knows a key can make for himself, for one resource and a while.

    SharedAccessSignature sr=<resource>&sig=<signature>&se=<expiry>&skn=<name of the key>

Each value is percent-encoded. The signature is base64 of HMAC-SHA256, with the key's text, over the encoded resource, a
line feed and the expiry in seconds since the epoch.

Source: Microsoft, "Authenticate access to Event Hubs resources using shared access signatures (SAS)".
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_plus

_PREFIX: Final = "SharedAccessSignature "
_FIELDS: Final = ("sr", "sig", "se", "skn")
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*/?")


class TokenError(ValueError):
    """A token that is not good. Its text is a sentence for its owner, and holds no secret."""


@dataclass(frozen=True, slots=True)
class Token:
    """A shared access signature, read and not yet checked."""

    key_name: str
    resource: str
    """Path of the entity that it is for, and of all below; "" is everything."""
    expires_s: int
    """Seconds since the epoch."""
    signature: str
    encoded_resource: str
    """The resource as it was signed."""

    def check(self, key: str, now_s: float) -> None:
        """
        Hold it against the key that it names.

        Raises:
            TokenError: It was made with another key, or has expired.
        """
        wanted = sign(key, self.encoded_resource, self.expires_s)
        if not hmac.compare_digest(self.signature.encode(), wanted.encode()):
            raise TokenError(f"the signature is not one of key {self.key_name!r} for {self.encoded_resource}")
        if self.expires_s <= now_s:
            raise TokenError(f"the token has expired {now_s - self.expires_s:.0f} s ago")

    def covers(self, path: str) -> bool:
        """Whether it is for this entity, or for one that this is part of; case counts, as in names of queues."""
        own = self.resource
        return not own or path == own or path.startswith(f"{own}/")


def read_token(text: str) -> Token:
    """
    Read a shared access signature.

    Raises:
        TokenError: It is none.
    """
    if not text.startswith(_PREFIX):
        raise TokenError(
            "the token is no shared access signature: 'SharedAccessSignature sr=…&sig=…&se=…&skn=…'"
        )
    found = dict(part.partition("=")[::2] for part in text.removeprefix(_PREFIX).split("&"))
    missing = [name for name in _FIELDS if not found.get(name)]
    if missing:
        raise TokenError(f"the shared access signature has no {' and no '.join(missing)}")
    expiry = unquote_plus(found["se"])
    if not re.fullmatch(r"[0-9]{1,15}", expiry):
        raise TokenError("the shared access signature's se is no number of seconds since the epoch")
    return Token(
        unquote_plus(found["skn"]),
        path_of(unquote_plus(found["sr"])),
        int(expiry),
        unquote_plus(found["sig"]),
        found["sr"],
    )


def path_of(resource: str) -> str:
    """The entity in a resource's URL: what is behind the host, without a slash at its end."""
    url = _URL.match(resource)
    return (resource[url.end() :] if url else resource).strip("/")


def sign(key: str, encoded_resource: str, expires_s: int) -> str:
    """The signature that a key gives to a resource until a time."""
    signed = f"{encoded_resource}\n{expires_s}"
    return base64.b64encode(hmac.new(key.encode(), signed.encode(), hashlib.sha256).digest()).decode()
