"""The OpenAPI document, and whatever schemathesis makes of it: requests that keep to it, and some that do not."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.gateway.admin.conftest import Api, stop_and_check
from tests.support.client import Client
from tests.support.messages import data


@schemathesis.serializer("application/x-ndjson")
def lines(_context: Any, value: Any) -> bytes:
    """What it makes of a text is sent as it is."""
    return str(value).encode("utf-8", "replace")


EXAMPLES = 18
"""Requests of each operation: a thousand together."""

TEXTS = (
    "#3",
    "10m",
    "rmid1:00000-00000000000-00000000-00000003",
    "match:a = 1",
    "!a",
    "#1",
    "é",
    "a/>",
    "q",
    "\0",
)
"""Names, topics and places that may be right, which nobody makes out of thin air."""

CHECKS: Any = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.mark.timeout(300)  # a thousand requests, of which some search the log
def test_a_thousand_requests_of_schemathesis_find_no_mistake(api: Api, client: Client) -> None:
    """
    None is answered with 5xx, or with what the document does not say; the gateway is healthy after them and its store
    sound.
    """
    client.sender("q").send_all([data(i) for i in range(20)])
    api.make("/topicEndpoints", {"topicEndpointName": "te", "topic": "a/>"})
    schema = schemathesis.openapi.from_dict(api.http.get("/openapi.json").json())
    schema.config.update(base_url=str(api.http.base_url))
    named = {"vpn": "default", "name": "q", "log": "default", "topic": "a", "client": "nobody", "message": 1}
    seen: Counter[int] = Counter()
    with requests.Session() as session:
        session.trust_env = False
        for found in schema.get_all_operations():
            operation = found.ok()
            if operation.path.endswith("/live"):
                continue  # its answer has no end

            @settings(
                max_examples=EXAMPLES,
                derandomize=True,
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy())
            def ask(case: Any) -> None:
                # Names out of thin air would name nothing: half of the requests are about what there is.
                if sum(seen.values()) % 2:
                    for parameter in case.path_parameters or ():
                        case.path_parameters[parameter] = named[parameter]
                    if "/topicEndpoints/" in case.path:
                        case.path_parameters["name"] = "te"
                # Nor would texts be such as a queue or the log has.
                if sum(seen.values()) % 3 == 0 and isinstance(case.body, dict):
                    for at, (key, value) in enumerate(case.body.items(), sum(seen.values())):
                        case.body[key] = TEXTS[at % len(TEXTS)] if isinstance(value, str) else value
                answer = case.call(session=session)
                seen[answer.status_code] += 1
                case.validate_response(answer, checks=CHECKS)

            ask()
    assert sum(seen.values()) >= 800, seen
    # 404 is what becomes of a name such as `.`, which no client sends as it is.
    assert set(seen) <= {200, 400, 404}, seen
    assert seen[200] > 100, seen
    stop_and_check(api, client)


def documented(document: dict[str, Any], path: str, method: str = "get") -> dict[str, Any]:
    """The properties of `data` in the answer of an operation."""

    def resolved(schema: dict[str, Any]) -> dict[str, Any]:
        reference = schema.get("$ref")
        if reference is None:
            return schema
        found: dict[str, Any] = document["components"]["schemas"][reference.rpartition("/")[2]]
        return found

    answer = document["paths"][path][method]["responses"]["200"]["content"]["application/json"]["schema"]
    shown = resolved(resolved(answer)["properties"]["data"])
    shown = resolved(shown.get("items", shown))
    assert shown["additionalProperties"] is False, path
    properties: dict[str, Any] = shown["properties"]
    return properties


def test_every_attribute_that_is_shown_is_documented_with_its_type_and_no_other(
    api: Api, client: Client
) -> None:
    """What each resource shows is exactly what the document says, and no attribute is just anything."""
    client.sender("q").send_all([data(0), data(1)])
    client.receiver("q")
    api.make("/queues/q/subscriptions", {"subscriptionTopic": "q/>"})
    api.make("/topicEndpoints", {"topicEndpointName": "te", "topic": "a/>"})
    client.sender("topic://a/1").send_all([data(2)])
    client.receiver("topic://a/>", name="te", durable=True)
    api.make("/replayPoints", {"replayPointName": "p"})
    api.act("/topicEndpoints/te/startReplay", {"replayName": "q"})
    topics = "/replayLogs/default/topicFilterSubscriptions"
    api.make(topics, {"topicFilterSubscription": "a/>"})
    document = api.http.get("/openapi.json").json()
    seen = 0
    for path, operations in document["paths"].items():
        if "get" not in operations or not path.startswith("/SEMP"):
            continue
        if "application/json" not in operations["get"]["responses"]["200"]["content"]:
            continue
        name = "te" if "/topicEndpoints" in path else "q"
        message = 3 if name == "te" else 1
        url = path.format(
            vpn="default", log="default", name=name, message=message, client=client.connection.container
        )
        asked = {"topic": "q/1", "action": "consume", "address": "topic://a/>"}
        required = {
            one["name"]
            for one in operations["get"].get("parameters", ())
            if one["in"] == "query" and one["required"]
        }
        query = {key: asked[key] for key in required}
        answer = api.http.get(url, params=query).json()["data"]
        properties = documented(document, path)
        for shown in answer if isinstance(answer, list) else [answer]:
            assert set(shown) == set(properties), path
            seen += 1
        for attribute, schema in properties.items():
            assert {"type", "const", "enum", "anyOf", "$ref"} & set(schema), (path, attribute)
    assert seen >= 20
    assert documented(document, "/SEMP/v2/monitor/msgVpns/{vpn}/queues/{name}")["spooledMsgCount"] == {
        "title": "Spooledmsgcount",
        "type": "integer",
    }
    started = documented(document, "/SEMP/v2/action/msgVpns/{vpn}/queues/{name}/startReplay", "put")
    assert set(api.act("/queues/q/startReplay", {})) == set(started)
