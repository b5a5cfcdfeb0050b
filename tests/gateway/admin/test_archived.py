"""A log that keeps what is not archived: what may be trimmed, who is told, and what an archiver reports."""

from __future__ import annotations

import pytest

from gateway.config import ReplayLog, Vpn
from tests.gateway.admin.conftest import LOG, Api, Start
from tests.support.client import Client
from tests.support.messages import data
from tests.support.running import RunningGateway

KILOBYTE = b"x" * 1_000


@pytest.fixture
def gateway(start: Start) -> RunningGateway:
    """A gateway whose log of one megabyte keeps what is not archived."""
    return start(Vpn(replay_log=ReplayLog(keep_until_archived=True, quota_mb=1)))


def archived(api: Api, message_id: int) -> dict[str, int]:
    """Report, as an archiver does once its manifest has every message up to this id."""
    generation = api.seen(LOG)["generation"]
    body = {"msgId": message_id, "generation": generation}
    found: dict[str, int] = api.act(f"{LOG}/archivedUpTo", body)
    return found


def test_an_administrator_cannot_trim_what_is_not_archived(api: Api, client: Client) -> None:
    """The refusal names the last id that may be trimmed, and what to do; trimming up to that id succeeds."""
    client.sender("topic://a").send_all(data(i) for i in range(10))
    refused = api.refused("PUT", "action", f"{LOG}/trimLoggedMsgs", {"before": "#5"})
    assert refused["description"] == (
        "the log keeps messages that are not archived, and is archived up to message 0: trim to message 1 at most, "
        "run `rewind archive`, or turn keep_until_archived off"
    )
    assert archived(api, 4) == {"archivedMsgId": 4}
    assert "up to message 4" in api.why("PUT", "action", f"{LOG}/trimLoggedMsgs", {"before": "#6"})
    assert api.act(f"{LOG}/trimLoggedMsgs", {"before": "#5"}) == {"firstMsgId": 5}
    api.change(LOG, {"keepUntilArchivedEnabled": False})
    assert api.act(f"{LOG}/trimLoggedMsgs", {"before": "#9"}) == {"firstMsgId": 9}


def test_a_full_log_rejects_until_it_is_archived(api: Api, client: Client) -> None:
    """Messages that are not archived are not trimmed: publishers are rejected with the reason until there is room."""
    sender = client.sender("topic://a")
    sender.send_all(data(KILOBYTE) for _ in range(700))
    told = sender.rejection(sender.send(data(KILOBYTE * 100)))
    assert told.info["rewind:reason"] == "replay-log-quota"
    assert "keeps messages that are not archived: archive them" in told.text
    log = api.seen(LOG)
    assert (log["firstMsgId"], log["archivedMsgId"]) == (1, 0)
    assert archived(api, log["lastMsgId"] - 10) == {"archivedMsgId": log["lastMsgId"] - 10}
    client.wait(lambda: api.seen(LOG)["usagePercent"] <= 90, "what is archived makes room")
    sender.send_all([data(KILOBYTE * 100)])
    assert 1 < api.seen(LOG)["firstMsgId"] <= log["lastMsgId"] - 9


def test_what_is_archived_is_known_after_a_restart(api: Api, client: Client) -> None:
    """It is durable before the archiver is answered, and a later report of a smaller id does not lower it."""
    client.sender("topic://a").send_all(data(i) for i in range(10))
    client.cut()
    assert archived(api, 7) == {"archivedMsgId": 7}
    api.restart()
    assert api.seen(LOG)["archivedMsgId"] == 7
    assert archived(api, 3) == {"archivedMsgId": 7}
    assert api.act(f"{LOG}/trimLoggedMsgs", {"before": "#8"}) == {"firstMsgId": 8}


def test_an_archive_of_another_log_is_refused(api: Api, client: Client) -> None:
    """A report with another generation, or with ids that the log has not assigned yet, is about another log."""
    client.sender("topic://a").send_all(data(i) for i in range(3))
    path = f"{LOG}/archivedUpTo"
    wrong = api.refused("PUT", "action", path, {"msgId": 2, "generation": 1})
    assert "the archive is of generation 1 of the log" in wrong["description"]
    generation = api.seen(LOG)["generation"]
    beyond = api.refused("PUT", "action", path, {"msgId": 4, "generation": generation})
    assert beyond["description"] == "the log ends at message 3: it cannot be archived up to 4"
    assert api.seen(LOG)["archivedMsgId"] == 0
