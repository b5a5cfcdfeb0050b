"""Under which host names administration answers, and to which pages."""

from __future__ import annotations

import pytest

from gateway.config import AdminListener
from tests.gateway.admin.conftest import QUEUES, Api, Serve


@pytest.fixture
def api(serve: Serve) -> Api:
    """The administration of a gateway that has a name."""
    return serve(admin=AdminListener(port=0, hosts=("gateway.example.com",)))


def test_it_answers_to_its_names_and_to_addresses(api: Api) -> None:
    """Another host name may be DNS rebinding: an attacker's name that leads here, whose page could read the answers."""
    for host, is_known in (
        ("evil.example", False),
        ("evil.example:8672", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("localhost:1", True),
        ("127.0.0.1:8672", True),
        ("[::1]:8672", True),
        ("10.0.0.7", True),
        ("gateway.example.com:443", True),
        ("GATEWAY.example.com.", True),
        ("other.gateway.example.com", False),
    ):
        assert (api.http.get("/healthz", headers={"Host": host}).status_code == 421) is not is_known, host
    for path in ("/metrics", "/openapi.json", QUEUES, "/v1/log", "/nothing"):
        assert api.http.get(path, headers={"Host": "evil.example"}).status_code == 421, path


def test_a_foreign_page_is_refused(api: Api) -> None:
    """Whatever it requests. Another port of the same machine is a foreign origin."""
    for origin in ("http://evil.example", "null", "http://localhost:3000", "http://127.0.0.1", "file://", ""):
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
            path = {"POST": "/v1/publish?address=q", "DELETE": "/session"}.get(method, QUEUES)
            answer = api.http.request(method, path, headers={"Origin": origin})
            assert answer.status_code == 403, (origin, method)
            assert "not the administration's own" in answer.json()["meta"]["error"]["description"]


def test_its_own_page_may_ask(api: Api) -> None:
    """The console's own origin, under each name of the gateway, with TLS in front of it or not."""
    for host in ("localhost:8672", "gateway.example.com"):
        for scheme in ("http", "https"):
            headers = {"Host": host, "Origin": f"{scheme}://{host}"}
            for answer in (
                api.http.get(QUEUES, headers=headers),
                api.http.post("/v1/publish?address=q", content="{}", headers=headers),
            ):
                assert answer.status_code == 200
                assert "access-control-allow-origin" not in answer.headers
    assert api.http.get(QUEUES).status_code == 200
