"""`rewind upgrade-check`: what a start would do, for a configuration or a place; and settings of another version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from gateway.cli import main
from gateway.core.endpoint.settings import EndpointSettings
from tests.store.earlier import earlier_file
from tests.store.effects import publication, queue
from tests.store.vpn_file import MADE_MS, execute, new_file, written
from tests.system.gateway_process import GatewayFailed, GatewayProcess

CONFIGURATION = """
[vpn.default.replay_log]
index = ["flight"]

[vpn.default.queue.orders]
max_redelivery = 5
priorities = true

[vpn.default.queue.history]

[vpn.default.queue.more]
kind = "stream"

[vpn.other]
"""


def asked(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["upgrade-check", *map(str, arguments)])


def test_by_a_configuration(tmp_path: Path) -> None:
    """Migrations, changed queues, the index, and the way back; a missing store would be created."""
    file = earlier_file("m005_retries", tmp_path / "default.db")
    before = file.read_bytes()
    (tmp_path / "rewind.toml").write_text(CONFIGURATION)
    done = asked(tmp_path / "rewind.toml", "--data", tmp_path)
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        f"default: {file}",
        "  step m006_last_values: immediately",
        "  step m007_dedup: immediately",
        "  changes 'orders': priorities from false to true, max_redelivery from 3 to 5, dead_message_queue from "
        '"orders.dead" to ""',
        "  arranges 33 messages on 'orders' again, by priority",
        "  makes the stream 'history' a queue, or is refused if that would lose messages",
        "  makes the stream 'more'",
        "  indexes 'flight' from the next message on",
        "  no longer indexes 'order'",
        "  way back: only a backup: the previous version refuses a store with these steps",
        f"other: {tmp_path}/other.db",
        "  does not exist: a start makes it",
    ]
    first, second = map(
        json.loads, asked(tmp_path / "rewind.toml", "--data", tmp_path, "--json").output.splitlines()
    )
    assert first["steps"] == [{"name": "m006_last_values", "rows": 0}, {"name": "m007_dedup", "rows": 0}]
    assert (first["schema"], first["wayBack"], first["refusal"]) == ("m005_retries", "backup", None)
    assert (second["schema"], second["wayBack"]) == (None, "open")
    assert (file.read_bytes(), sorted(tmp_path.iterdir())) == (before, [file, tmp_path / "rewind.toml"])
    (tmp_path / "rewind.toml").write_text("[vpn.default]\nqueues = 1\n")
    assert asked(tmp_path / "rewind.toml").exit_code == 2


def test_by_a_place(tmp_path: Path) -> None:
    """A folder, or a file in it, also while a gateway has it open; one of this version can still be downgraded."""
    gateway = GatewayProcess(tmp_path / "data")
    try:
        for place in (gateway.data, gateway.data / "default.db"):
            done = asked(place)
            assert done.exit_code == 0, done.output
            assert "tables: as this version has them" in done.output and "way back: open:" in done.output
    finally:
        gateway.stop()
    (tmp_path / "text.db").write_text("no database" * 1_000)
    done = asked(tmp_path / "text.db")
    assert (done.exit_code, "is refused: it cannot be read" in done.output) == (1, True)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("json_set(settings, '$.of_later', 1)", "it keeps the setting 'of_later'"),
        ("json_set(settings, '$.exclusive', 'shared')", "'shared' is not a valid Exclusivity"),
        ("json_remove(settings, '$.partitions')", ""),
    ],
)
def test_settings_of_another_version(change: str, says: str, tmp_path: Path) -> None:
    """
    Settings of a later version are refused with the reason, by a start, too. Settings that an earlier version lacks do
    not prevent a downgrade until they are written.
    """
    file = new_file(tmp_path / "default.db")
    written(
        file,
        [
            queue(1, "q", settings=EndpointSettings().to_json()),
            [publication(1, [b"x"], endpoints=(1,), time_ms=MADE_MS)],
        ],
    )
    execute(file, f"update endpoint set settings = {change}")
    done = asked(file)
    if not says:
        assert (done.exit_code, "does not know the settings partitions" in done.output) == (0, True)
        return
    assert (done.exit_code, f"{says} of 'q'; it was written by a later version" in done.output) == (1, True)
    with pytest.raises(GatewayFailed, match=f"{says}. It was written by a later version: use that"):
        GatewayProcess(tmp_path)
