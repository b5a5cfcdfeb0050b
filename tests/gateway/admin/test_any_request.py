"""Whatever is asked of the administration: an answer in its shape, a gateway that lives, a file that is sound."""

from __future__ import annotations

import random
from typing import Any
from urllib.parse import quote

from tests.gateway.admin.conftest import Api, stop_and_check
from tests.support.client import Client
from tests.support.messages import data
from tests.support.running import RunningGateway

REQUESTS = 400

NAMES = ("q", "p", "te", "default", "a/>", "!a", "#1", "", "é", "a b", "x" * 300, "\0")
TEXTS = (*NAMES, "beginning", "live", "#3", "10m", "rmid1:00000-00000000000-00000000-00000003", "match:a = 1")
VALUES = (
    *TEXTS,
    0,
    1,
    -1,
    5,
    2**31,
    2**70,
    1.5,
    True,
    False,
    None,
    [],
    {},
    "exclusive",
    "stream",
    "2026-01-01",
)


def body_for(dice: random.Random, schema: dict[str, Any]) -> Any:
    """Mostly attributes that there are, with values that may be right."""
    if dice.random() < 0.05:
        return dice.choice(VALUES)
    names = [*schema.get("properties", {"x": {}}), "unknown"]
    chosen = set(dice.sample(names, min(len(names), dice.randint(0, 3)))) | set(schema.get("required", ()))
    if dice.random() < 0.9:
        chosen.discard("unknown")
    return {name: dice.choice(VALUES) for name in chosen}


def schema_of(document: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any] | None:
    """What an operation takes as its body."""
    if "requestBody" not in operation:
        return None
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    reference = schema.get("$ref") or next(
        (part["$ref"] for part in schema.get("anyOf", ()) if "$ref" in part), None
    )
    found: dict[str, Any] = (
        document["components"]["schemas"][reference.rpartition("/")[2]] if reference else schema
    )
    return found


def test_random_requests_leave_the_gateway_healthy(api: Api, client: Client, gateway: RunningGateway) -> None:
    """Requests with values that may be right: none is answered with 5xx, and the store is sound after them."""
    dice = random.Random(4)
    client.sender("q").send_all([data(i) for i in range(20)])
    document = api.http.get("/openapi.json").json()
    operations = [
        (path, method, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if path.startswith("/SEMP") and not path.endswith("/live")
    ]
    assert len(operations) > 40
    seen: set[int] = set()
    for _ in range(REQUESTS):
        path, method, operation = dice.choice(operations)
        url = path.replace("{vpn}", "default" if dice.random() < 0.95 else quote(dice.choice(NAMES), safe=""))
        for parameter in ("log", "name", "topic", "client"):
            value = "default" if parameter == "log" and dice.random() < 0.9 else dice.choice(NAMES)
            url = url.replace(f"{{{parameter}}}", quote(value, safe=""))
        url = url.replace("{message}", quote(str(dice.choice((1, 2, 20, 21, *VALUES))), safe=""))
        query = {
            one["name"]: str(dice.choice(VALUES))
            for one in operation.get("parameters", ())
            if one["in"] == "query" and dice.random() < 0.15
        }
        schema = schema_of(document, operation)
        body = body_for(dice, schema) if schema is not None else None
        answer = api.http.request(
            method.upper(), url, params=query, **({} if schema is None else {"json": body})
        )
        assert answer.status_code < 500, (method, url, query, body, answer.text)
        seen.add(answer.status_code)
        if answer.status_code in (200, 400) and answer.headers["content-type"] == "application/json":
            assert answer.json()["meta"]["responseCode"] == answer.status_code
    assert {200, 400} <= seen
    stop_and_check(gateway, api, client)
