"""The OpenAPI document, and whatever schemathesis makes of it: requests that keep to it, and some that do not."""

from __future__ import annotations

from collections import Counter
from typing import Any

import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from store.check import check
from tests.gateway.admin.conftest import Api
from tests.support.client import Client
from tests.support.messages import data
from tests.support.running import RunningGateway

EXAMPLES = 18
"""Requests of each operation: a thousand together."""

CHECKS: Any = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


def test_a_thousand_requests_of_schemathesis_find_no_mistake(
    api: Api, client: Client, gateway: RunningGateway
) -> None:
    """
    None is answered with 5xx, or with what the document does not say; the gateway is healthy after them and its store
    sound.
    """
    client.sender("q").send_all([data(i) for i in range(20)])
    api.done("POST", "config", "/topicEndpoints", {"topicEndpointName": "te", "topic": "a/>"})
    schema = schemathesis.openapi.from_dict(api.http.get("/openapi.json").json())
    schema.config.update(base_url=str(api.http.base_url))
    named = {"vpn": "default", "name": "q", "log": "default", "topic": "a", "client": "#1"}
    seen: Counter[int] = Counter()
    with requests.Session() as session:
        session.trust_env = False
        for found in schema.get_all_operations():
            operation = found.ok()

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
                answer = case.call(session=session)
                seen[answer.status_code] += 1
                case.validate_response(answer, checks=CHECKS)

            ask()
    assert sum(seen.values()) >= 800, seen
    # 404 is what becomes of a name such as `.`, which no client sends as it is.
    assert set(seen) <= {200, 400, 404}, seen
    assert seen[200] > 100, seen
    assert api.http.get("/readyz").status_code == 200
    assert api.done("GET", "monitor", "")["storeProblem"] is None
    client.cut()
    file = gateway.call(lambda running: running.vpns["default"]._path)
    gateway.stop()
    assert check(file) == []
