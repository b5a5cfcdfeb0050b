"""Each change, and each request that is turned away, leaves a line: who, from where, what, and what came of it."""

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
    """The one line that was written since."""
    wait_until(lambda: lines, "a line is written")
    (line,) = lines
    lines.clear()
    return line


def test_a_change_leaves_a_line(api: Api, logged: list[Line]) -> None:
    """With the user, where he is, the request with what came with it, and that it was done; looking leaves none."""
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
    """A sign-in that failed, and what is not permitted, with the sentence that was told."""
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
    """With why it was not made, and no more of what was sent than fits; with which page it was."""
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
    """So many lines at once, and the others are counted; a change of who is known has its line all the same."""
    api.http.auth = ("nobody", "x")
    tried = 3 * BURST
    for _ in range(tried):
        assert api.ask("GET", "monitor", "/queues").status_code == 401
    assert BURST <= len(logged) < tried
    logged.clear()
    api.http.auth = ("root", "secret")
    api.make("/queues", {"queueName": "q"})
    assert the_line(logged)["event"] == "administered"
