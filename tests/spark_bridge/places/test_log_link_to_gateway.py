"""The bridge against the gateway itself: what it assumes of the answers on the wire."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from spark_bridge.amqp_client.wire import Wire
from spark_bridge.columns.record_batches import BatchBuilder
from spark_bridge.errors import Refused
from spark_bridge.options import Options, parse
from spark_bridge.places.broker_place import LogLink, address
from store.archive.errors import ConnectionFailed, DataLoss
from store.archive.source import IdRange
from tests.spark_bridge.log_gateway import LogGateway, text
from tests.spark_bridge.reading import plan

pytestmark = [pytest.mark.spark, pytest.mark.system]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A gateway with 3,000 messages in its log, a third of them on topic t/0."""
    with LogGateway(tmp_path_factory.mktemp("gateway")) as gateway:
        assert gateway.publish(text(b"%d" % n, f"t/{n % 3}") for n in range(3_000)) == 3_000
        yield gateway.url


def bodies(options: Options, ids: IdRange) -> list[int]:
    """The numbers in the bodies of a range, checked as a Spark worker checks them."""
    found: list[int] = []
    rows = BatchBuilder([("body", "body")])
    with Wire(options.broker) as wire:
        link = LogLink(wire, address(options.selections[0].patterns), ids)
        for page in link.pages():
            batch, offsets = rows.batch(page)
            link.check(offsets)
            found += map(int, batch.column(0).to_pylist())
    return found


@pytest.mark.parametrize("parts", [1, 3])
def test_the_parts_of_the_log_are_the_log(url: str, parts: int) -> None:
    """Bounded replays of adjoining ranges give every message once, in order."""
    options = parse({"url": url})
    assert [n for ids in plan(options).split(parts) for n in bodies(options, ids)] == list(range(3_000))


def test_a_pattern_in_the_address_is_applied_by_the_gateway(url: str) -> None:
    """Ranges of ids with gaps, down to one without any match, come out complete."""
    options = parse({"url": url, "subscribe": "t/1"})
    ids = plan(options)
    assert bodies(options, ids) == list(range(1, 3_000, 3))
    assert bodies(options, IdRange(ids.first, ids.first, ids.generation)) == []


def test_offsets_bound_what_is_read(url: str) -> None:
    """The start is included, the end is not."""
    whole = plan(parse({"url": url}))
    start, stop = str(whole.first + 10), str(whole.first + 20)
    options = parse({"url": url, "startingOffsets": start, "endingOffsets": stop})
    assert bodies(options, plan(options)) == list(range(10, 20))


def test_an_unknown_message_vpn_is_refused(url: str) -> None:
    """Its name is no host name that would mean the VPN `default`, whose rows nobody asked for."""
    with pytest.raises(ConnectionFailed, match="there is no Message VPN 'none'"):
        plan(parse({"url": url, "messageVpn": "none"}))
    assert plan(parse({"url": url, "messageVpn": "default"})) == plan(parse({"url": url}))


def test_a_range_beyond_the_end_of_the_log_is_data_loss(url: str) -> None:
    """The log was restored from an older copy since: to wait for other messages with these ids would be wrong."""
    options = parse({"url": url})
    ids = plan(options)
    with pytest.raises(DataLoss, match="the log ends at 3000 now"):
        bodies(options, replace(ids, last=3_001))


def test_a_live_start_is_an_empty_range(url: str) -> None:
    """Nothing lies between now and now."""
    ids = plan(parse({"url": url, "replayStart": "live"}))
    assert ids.last < ids.first


def test_a_start_the_log_does_not_have_is_refused(url: str) -> None:
    """The gateway's refusal reaches the one who planned the read."""
    with pytest.raises(Refused) as caught:
        plan(parse({"url": url, "startingOffsets": "99999999"}))
    assert caught.value.condition == "amqp:precondition-failed"
    assert caught.value.info["rewind:replay-error"] == "start-message-unavailable"


def test_another_generation_is_data_loss(url: str) -> None:
    """A log made anew since planning is noticed by the worker."""
    options = parse({"url": url})
    ids = plan(options)
    assert ids.generation is not None
    with pytest.raises(DataLoss, match="cannot be read any more"):
        bodies(options, IdRange(ids.first, ids.last, ids.generation + 1))
