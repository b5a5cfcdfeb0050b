"""
The comparison with the one broker that is always available; the table of all brokers, and the page that it goes into.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from datetime import date
from pathlib import Path

import pytest

from tests.bench.peers.__main__ import main
from tests.bench.peers.broker import BrokerProcess
from tests.bench.peers.java_brokers import BrokerJ
from tests.bench.peers.page import PAGE, conditions, table, write
from tests.bench.peers.rabbitmq import RabbitMq
from tests.bench.peers.rewind import Rewind
from tests.support import proc
from tests.support.ports import free_port
from tests.support.running import RunningGateway, settings_for
from tests.support.tcp_proxy import Proxy
from tests.support.waiting import wait_until

BURN = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass\ntime.sleep(60)"
PARENT = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {BURN!r}]).wait()"


def test_rewind_is_measured_in_all_that_it_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There are figures only if messages come back durable, numbered and in order."""
    status = main(
        ["rewind", "--count", "2000", "--single", "50", "--rounds", "1", "--json", "--keep-in", str(tmp_path)]
    )

    (figures,) = json.loads(capsys.readouterr().out)["rewind"]
    assert status == 0
    for name in ("publish", "consume", "replay"):
        assert figures[name] > 0
        assert figures[f"{name}-memory"] > 10
    assert 0 < figures["single-p50"] <= figures["single-p99"]
    assert figures["commit-p50"] > 0
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


def test_a_brokers_children_are_counted_with_it() -> None:
    """
    The processor time and memory of child processes, such as a virtual machine under a start script, are the broker's.
    """
    with BrokerProcess([sys.executable, "-c", PARENT], free_port()) as process:
        wait_until(lambda: proc.cpu_seconds(process.pids()) >= 0.3, "its child has used so much")
        pids = process.pids()
        assert len(pids) == 2
        assert proc.resident_bytes(pids) > 2 * 4_000_000
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_a_broker_is_ready_when_a_publisher_can_attach(tmp_path: Path) -> None:
    """An open port is not enough: an attach must succeed."""
    idle = [sys.executable, "-c", "import time; time.sleep(60)"]
    with RunningGateway(settings_for(tmp_path)) as gateway:
        host, _, port = gateway.address.partition(":")
        with Proxy((host, int(port))) as proxy, BrokerProcess(idle, proxy.port) as process:
            proxy.refuses = True

            def let_in() -> None:
                wait_until(lambda: proxy.connections >= 2, "two are cut")
                proxy.refuses = False

            opening = threading.Thread(target=let_in)
            opening.start()
            process.wait_for_port()
            process.wait("queue://bench")
            opening.join()
    assert proxy.connections > 2


REWIND, OTHER = Rewind(), BrokerJ()


def figures(rate: float, others: float = 0.0) -> dict[str, float]:
    """A round of a broker that has no replay."""
    return {
        "publish": rate,
        "publish-cpu": 7.6,
        "publish-memory": 1_234.4,
        "consume": 2 * rate,
        "consume-cpu": 9.2,
        "consume-memory": 99.0,
        "single-p50": 0.512,
        "single-p99": 1.3,
        "commit-p50": 0.244,
        "others-cores": others,
    }


ROUNDS = {
    "rewind": [figures(rate) | {"replay": 150_000.0} for rate in (90_000.0, 123_456.0, 100_000.0)],
    "broker-j": [figures(34_567.0), figures(20_000.0, others=0.7), figures(30_000.0)],
}


def test_a_column_has_a_brokers_medians_least_and_most() -> None:
    """A figure that a broker does not have is a dash, not a zero."""
    lines = table([REWIND, OTHER], ROUNDS).splitlines()

    assert lines[0] == f"| | {REWIND.title} | Qpid Broker-J 9.2.1 |"
    assert lines[2].endswith("| yes (SQLite) | yes (Berkeley DB) |")
    assert lines[3] == "| publish, msg/s | 100,000 [90,000 to 123,500] | 30,000 [20,000 to 34,600] |"
    assert lines[5].endswith("| 150,000 [150,000 to 150,000] | – |")
    assert lines[6].endswith("| 0.51 / 1.30 | 0.51 / 1.30 |")
    assert lines[7].endswith("| 8 / 9 / – | 8 / 9 / – |")
    assert lines[8].endswith("| 1,234 / 99 / – | 1,234 / 99 / – |")


def test_the_conditions_name_the_day_the_machine_and_what_disturbed_it() -> None:
    """The day, the machine, and other processes that disturbed the run."""
    lines = conditions(ROUNDS, 100_000, 2_000, date(2026, 11, 22)).splitlines()

    assert max(map(len, lines)) <= 120
    text = " ".join(lines)

    assert text.startswith("2026-11-22, ")
    assert "rounds: 3;" in text
    assert "took 0.24 ms" in text
    assert "100,000 for rates and 2,000 one by one" in text
    assert text.endswith("In 1 of 6 turns other processes were at work on the machine.")


def test_the_table_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    """The text outside the marks stays; a page without marks is an error."""
    page, before = tmp_path / "figures.md", PAGE.read_text(encoding="utf-8")
    page.write_text(before, encoding="utf-8")

    write("| new |", page)

    mark, end = "<!-- measured: peers -->\n", "<!-- end -->"
    front, _, rest = before.partition(mark)
    behind = rest.partition(end)[2]
    assert page.read_text(encoding="utf-8") == f"{front}{mark}\n| new |\n\n{end}{behind}"
    page.write_text("nothing", encoding="utf-8")
    with pytest.raises(ValueError, match="0 places"):
        write("| new |", page)


@pytest.mark.parametrize(
    ("version", "address", "can_replay"),
    [("3.10.8", "/amq/queue/bench", False), ("4.3.6", "/queues/bench", True)],
)
def test_rabbitmq_is_spoken_to_as_its_version_wants(version: str, address: str, can_replay: bool) -> None:
    """Addresses changed with version 4; before it, a stream ignores offsets over AMQP 1.0."""
    quorum, stream = RabbitMq("quorum", version), RabbitMq("stream", version)

    assert quorum.queue("bench") == stream.queue("bench") == address
    assert (stream.replay is not None) is can_replay
    assert quorum.replay is None
    assert (quorum.is_consumed, stream.is_consumed) == (True, False)
