"""`rewind store backup`, `restore` and `copy` as people run them, beside gateways and between them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from proton import symbol

from store.copies import LEAST_SKIPPED
from tests.support.client import SELECTOR, Client, Received, numbered, refusal, texts
from tests.support.messages import data
from tests.support.postgresql import Server
from tests.support.publishing import Publishing
from tests.system.conftest import Start
from tests.system.gateway_process import ROOT, GatewayProcess

LISTENER = '[[listener]]\nhost = "127.0.0.1"\nport = 0\n'
CONFIG = f"""
{LISTENER}
{LISTENER}
event_hubs_mode = true
[vpn.default.queue.orders]
subscriptions = ["orders/>"]
[vpn.default.queue.hub]
kind = "stream"
subscriptions = ["orders/>"]
"""


def rewind(*arguments: object, status: int = 0) -> str:
    """``rewind store`` in a process of its own; what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "gateway", "store", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status, done.stdout
    return done.stdout


@contextmanager
def connected(gateway: GatewayProcess, listener: int = 0) -> Iterator[Client]:
    """A client, closed at the end as the protocol has it: what it has settled has arrived."""
    with Client(gateway.ready["amqp"][listener]) as client:
        yield client
        client.close()


def publish(gateway: GatewayProcess, *numbers: int) -> None:
    with connected(gateway) as client:
        client.sender("topic://orders/a").send_all(map(data, numbers))


def read(gateway: GatewayProcess, count: int, begin: str = "beginning") -> list[Received]:
    """Messages of the log."""
    with connected(gateway) as client:
        return client.receiver("log://>", filters={"rewind:replay-start": begin}, credit=count).take(count)


def replay_ids(gateway: GatewayProcess, count: int, begin: str = "beginning") -> list[str]:
    return [str(message.annotations["x-opt-replay-id"]) for message in read(gateway, count, begin)]


def on_queue(gateway: GatewayProcess, count: int) -> list[str]:
    with connected(gateway) as client:
        return texts(client.receiver("orders", credit=count).take_and_accept(count))


def after_offset(gateway: GatewayProcess, offset: int, count: int) -> list[str]:
    """What a client of Event Hubs is given."""
    hub = "hub/ConsumerGroups/$Default/Partitions/0"
    with connected(gateway, 1) as client:
        filters = {SELECTOR: f"amqp.annotation.x-opt-offset > '{offset}'"}
        return texts(client.receiver(hub, filters=filters, credit=count).take(count))


def test_a_backup_beside_publishers_is_a_beginning_of_the_log(start: Start, tmp_path: Path) -> None:
    """Every message that was accepted before it was begun, and of the others the first ones; nobody is disturbed."""
    gateway = start(CONFIG, listen=())
    to = tmp_path / "backup.db"
    with Publishing(gateway.url, "topic://orders/a") as publishing:
        publishing.wait_for(2_000)
        before = publishing.accepted
        assert f"{to}: sound, " in rewind("backup", to, "--data", gateway.data)
        publishing.stop()
        sent = publishing.next
    gateway.stop()
    rewind("restore", to, "--data", gateway.data, "--replace")
    with connected(start(CONFIG, listen=())) as client:
        found = texts(client.read_log())
    assert before <= len(found) <= sent
    assert found == numbered(len(found))


