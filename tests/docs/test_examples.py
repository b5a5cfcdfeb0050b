"""What the documentation shows is what happens: every block of it is run, page by page, in order."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.examples import PAGES, ROOT, RUN, SHOWN, Block, Reader, blocks

MARKS = {"", "file", "gateway", "output", "fails", "spark", "not run", "generated"}


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _read(page: Path, folder: Path, *, spark: bool) -> None:
    folder.mkdir(exist_ok=True)
    left_out = False
    with Reader(folder) as reader:
        for block in blocks(page):
            if block.mark == "output" and left_out:
                continue
            left_out = block.mark == "not run" or (block.mark == "spark" and not spark)
            if (
                not left_out
                and (block.is_run or block.mark in {"output", "file"})
                and block.mark != "generated"
            ):
                reader.read(block)


def _pages(*, spark: bool) -> list[Path]:
    found = {page: blocks(page) for page in PAGES}
    needs = [page for page in PAGES if any(block.mark == "spark" for block in found[page])]
    return needs if spark else [page for page in PAGES if any(block.is_run for block in found[page])]


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("page", _pages(spark=False), ids=_name)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path) -> None:
    """Every block is run as it stands, but for the ports; what it shows as printed is printed."""
    _read(page, tmp_path / "checkout", spark=False)


@pytest.mark.spark
@pytest.mark.skipif(find_spec("pyspark") is None, reason="no pyspark here")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", _pages(spark=True), ids=_name)
def test_a_page_with_spark_does_what_it_says(page: Path, tmp_path: Path) -> None:
    """The same with the blocks that need Spark."""
    _read(page, tmp_path / "checkout", spark=True)


def test_every_block_is_run_or_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    """A block of a language that can be run is run; others are marked, with a reason; the list is printed."""
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
