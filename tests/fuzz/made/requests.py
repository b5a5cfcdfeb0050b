"""Requests to the administration: operations with values that may be valid, and bytes that are no request."""

from __future__ import annotations

import json
from collections.abc import Mapping
from random import Random
from typing import Any
from urllib.parse import quote, urlencode

from tests.fuzz.made.kind import Answer, Kind, Listener
from tests.fuzz.made.texts import QUEUES, start, topic
from tests.fuzz.made.values import EDGES, changed, word, words

TOKEN = "the-token-of-the-administrator"
AT_ONCE = 50

_NAMES = (*QUEUES, "default", "a/>", "!a", "#1", "", "é", "a b", "x" * 300, "\0", "p")
_SCALARS = (None, True, False, 1.5, -1, 2**70, "exclusive", "stream", "2026-01-01")
_JSON = (*_SCALARS, [], {}, [[[]]], {"a": {"b": None}})
_NAMED = (("name", ""), ("topic", ""), ("client", ""))
_METHODS = words("GET POST PUT PATCH DELETE HEAD OPTIONS TRACE x")
_HEADERS = (
    *("Host: evil", "Authorization: Basic eDp5", "Authorization: Bearer x", "Origin: http://evil"),
    *("Accept: x", "X-é: é", "Cookie: a=b", "Expect: 100-continue"),
)


def _value(dice: Random) -> Any:
    return dice.choice(
        (dice.choice(_NAMES), dice.choice(EDGES), dice.choice(_JSON), word(dice), topic(dice), start(dice))
    )


_LINE: dict[str, Any] = {
    "properties": dict.fromkeys(("body", "bodyType", "properties", "messageId", "annotations", "topic"))
}
"""A message as a line of JSON."""


def _schema(document: Mapping[str, Any], operation: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of an operation's body; for an operation on lines, those of one line."""
    ((kind, content),) = operation["requestBody"]["content"].items()
    if kind != "application/json":
        return _LINE
    schema: dict[str, Any] = content["schema"]
    reference = schema.get("$ref") or next(
        (part["$ref"] for part in schema.get("anyOf", ()) if "$ref" in part), None
    )
    if reference:
        schema = document["components"]["schemas"][reference.rpartition("/")[2]]
    return schema


class Requests:
    """
    Makes requests from the administration's own description.

    Args:
        document: The content of ``/openapi.json``. The same code gives the same description, and so the same requests.
    """

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._operations = [
            (path, method.upper(), operation)
            for path, methods in sorted(document["paths"].items())
            for method, operation in sorted(methods.items())
        ]

    def make(self, dice: Random, _: int) -> bytes:
        """One request; one in a hundred is not framed as HTTP requires."""
        path, method, operation = dice.choice(self._operations)
        for parameter, usual in (("vpn", "default"), ("log", "default"), *_NAMED):
            name = dice.choice(_NAMES) if dice.random() < 0.9 else word(dice)[:50]
            chosen = usual if usual and dice.random() < 0.97 else quote(name, safe="")
            path = path.replace(f"{{{parameter}}}", chosen)
        asked = {
            one["name"]: str(_value(dice))
            for one in operation.get("parameters", ())
            if one["in"] == "query" and dice.random() < 0.15
        }
        if asked:
            path += "?" + urlencode(asked, errors="replace")
        if dice.random() < 0.02:
            method = dice.choice(_METHODS)
        body = b""
        headers = ["Host: localhost", f"Authorization: Bearer {TOKEN}"]
        if "requestBody" in operation:
            body = self._body(dice, operation)
            kind = "application/json" if dice.random() < 0.98 else "text/plain"
            headers.append(f"Content-Type: {kind}")
        if body or method not in ("GET", "HEAD"):
            headers.append(f"Content-Length: {len(body)}")
        if dice.random() < 0.03:
            headers[dice.randrange(len(headers))] = dice.choice(_HEADERS)
        request = f"{method} {path} HTTP/1.1\r\n".encode() + "\r\n".join([*headers, "", ""]).encode() + body
        return changed(dice, request) if dice.random() < 0.01 else request

    def _body(self, dice: Random, operation: Mapping[str, Any]) -> bytes:
        schema = _schema(self._document, operation)
        names = [*sorted(schema.get("properties", {"x": {}})), "unknown"]
        chosen = set(dice.sample(names, min(len(names), dice.randint(0, 3)))) | set(
            schema.get("required", ())
        )
        if dice.random() < 0.9:
            chosen.discard("unknown")
        content: Any = {name: _value(dice) for name in sorted(chosen)}
        if dice.random() < 0.02:
            content = _value(dice)
        body = json.dumps(content, ensure_ascii=dice.random() < 0.5).encode(errors="replace")
        return changed(dice, body) if dice.random() < 0.03 else body


def requests(document: Mapping[str, Any]) -> Kind:
    """The kind of inputs that are requests to the administration."""
    end = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    return Kind(
        "http", Listener.ADMINISTRATION, Answer.STATUS, Requests(document).make, at_once=AT_ONCE, end=end
    )
