"""`rewind store backup`, `restore` and `copy` as people run them, beside gateways and between them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from proton import symbol

from store.copies import LEAST_SKIPPED
from tests.support.client import Client, Received, Refused, texts
from tests.support.messages import data
from tests.support.postgresql import Server
from tests.support.publishing import Publishing
from tests.system.conftest import Start
from tests.system.gateway_process import ROOT, GatewayProcess

CONFIG = """
[vpn.default.queue.orders]
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


def connect(gateway: GatewayProcess) -> Client:
    return Client("{}:{}".format(*gateway.address))


def publish(gateway: GatewayProcess, *numbers: int) -> None:
    with connect(gateway) as client:
        client.sender("topic://orders/a").send_all(map(data, numbers))
        client.close()


def read(gateway: GatewayProcess, count: int, begin: str = "beginning") -> list[Received]:
    """Messages of the log."""
    with connect(gateway) as client:
        taken = client.receiver("log://>", filters={"rewind:replay-start": begin}, credit=count).take(count)
        client.close()
    return taken


def on_queue(gateway: GatewayProcess, count: int) -> list[str]:
    with connect(gateway) as client:
        found = client.receiver("orders", credit=count).take_and_accept(count)
        client.close()
    return texts(found)


def numbers(*spans: range) -> list[str]:
    return [str(number) for span in spans for number in span]


def test_a_backup_beside_publishers_is_a_beginning_of_the_log(start: Start, tmp_path: Path) -> None:
    """Every message that was accepted before it was begun, and of the others the first ones; nobody is disturbed."""
    gateway = start(CONFIG)
    to = tmp_path / "backup.db"
    with Publishing("{}:{}".format(*gateway.address), "topic://orders/a") as publishing:
        publishing.wait_for(2_000)
        before = publishing.accepted
        assert f"{to}: sound, " in rewind("backup", to, "--data", gateway.data)
        publishing.stop()
        sent = publishing.next
    gateway.stop()
    rewind("restore", to, "--data", gateway.data, "--replace")
    restored = start(CONFIG)
    with connect(restored) as client:
        found = texts(client.receiver("log://>?replay-start=beginning&until=now").take_to_end())
        client.close()
    assert before <= len(found) <= sent
    assert found == numbers(range(len(found)))


def test_what_was_told_of_a_lost_log_means_nothing_in_the_restored_one(start: Start, tmp_path: Path) -> None:
    """
    Messages 5 to 9 came after the backup. Their replay ids are refused, wherever they are of; a plain offset of theirs
    leads to the first message that came after the restoring; and that one has an id that nobody has seen.
    """
    gateway = start(CONFIG)
    publish(gateway, *range(5))
    assert on_queue(gateway, 3) == numbers(range(3))
    rewind("backup", tmp_path / "backup.db", "--data", gateway.data)
    publish(gateway, *range(5, 10))
    assert on_queue(gateway, 3) == numbers(range(3, 6))
    replay_ids = [str(message.annotations["x-opt-replay-id"]) for message in read(gateway, 10)]
    said = rewind("restore", tmp_path / "backup.db", "--data", gateway.data, "--replace", status=1)
    assert f"another gateway uses it (process {gateway.pid})" in said
    gateway.stop()
    said = rewind("restore", tmp_path / "backup.db", "--data", gateway.data, status=1)
    assert "there is a store already. Say --replace" in said
    said = rewind("restore", tmp_path / "backup.db", "--data", gateway.data, "--replace")
    assert "messages up to 5; the log's generation is " in said
    next_id = int(said.splitlines()[-2].rpartition(" ")[2].replace(",", ""))
    assert next_id > 10 + LEAST_SKIPPED

    restored = start(CONFIG)
    publish(restored, 100, 101)
    with connect(restored) as client:
        for replay_id in replay_ids:
            for asked in (replay_id, {symbol("at"): replay_id}):
                with pytest.raises(Refused) as refused:
                    client.receiver("log://>", filters={"rewind:replay-start": asked})
                assert (refused.value.replay_error, refused.value.subcode) == ("log-modified", 145)
        client.close()
    for offset in range(6, 11):
        assert texts(read(restored, 2, f"#{offset}")) == ["100", "101"]
    whole = read(restored, 7)
    assert texts(whole) == [*numbers(range(5)), "100", "101"]
    assert [message.id for message in whole] == [1, 2, 3, 4, 5, next_id, next_id + 1]
    # What was consumed after the backup comes again, and nothing else.
    assert on_queue(restored, 4) == ["3", "4", "100", "101"]


