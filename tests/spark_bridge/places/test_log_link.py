"""Planning and reading a range of the log: complete, or an error."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_bridge.amqp_client.wire import Wire
from spark_bridge.errors import OptionError, Refused
from spark_bridge.options import parse
from spark_bridge.places.broker_place import PAGE_ROWS, LogLink, address, filtered_here, survey
from store.archive.errors import ConnectionFailed, DataLoss
from store.archive.source import IdRange
from tests.spark_bridge.log_peer import LogPeer, annotated, data

pytestmark = pytest.mark.spark


def plan(peer: LogPeer, **options: str) -> IdRange:
    """What a read of the peer's log with these options is pinned to."""
    asked = parse({"url": peer.url, **options})
    return survey(asked.broker, asked.selections[0])


def read(peer: LogPeer, ids: IdRange) -> list[bytes]:
    """All messages of a range."""
    with Wire(peer.broker, timeout=5) as wire:
        return [message for page in LogLink(wire, "log://>", ids).pages() for message in page]


@pytest.fixture
def peer(log_peer: LogPeer) -> LogPeer:
    """A peer with ids 5 to 44, 20 missing."""
    log_peer.messages = {n: annotated(n, data(b"body %d" % n)) for n in range(5, 45) if n != 20}
    return log_peer


def test_a_plan_pins_the_whole_log(peer: LogPeer) -> None:
    """Without offsets, a read goes from the first to the last id there is now, in this generation."""
    assert plan(peer) == IdRange(5, 44, 7)
    assert peer.attaches == [("log://>", "beginning")]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"startingOffsets": "10"}, IdRange(10, 44, 7)),
        ({"endingOffsets": "10"}, IdRange(5, 9, 7)),
        ({"endingOffsets": "45"}, IdRange(5, 44, 7)),
        ({"startingOffsets": "10", "endingOffsets": "10"}, IdRange(10, 9, 7)),
        ({"replayStart": "live"}, IdRange(45, 44, 7)),
    ],
)
def test_offsets_bound_a_plan(peer: LogPeer, options: dict[str, str], ids: IdRange) -> None:
    """As with Spark's Kafka source the start is included and the end is not."""
    assert plan(peer, **options) == ids


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_batches_hold_the_range(peer: LogPeer, batch: int) -> None:
    """From a broker that grants batches comes what comes without: each message of the range, in order."""
    ids = plan(peer)
    peer.batch = batch
    assert read(peer, ids) == list(peer.messages.values())


def test_a_batch_cut_short_is_an_error(peer: LogPeer) -> None:
    """A delivery that is no whole batch never looks like a short log."""
    ids = plan(peer)
    peer.batch, peer.cut = 7, 1
    with pytest.raises(ConnectionFailed, match="a batch is data sections"):
        read(peer, ids)


def test_an_empty_log_is_an_empty_range(log_peer: LogPeer) -> None:
    """A new log gives no rows rather than an error."""
    ids = plan(log_peer)
    assert ids.last < ids.first
    assert ids.split(4) == [ids]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"endingOffsets": "46"}, "lies beyond the log, whose last offset is 44"),
        ({"endingOffsets": "4"}, "lies before the start of the read, offset 5"),
    ],
)
def test_an_end_outside_the_log_is_refused(peer: LogPeer, options: dict[str, str], sentence: str) -> None:
    """A read that could not deliver what was asked for is an error when planned."""
    with pytest.raises(OptionError, match=sentence):
        plan(peer, **options)


def test_a_refused_start_says_why(peer: LogPeer) -> None:
    """The broker's own words reach the user."""
    peer.refusal = ("amqp:precondition-failed", "offset 3 was trimmed")
    with pytest.raises(Refused, match=r"amqp:precondition-failed \(offset 3 was trimmed\)"):
        plan(peer, startingOffsets="3")


@given(st.integers(0, 1 << 62), st.integers(0, 10_000), st.integers(1, 64))
def test_a_split_covers_the_range_once(first: int, width: int, parts: int) -> None:
    """Parts adjoin, none is empty unless all is, none is more than one id wider than another."""
    whole = IdRange(first, first + width - 1, 1)
    split = whole.split(parts)
    assert (split[0].first, split[-1].last) == (whole.first, whole.last)
    assert all(left.last + 1 == right.first for left, right in pairwise(split))
    widths = {part.last - part.first + 1 for part in split}
    assert max(widths) - min(widths) <= 1
    assert len(split) == max(1, min(parts, width))


