"""Records of replays through the port, in every engine: kept, changed, dropped, and not kept where a commit fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gateway.core.effects import DropReplayRecords, SaveReplayRecord
from gateway.core.model import COPY, ENDPOINT, ReplayRecord
from store.ports import UNDONE_BY_FAILURE, Store, StoreOptions
from tests.store.effects import publication
from tests.store.port.adapters import Adapter
from tests.store.port.test_port import write
from tests.store.vpn_file import MADE_MS

OPTIONS = StoreOptions(
    page_rows=20, page_bytes=1 << 20, read_threads=1, checkpoint_bytes=1 << 20, synchronous="OFF"
)

COPYING = ReplayRecord(
    3,
    "nightly \N{SNOWMAN}",
    COPY,
    "ops",
    start="beginning",
    until="10m",
    subscriptions=("a/>", "b"),
    selector="k = 'x'",
    target="#queue/q",
    rate=2.5,
    speed=1.0,
    state="running",
    position=17,
    read=16,
    sent=9,
    size_bytes=900,
    started_ms=5,
)


def test_records_are_found_as_they_were_last_saved(adapter: Adapter, tmp_path: Path) -> None:
    """By number, with all they say; a dropped one is gone, and its name can be another's."""
    stores = adapter.stores(tmp_path)

    def opened() -> Store:
        return stores.open("vpn", MADE_MS, OPTIONS)

    old = ReplayRecord(1, "old", ENDPOINT, "u@c", target="q", state="complete", ended_ms=4, outcome="\0")
    again = replace(old, number=7, state="active", ended_ms=0)
    try:
        write(opened(), [[SaveReplayRecord(COPYING)], [SaveReplayRecord(old)]])
        store = opened()
        assert store.recovered.records == [old, COPYING]
        further = replace(COPYING, position=20, sent=11)
        write(
            store,
            [
                [publication(1, [b"x"], time_ms=MADE_MS), SaveReplayRecord(further)],
                [DropReplayRecords((1, 2)), SaveReplayRecord(again)],
            ],
        )
        store = opened()
        assert store.recovered.records == [further, again]
        store.close()
    finally:
        stores.remove("vpn")


def test_a_record_that_was_not_committed_is_not_written_later() -> None:
    """It stands or falls with what a job published: a store does not keep it for its next transaction."""
    assert issubclass(SaveReplayRecord, UNDONE_BY_FAILURE)