def test_what_was_told_of_a_lost_log_means_nothing_in_the_restored_one(start: Start, tmp_path: Path) -> None:
    """
    Messages 5 to 9 came after the backup. Their replay ids are refused, wherever they are of; a plain offset of theirs
    leads to the first message that came after the restoring; and that one has an id that nobody has seen. Clients of
    Event Hubs keep plain offsets: one of an event that is in the backup is that event's, and none is another's.
    """
    gateway = start(CONFIG, listen=())
    publish(gateway, *range(5))
    assert on_queue(gateway, 3) == numbered(3)
    backup = tmp_path / "backup.db"
    rewind("backup", backup, "--data", gateway.data)
    publish(gateway, *range(5, 10))
    assert on_queue(gateway, 3) == numbered(3, 6)
    assert after_offset(gateway, 2, 8) == numbered(2, 10)
    ids = replay_ids(gateway, 10)
    said = rewind("restore", backup, "--data", gateway.data, "--replace", status=1)
    assert f"another gateway uses it (process {gateway.pid})" in said
    gateway.kill()
    said = rewind("restore", backup, "--data", gateway.data, status=1)
    assert "there is a store already. Say --replace" in said
    said = rewind("restore", backup, "--data", gateway.data, "--replace")
    assert "messages up to 5; the log's generation is " in said
    next_id = int(said.splitlines()[-2].rpartition(" ")[2].replace(",", ""))
    assert next_id > 10 + LEAST_SKIPPED

    restored = start(CONFIG, listen=())
    publish(restored, 100, 101)
    with connected(restored) as client:
        for replay_id in ids:
            for asked in (replay_id, {symbol("at"): replay_id}):
                refused = refusal(client.receiver, "log://>", filters={"rewind:replay-start": asked})
                assert (refused.replay_error, refused.subcode) == ("log-modified", 145)
    for offset in range(6, 11):
        assert texts(read(restored, 2, f"#{offset}")) == ["100", "101"]
        assert after_offset(restored, offset - 1, 2) == ["100", "101"]
    whole = read(restored, 7)
    assert texts(whole) == [*numbered(5), "100", "101"]
    assert after_offset(restored, 2, 5) == texts(whole)[2:]
    assert [message.id for message in whole] == [1, 2, 3, 4, 5, next_id, next_id + 1]
    # What was consumed after the backup comes again, and nothing else.
    assert on_queue(restored, 4) == ["3", "4", "100", "101"]


def test_a_store_moves_to_another_folder(start: Start, tmp_path: Path) -> None:
    """Consumers go on where they were, with the replay ids they have; the old gateway does not start again."""
    gateway = start(CONFIG, listen=())
    publish(gateway, *range(5))
    assert on_queue(gateway, 3) == numbered(3)
    (replay_id,) = replay_ids(gateway, 1, "last")
    said = rewind("copy", gateway.data, tmp_path / "other", status=1)
    assert "another gateway uses it" in said
    gateway.stop()
    said = rewind("copy", gateway.data, tmp_path / "other")
    assert "default.db: sound, 5 messages, the next is 6; " in said
    assert "default.db: closed; the copy goes on with its ids" in said
    moved = start(CONFIG, listen=(), data=tmp_path / "other")
    publish(moved, 5)
    assert texts(read(moved, 1, replay_id)) == ["5"]
    assert on_queue(moved, 3) == numbered(3, 6)
    moved.stop()
    with pytest.raises(AssertionError, match="which goes on with its ids"):
        start(CONFIG, listen=())


@pytest.mark.postgresql
def test_a_store_moves_to_postgresql_and_back(start: Start, tmp_path: Path, postgresql: Server) -> None:
    """Consumers go on where they were, both times; what was closed is not opened, by name of where it went."""
    place = f"url = '{postgresql.url()}'"
    on_postgresql = f"{CONFIG}\n[vpn.default.store]\n{place}\n"
    gateway = start(CONFIG, listen=())
    publish(gateway, *range(5))
    assert on_queue(gateway, 3) == numbered(3)
    (replay_id,) = replay_ids(gateway, 1, "last")
    gateway.stop()
    said = rewind("copy", gateway.data, postgresql.url())
    assert "schema rewind_default: sound, 5 messages, the next is 6; " in said
    assert "default.db: closed; the copy goes on with its ids" in said
    moved = start(on_postgresql, listen=(), data=tmp_path / "moved")
    publish(moved, 5, 6)
    assert texts(read(moved, 2, replay_id)) == ["5", "6"]
    assert on_queue(moved, 1) == ["3"]
    said = rewind("copy", postgresql.url(), tmp_path / "back", status=1)
    assert "cannot copy" in said
    assert "has it" in said
    moved.stop()
    assert rewind("check", postgresql.url()).endswith(": sound\n")
    said = rewind("copy", postgresql.url(), tmp_path / "back")
    assert "default.db: sound, 7 messages, the next is 8; " in said
    closed = start(on_postgresql, listen=(), data=tmp_path / "moved")
    assert "which goes on with its ids" in closed.wait_for_log("alarm_raised", alarm="store")["reason"]
    closed.stop()
    back = start(CONFIG, listen=(), data=tmp_path / "back")
    publish(back, 7)
    assert texts(read(back, 3, replay_id)) == ["5", "6", "7"]
    assert on_queue(back, 4) == numbered(4, 8)
