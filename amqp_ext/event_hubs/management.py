"""
The nodes ``$cbs`` and ``$management`` of Event Hubs: requests read into commands, answers written, and the shared
access signatures that ``$cbs`` is given.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote_plus

from amqp_ext.codec import Array, Int, Long, Timestamp
from amqp_ext.event_hubs.forms import CBS, MANAGEMENT, PARTITION
from amqp_ext.message import sections
from amqp_ext.request_nodes import NOT_IMPLEMENTED, BadRequest, Request, RequestNode, message, value_of

SAS_TOKEN: Final = "servicebus.windows.net:sastoken"
"""The kind of token that is a shared access signature."""

JWT: Final = "jwt"
"""The kind of token that an identity provider has issued."""


@dataclass(frozen=True, slots=True)
class PutToken:
    """Let this connection do what the token permits. Results in nothing."""

    token: str = field(repr=False)
    kind: str


@dataclass(frozen=True, slots=True)
class ReadHub:
    """Describe an event hub. Results in ``HubState``."""

    name: str
    token: str | None = field(default=None, repr=False)
    """A token that came with the request, and permits this request."""


@dataclass(frozen=True, slots=True)
class ReadPartition:
    """Describe a partition. Results in ``PartitionState``."""

    hub: str
    partition: str
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class HubState:
    """An event hub. Times are milliseconds since the epoch."""

    name: str
    created_ms: int


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of a partition in the log."""

    hub: str
    begin: int
    """The first id of the partition; where it is empty, the id that the next event may have."""
    last: int | None
    """The last id; None where the partition is empty."""
    last_ms: int
    """When the last event arrived, in ms since the epoch; 0 where the partition is empty."""


HUB: Final = "com.microsoft:eventhub"
PARTITION_TYPE: Final = "com.microsoft:partition"

_STATUS: Final[Mapping[str, int]] = {
    "amqp:unauthorized-access": 401,
    "amqp:not-found": 404,
    "amqp:internal-error": 500,
    "amqp:not-implemented": 501,
}
"""HTTP's status for a condition; 400 for any other."""

_STRING: Final = 0xB1


class CbsNode(RequestNode):
    """The node that takes tokens."""

    address = CBS

    def command(self, properties: sections.Properties, content: bytes) -> PutToken:
        """The command that a message asks for by its application properties and body."""
        asked = sections.application_properties(content)
        operation = _text(asked, "operation")
        if operation != "put-token":
            raise BadRequest(f"the operation at {CBS} is put-token, not {operation!r:.60}", NOT_IMPLEMENTED)
        token = value_of(content)
        if isinstance(token, bytes):
            token = token.decode(errors="replace")
        if not isinstance(token, str) or not token:
            raise BadRequest("the body of put-token is the token, a string")
        return PutToken(token, _text(asked, "type"))

    def answer(self, request: Request, result: Any) -> bytes:
        """The message with the result of a request."""
        return _answer(request, 202, "Accepted", None)

    def refuse(self, request: Request, condition: str, text: str) -> bytes:
        """The message that says why a request was not carried out."""
        # Without the condition: if there is one, the Python client looks at neither status nor text.
        return _answer(request, _STATUS.get(condition, 400), text, None)


class ManagementNode(RequestNode):
    """The node that describes event hubs and their partition."""

    address = MANAGEMENT

    def command(self, properties: sections.Properties, content: bytes) -> ReadHub | ReadPartition:
        """The command that a message asks for by its application properties."""
        asked = sections.application_properties(content)
        operation, kind = _text(asked, "operation"), _text(asked, "type")
        if operation != "READ":
            raise BadRequest(f"the operation at {MANAGEMENT} is READ, not {operation!r:.60}", NOT_IMPLEMENTED)
        token = asked.get("security_token")
        if token is not None and not isinstance(token, str):
            raise BadRequest("the application property 'security_token' is a token, a string")
        if kind == HUB:
            return ReadHub(_text(asked, "name"), token)
        if kind == PARTITION_TYPE:
            return ReadPartition(_text(asked, "name"), _text(asked, "partition"), token)
        raise BadRequest(f"{HUB} and {PARTITION_TYPE} can be read, not {kind!r:.60}", NOT_IMPLEMENTED)

    def answer(self, request: Request, result: Any) -> bytes:
        """The message with the result of a request."""
        return _answer(request, 200, "OK", _described(result))

    def refuse(self, request: Request, condition: str, text: str) -> bytes:
        """The message that says why a request was not carried out."""
        return _answer(request, _STATUS.get(condition, 400), text, None, condition)


