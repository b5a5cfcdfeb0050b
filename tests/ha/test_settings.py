"""What the guide has Patroni do is what ``./run ha`` tries."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .node import CLUSTER

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "guides" / "two-machines.md").read_text()
SETTINGS = {
    **{name: value for name, value in CLUSTER.items() if name != "postgresql"},
    **{name: CLUSTER["postgresql"][name] for name in ("use_pg_rewind", "use_slots")},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_guide_names_the_settings_that_are_tried(name: str) -> None:
    """Each setting of the cluster stands in the guide's configuration, with the value that it has here."""
    value = SETTINGS[name]
    written = {True: "true", False: "false"}[value] if isinstance(value, bool) else str(value)
    assert re.findall(rf"^ +{name}: (\S+)$", GUIDE, re.MULTILINE) == [written]
