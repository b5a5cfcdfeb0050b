"""The documentation shows what really happens: every block is run, page by page, in order. And the README is short."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.docs.examples import PAGES, ROOT, RUN, SHOWN, Block, Reader, blocks

MARKS = {"", "file", "gateway", "output", "fails", "spark", "not run", "generated"}

SPARK = (
    pytest.mark.spark,
    pytest.mark.skipif(find_spec("pyspark") is None, reason="no pyspark here"),
    pytest.mark.timeout(600),
)


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _read(page: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    left_out = False
    with Reader(folder) as reader:
        for block in blocks(page):
            if block.mark == "output" and left_out:
                continue
            left_out = block.mark == "not run"
            if (block.is_run or block.mark in {"output", "file"}) and block.mark != "generated":
                reader.read(block)


def _pages() -> Iterator[Any]:
    """The pages with a block to run; those with a block that needs Spark are marked ``spark``."""
    for page in PAGES:
        found = blocks(page)
        if any(block.is_run for block in found):
            needs_spark = any(block.mark == "spark" for block in found)
            yield pytest.param(page, id=_name(page), marks=SPARK if needs_spark else ())


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("page", list(_pages()))
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    """Every block is run unchanged except for the ports, and prints what the page shows."""
    _read(page, tmp_path / "checkout")


def test_every_block_is_run_or_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    """Every block in a language that can be run is run, or marked with a reason; the marked ones are printed."""
    found: list[Block] = [block for page in PAGES for block in blocks(page)]
    strange = [str(block) for block in found if block.mark not in MARKS]
    assert not strange, strange
    silent = [
        f"{block} ({block.language or 'no language'})"
        for block in found
        if block.language not in RUN | SHOWN and not (block.mark == "not run" and block.value)
    ]
    assert not silent, silent
    left_out = [block for block in found if block.mark == "not run"]
    assert all(len(block.value.split()) > 2 for block in left_out)
    with capsys.disabled():
        for block in left_out:
            print(f"\nnot run: {block}: {block.value}", end="")


def test_diagrams_have_a_statement_a_line() -> None:
    """Mermaid draws nothing where a statement stands behind the kind of diagram, as when lines were joined."""
    diagrams = [block for page in PAGES for block in blocks(page) if block.language == "mermaid"]
    assert len(diagrams) > 2
    assert {block.text.splitlines()[0] for block in diagrams} <= {
        "flowchart LR",
        "erDiagram",
        "stateDiagram-v2",
    }


README = ROOT / "README.md"
LONGEST = 150
"""The most lines of the README."""


def test_it_is_short() -> None:
    """A new reader needs only some minutes for it."""
    assert len(README.read_text(encoding="utf-8").splitlines()) <= LONGEST


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_its_links_lead_somewhere(name: str) -> None:
    """The links of the other top-level pages, too; building the site checks the links of the docs."""
    text = (ROOT / name).read_text(encoding="utf-8")
    for path in re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", text):
        assert (ROOT / path).exists(), path
