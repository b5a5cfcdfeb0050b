"""The README is a front door: short, and what it shows is what happens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.examples import ROOT, Reader, blocks

README = ROOT / "README.md"
LONGEST = 150
"""Lines of the README at most."""


@pytest.mark.system
def test_the_example_of_the_readme_works_as_written(tmp_path: Path) -> None:
    """It publishes three messages and reads them from the log's beginning; only the port is the test's own."""
    (example,) = [block for block in blocks(README) if block.language == "python"]
    assert example.text.count("127.0.0.1:5672") == 1
    with Reader(tmp_path) as reader:
        lines = reader.read(example).splitlines()
    assert [line.split(" rmid1:")[0] for line in lines] == ["order 0", "order 1", "order 2"]
    assert len({line.split()[-1] for line in lines}) == 3


def test_it_is_short() -> None:
    """A stranger reads it in some minutes."""
    assert len(README.read_text(encoding="utf-8").splitlines()) <= LONGEST


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_its_links_lead_somewhere(name: str) -> None:
    """So do those of the pages beside it; the links of docs are checked where the site is built."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for path in re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", text):
        assert (ROOT / path).exists(), path
