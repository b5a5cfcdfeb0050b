"""Messages of the log over HTTP: what a list says of each, and all that one says."""

from __future__ import annotations

from amqp_ext.codec import Symbol, UByte
from gateway.config import ReplayLog, Vpn
from tests.gateway.admin.conftest import Administer, Api, Start
from tests.support.client import Client
from tests.support.messages import APPLICATION_PROPERTIES, HEADER, PROPERTIES, data, section

MSGS = "/replayLogs/default/msgs"
HOSTILE = b"<script>alert(1)</script>"
SAID = (
    section(HEADER, [True, UByte(6)])
    + section(PROPERTIES, ["one", None, None, "about", None, "c-1", Symbol("text/html")])
    + section(APPLICATION_PROPERTIES, {"n": 1})
    + data(HOSTILE)
)


def test_a_list_says_what_lists_want(api: Api, client: Client) -> None:
    """Content-type and correlation-id, and whether the content is no more."""
    client.sender("topic://a/b").send_all([SAID, data("x")])
    first, second = api.done("GET", "monitor", MSGS)
    assert (first["contentType"], first["correlationId"], first["isErased"]) == ("text/html", "c-1", False)
    assert (second["contentType"], second["correlationId"], second["isErased"]) == (None, None, False)
    api.done("PUT", "action", "/replayLogs/default/redactMsg", {"msgId": [1], "reason": "gone"})
    first, second = api.done("GET", "monitor", MSGS, order="oldest")
    assert (first["contentType"], first["isErased"]) == (None, True)
    assert second["isErased"] is False
    found = api.done("GET", "monitor", f"{MSGS}/1")
    assert found["isErased"]
    assert found["messageAnnotations"]["x-opt-erased-reason"] == "gone"


def test_one_message_says_all(api: Api, client: Client) -> None:
    """Beside what a list says of it: its sections, and its body as text."""
    client.sender("topic://a/b").send_all([SAID])
    (listed,) = api.done("GET", "monitor", MSGS)
    found = api.done("GET", "monitor", f"{MSGS}/1")
    assert {name: found[name] for name in listed} == listed
    assert found["header"]["priority"] == 6
    assert found["properties"] == {
        "messageId": "one",
        "subject": "about",
        "correlationId": "c-1",
        "contentType": "text/html",
    }
    assert found["applicationProperties"] == {"n": 1}
    assert found["body"] == {
        "kind": "data",
        "contentType": "text/html",
        "text": HOSTILE.decode(),
        "base64": None,
        "isCut": False,
        "size": len(HOSTILE),
    }
    assert found["malformed"] is None


def test_a_message_can_be_kept_as_a_file_and_is_not_shown(api: Api, client: Client) -> None:
    """Its body, and all of it as it came: bytes that a browser neither guesses at nor runs."""
    client.sender("topic://a/b").send_all([SAID])
    for what, content in (("body", HOSTILE), ("encoded", SAID)):
        answer = api.ask("GET", "monitor", f"{MSGS}/1/{what}")
        assert (answer.status_code, answer.content) == (200, content)
        assert answer.headers["content-type"] == "application/octet-stream"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
        assert answer.headers["content-disposition"].startswith("attachment; ")


def test_what_is_not_there_is_said(api: Api, client: Client) -> None:
    """An id that the log never had, that it trimmed, that no message has; and another log."""
    client.sender("topic://a").send_all([data(i) for i in range(3)])
    api.done("PUT", "action", "/replayLogs/default/trimLoggedMsgs", {"before": "#3"})
    for path in (f"{MSGS}/4", f"{MSGS}/1", f"{MSGS}/1/body", f"{MSGS}/1/encoded", "/replayLogs/x/msgs/3"):
        assert api.refused("GET", "monitor", path)["status"] == "NOT_FOUND"
    assert "holds ids 3 to 3" in api.refused("GET", "monitor", f"{MSGS}/1")["description"]
    for name in ("0", "x", str(2**70)):
        assert api.refused("GET", "monitor", f"{MSGS}/{name}")["status"] == "INVALID_PARAMETER"
    assert api.done("GET", "monitor", f"{MSGS}/3")["body"]["text"] == "2"


def test_a_log_that_is_closed_shows_no_message(api: Api, client: Client) -> None:
    """Neither in a list nor alone nor live; when what is in it came is told all the same."""
    client.sender("topic://a").send_all([data(0)])
    api.done("PATCH", "config", "/replayLogs/default", {"egressEnabled": False})
    for path in (MSGS, f"{MSGS}/1", f"{MSGS}/1/body", f"{MSGS}/1/encoded", "/replayLogs/default/live"):
        assert api.refused("GET", "monitor", path)["status"] == "NOT_ALLOWED", path
    assert api.done("GET", "monitor", "/replayLogs/default/histogram")["lastMsgId"] == 1


def test_what_a_queue_alone_holds_is_not_in_the_log(start: Start, administer: Administer) -> None:
    """A log that takes nothing has no message, whatever lies on queues."""
    gateway = start(Vpn(replay_log=ReplayLog(write=False)))
    api = administer(gateway)
    with Client(gateway.url) as client:
        client.sender("q").send_all([data("x")])
        assert api.refused("GET", "monitor", f"{MSGS}/1")["status"] == "NOT_FOUND"
