"""Starts that lie in the archive: every way to ask leads to the message it would lead to, had nothing been trimmed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from proton import symbol, timestamp, ulong

from amqp_ext.replay_id import format_replay_id
from gateway.config import Vpn
from gateway.config.vpn import ArchivedLog
from tests.store.archive.log_archive import LogArchive
from tests.support import starts
from tests.support.client import Client, Refused, texts
from tests.support.running import RunningGateway
from tests.support.starts import STARTS, Start

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", params=[3, 6, 11])
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningGateway]:
    """The log of ``tests.support.starts``, trimmed to an id, with all of it archived in files of four messages."""
    folder = tmp_path_factory.mktemp("starts")
    vpn = Vpn(archive=ArchivedLog(place=str(folder / "archive")))
    with starts.gateway_with_log(folder / "data", ["orders"], vpn) as running:
        LogArchive(running, folder / "archive").archive_and_trim(request.param)
        with Client(running.url) as client:
            client.wait(
                lambda: running.call(lambda gateway: gateway.vpns["default"].log.first_id) == 1,
                "it is known what the archive has",
            )
        yield running


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[Client]:
    with Client(gateway.url) as client:
        yield client


@pytest.fixture
def generation(client: Client) -> int:
    return int(client.receiver("log://>").link.remote_properties["rewind:replay-generation"])


@pytest.mark.parametrize("source", ["log://>", "orders"])
@pytest.mark.parametrize("start", STARTS, ids=[start.name for start in STARTS])
def test_every_way_to_ask(client: Client, generation: int, start: Start, source: str) -> None:
    """On log and endpoint: the same messages with the same ids and times, and an answer that says which is first."""
    receiver = client.receiver(**start.arguments(source, generation))
    numbers = range(start.first, starts.COUNT)
    if source == "orders" and start.first == starts.LIVE:
        receiver.close()
        return
    taken = receiver.drain()
    receiver.settle(taken)
    assert texts(taken) == [str(number) for number in numbers]
    assert [message.id for message in taken] == [number + 1 for number in numbers]
    assert [message.is_end for message in taken] == [number == starts.COUNT - 1 for number in numbers]
    assert [message.annotations["x-opt-enqueued-time"] for message in taken] == [
        starts.arrival_ms(number) for number in numbers
    ]
    answer = receiver.start
    assert answer["offset"] == start.first + 1
    assert answer["id"] == format_replay_id(generation, start.first + 1)
    if start.first < starts.COUNT:
        assert answer["date"] == starts.arrival_ms(start.first)
    assert receiver.link.remote_properties["rewind:replay-first"] == 1
    receiver.close()


@pytest.mark.parametrize(
    ("until", "last"), [("%235", 4), ("2027-01-15T08:00:05Z", 4), ("2027-01-15T08:00:05.999Z", 4), ("now", 9)]
)
def test_a_bounded_read_ends_where_it_would(client: Client, until: str, last: int) -> None:
    """In the archive or in the log."""
    receiver = client.receiver(f"log://>?replay-start=beginning&until={until}")
    assert texts(receiver.take_to_end()) == [str(number) for number in range(last + 1)]


@pytest.mark.parametrize(
    ("start", "error", "sentence"),
    [
        ({"offset": ulong(0)}, 156, "offset 0 is not in the replay log"),
        (
            {"date": timestamp(starts.BEGAN_MS)},
            143,
            "the start date is before the log and its archive, which are",
        ),
        ({"match": "n = 1"}, 156, "no message for match:n = 1"),
        ({"message-id": "none"}, 156, "no message for message-id:none"),
    ],
)
def test_a_start_that_neither_has_is_refused(
    client: Client, start: dict[str, object], error: int, sentence: str
) -> None:
    """With what both have, so that whoever asked knows what to ask for."""
    with pytest.raises(Refused) as refused:
        client.receiver("log://>", filters={"rewind:replay-start": {symbol(k): v for k, v in start.items()}})
    assert refused.value.subcode == error
    assert sentence in refused.value.text
    assert "its archive has ids 1 to 10" in refused.value.text


def test_another_generation_is_refused(client: Client, generation: int) -> None:
    """As it is in the log."""
    with pytest.raises(Refused) as refused:
        client.receiver(
            "log://>", filters={"rewind:replay-start": format_replay_id((generation + 1) % 2**20, 2)}
        )
    assert refused.value.subcode == 145
