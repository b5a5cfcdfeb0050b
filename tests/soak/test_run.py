"""A soak run of seconds: all of its clients do their part, and everything is accounted for."""

from __future__ import annotations

from pathlib import Path

import pytest

from .__main__ import Soak
from .report import CURVES


@pytest.mark.system
@pytest.mark.slow
def test_a_short_run_accounts_for_everything(tmp_path: Path) -> None:
    """All kinds of clients have done something, nothing is lost, and the folder has samples, summary and picture."""
    soak = Soak(tmp_path / "soak", queues=3, rate=200, sample_seconds=1)
    try:
        soak.last(8)
        is_well = soak.write()
    finally:
        if soak.gateway.is_running:
            soak.gateway.kill()
    assert soak.run.faults() == []
    assert is_well or len(soak.samples) >= 8
    assert all(account.accepted_count for account in soak.run.accounts)
    done = ("deaths", "read", "purges", "queues_made", "reloads", "scrapes", "subscriptions", "transactions")
    assert {name for name in done if not soak.run.counts.get(name)} == set()
    assert len((tmp_path / "soak" / "samples.jsonl").read_text().splitlines()) == len(soak.samples)
    assert (tmp_path / "soak" / "curves.svg").read_text().count("<polyline") == len(CURVES)
