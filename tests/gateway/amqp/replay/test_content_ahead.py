"""What a replay keeps ahead of its endpoint's consumers is bounded in bytes, however large messages are."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.app import Gateway
from gateway.config import Limits, Queue, ReplayLog, Vpn
from gateway.vpn.replays import ReplayPump
from gateway.vpn.runtime import Tuning
from tests.gateway.amqp.conftest import Start
from tests.support.client import SELECTOR, Client, texts
from tests.support.messages import APPLICATION_PROPERTIES, data, section
from tests.support.running import RunningGateway

SIZE = 20_000
MESSAGES = 60
AHEAD = 100_000
PAGE = 50_000

MOST = AHEAD + PAGE + SIZE
"""The content kept ahead, one more page, and the message that went past the bound."""

VPN = Vpn(
    queues={"q": Queue(subscriptions=("log/>", "other/>"))},
    replay_log=ReplayLog(topics=("log/>",)),
)


@pytest.fixture
def gateway(given: dict[str, Any], start: Start) -> RunningGateway:
    """A gateway that keeps little ahead, and reads small pages from its store."""
    given["tuning"] = Tuning(replay_ahead_bytes=AHEAD, replay_ahead_without_consumer=MESSAGES)
    return start(vpn=VPN, limits=Limits(tail_bytes=1, read_page_bytes=PAGE))


@pytest.fixture
def largest(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """
    The most bytes that were kept at a time: `kept` ready to be handed out, `routed` of messages that are not logged.
    """
    found = {"kept": 0, "routed": 0}
    put = ReplayPump._put

    def watched(pump: ReplayPump, *chosen: Any) -> None:
        found["routed"] = max(found["routed"], pump._routed_bytes)
        put(pump, *chosen)
        found["kept"] = max(found["kept"], pump._feed.kept.size_bytes)

    monkeypatch.setattr(ReplayPump, "_put", watched)
    return found


def large(number: int) -> bytes:
    return section(APPLICATION_PROPERTIES, {"odd": bool(number % 2)}) + data(f"{number:06}" + "x" * SIZE)


def numbers(received: Any) -> list[int]:
    return [int(text[:6]) for text in texts(received)]


def waits(gateway: RunningGateway) -> bool:
    """Whether the replay waits for consumers."""

    def look(running: Gateway) -> bool:
        pump = running.vpns["default"].replays._pumps.get("q")
        return pump is not None and pump.waits_for_hunger

    return gateway.call(look)


@pytest.mark.parametrize("selects", [False, True])
def test_a_consumer_that_settles_late_gets_all_of_it(
    gateway: RunningGateway, client: Client, largest: dict[str, int], selects: bool
) -> None:
    """
    Little is kept while it takes nothing. Messages that it has taken and not settled do not hold the replay up, nor do
    those that its selector leaves to others.
    """
    client.sender("topic://log/a").send_all(map(large, range(MESSAGES)))
    filters = {SELECTOR: "odd = TRUE"} if selects else None
    receiver = client.receiver("q?replay-start=beginning", filters=filters, credit=1)
    wanted = [*range(1, MESSAGES, 2)] if selects else [*range(MESSAGES)]
    first = receiver.take(1)
    client.wait(lambda: waits(gateway), "the replay waits for the consumer")
    receiver.flow(MESSAGES)
    assert numbers([*first, *receiver.take(len(wanted) - 1)]) == wanted
    assert numbers(client.receiver("q").drain()) == [n for n in range(MESSAGES) if n not in wanted]
    assert AHEAD <= largest["kept"] <= MOST


def test_nobody_consumes(gateway: RunningGateway, client: Client, largest: dict[str, int]) -> None:
    """The bound in bytes is reached before that in messages, and no page is kept; a later consumer gets all."""
    client.sender("topic://log/a").send_all(map(large, range(MESSAGES)))
    gateway.call(lambda running: running.vpns["default"].endpoints.by_name.get("q"))
    client.receiver("q?replay-start=beginning").close()
    client.wait(lambda: waits(gateway), "the replay waits for a consumer")
    assert gateway.call(lambda running: running.vpns["default"].replays._pumps["q"]._source._page) is None
    assert numbers(client.receiver("q").drain()) == [*range(MESSAGES)]
    assert AHEAD <= largest["kept"] <= MOST


def test_what_the_log_does_not_take_is_bounded_beside_it(
    gateway: RunningGateway, client: Client, largest: dict[str, int]
) -> None:
    """
    While a replay waits, an adversary publishes any number of messages that are not logged between two that are. They
    are not all read into memory in search of the next logged one.
    """
    logged, other = client.sender("topic://log/a"), client.sender("topic://other/a")
    logged.send_all([large(0), large(1), *map(large, range(2, 10))])
    receiver = client.receiver("q?replay-start=beginning", credit=1)
    first = receiver.take(1)
    client.wait(lambda: waits(gateway), "the replay waits for the consumer")
    other.send_all(map(large, range(10, MESSAGES)))
    receiver.flow(MESSAGES)
    assert numbers([*first, *receiver.take(MESSAGES - 1)]) == [*range(MESSAGES)]
    assert 0 < largest["routed"] <= MOST
    assert largest["kept"] <= MOST


def test_a_start_does_not_gather_what_came_beside_a_replay(gateway: RunningGateway, client: Client) -> None:
    """
    Messages that are not logged are on the queue again in their place, and their contents are read when consumers want
    them.
    """
    client.sender("topic://log/a").send_all([large(0)])
    receiver = client.receiver("q?replay-start=beginning")
    client.sender("topic://other/a").send_all(map(large, range(1, MESSAGES - 1)))
    client.sender("topic://log/a").send_all([large(MESSAGES - 1)])
    receiver.close()
    client.cut()
    gateway.restart()

    def kept(running: Gateway) -> tuple[int, int]:
        vpn = running.vpns["default"]
        endpoint = vpn.endpoints.by_name.get("q")
        assert endpoint is not None
        return vpn.replays._feeds.of(endpoint).kept.size_bytes, endpoint.depth

    with Client(gateway.url) as reader:
        reader.wait(lambda: gateway.call(kept)[1] == MESSAGES, "all of it is there again")
        assert 0 < gateway.call(kept)[0] <= MOST
        assert numbers(reader.receiver("q").drain()) == [*range(MESSAGES)]
