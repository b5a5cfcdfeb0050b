"""The histogram of the log over HTTP."""

from __future__ import annotations

from tests.gateway.admin.conftest import Api
from tests.support.client import Client
from tests.support.messages import data

HISTOGRAM = "/replayLogs/default/histogram"


def test_it_says_when_messages_came(api: Api, client: Client) -> None:
    """All that was published is in its buckets, which are as many as were asked for; the ends are those of the log."""
    client.sender("topic://a").send_all([data(i) for i in range(40)])
    oldest, *_ = api.done("GET", "monitor", "/replayLogs/default/msgs", count=1)
    (newest,) = api.done("GET", "monitor", "/replayLogs/default/msgs", count=1, order="newest")
    found = api.done("GET", "monitor", HISTOGRAM, buckets=3)
    assert sum(bucket["msgCount"] for bucket in found["buckets"]) == 40
    assert (found["firstMsgId"], found["lastMsgId"]) == (1, 40)
    assert found["fromTimeMs"] == found["buckets"][0]["timeMs"] == oldest["spooledTimeMs"]
    assert found["untilTimeMs"] == newest["spooledTimeMs"] + 1
    assert found["log"] == {
        "oldestMsgId": 1,
        "oldestTimeMs": oldest["spooledTimeMs"],
        "newestMsgId": 40,
        "newestTimeMs": newest["spooledTimeMs"],
    }
    assert found["archive"] is None

    later = newest["spooledTimeMs"] + 1
    empty = api.done("GET", "monitor", HISTOGRAM, **{"from": later, "until": later + 1_000, "buckets": 4})
    assert [bucket["msgCount"] for bucket in empty["buckets"]] == [0, 0, 0, 0]
    assert [bucket["timeMs"] - later for bucket in empty["buckets"]] == [0, 250, 500, 750]


def test_of_an_empty_log_there_is_an_empty_one(api: Api) -> None:
    """A picture can be drawn of it all the same."""
    found = api.done("GET", "monitor", HISTOGRAM)
    assert [bucket["msgCount"] for bucket in found["buckets"]] == [0]
    assert found["log"] is None


def test_times_that_are_none_are_refused(api: Api) -> None:
    """An end before the beginning, more buckets than there may be, what is no time."""
    for query in ({"from": 5, "until": 5}, {"buckets": 1_001}, {"buckets": 0}, {"from": -1}, {"until": "x"}):
        assert api.refused("GET", "monitor", HISTOGRAM, **query)["status"] == "INVALID_PARAMETER"
