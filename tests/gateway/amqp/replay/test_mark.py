"""The mark of replayed messages: which ones have it, on endpoints, for readers, in batches."""

from __future__ import annotations

import pytest
from proton import Described, symbol

from amqp_ext.message.annotations import REPLAY_NAME
from gateway.config import Queue, Vpn
from tests.gateway.amqp.conftest import Connect, Start
from tests.support.client import SELECTOR, Client, Received, numbered, refusal, texts
from tests.support.messages import annotated, data
from tests.support.running import RunningGateway


def publish(client: Client, first: int, last: int, address: str = "orders") -> None:
    client.sender(address).send_all(map(data, range(first, last)))


def marks(messages: list[Received]) -> dict[str, object]:
    """By text."""
    return {message.text: message.annotations.get(REPLAY_NAME) for message in messages}


def test_what_was_there_before_is_marked_and_what_came_since_is_not(client: Client) -> None:
    """
    History has the name that was given. A message that is published while the replay is under way comes for the first
    time, wherever the replay is: who skips what is marked must not lose it.
    """
    publish(client, 0, 3_000)
    receiver = client.receiver("orders?replay-start=beginning&replay-name=nightly", credit=100)
    taken = receiver.take_and_accept(100)
    publish(client, 3_000, 3_050)
    receiver.flow(5_000)
    receiver.collect(taken, 3_050)
    publish(client, 3_050, 3_060)
    receiver.collect(taken, 3_060)
    assert texts(taken) == numbered(3_060)
    assert marks(taken) == {str(i): "nightly" if i < 3_000 else None for i in range(3_060)}


def test_a_name_is_made_where_none_is_given(gateway: RunningGateway, connect: Connect) -> None:
    """Of the user, the container and the time: who has the message sees who asked for it."""
    client = connect(gateway, container="shop-1")
    publish(client, 0, 1)
    (message,) = client.receiver("orders?replay-start=beginning", credit=1).take(1)
    name = message.annotations[REPLAY_NAME]
    assert isinstance(name, str)
    assert name.startswith("anonymous@shop-1 2")
    assert gateway.replay("orders").name == name


def test_what_was_not_acknowledged_is_marked_again(gateway: RunningGateway, connect: Connect) -> None:
    """
    A delivery that failed, or whose consumer went, comes again with its delivery-count and its mark. What a stopped
    gateway has to put once more has the same name after it.
    """
    client = connect(gateway)
    publish(client, 0, 50)
    first = client.receiver("orders?replay-start=beginning&replay-name=r", credit=30)
    first.settle(first.take(30)[:20])
    first.close()
    client.wait(lambda: gateway.replay("orders").acknowledged == 20, "settlements arrive")
    again = client.receiver("orders", credit=15)
    taken = again.take(15)
    assert marks(taken) == dict.fromkeys(numbered(20, 35), "r")
    assert [message.delivery_count for message in taken] == [1] * 10 + [0] * 5
    client.close()
    gateway.restart()
    client = connect(gateway)
    publish(client, 50, 52)
    client.receiver("orders", credit=100).collect(found := [], 32)
    assert marks(found) == {str(i): "r" if i < 50 else None for i in range(20, 52)}


def test_what_a_replay_was_forced_to_leave_is_marked(gateway: RunningGateway, client: Client) -> None:
    """It is history still, though the replay is complete; a replay that is cancelled leaves nothing to be marked."""
    publish(client, 0, 10)
    receiver = client.receiver("orders?replay-start=beginning&replay-name=r", credit=2)
    receiver.take_and_accept(2)
    client.wait(lambda: gateway.replay_state("orders") == "pending-complete", "all was read")
    gateway.cancel_replay("orders", force_complete=True)
    publish(client, 10, 11)
    receiver.flow(20)
    assert marks(receiver.take(9)) == {str(i): "r" if i < 10 else None for i in range(2, 11)}


@pytest.mark.parametrize("link", ["log", "stream"])
def test_a_reader_that_names_its_replay_has_history_marked(link: str, start: Start, connect: Connect) -> None:
    """Readers of the log and of a stream, by an address or by the filter; without a name there is no mark."""
    gateway = start(Vpn(queues={"s": Queue(kind="stream", subscriptions=("a/>",))}))
    client = connect(gateway)
    publish(client, 0, 5, "topic://a/b")
    address = "log://a/b" if link == "log" else "s"
    named = client.receiver(f"{address}?replay-start=beginning&replay-name=look%20back", credit=10)
    assert marks(named.take(5)) == dict.fromkeys("01234", "look back")
    publish(client, 5, 6, "topic://a/b")
    assert marks(named.take(1)) == {"5": None}
    asked = Described(
        symbol("rewind:replay-start"), {symbol("from"): "beginning", symbol("name"): "by filter"}
    )
    filtered = client.receiver(address, filters={"rewind:replay-start": asked}, credit=10)
    assert marks(filtered.take(6)) == dict.fromkeys("012345", "by filter")
    plain = client.receiver(f"{address}?replay-start=beginning", credit=10)
    assert marks(plain.take(6)) == dict.fromkeys("012345")
    start_named = f"{address}?replay-start=beginning&replay-name=look"
    marked, unmarked = "amqp.annotation.x-opt-replay-name = 'look'", '"m.x-opt-replay-name" IS NULL'
    history, fresh = (
        client.receiver(start_named, filters={SELECTOR: chosen}, credit=9) for chosen in (marked, unmarked)
    )
    assert marks(history.take(6)) == dict.fromkeys("012345", "look")
    publish(client, 6, 8, "topic://a/b")
    assert marks(fresh.take(2)) == dict.fromkeys("67")
    assert history.drain() == []


def test_a_name_that_is_on_record_is_refused(gateway: RunningGateway, client: Client) -> None:
    """So that a name says one replay; nothing is dropped, and the queue stays as it was."""
    publish(client, 0, 3)
    receiver = client.receiver("orders?replay-start=beginning&replay-name=r", credit=3)
    receiver.take_and_accept(3)
    client.wait(lambda: gateway.replay_state("orders") == "complete", "it is complete")
    receiver.close()
    publish(client, 3, 5)
    refused = refusal(client.receiver, "orders?replay-start=beginning&replay-name=r")
    assert "on record already" in refused.text
    assert gateway.depth("orders") == 2
    assert gateway.replay_state("orders") == "complete"


def test_a_name_that_nobody_could_read_is_refused(client: Client) -> None:
    """It goes on record, into log lines and on messages."""
    for name in ("%0A", "%20", "x" * 201):
        refused = refusal(client.receiver, f"orders?replay-start=beginning&replay-name={name}")
        assert refused.replay_error == "unknown-start"


def test_a_selector_sees_the_mark_of_a_copy_and_not_that_of_a_replay(client: Client) -> None:
    """A selector asks the message as it is stored; the mark of a replay onto the queue is put on on the way out."""
    client.sender("orders").send_all([data(0), annotated(data(1), **{REPLAY_NAME: "copied"})])
    wanted, unwanted = ({SELECTOR: f"\"m.x-opt-replay-name\" = '{name}'"} for name in ("copied", "r"))
    receiver = client.receiver("orders?replay-start=beginning&replay-name=r", filters=wanted, credit=9)
    (found,) = receiver.take(1)
    assert (found.text, found.annotations[REPLAY_NAME]) == ("1", "r")
    assert client.receiver("log://>?replay-start=beginning", filters=unwanted, credit=9).drain() == []