@pytest.mark.parametrize("parts", [1, 2, 7, 40])
def test_the_parts_of_a_split_hold_every_message_once(peer: LogPeer, parts: int) -> None:
    """However a log is split, its parts in order are the log."""
    messages = [message for ids in plan(peer).split(parts) for message in read(peer, ids)]
    assert messages == list(peer.messages.values())


def test_a_worker_asks_for_its_range_and_generation(peer: LogPeer) -> None:
    """The bounds on the wire are the range's own; until is the last id to deliver."""
    read(peer, IdRange(10, 12, 7))
    assert peer.attaches == [("log://>", {"offset": 10, "until": 12, "missing": "clamp", "generation": 7})]


def test_pages_are_cut_by_rows_and_by_bytes(log_peer: LogPeer) -> None:
    """No page has more messages than it may, and large messages make smaller pages."""
    log_peer.messages = {n: annotated(n, data(b"x" * (1_000_000 if n < 12 else 1))) for n in range(5_000)}
    with Wire(log_peer.broker) as wire:
        pages = list(LogLink(wire, "log://>", IdRange(0, 4_999, 7)).pages())
    assert [message for page in pages for message in page] == list(log_peer.messages.values())
    assert max(map(len, pages)) == PAGE_ROWS
    assert len(pages[0]) < 12


@pytest.mark.parametrize(
    ("ending", "kind", "sentence"),
    [("error", DataLoss, "The read of offsets 5 to 44 broke off"), ("drop", ConnectionFailed, "connection")],
)
def test_a_read_that_breaks_off_is_an_error(
    peer: LogPeer, ending: str, kind: type[Exception], sentence: str
) -> None:
    """Neither a detach with an error nor a lost connection looks like the end of the range."""
    peer.stop_after, peer.ending = 10, ending
    with pytest.raises(kind, match=sentence):
        read(peer, IdRange(5, 44, 7))


def test_a_range_trimmed_since_planning_is_data_loss(peer: LogPeer) -> None:
    """A first id beyond the start of the range means that messages are gone."""
    peer.first = 9
    with pytest.raises(DataLoss, match="trimmed since the read was planned: of 5 and up, 9 is first now"):
        read(peer, IdRange(5, 44, 7))


def test_a_refused_range_is_data_loss(peer: LogPeer) -> None:
    """A log made anew between planning and reading is told as what it is."""
    peer.refusal = ("amqp:precondition-failed", "generation 8, not 7")
    with pytest.raises(DataLoss, match=r"cannot be read any more\. .*generation 8, not 7"):
        read(peer, IdRange(5, 44, 7))


def test_a_peer_that_ignores_the_filter_is_noticed(peer: LogPeer) -> None:
    """A filter that is not echoed was not applied, and reading on would give other messages."""
    peer.echo = False
    with pytest.raises(ConnectionFailed, match="did not honour the replay start"):
        read(peer, IdRange(5, 44, 7))


@pytest.mark.parametrize("offsets", [[5, 5], [6, 5], [4], [5, 13]])
def test_offsets_outside_the_order_or_the_range_are_data_loss(peer: LogPeer, offsets: list[int]) -> None:
    """Twice the same, backwards, or beyond the bounds: each is an error, also across pages."""
    with Wire(peer.broker) as wire:
        link = LogLink(wire, "log://>", IdRange(5, 12, 7))
        with pytest.raises(DataLoss, match="does not keep to the bounds"):
            for offset in offsets:
                link.check(np.array([offset]))


@pytest.mark.parametrize(
    ("patterns", "where", "here"),
    [
        ((">",), "log://>", False),
        (("a/*/c",), "log://a/*/c", False),
        (("a", "b"), "log://>", True),
        ((">", "!a"), "log://>", True),
        (("!a",), "log://>", True),
        (("what?",), "log://>", True),
    ],
)
def test_one_pattern_goes_into_the_address(patterns: tuple[str, ...], where: str, here: bool) -> None:
    """Several patterns, and one an address cannot hold, are matched by the bridge on the whole log."""
    assert (address(patterns), filtered_here(patterns)) == (where, here)