def test_an_offset_of_event_hubs_that_is_gone_is_where_new_events_begin(start: Start, tmp_path: Path) -> None:
    """Its clients keep plain offsets: one of an event that is in the backup is that event's, and none is another's."""
    listener = '[[listener]]\nhost = "127.0.0.1"\nport = 0\nevent_hubs_mode = true\n'
    gateway = start(listener, listen=())
    hub = "hub/ConsumerGroups/$Default/Partitions/0"

    def send(gateway: GatewayProcess, *sent: int) -> None:
        with connect(gateway) as client:
            client.sender("hub").send_all(map(data, sent))
            client.close()

    def after(gateway: GatewayProcess, offset: int, count: int) -> list[str]:
        selector = f"amqp.annotation.x-opt-offset > '{offset}'"
        with connect(gateway) as client:
            receiver = client.receiver(
                hub, filters={"apache.org:selector-filter:string": selector}, credit=count
            )
            found = texts(receiver.take(count))
            client.close()
        return found

    send(gateway, 1, 2, 3)
    rewind("backup", tmp_path / "backup.db", "--data", gateway.data)
    send(gateway, 4, 5, 6)
    assert after(gateway, 2, 4) == ["3", "4", "5", "6"]
    gateway.kill()
    rewind("restore", tmp_path / "backup.db", "--data", gateway.data, "--replace")
    restored = start(listener, listen=())
    send(restored, 7, 8)
    assert after(restored, 2, 3) == ["3", "7", "8"]
    for offset in (3, 4, 5, 6):
        assert after(restored, offset, 2) == ["7", "8"]


def test_a_store_moves_to_another_folder(start: Start, tmp_path: Path) -> None:
    """Consumers go on where they were, with the replay ids they have; the old gateway does not start again."""
    gateway = start(CONFIG)
    publish(gateway, *range(5))
    assert on_queue(gateway, 3) == numbers(range(3))
    (last,) = read(gateway, 1, "last")
    replay_id = str(last.annotations["x-opt-replay-id"])
    said = rewind("copy", gateway.data, tmp_path / "other", status=1)
    assert "another gateway uses it" in said
    gateway.stop()
    said = rewind("copy", gateway.data, tmp_path / "other")
    assert "default.db: sound, 5 messages, the next is 6; " in said
    assert "default.db: closed; the copy goes on with its ids" in said
    moved = start(CONFIG, data=tmp_path / "other")
    publish(moved, 5)
    assert texts(read(moved, 1, replay_id)) == ["5"]
    assert on_queue(moved, 3) == numbers(range(3, 6))
    moved.stop()
    with pytest.raises(AssertionError, match="which goes on with its ids"):
        start(CONFIG)


@pytest.mark.postgresql
def test_a_store_moves_to_postgresql_and_back(start: Start, tmp_path: Path, postgresql: Server) -> None:
    """Consumers go on where they were, both times; what was closed is not opened, by name of where it went."""
    place = f"url = '{postgresql.url()}'"
    on_postgresql = f"{CONFIG}\n[vpn.default.store]\n{place}\n"
    gateway = start(CONFIG)
    publish(gateway, *range(5))
    assert on_queue(gateway, 3) == numbers(range(3))
    (last,) = read(gateway, 1, "last")
    replay_id = str(last.annotations["x-opt-replay-id"])
    gateway.stop()
    said = rewind("copy", gateway.data, postgresql.url())
    assert "schema rewind_default: sound, 5 messages, the next is 6; " in said
    assert "default.db: closed; the copy goes on with its ids" in said
    moved = start(on_postgresql, data=tmp_path / "moved")
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
    closed = start(on_postgresql, data=tmp_path / "moved")
    assert "which goes on with its ids" in closed.wait_for_log("alarm_raised", alarm="store")["reason"]
    closed.stop()
    back = start(CONFIG, data=tmp_path / "back")
    publish(back, 7)
    assert texts(read(back, 3, replay_id)) == ["5", "6", "7"]
    assert on_queue(back, 4) == numbers(range(4, 8))
