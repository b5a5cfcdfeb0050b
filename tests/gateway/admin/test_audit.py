"""Each change, and each refused request, is logged: who, from where, what, and with which outcome."""

from __future__ import annotations

import pytest

from gateway.config import User
from gateway.logging.lines import BURST
from tests.gateway.admin.conftest import HASH, Api, Line, Serve
from tests.support.waiting import wait_until

CONFIG = "/SEMP/v2/config/msgVpns/default"


pytestmark = pytest.mark.usefixtures("logged")


@pytest.fixture
def api(serve: Serve) -> Api:
    """The administration of a gateway with users."""
    users = {
        "root": User(password=HASH, administer=("queue://*", "log://>")),
        "clerk": User(password=HASH, administer=("queue://mine",)),
    }
    return serve(users=users)


def the_line(lines: list[Line]) -> Line:
    """The one line that was written since the last call."""
    wait_until(lambda: lines, "a line is written")
    (line,) = lines
    lines.clear()
    return line


def test_a_change_leaves_a_line(api: Api, logged: list[Line]) -> None:
    """The line has user, address, operation, body and status. A read is not logged."""
    api.http.auth = ("root", "secret")
    assert api.http.get("/healthz").status_code == api.ask("GET", "monitor", "/queues").status_code == 200
    for method, path, body in (
        ("POST", "/queues", '{"queueName":"q"}'),
        ("PATCH", "/queues/q", '{"maxBindCount":2}'),
        ("DELETE", "/queues/q", ""),
    ):
        headers = {"Content-Type": "application/json"}
        assert api.http.request(method, CONFIG + path, content=body, headers=headers).status_code == 200
        line = the_line(logged)
        assert line["peer"].startswith("127.0.0.1:")
        assert {key: line[key] for key in ("event", "level", "user", "operation", "body", "status")} == {
            "event": "administered",
            "level": "info",
            "user": "root",
            "operation": f"{method} {CONFIG}{path}",
            "body": body,
            "status": 200,
        }


def test_who_is_turned_away_leaves_a_line(api: Api, logged: list[Line]) -> None:
    """A failed sign-in and a request without the right are logged, with the sentence of the refusal."""
    for auth, user, status in (
        (None, "", 401),
        (("clerk", "wrong"), "clerk", 401),
        (("no\nbody", "x"), "no\nbody", 401),
        (("clerk", "secret"), "clerk", 403),
    ):
        for method in ("GET", "DELETE"):
            api.http.auth = auth
            assert api.ask(method, "config", "/queues/other").status_code == status
            line = the_line(logged)
            found = (line["event"], line["level"], line["user"], line["status"])
            assert found == ("administration_refused", "warning", user, status)
            assert line["reason"]


def test_a_change_that_fails_and_a_foreign_page_leave_a_line(api: Api, logged: list[Line]) -> None:
    """With the reason, and with path and body cut to a bounded length; a foreign page with its origin."""
    api.http.auth = ("root", "secret")
    api.refused("DELETE", "config", f"/queues/{'q' * 5_000}", {"x": "y" * 5_000})
    line = the_line(logged)
    assert (line["event"], line["status"]) == ("administration_refused", 400)
    assert "there is no queue" in line["reason"]
    assert len(line["operation"]) < 400
    assert len(line["body"]) <= 500
    api.http.get("/healthz", headers={"Origin": "http://evil.example"})
    assert "evil.example" in the_line(logged)["reason"]


def test_who_is_not_known_cannot_fill_the_log(api: Api, logged: list[Line]) -> None:
    """After a burst, lines about strangers are only counted; a change by a known user is always logged."""
    api.http.auth = ("nobody", "x")
    tried = 3 * BURST
    for _ in range(tried):
        assert api.ask("GET", "monitor", "/queues").status_code == 401
    assert BURST <= len(logged) < tried
    logged.clear()
    api.http.auth = ("root", "secret")
    api.make("/queues", {"queueName": "q"})
    assert the_line(logged)["event"] == "administered"
