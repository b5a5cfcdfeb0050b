"""What is put into a data folder without a client is what clients would have put there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config import ReplayLog, Vpn
from gateway.core.model import CONTENT, WHOLE
from store.sqlite.recovery import recover
from tests.bench.filled_log import BODY_BYTES, TOPICS, fill_log
from tests.bench.filled_store import LOGGED, QUEUE, fill, message_file, numbered, publish_into
from tests.bench.load import LoadFailed, recv
from tests.support.running import RunningGateway, settings_for

SPOOLED, ALL = 1_200, 3_000


def test_the_newest_messages_are_on_the_queue_and_all_are_in_the_log(tmp_path: Path) -> None:
    """They are numbered without a gap, and a gateway takes them up as its own."""
    fill(tmp_path, SPOOLED, ALL)

    with RunningGateway(settings_for(tmp_path)) as gateway:
        assert gateway.depth(QUEUE) == SPOOLED
        recv(gateway.address, f"queue://{QUEUE}", SPOOLED)
        recv(gateway.address, "log://>", ALL, "--start", "beginning")
        recv(gateway.address, f"log://{LOGGED}", ALL - SPOOLED, "--start", "beginning")


def test_a_start_after_a_stop_has_nothing_to_count(tmp_path: Path) -> None:
    """A stop commits what is on its way, and counts what lies on queues after that."""
    fill(tmp_path, SPOOLED, ALL)

    (queue,) = recover(message_file(tmp_path)).endpoints
    assert (queue.parts[WHOLE].messages, queue.parts[WHOLE].later_messages) == (SPOOLED, 0)


def test_a_log_of_messages_with_properties_has_all_its_topics(tmp_path: Path) -> None:
    """As many of each as of the others, and every one with a body of its size."""
    fill_log(tmp_path, 450)

    with RunningGateway(settings_for(tmp_path)) as gateway:
        reader = gateway.call(lambda running: running.vpns["default"].reader)
        rows = reader.log_page(1, 451, ()).rows
    assert {topic: sum(row[2] == topic for row in rows) for topic in TOPICS} == dict.fromkeys(TOPICS, 150)
    assert all(len(row[CONTENT]) > BODY_BYTES for row in rows)


def test_a_message_that_nobody_takes_is_not_passed_over(tmp_path: Path) -> None:
    """A folder with less than was asked for would make a fast figure."""
    with pytest.raises(LoadFailed, match="nobody wanted"):
        publish_into(tmp_path, numbered("a", 0, 10), Vpn(replay_log=ReplayLog(enabled=False)))
