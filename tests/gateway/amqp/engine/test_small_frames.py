"""A peer with the smallest frames there are, 512 bytes (AMQP 1.0 section 2.4.1): its engine takes no larger one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.client import Client, Refused, texts
from tests.support.messages import data
from tests.support.running import RunningGateway

NAME = "q" * 150


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[Client]:
    with Client(gateway.url, max_frame_size=512) as client:
        yield client


def test_an_answer_leaves_out_what_there_is_no_room_for(client: Client) -> None:
    """What was asked for is repeated; the log's bounds are not said, and then not the resolved start."""
    client.sender(NAME).send_all([data(0)])
    short = client.receiver(NAME)
    assert short.start["from"] == "live"
    selector = {"apache.org:selector-filter:string": f"a IS NULL OR b = '{'x' * 60}'"}
    long = client.receiver(NAME, filters=selector)
    assert set(long.filters) == set(selector)
    assert texts(long.drain()) == ["0"]


def test_a_reader_is_told_where_it_starts_while_there_is_room(client: Client) -> None:
    """An ordinary address leaves room for the resolved start."""
    client.sender("orders").send_all([data(0)])
    reader = client.receiver("log://#queue/orders?replay-start=beginning")
    assert reader.start["offset"] == 1
    assert texts(reader.drain()) == ["0"]


def test_a_large_message_comes_in_many_frames(client: Client) -> None:
    """Both ways."""
    client.sender("orders").send_all([data("x" * 10_000)])
    assert texts(client.receiver("orders").drain()) == ["x" * 10_000]


@pytest.mark.parametrize("bad", ["z" * 150, "é" * 110])
def test_a_refusal_is_cut_to_what_there_is_room_for(client: Client, bad: str) -> None:
    """The condition and the info are whole; the text ends in an ellipsis, and starts with what was wrong."""
    with pytest.raises(Refused, match="is not a replay start") as refused:
        client.receiver(f"log://{NAME}", filters={"rewind:replay-start": bad})
    assert (refused.value.name, refused.value.subcode) == ("amqp:invalid-field", 139)
    assert refused.value.replay_error == "unknown-start"
    client.sender("orders").send_all([data("the connection lives")])