def _described(state: HubState | PartitionState) -> dict[str, Any]:
    if isinstance(state, HubState):
        return {
            "type": HUB,
            "name": state.name,
            "created_at": Timestamp(state.created_ms),
            "partition_count": Int(1),
            "partition_ids": Array([PARTITION], _STRING),
            # There is one copy, and nothing is replicated; but the Go client rejects an answer without the factor.
            "georeplication_factor": Int(1),
        }
    last = -1 if state.last is None else state.last
    return {
        "type": PARTITION_TYPE,
        "name": state.hub,
        "partition": PARTITION,
        "begin_sequence_number": Long(state.begin),
        # Nothing is replicated, so nothing has an epoch; but the Rust client rejects an answer without the latter one.
        "begin_sequence_number_epoch": Int(-1),
        "last_enqueued_sequence_number_epoch": Int(-1),
        "last_enqueued_sequence_number": Long(last),
        "last_enqueued_offset": str(last),
        "last_enqueued_time_utc": Timestamp(state.last_ms),
        "is_partition_empty": state.last is None,
    }


def _answer(request: Request, status: int, text: str, value: Any, condition: str | None = None) -> bytes:
    # The Python client looks for the description under the name that the draft of AMQP Management gives it.
    said: dict[str, Any] = {"status-code": Int(status), "status-description": text, "statusDescription": text}
    if condition is not None:
        said["error-condition"] = condition
    return message(correlation_id=request.id, to=request.reply_to, application_properties=said, value=value)


def _text(asked: Mapping[Any, Any], name: str) -> str:
    found = asked.get(name)
    if not isinstance(found, str) or not found:
        raise BadRequest(f"the request needs the application property {name!r}, a string")
    return str(found)


_PREFIX: Final = "SharedAccessSignature "
_FIELDS: Final = ("sr", "sig", "se", "skn")
_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]*/?")


class TokenError(ValueError):
    """An invalid token. The text is a sentence for the token's owner, and holds no secret."""


@dataclass(frozen=True, slots=True)
class Token:
    """A shared access signature, read and not yet checked."""

    key_name: str
    resource: str
    """The path that the token permits, with everything below it; "" permits everything."""
    expires_s: int
    """Seconds since the epoch."""
    signature: str
    encoded_resource: str
    """The resource as it was signed."""

    def check(self, key: str, now_s: float) -> None:
        """
        Check the token against the key that it names.

        Raises:
            TokenError: The token was made with another key, or has expired.
        """
        wanted = sign(key, self.encoded_resource, self.expires_s)
        if not hmac.compare_digest(self.signature.encode(), wanted.encode()):
            raise TokenError(f"the signature is not one of key {self.key_name!r} for {self.encoded_resource}")
        if self.expires_s <= now_s:
            raise TokenError(f"the token has expired {now_s - self.expires_s:.0f} s ago")

    def covers(self, path: str) -> bool:
        """Whether the token permits this path: it is the token's, or below it. Case counts, as in names of queues."""
        own = self.resource
        return not own or path == own or path.startswith(f"{own}/")


def read_token(text: str) -> Token:
    """
    Read a shared access signature.

    Raises:
        TokenError: The text is not a shared access signature.
    """
    if not text.startswith(_PREFIX):
        raise TokenError(
            "the token is not a shared access signature: 'SharedAccessSignature sr=…&sig=…&se=…&skn=…'"
        )
    found = dict(part.partition("=")[::2] for part in text.removeprefix(_PREFIX).split("&"))
    missing = [name for name in _FIELDS if not found.get(name)]
    if missing:
        raise TokenError(f"the shared access signature has no {' and no '.join(missing)}")
    expiry = unquote_plus(found["se"])
    if not re.fullmatch(r"[0-9]{1,15}", expiry):
        raise TokenError("the shared access signature's se is not a number of seconds since the epoch")
    return Token(
        unquote_plus(found["skn"]),
        path_of(unquote_plus(found["sr"])),
        int(expiry),
        unquote_plus(found["sig"]),
        found["sr"],
    )


def path_of(resource: str) -> str:
    """The path in a resource's URL: what follows the host, without slashes at its ends."""
    url = _URL.match(resource)
    return (resource[url.end() :] if url else resource).strip("/")


def sign(key: str, encoded_resource: str, expires_s: int) -> str:
    """The signature, with a key, of a resource and an expiry time."""
    signed = f"{encoded_resource}\n{expires_s}"
    return base64.b64encode(hmac.new(key.encode(), signed.encode(), hashlib.sha256).digest()).decode()
